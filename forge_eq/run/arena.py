"""The arena in memory: one block of bytes per device, and a tensor over each register's slot.

Takes a program and its allocation. Gives :class:`Memory`. Promises: a register's tensor lies at its offset; constants
are the program's own tensors, not copies; state is the caller's tensor, bound for one run; what lives only inside an
OpenVINO segment has no tensor.
Not here: who writes what (``run.executor``).
"""

from __future__ import annotations

from typing import Any

import torch

from forge_eq.alloc.plan import Allocation
from forge_eq.errors import RunError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program
from forge_eq.run.values import TORCH_DTYPES, constant, run_instr


class Memory:
    """``values[r]`` is the tensor of register ``r``, None for a host number that has none yet or a value inside a
    segment. ``stored`` are the registers whose tensor is part of an arena."""

    def __init__(self, program: Program, allocation: Allocation) -> None:
        self.program, self.allocation = program, allocation
        self.blocks = {a.device: _block(a.peak, allocation.alignment) for a in allocation.arenas}
        self.values: list[Any] = [None] * len(program.vregs)
        self.stored: set[int] = set()
        names = program.constant_names
        for vreg in program.vregs:
            if vreg.id in names:
                self.values[vreg.id] = constant(program, vreg.id)
            elif isinstance(vreg.type, TensorType):
                self._place(vreg.id, vreg.type)
        self._view_constants()
        self._versions = [i for i in program.instrs for d in i.dsts if self.is_state(d)]

    def is_state(self, register: int) -> bool:
        """Whether the register lies in the caller's memory: an input that is written in place, or a view of it."""
        return self.program.root(register) in self.program.state

    def bind(self, register: int, value: torch.Tensor) -> None:
        """Lets an input that is written in place be this contiguous tensor; then call :meth:`bound`."""
        self.values[register] = value

    def bound(self) -> None:
        """Sets the registers that are seen through the tensors bound."""
        for instr in self._versions:
            if self.program.in_place(instr):
                self.values[instr.dsts[0]] = self.values[instr.reads[0]]
            else:
                (self.values[instr.dsts[0]],) = run_instr(self.program, instr, self.values)

    def _place(self, register: int, type: TensorType) -> None:
        slot = self.allocation.slot(self.program, register)
        dtype, shape = TORCH_DTYPES[type.dtype], [int(str(d)) for d in type.shape]
        if type.nbytes == 0:
            self.values[register] = torch.empty(shape, dtype=dtype)
        elif slot is not None:
            block = self.blocks[self.program.vregs[self.program.root(register)].device]
            if slot.end > block.numel():
                reason = f"its slot ends at {slot.end} of {block.numel()} bytes"
                raise RunError("run", f"v{register}", reason, "this is a bug in allocation: report it")
            self.values[register] = block[slot.offset : slot.end].view(dtype).view(shape)
            self.stored.add(register)

    def _view_constants(self) -> None:
        """Views of constants (and views of those) are computed once, here."""
        names = self.program.constant_names
        for instr in self.program.instrs:
            for dst in instr.dsts:
                if self.program.vregs[dst].alias_of is not None and self.program.root(dst) in names:
                    (self.values[dst],) = run_instr(self.program, instr, self.values)

    def is_constant(self, register: int) -> bool:
        """Whether the register holds a constant or a view of one."""
        return self.program.root(register) in self.program.constant_names


def _block(size: int, alignment: int) -> torch.Tensor:
    """``size`` zero bytes that start at a multiple of ``alignment``."""
    raw = torch.zeros(size + alignment, dtype=torch.uint8)
    start = -raw.data_ptr() % alignment
    return raw[start : start + size]
