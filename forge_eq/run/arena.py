"""The arena in memory: one block of bytes per device, and a tensor over each register's slot.

Takes a program and its allocation. Gives :class:`Memory`. Promises: a register's tensor lies at its offset; constants
are the program's own tensors, not copies; what lies outside the arenas (arguments, state, results) is bound for one
run; what lives only inside an OpenVINO segment has no tensor.
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
    segment. ``stored`` are the registers whose tensor is part of an arena, or bound for a run;
    ``outside`` are those that are bound, ``views`` what is seen through them (None: in their own shape)."""

    def __init__(self, program: Program, allocation: Allocation) -> None:
        self.program, self.allocation = program, allocation
        self.blocks = {a.device: _block(a.peak, allocation.alignment) for a in allocation.arenas}
        self.values: list[Any] = [None] * len(program.vregs)
        self.stored: set[int] = set()
        self.outside = {*allocation.outside, *program.state}
        self.views: dict[int, list[tuple[int, list[int] | None]]] = {r: [] for r in self.outside}
        self.bound: list[int] = []
        names = program.constant_names
        for vreg in program.vregs:
            if vreg.id in names:
                self.values[vreg.id] = constant(program, vreg.id)
            elif isinstance(vreg.type, TensorType):
                self._place(vreg.id, vreg.type)
        self._view_constants()

    def is_outside(self, register: int) -> bool:
        """Whether the register lies in memory that is bound for a run: its own, or that of what it is a view of."""
        return self.program.root(register) in self.outside

    def bind(self, register: int, value: torch.Tensor) -> None:
        """Lets a register that owns no slot be this contiguous tensor, and its views views of it, until released."""
        self.values[register] = value
        for view, shape in self.views.get(register, ()):
            self.values[view] = value if shape is None else value.view(shape)

    def release(self) -> None:
        """Forgets what was bound."""
        for register in self.bound:
            self.values[register] = None

    def _place(self, register: int, type: TensorType) -> None:
        slot = self.allocation.slot(self.program, register)
        dtype, shape = TORCH_DTYPES[type.dtype], [int(str(d)) for d in type.shape]
        if self.is_outside(register):
            self._seen_through(register, shape)
        elif type.nbytes == 0:
            self.values[register] = torch.empty(shape, dtype=dtype)
        elif slot is not None:
            block = self.blocks[self.program.vregs[self.program.root(register)].device]
            if slot.end > block.numel():
                reason = f"its slot ends at {slot.end} of {block.numel()} bytes"
                raise RunError("run", f"v{register}", reason, "this is a bug in allocation: report it")
            self.values[register] = block[slot.offset : slot.end].view(dtype).view(shape)
            self.stored.add(register)

    def _seen_through(self, register: int, shape: list[int]) -> None:
        """Notes how to set the register when what it lies in is bound."""
        self.stored.add(register)
        self.bound.append(register)
        root = self.program.root(register)
        if root != register:
            type = self.program.vregs[root].type
            assert isinstance(type, TensorType)
            same = [int(str(d)) for d in type.shape] == shape
            self.views[root].append((register, None if same else shape))

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
