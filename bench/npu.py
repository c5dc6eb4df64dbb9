"""What Intel's NPU compiler says about our programs, beside what it says about OpenVINO's own conversion.

Usage: python bench/npu.py [--cases quick|layers|whole|platforms|decode] [--minutes 4.5] [--store FILE] [--out FOLDER]

Every figure is simulated by Intel's NPU compiler (no device, no clock: other load on the machine does not matter).
Compiles are heavy, so answers go to the store as they come and a run that is stopped goes on where it was; it ends
with status 3 while cases are left. "plain" is ``openvino.convert_model`` of the exported program with static shapes;
"host" means that the embedding lookup is done on the host, in either. A decode step has a cache of 256 rows, 128 of
them in use. A conversion forgets writes into arguments, so that "plain" there also returns the whole state, and the
step that forgets it stands beside. Ours gives the new rows, which the host writes. Where plain is refused, "changed" is
the fastest accepted of the changes in ``npu_plain``, and gains are stated against that.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from forge_eq.cached import causal
from forge_eq.families import PAPER, build
from forge_eq.models import Model
from forge_eq.npu import parts
from forge_eq.npu.compiler import SIMULATED, Answer, Compiled, Compiler
from forge_eq.npu.diagnose import diagnose
from forge_eq.npu.trace import Simulation
from npu_plain import beside, nearest, plain, returning
from npu_step import PAST, Step
from sheet import Sheet, arguments, finish, tell, where

VOCABULARY = 2048  # of truncated models: the head and the lookup are not what a layer is about
INT8 = "llama-3.1-8b"  # the paper's setting for it: int8 weights per channel, f16 activations
LARGE = ("llama-3.2-1b", "lfm2-2.6b", "llama-3.1-8b")
LEFT = 3  # exit status while cases are left
INDICES = 5.0  # microseconds for a lookup's kernel that widens indices, without a price: twice a sigmoid of 128 numbers


@dataclass(frozen=True)
class Case:
    """One model on one platform; ``layers`` 0 is the whole one with its vocabulary, ``tokens`` 1 a decode step."""

    family: str
    layers: int
    tokens: int
    platform: str

    @property
    def step(self) -> bool:
        return self.tokens == 1

    @property
    def name(self) -> str:
        depth = f"{self.layers} layer{'s' * (self.layers > 1)}" if self.layers else "whole"
        run = f"one token after {PAST}" if self.step else f"{self.tokens} tokens"
        return f"{self.family}, {depth}, {run}, NPU {self.platform}"


def _depth(family: str) -> int:
    return {"lfm2-2.6b": 3}.get(family, 2)  # LFM2's first attention layer is the third


QUICK = [Case("gpt2-124m", 2, 128, "4000")]
LAYERS = [Case(f, _depth(f), 128, "4000") for f in PAPER]
DECODE = [Case(f, _depth(f), 1, "4000") for f in PAPER]
PLATFORMS = [Case(f, _depth(f), 128, p) for p in ("3720", "5010") for f in PAPER]
WHOLE = [Case("gpt2-124m", 0, 128, "4000"), Case("smollm2", 0, 128, "4000")]
CASES = {"quick": QUICK, "layers": LAYERS, "decode": DECODE, "whole": WHOLE, "platforms": PLATFORMS}


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "npu")
    parser.add_argument("--cases", default="quick", choices=[*CASES, "all"])
    parser.add_argument("--families", default="", help="only these, with commas")
    parser.add_argument("--minutes", type=float, default=4.5, help="compile nothing after so many")
    parser.add_argument("--store", type=Path, default=parts.folder() / "bench.jsonl")
    given = parser.parse_args(argv)
    wanted = [c for group in CASES.values() for c in group] if given.cases == "all" else CASES[given.cases]
    wanted = [c for c in wanted if not given.families or c.family in given.families.split(",")]
    found, left = run(wanted, given)
    sheet = Sheet("NPU", where(given.threads, precision="float16 on the NPU", times=SIMULATED))
    for case in wanted:
        if case.name in found:
            fill(sheet, case, found[case.name])
    summary(sheet, {c.name: found[c.name] for c in wanted if c.name in found})
    status = finish(sheet, "npu", given.out)
    if left:
        tell(f"{left} of {len(wanted)} cases are left: run it again")
    return LEFT if left else status


def run(wanted: list[Case], given: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """What the store has and what there is time for; and how many cases are left."""
    import torch

    torch.set_num_threads(given.threads)
    found = read(given.store)
    compiler = InTime(given.minutes)
    with compiler:
        for case in wanted:
            if case.name not in found and not compiler.late:
                tell(case.name)
                try:
                    found[case.name] = measure(case, compiler)
                except TimeoutError:
                    break
                given.store.parent.mkdir(parents=True, exist_ok=True)
                with given.store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"case": case.name, **asdict(case), "found": found[case.name]}) + "\n")
    return found, sum(c.name not in found for c in wanted)


class InTime(Compiler):
    """A compiler that keeps its answers and raises TimeoutError when asked anything new after so many minutes."""

    def __init__(self, minutes: float) -> None:
        super().__init__(answers=parts.folder() / "answers", limit=1500.0)
        self.end = time.monotonic() + 60 * minutes

    @property
    def late(self) -> bool:
        return time.monotonic() > self.end

    def _ask(self, folder: Path, properties: Mapping[str, str]) -> Answer:
        if self.late:
            raise TimeoutError
        return super()._ask(folder, properties)


def tried(case: Case) -> set[str] | None:
    """The forms to try: all (None), or those that were the fastest of such a case before, as compiles take minutes."""
    if not case.layers:
        return {"target", "scaled"} if case.family != "smollm2" else {"left 2", "left 2, scaled"}
    first = case.platform == "4000"
    if case.family == INT8:
        if case.step:
            return {"target", "plain", "onto right"}
        return {"4000": {"onto 1792", "onto plain"}, "3720": {"onto plain", "whole"}, "5010": {"left"}}[case.platform]
    if case.family not in LARGE:
        return None if first else {"target", "scaled", "inner 2", "left 2"}
    if case.step:
        return {"target", "inner 2", "inner 4", "onto right"}
    return {"target", "plain", "onto 1792", "onto plain"} if first else {"target", "inner 2", "left"}


def read(store: Path) -> dict[str, Any]:
    if not store.is_file():
        return {}
    rows = (json.loads(line) for line in store.read_text(encoding="utf-8").splitlines())
    return {row["case"]: row["found"] for row in rows}


# ------------------------------------------------------------------------------------------ measurements


def model_of(case: Case, attention: str = "sdpa") -> Any:
    if case.step:
        step = Step(causal(build(case.family, 1, layers=case.layers, vocabulary=VOCABULARY))).eval()
        return Model(case.name, step, step.example())
    if case.family == "smollm2":
        from forge_eq.models import smollm2

        return smollm2(case.tokens, attention)
    if not case.layers:
        return build(case.family, case.tokens, attention)
    return build(case.family, case.tokens, attention, layers=case.layers, vocabulary=VOCABULARY)


def measure(case: Case, compiler: Compiler) -> dict[str, Any]:
    """Plain and ours, with the lookup on the NPU and on the host."""
    from forge_eq.capture import capture
    from forge_eq.npu.check import check
    from forge_eq.npu.precision import Int8Builder
    from forge_eq.npu.search import planned, search
    from forge_eq.options import Options
    from forge_eq.pipeline import Job
    from forge_eq.pipeline import run as stages
    from forge_eq.targets import load

    model = model_of(case)
    found: dict[str, Any] = {}
    for name, host in (("plain", False), ("plain host", True)):
        ask = partial(asked, compiler, case.platform, host)
        found[name] = ask(returning(model))
        if "refused" in found[name] and not case.step:
            found[f"{name}, changed"] = nearest(partial(model_of, case), ask)
    if case.step:
        found["plain host, state forgotten"] = asked(compiler, case.platform, True, model)
    target = load(f"intel-npu-{case.platform}")
    job = Job(Options(target=f"intel-npu-{case.platform}"), forms={"capture": capture(model.module, model.args)})
    graph = stages(job, "extract")["extract"]
    names = tried(case)
    best = search(graph, target, compiler, case.platform, lambda form: tell(f"  {form}"), names)
    found["ours host"] = {**total(best.report), "form": best.form, "forms": best.times}
    if case.family == INT8 and case.layers:
        plan = planned(graph, replace(target, blocks=None))  # on the left the compiler makes f16 of them again
        coded = check(plan.program, target, compiler, case.platform, builder=Int8Builder)
        found["ours host, int8 weights"] = total(coded)
    there = search(graph, target, compiler, case.platform, lambda form: tell(f"  lookup, {form}"), names, lookups=True)
    found["ours"] = {**total(there.report), "form": there.form, "forms": there.times}
    return found


def asked(compiler: Compiler, platform: str, host: bool, model: Model) -> dict[str, Any]:
    """What the compiler says of OpenVINO's conversion of a model."""
    return told(compiler.compile(plain(model, host), platform))


def told(answer: Answer) -> dict[str, Any]:
    if not isinstance(answer, Compiled):
        said = diagnose(answer)
        return {"refused": f"{said.reason}: {said.first}"}
    s = answer.simulation
    assert s is not None
    unpriced = sorted({layer.kind for layer in s.unknown if layer.kind})
    times = {"total": s.total, "dma": s.dma, "dpu": s.dpu, "shave": s.shave, "spent": spent(s)}
    lookups = sum(layer.kind == "Gather" for layer in s.unknown)
    unknown = {"unknown": len(s.unknown), "lookups": lookups, "unpriced": unpriced}
    return {**times, "blob": answer.blob, "seconds": answer.seconds, **unknown}


def spent(s: Simulation) -> dict[str, float]:
    """The time line by OpenVINO's types of node, the last product (the head) and idle time apart."""
    head = max((x for x in s.layers if x.kind == "MatMul"), key=lambda x: x.end, default=None)
    found: dict[str, float] = {}
    for layer in s.layers:
        kind = "head" if layer is head else layer.kind.strip("<>") or "Unknown"
        found[kind] = found.get(kind, 0.0) + layer.share
    return found


def total(report: Any) -> dict[str, Any]:
    """The segments of a program one after the other."""
    answers = [told(s.answer) for s in report.segments]
    refused = next((a for a in answers if "refused" in a), None)
    if refused is not None:
        return refused
    added: dict[str, Any] = {
        k: sum(a[k] for a in answers) for k in ("total", "dma", "dpu", "shave", "blob", "seconds", "unknown", "lookups")
    }
    added["spent"] = {
        k: sum(a["spent"].get(k, 0.0) for a in answers) for k in dict.fromkeys(k for a in answers for k in a["spent"])
    }
    kinds = sorted({s.instr.op.name for c in report.segments for s in c.spent if s.unknown and s.instr and s.instr.op})
    return {**added, "unpriced": kinds, "segments": len(answers), "transitions": report.program.transitions}


# ------------------------------------------------------------------------------------------------ tables


def fill(sheet: Sheet, case: Case, found: dict[str, Any]) -> None:
    """The table of one case and its criteria."""
    sheet.figures[case.name] = found
    head = ("", "us", "DMA", "DPU", "SHAVE", "blob, MB", "compile, s", "without a price")
    sheet.table(case.name, head, [row(name, f) for name, f in found.items()], f"Times {SIMULATED}.")
    for name, value, limit in criteria(case, found):
        sheet.demand(name, value, limit)


def criteria(case: Case, found: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """(what, simulated, the most it may be): accepted, and beside plain, like for like and as we place it; and no more
    kernels of ours are without a price, lest it seem fast for that. A lookup in parts has more: they are charged."""
    for name in ("ours", "ours host"):
        yield f"{case.name}: {name} refused", float("refused" in found[name]), 0.0
    most = 0.88 if not case.layers else 1.0 if case.step else 0.98
    pairs = [("ours", "plain"), ("ours host", "plain host"), *([] if case.layers else [("ours host", "plain")])]
    pairs = [(ours, beside(found, theirs)) for ours, theirs in pairs]
    for ours, theirs in pairs:
        if "total" in found[ours] and "total" in found[theirs]:
            charged = INDICES * max(0, _lookups(found[ours]) - _lookups(found[theirs]))
            yield f"{case.name}: {ours} / {theirs}", (found[ours]["total"] + charged) / found[theirs]["total"], most
    for ours, theirs in pairs[:2]:
        if "total" in found[ours] and "total" in found[theirs]:
            more = [f["unknown"] - _lookups(f) for f in (found[ours], found[theirs])]
            yield f"{case.name}: {ours} without a price, more than {theirs}", float(more[0] - more[1]), 0.0


def _lookups(f: dict[str, Any]) -> int:
    return int(f.get("lookups", 0))


def row(name: str, f: dict[str, Any]) -> tuple[Any, ...]:
    if "refused" in f:
        return (name, "refused", "", "", "", "", "", f["refused"][:160])
    unknown = f"{f['unknown']}: {', '.join(f['unpriced'])}" if f["unknown"] else "none"
    shown = f"{name} ({f['form']})" if "form" in f else name
    return (shown, f["total"], f["dma"], f["dpu"], f["shave"], f["blob"] / 1e6, f["seconds"], unknown)


def summary(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, f in found.items():
        names = (beside(f, "plain"), "ours", beside(f, "plain host"), "ours host")
        times = [f[k].get("total", float("nan")) for k in names]
        a, b, c, d = times
        rows.append((name, *times, 100 * (b / a - 1), 100 * (d / c - 1), 100 * (d / a - 1)))
    head = ("", "plain", "ours", "plain, host lookup", "ours, host lookup", "%", "% host", "% ours host / plain")
    sheet.table("all cases, us", head, rows, f"Times {SIMULATED}. nan: refused, changed too.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
