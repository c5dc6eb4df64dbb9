"""Our placement beside Intel's own partitioners for the NPU: NPUW and HETERO.

Usage: python bench/npu_partition.py [--families gpt2-124m,...] [--minutes 4.5] [--out FOLDER]

All get the same exported model, a few layers at 128 tokens. NPUW (``NPU_USE_NPUW``) cuts OpenVINO's own conversion,
for which it needs no compiler: its plan says which nodes form a group, and each group is compiled and simulated by
Intel's NPU compiler. HETERO runs in the compiler's process and asks it which nodes it supports. A transfer is a
value that passes from one part to another, inputs and outputs of the whole left out; they are counted, not timed. The
last two programs have what the compiler refuses, six axes in inputs and outputs and bfloat16: what each makes of it.
"""

from __future__ import annotations

import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from forge_eq.families import PAPER, build
from forge_eq.models import Model
from forge_eq.npu import parts
from forge_eq.npu.compiler import SIMULATED, Compiled, Compiler
from npu import LEFT, VOCABULARY, InTime, _depth, told
from npu_plain import plain
from sheet import Sheet, arguments, finish, one_of, tell, where

TOKENS, PLATFORM = 128, "4000"
NPUW = {"NPU_USE_NPUW": "YES", "NPUW_DEVICES": "CPU"}
HETERO = {"DEVICE_PROPERTIES": f"{{NPU:{{NPU_PLATFORM:{PLATFORM},NPU_COMPILER_TYPE:PLUGIN}}}}"}
WINDOWS, BRAIN = "windows by six axes", "rounded to bfloat16"


class Windows(torch.nn.Module):
    """Two products with a partition into windows between them, as Swin has it (openvino#37265)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).reshape(1, 2, 8, 2, 8, 256).permute(0, 1, 3, 2, 4, 5)
        found: torch.Tensor = self.last(y.reshape(1, 256, 256))
        return found


class Rounded(torch.nn.Module):
    """Two products with a sum in bfloat16 between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).bfloat16()
        found: torch.Tensor = self.last((y + y).float())
        return found


def model_of(name: str) -> Model:
    if name in (WINDOWS, BRAIN):
        torch.manual_seed(0)
        module = Windows() if name == WINDOWS else Rounded()
        return Model(name, module.eval(), (torch.randn(1, 256, 256),))
    return build(name, TOKENS, layers=_depth(name), vocabulary=VOCABULARY)


def plan(model: Any, folder: Path) -> list[set[str]]:
    """The groups that NPUW makes of a model, as names of nodes."""
    import openvino as ov

    path = folder / "plan.xml"
    ov.Core().compile_model(model, "NPU", {**NPUW, "NPUW_ONLINE_DUMP_PLAN": str(path)})
    return [{str(x.get("name")) for x in group.iter("layer")} for group in ET.parse(path).getroot().iter("group")]


def cut(model: Any, names: Collection[str]) -> tuple[Any, int]:
    """The nodes of those names as a model of its own, and how many values it reads that others of the model make."""
    import openvino as ov

    nodes = [n for n in model.get_ordered_ops() if n.get_friendly_name() in names]
    parameters: dict[tuple[str, int], Any] = {}
    entering = 0
    outside = [
        (node, index)
        for node in nodes
        for index, port in enumerate(node.outputs())
        if any(t.get_node().get_friendly_name() not in names for t in port.get_target_inputs())
    ]
    for node in nodes:
        for number in range(len(node.inputs())):
            source = node.input_value(number)
            made = source.get_node()
            if made.get_friendly_name() in names or made.get_type_name() == "Constant":
                continue
            key = made.get_friendly_name(), source.get_index()
            if key not in parameters:
                parameters[key] = ov.opset16.parameter(list(source.get_shape()), source.get_element_type())
                entering += made.get_type_name() != "Parameter"
            node.input(number).replace_source_output(parameters[key].output(0))
    results = [ov.opset16.result(node.output(index)) for node, index in outside]
    return ov.Model(results, list(parameters.values()), "group"), entering


def by_npuw(model: Any, compiler: Compiler) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as work:
        groups = plan(model.clone(), Path(work))
    answers, transfers = [], 0
    for names in groups:
        part, entering = cut(model.clone(), names)
        transfers += entering
        answers.append(told(compiler.compile(part, PLATFORM)))
    refused = [a["refused"] for a in answers if "refused" in a]
    us = None if refused else sum(a["total"] for a in answers)
    lookups = sum("embedding" in n and n.endswith("Gather") for names in groups for n in names)
    on_device = f"everything, {lookups} lookups among it" if lookups else "everything"
    return {
        "parts": len(groups),
        "transfers": transfers,
        "us": us,
        "host": "-",
        "npu": on_device,
        "refused": refused[:1],
    }


def by_hetero(model: Any) -> dict[str, Any]:
    with Compiler(answers=parts.folder() / "answers", device="HETERO:NPU,CPU") as compiler:
        answer = compiler.compile(model, PLATFORM, trace=False, **HETERO)
    taken = isinstance(answer, Compiled)
    said = [] if taken else [told(answer)["refused"]]
    return {"parts": 1, "transfers": 0, "us": None, "host": "-", "npu": "everything", "refused": said}


def by_us(model: Model, compiler: Compiler) -> dict[str, Any]:
    from forge_eq.capture import capture
    from forge_eq.npu.search import search
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.targets import load

    name = f"intel-npu-{PLATFORM}"
    target = replace(load(name), transfer_us=1.0)
    job = Job(Options(target=name), forms={"capture": capture(model.module, model.args)})
    best = search(run(job, "extract")["extract"], target, compiler, PLATFORM)
    program = best.plan.program
    outer = {program.root(r) for r in (*program.inputs, *program.outputs)}
    host = Counter(i.op.name for i in best.report.host if i.op is not None and not i.op.traits.view)
    return {
        "parts": len(best.report.segments),
        "transfers": sum(program.root(i.reads[0]) not in outer for i in program.instrs if i.is_copy),
        "us": best.report.total if best.report.accepted else None,
        "host": ", ".join(f"{n} {op}" for op, n in sorted(host.items())) or "-",
        "npu": "the rest",
        "refused": [] if best.report.accepted else [best.report.text()],
    }


def measure(name: str, compiler: Compiler) -> dict[str, Any]:
    model = model_of(name)
    theirs = plain(model, host=False)
    found = {"HETERO:NPU,CPU": by_hetero(theirs), "NPUW": by_npuw(theirs, compiler), "ours": by_us(model, compiler)}
    whole = told(compiler.compile(theirs, PLATFORM))
    found["HETERO:NPU,CPU"]["us"] = whole.get("total")
    return found


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "npu_partition")
    parser.add_argument("--families", default=["gpt2-124m", WINDOWS, BRAIN], type=one_of([*PAPER, WINDOWS, BRAIN]))
    parser.add_argument("--minutes", type=float, default=4.5)
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    sheet = Sheet("Placement beside Intel's partitioners", where(given.threads, times=SIMULATED))
    compiler = InTime(given.minutes)
    with compiler:
        for name in given.families:
            tell(name)
            try:
                found = measure(name, compiler)
            except TimeoutError:
                tell("compiles are left: run it again")
                return LEFT
            fill(sheet, name, found)
    return finish(sheet, "npu_partition", given.out)


def fill(sheet: Sheet, name: str, found: dict[str, Any]) -> None:
    sheet.figures[name] = found
    rows = [
        (who, f["parts"], f["transfers"], "refused" if f["refused"] else f["us"], f["host"], f["npu"])
        for who, f in found.items()
    ]
    head = ("", "parts on the NPU", "transfers between parts", "us on the NPU", "on the host", "on the NPU")
    notes = [f"Times {SIMULATED}; of HETERO, which gives everything to the NPU, that of the whole model."]
    notes += [f"{who}: {f['refused'][0][:200]}" for who, f in found.items() if f["refused"]]
    sheet.table(name, head, rows, " ".join(notes))
    sheet.demand(f"{name}: ours refused", float(bool(found["ours"]["refused"])), 0.0)
    for who in ("HETERO:NPU,CPU", "NPUW"):
        if found[who]["us"] is not None and found["ours"]["us"] is not None and not found[who]["refused"]:
            sheet.demand(f"{name}: ours / {who}", found["ours"]["us"] / found[who]["us"], 1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
