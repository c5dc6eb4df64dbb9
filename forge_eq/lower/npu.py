"""NPU IR: typed instructions over single-assignment virtual registers.

Takes nothing. Gives :class:`Program`, :class:`Instr`, :class:`VReg` and :class:`Imm`. Promises: a register has
one definition, positions equal ids, nothing is changed in place.
Not here: text (``lower.text``), invariants (``lower.check``), how a graph becomes a program (``lower.select``).

A program passes through three states with the same types:

* *selected*: one instruction per node in program order, each with the device that its kernel prefers;
* *scheduled*: final devices and order, every read is on the device of its register, copies are explicit;
* allocated: an :class:`forge_eq.alloc.plan.Allocation` beside a scheduled program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from forge_eq.ir.graph import Attr, Origin, Signature
from forge_eq.ir.types import WEAK, TensorType, Type

if TYPE_CHECKING:
    import torch

    from forge_eq.ops.spec import Op

TORCH = "torch"  # unit of an instruction that the host runs through torch
COPY = "copy"  # unit of a transfer between devices


@dataclass(frozen=True, slots=True)
class VReg:
    """A virtual register: one value.

    ``device`` is the memory that holds it. ``alias_of`` names the register whose buffer it shares (the result of a
    view); such a register has no storage of its own. A scalar or ``none`` value lives on the host and has no bytes.
    """

    id: int
    type: Type
    device: str
    alias_of: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the dense value; 0 for a host number and for ``none``."""
        return (self.type.nbytes or 0) if isinstance(self.type, TensorType) else 0


@dataclass(frozen=True, slots=True)
class Imm:
    """An immediate operand: a number that takes the dtype of the operand beside it."""

    value: int | float | bool

    @property
    def type(self) -> TensorType:
        return TensorType(WEAK, ())


Operand = int | Imm  # a register id or an immediate


@dataclass(frozen=True, slots=True)
class Instr:
    """One instruction: ``dsts = device.unit.op srcs {attrs}``.

    ``op`` is None for a transfer, which moves ``srcs[0]`` into the memory of ``device``. ``node`` is the graph node
    it computes (-1 when a later stage added it) and ``origin`` says where that node comes from.

    ``layout`` is the order in which the axes of the results are stored inside a segment, outermost first; () is
    row-major. It chooses a kernel and changes no value: types stay those of the graph, values that leave the segment
    are row-major, and the host does not look at it. ``reads`` are the registers among the operands, one entry per read.
    """

    op: Op | None
    dsts: tuple[int, ...]
    srcs: tuple[Operand, ...]
    attrs: tuple[Attr, ...]
    device: str
    unit: str
    node: int = -1
    origin: Origin = Origin()
    layout: tuple[int, ...] = ()
    reads: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", tuple([s for s in self.srcs if isinstance(s, int)]))

    @property
    def opcode(self) -> str:
        """``npu.matmul.linear``, ``cpu.torch.opaque``, ``npu.copy``."""
        return f"{self.device}.{self.unit}" + (f".{self.op.name}" if self.op is not None else "")

    @property
    def is_copy(self) -> bool:
        return self.op is None

    @property
    def effectful(self) -> bool:
        return self.op is not None and self.op.effectful

    def attr(self, name: str) -> Attr:
        """The attribute called ``name``; KeyError when the op has none."""
        if self.op is not None:
            for (known, _), value in zip(self.op.attrs, self.attrs, strict=True):
                if known == name:
                    return value
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of instructions ``[start, stop)`` on one device, as long as it can be between cuts."""

    device: str
    start: int
    stop: int


@dataclass(frozen=True)
class Program:
    """A program over virtual registers.

    ``inputs`` are registers in argument order, ``constants`` pairs of (register, name in ``data``), ``outputs``
    registers (user results first, then write-backs, as in the graph). ``writes`` are pairs of positions (output,
    input): after a run the input's memory holds that output. ``data``, ``submodules`` and ``signature``
    come from the graph unchanged; ``cuts`` are positions at which a segment begins though the device is that of the
    one before (``run.cuts``). These four are not part of the text form nor of equality.
    """

    name: str
    target: str
    vregs: tuple[VReg, ...]
    inputs: tuple[int, ...]
    constants: tuple[tuple[int, str], ...]
    instrs: tuple[Instr, ...]
    outputs: tuple[int, ...]
    writes: tuple[tuple[int, int], ...] = ()
    cuts: tuple[int, ...] = field(default=(), compare=False, repr=False)
    data: Mapping[str, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    submodules: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    signature: Signature = field(default=Signature(), compare=False, repr=False)

    @cached_property
    def constant_names(self) -> dict[int, str]:
        """Register of a constant -> its name."""
        return dict(self.constants)

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(self.vregs[register].nbytes for register, _ in self.constants)

    @property
    def transitions(self) -> int:
        """Number of times that control passes from one device to another."""
        return sum(a.device != b.device for a, b in pairwise(self.instrs))

    @property
    def copies(self) -> int:
        """Number of transfers between devices."""
        return sum(i.is_copy for i in self.instrs)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The runs of instructions on one device, between cuts; a copy belongs to the device it writes."""
        devices = [i.device for i in self.instrs]
        starts = [p for p, device in enumerate(devices) if p == 0 or devices[p - 1] != device or p in self.cuts]
        return tuple(Segment(devices[a], a, b) for a, b in pairwise([*starts, len(devices)]))

    def root(self, vreg: int) -> int:
        """The register whose storage ``vreg`` uses: itself, or the end of its alias chain."""
        above = self.vregs[vreg].alias_of
        while above is not None:
            vreg, above = above, self.vregs[above].alias_of
        return vreg

    def in_place(self, instr: Instr) -> bool:
        """Whether the instruction writes its result over its first operand."""
        return instr.op is not None and instr.op.update is not None and self.vregs[instr.dsts[0]].alias_of is not None

    @cached_property
    def state(self) -> frozenset[int]:
        """The inputs that are written in place: the caller's memory, which every device reads where it lies."""
        return frozenset(self.root(i.dsts[0]) for i in self.instrs if self.in_place(i))

    def definers(self) -> dict[int, int]:
        """Register -> position of the instruction that writes it (inputs and constants are absent)."""
        return {dst: position for position, instr in enumerate(self.instrs) for dst in instr.dsts}


def overwritten_by(program: Program) -> dict[int, int]:
    """Register -> position of the in-place write that ends its life, for such registers and for views of them."""
    updates = {i.reads[0]: p for p, i in enumerate(program.instrs) if program.in_place(i)}
    fresh = {i.dsts[0] for i in program.instrs if program.in_place(i)}
    found = {}
    for vreg in program.vregs if updates else ():
        at: int | None = vreg.id
        while at is not None and at not in updates:
            at = None if at in fresh else program.vregs[at].alias_of
        if at is not None:
            found[vreg.id] = updates[at]
    return found


def readers_before(program: Program) -> dict[int, set[int]]:
    """Position of each in-place write -> positions of the other readers of what it writes over."""
    over, found = overwritten_by(program), dict[int, set[int]]()
    for position, instr in enumerate(program.instrs):
        for read in instr.reads if over else ():
            at = over.get(read, position)
            if at != position:
                found.setdefault(at, set()).add(position)
    return found


def operand_type(program: Program, operand: Operand) -> Type:
    """The type that ``op.infer`` is given for an operand."""
    return operand.type if isinstance(operand, Imm) else program.vregs[operand].type
