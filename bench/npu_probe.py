"""What Intel's NPU compiler takes, found by compiling: legality of the intel-npu targets.

Usage: python bench/npu_probe.py [--platform 4000] [--ops add,...] [--minutes 4.5] [--write] [--out FOLDER]

``query_model`` says yes to programs that then fail to compile, so each op with a kernel is compiled on every sample
that the target would place on the device: all of an op in one program, one by one when that is refused. An op with a
refused sample belongs into ``refuses``, by itself or with the kind of operands that only the refused ones have. Element
types and the largest number of axes are tried likewise, as are a few programs that fail in OpenVINO's own
conversions. ``--write`` enters the facts into the target file; the criteria say whether it has them already.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch

from forge_eq import targets
from forge_eq.ir.types import DTYPES, WEAK, TensorType
from forge_eq.lower.select import prefer
from forge_eq.npu import parts
from forge_eq.npu.compiler import Compiler, Refused
from forge_eq.npu.diagnose import diagnose
from forge_eq.ops import REGISTRY
from forge_eq.ops.spec import Op
from forge_eq.run.openvino_builder import element_type
from forge_eq.run.openvino_npu import NpuBuilder
from forge_eq.targets import Target, kinds
from kernel_samples import NAMES, Sample, samples
from npu import LEFT
from sheet import Sheet, arguments, finish, one_of, tell, where
from test_npu_failures import (
    branch,
    channels,
    from_data,
    grouped,
    multinomial,
    nothing,
    search,
    unbounded,
    unique,
)

MOST = 8  # axes that are tried
VERSION = f"Intel's NPU compiler of OpenVINO {parts.VERSION}"
OFFERED = [op for op in REGISTRY.values() if op.kernel is not None]
Facts = dict[str, Any]


def types_of(sample: Sample) -> list[TensorType]:
    return [
        TensorType(NAMES[v.dtype], tuple(v.shape)) if isinstance(v, torch.Tensor) else TensorType(WEAK, ())
        for v in sample[0]
    ]


def step(op: Op, sample: Sample) -> int:
    return int({name: value for (name, _), value in zip(op.attrs, sample[1], strict=False)}.get("step", 1))


def offered(op: Op, target: Target) -> list[Sample]:
    """The samples that the target would give to its device, whatever ``refuses`` says."""
    found = []
    for sample in samples(op):
        types = types_of(sample)
        made = op.infer(types, sample[1])
        device, _, reason = prefer(op, target, types, list(getattr(made, "items", (made,))), sample[1])
        if device != target.host or "refuses" in reason:
            found.append(sample)
    return found


def model(op: Op, cases: Sequence[Sample]) -> Any:
    """One program that computes the op on every sample."""
    g = NpuBuilder()
    parameters: list[Any] = []
    results: list[Any] = []
    for number, (operands, attrs) in enumerate(cases):
        with g.instruction(f"case{number}"):
            nodes: list[Any] = []
            for value in operands:
                if isinstance(value, torch.Tensor):
                    nodes.append(g.opset.parameter(list(value.shape), element_type(NAMES[value.dtype])))
                    parameters.append(nodes[-1])
                else:
                    nodes.append(value)
            assert op.kernel is not None
            made = op.kernel.openvino(g, *nodes, *attrs)
            results += list(made) if isinstance(made, tuple | list) else made.outputs() if op.multi else [made]
    return g.ov.Model([g.opset.result(r) for r in results], parameters, op.name)


def refused(compiler: Compiler, platform: str, made: Any) -> str:
    """Why a program is refused; empty when it is accepted."""
    answer = compiler.compile(made, platform, trace=False)
    if not isinstance(answer, Refused):
        return ""
    said = diagnose(answer)
    return f"{said.reason}: {said.first}"[:200]


def probe(op: Op, target: Target, compiler: Compiler, platform: str) -> Facts:
    """The refused samples of an op, with reasons."""
    cases = offered(op, target)
    if not cases or not refused(compiler, platform, model(op, cases)):
        return {"tried": len(cases), "refused": []}
    found = [(case, refused(compiler, platform, model(op, [case]))) for case in cases]
    rows = [[str([str(t) for t in types_of(case)]), str(case[1]), reason] for case, reason in found if reason]
    return {"tried": len(cases), "refused": rows, "entry": entry(op, [(c, bool(reason)) for c, reason in found])}


def entry(op: Op, found: Sequence[tuple[Sample, bool]]) -> str:
    """What ``refuses`` has to say for these samples, each refused or not."""
    bad = [kinds(types_of(case), step(op, case)) for case, refused in found if refused]
    good = [kinds(types_of(case), step(op, case)) for case, refused in found if not refused]
    common = set.intersection(*bad) - set().union(*good)
    return f"{op.name}/{min(common)}" if good and common else op.name


def dtypes(compiler: Compiler, platform: str) -> dict[str, str]:
    """Element type -> why a sum of two such tensors is refused, or empty."""
    found = {}
    for name in DTYPES:
        if name.startswith("c"):
            found[name] = "OpenVINO has no complex numbers"
            continue
        g = NpuBuilder()
        a, b = (g.opset.parameter([1, 64], element_type(name)) for _ in range(2))
        made = g.opset.logical_and(a, b) if name == "bool" else g.opset.add(a, b)
        found[name] = refused(compiler, platform, g.ov.Model([g.opset.result(made)], [a, b], name))
    return found


def ranks(compiler: Compiler, platform: str) -> dict[int, str]:
    """Number of axes -> why a sum or a permutation of such values is refused, or empty."""
    found = {}
    for rank in range(1, MOST + 1):
        g = NpuBuilder()
        x = g.opset.parameter([2] * rank, element_type("f32"))
        turned = g.opset.transpose(g.opset.add(x, x), g.i64(list(reversed(range(rank)))))
        found[rank] = refused(compiler, platform, g.ov.Model([g.opset.result(turned)], [x], f"rank{rank}"))
    return found


def others(compiler: Compiler, platform: str) -> dict[str, str]:
    """Programs of other kinds -> why they are refused, or empty."""
    kinds = (unbounded, channels, unique, branch, nothing, from_data, search, multinomial, grouped)
    return {kind.__name__: refused(compiler, platform, kind(NpuBuilder().ov)) for kind in kinds}


def write(path: Path, most: int, wanted: Sequence[str]) -> None:
    """Enters the facts into the NPU's part of a target file."""
    text = re.sub(r"^refuses = .*\n", "", path.read_text(encoding="utf-8"), flags=re.M)
    listed = ", ".join(f'"{w}"' for w in wanted)
    found = f"refuses = [{listed}]  # found by bench/npu_probe.py\n"
    text = re.sub(r"^max_rank = \d+(.*\n)", lambda line: f"max_rank = {most}{line[1]}{found}", text, flags=re.M)
    targets.parse(text, str(path))
    path.write_text(text, encoding="utf-8")


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "npu_probe")
    parser.add_argument("--platform", default="4000")
    parser.add_argument("--ops", type=one_of(op.name for op in OFFERED), help="only these, with commas")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--write", action="store_true", help="enter the facts into the target file")
    given = parser.parse_args(argv)
    path = Path(targets.__file__).parent / f"intel-npu-{given.platform}.toml"
    target, end = targets.load(path), time.monotonic() + 60 * given.minutes
    facts: dict[str, Facts] = {}
    chosen = [op for op in OFFERED if given.ops is None or op.name in given.ops]
    with Compiler(answers=parts.folder() / "answers", limit=60.0) as compiler:
        types, sizes = dtypes(compiler, given.platform), ranks(compiler, given.platform)
        rest = others(compiler, given.platform)
        for op in chosen:
            if time.monotonic() > end:
                tell(f"{len(chosen) - len(facts)} ops are left: run it again")
                return LEFT
            facts[op.name] = probe(op, target, compiler, given.platform)
    sheet = Sheet(f"What the compiler for NPU {given.platform} takes", where(given.threads, compiler=VERSION))
    fill(sheet, types, sizes, rest, facts)
    most = max(r for r in sizes if not any(sizes[s] for s in range(1, r + 1)))
    wanted = sorted(f["entry"] for f in facts.values() if f["refused"])
    if given.write:
        write(path, most, wanted)
    npu = targets.load(path).accelerators[0]
    sheet.demand("element types offered and refused", float(sum(bool(types[d]) for d in npu.dtypes)), 0.0)
    sheet.demand("axes offered beyond the compiler's", float(max(npu.max_rank - most, 0)), 0.0)
    sheet.demand("refusals that the target file lacks", float(len(set(wanted) - set(npu.refuses))), 0.0)
    return finish(sheet, "npu_probe", given.out)


def fill(
    sheet: Sheet, types: dict[str, str], sizes: dict[int, str], rest: dict[str, str], facts: dict[str, Facts]
) -> None:
    sheet.figures.update(dtypes=types, ranks=sizes, others=rest, ops=facts)
    sheet.table("element types", ("", "refused because"), [(k, v or "accepted") for k, v in types.items()])
    sheet.table("axes of inputs", ("", "refused because"), [(k, v or "accepted") for k, v in sizes.items()])
    sheet.table("other programs", ("", "refused because"), [(k, v or "accepted") for k, v in rest.items()])
    rows = [(n, *r) for n, f in facts.items() for r in f["refused"]]
    head = ("op", "operands", "attributes", "refused because")
    sheet.table("ops, refused samples", head, rows or [("none", "", "", "")])
    sheet.table(
        "ops", ("ops", "samples", "refused"), [(len(facts), sum(f["tried"] for f in facts.values()), len(rows))]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
