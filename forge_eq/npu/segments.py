"""The models that the NPU compiler is given: one per segment of a scheduled program.

Takes a scheduled program and its target. Gives ``ov.Model`` objects. Promises: every node is named after the
instruction that it belongs to, so that whatever the compiler says can be traced back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch

from forge_eq.lower.npu import Instr, Program, Segment
from forge_eq.run.model import Built, build_model
from forge_eq.run.openvino_builder import NodeBuilder
from forge_eq.run.openvino_npu import NpuBuilder
from forge_eq.run.values import constant, run_instr
from forge_eq.targets import Target

_REGISTER = re.compile(r"^(?!return )\S+ v(\d+)(?:\.\d+)?$")  # not the model's inputs, outputs and constants


def npu_segments(program: Program, target: Target) -> Iterator[Segment]:
    """The segments that OpenVINO compiles."""
    return (s for s in program.segments if target.device(s.device).kind == "openvino")


def segment_model(program: Program, segment: Segment, builder: Callable[[], NodeBuilder] = NpuBuilder) -> Built | None:
    """The model of a segment; None when it only moves data.

    Raises RunError when a kernel cannot be built or the program carries no weights.
    """
    positions = range(segment.start, segment.stop)
    made = {d for p in positions for d in program.instrs[p].dsts if not program.instrs[p].is_copy}
    outside = (i for p, i in enumerate(program.instrs) if p not in positions)
    read = {r for i in outside for r in i.reads} | set(program.outputs)
    outputs = sorted(made & read)
    if not outputs:
        return None
    definers, known = program.definers(), dict[int, torch.Tensor]()

    def value(register: int) -> torch.Tensor | None:
        """The data of a constant, or of a view of one that was made before the segment."""
        if register in known or program.root(register) not in program.constant_names:
            return known.get(register)
        if register in program.constant_names:
            return constant(program, register)
        instr = program.instrs[definers[register]]
        values = {r: value(r) for r in instr.reads}
        (known[register],) = run_instr(program, instr, [values.get(r) for r in range(len(program.vregs))])
        return known[register]

    return build_model(program, positions, outputs, value, f"{program.name}.{segment.start}", builder)


def instruction(program: Program, name: str) -> Instr | None:
    """The instruction that a node of :func:`segment_model` belongs to, by the node's name."""
    found = _REGISTER.search(name)
    position = program.definers().get(int(found[1])) if found else None
    return None if position is None else program.instrs[position]
