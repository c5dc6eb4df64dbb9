"""Finds the instruction that OpenVINO gets wrong.

Takes a program (with its pins), its target and inputs on which it fails. Gives, per OpenVINO segment that is wrong
although its inputs are right, the first instruction after which a prefix of the segment gives wrong values: with that
instruction in the model the plugin miscompiles, without it the prefix is right. Promises: a number of builds that is
logarithmic in the segment's length.
Not here: what to do about it (``run.guard``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_eq.errors import RunError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program, Segment
from forge_eq.run.model import build_model
from forge_eq.run.openvino_builder import shared_tensor
from forge_eq.run.openvino_cpu import CpuBuilder
from forge_eq.run.segments import compile_model
from forge_eq.run.values import TORCH_DTYPES
from forge_eq.targets import Target
from forge_eq.verify.criterion import Oracle, difference


@dataclass(frozen=True)
class Culprit:
    """The instruction at ``position`` gives a wrong result from right operands; ``reason`` says how wrong."""

    position: int
    reason: str


def culprits(program: Program, target: Target, values: Sequence[Any], wide: Oracle, threads: int = 0) -> list[Culprit]:
    """One culprit for each OpenVINO segment that is wrong on right inputs.

    Args:
        values: the right value of every register, as ``run.values.evaluate`` gives them.
        wide: the same in float64, or None.
    """
    search = _Search(program, values, wide, threads)
    found = [search.segment(s) for s in program.segments if target.device(s.device).kind == "openvino"]
    return [c for c in found if c is not None]


class _Search:
    def __init__(self, program: Program, values: Sequence[Any], wide: Oracle, threads: int) -> None:
        self.program, self.values, self.wide, self.threads = program, values, wide, threads
        self.last_use = {program.root(r): p for p, i in enumerate(program.instrs) for r in i.reads}
        self.last_use |= {program.root(o): len(program.instrs) for o in program.outputs}

    def segment(self, segment: Segment) -> Culprit | None:
        """Halves the segment between a right prefix and a wrong one."""
        reason = self.fault(segment.start, segment.stop)
        if reason is None:
            return None
        right, wrong = segment.start, segment.stop  # the prefix of no instructions is right
        while wrong - right > 1:
            middle = (right + wrong) // 2
            found = self.fault(segment.start, middle)
            if found is None:
                right = middle
            else:
                wrong, reason = middle, found
        return Culprit(wrong - 1, reason)

    def fault(self, start: int, stop: int) -> str | None:
        """What is wrong with a model of these instructions when its inputs are right."""
        program = self.program
        made = [d for p in range(start, stop) if not program.instrs[p].is_copy for d in program.instrs[p].dsts]
        outputs = [d for d in made if program.root(d) == d and self.last_use.get(d, -1) >= stop]
        if not outputs:
            return None
        try:
            found = self.run(range(start, stop), outputs)
        except RunError as e:
            return e.reason
        return difference(found, [self.values[d] for d in outputs], lambda: self.picked(outputs))

    def picked(self, registers: Sequence[int]) -> list[Any] | None:
        wide = self.wide()
        return None if wide is None else [wide[r] for r in registers]

    def run(self, positions: range, outputs: Sequence[int]) -> list[torch.Tensor]:
        program = self.program
        names = program.constant_names
        built = build_model(
            program,
            positions,
            outputs,
            lambda r: self.values[r] if program.root(r) in names else None,
            "probe",
            lambda: CpuBuilder(self.threads),
        )
        request = compile_model(built, self.threads).create_infer_request()
        given = [self.values[r].contiguous() for r in built.reads]
        found = []
        for register in outputs:
            type = program.vregs[register].type
            assert isinstance(type, TensorType)
            found.append(torch.empty([int(str(d)) for d in type.shape], dtype=TORCH_DTYPES[type.dtype]))
        for index, value in enumerate(given):
            request.set_input_tensor(index, shared_tensor(value))
        for index, value in enumerate(found):
            request.set_output_tensor(index, shared_tensor(value))
        try:
            request.infer()
        except RuntimeError as e:
            raise RunError("run", "probe", f"OpenVINO fails on it: {e}", "keep the instruction on the host") from e
        return found
