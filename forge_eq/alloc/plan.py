"""An allocation: where each register's bytes are.

Takes nothing. Gives :class:`Allocation`, :class:`Arena`, :class:`Slot`. Promises: immutable; a slot belongs to the
register that owns the storage, views are found through it.
Not here: text (``alloc.text``), validity (``alloc.checker``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forge_eq.lower.npu import Program


@dataclass(frozen=True, slots=True)
class Slot:
    """Bytes ``[offset, offset + nbytes)`` of the arena hold register ``vreg`` during steps ``[birth, death)``.

    ``nbytes`` is the size of the value, not rounded. Step -1 is the entry (inputs are there), the step after the last
    one is the exit (outputs are still there).
    """

    vreg: int
    offset: int
    nbytes: int
    birth: int
    death: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(frozen=True, slots=True)
class Arena:
    """The arena of one device, all figures in bytes.

    ``bound`` is the largest sum of live bytes at any step, each value rounded to the alignment: no allocation of this
    order with these in-place writes is smaller. ``strategy`` is the one whose peak was the lowest.
    """

    device: str
    peak: int
    bound: int
    strategy: str
    slots: tuple[Slot, ...]

    @property
    def virtual(self) -> int:
        """Number of registers that own storage."""
        return len(self.slots)

    @property
    def physical(self) -> int:
        """Number of distinct buffers: (offset, size) pairs."""
        return len({(s.offset, s.nbytes) for s in self.slots})


@dataclass(frozen=True)
class Allocation:
    """Storage of a scheduled program.

    ``granularity`` says what a step is: ``"instr"`` (one instruction: the torch executor, an NPU) or ``"segment"``
    (a segment of an OpenVINO device is one step; what lives only inside belongs to the plugin and has no slot).
    Constants, inputs that are written in place, host numbers and ``none`` never have one; nor have the registers
    ``outside``: inputs that are read in the caller's memory, and results that are made in memory of their own.
    """

    name: str
    granularity: str
    alignment: int
    steps: int
    arenas: tuple[Arena, ...]
    outside: tuple[int, ...] = ()
    _where: dict[int, tuple[str, Slot]] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        self._where.update({s.vreg: (a.device, s) for a in self.arenas for s in a.slots})

    def slot(self, program: Program, vreg: int) -> Slot | None:
        """The slot that holds ``vreg`` (its root's, when it is a view), or None when it has no storage here."""
        found = self._where.get(program.root(vreg))
        return None if found is None else found[1]

    def arena(self, device: str) -> Arena:
        """The arena of ``device``; empty when nothing lives there."""
        for arena in self.arenas:
            if arena.device == device:
                return arena
        return Arena(device, 0, 0, "none", ())

    @property
    def peak(self) -> int:
        """Bytes of all arenas together."""
        return sum(a.peak for a in self.arenas)

    @property
    def bound(self) -> int:
        return sum(a.bound for a in self.arenas)

    @property
    def virtual(self) -> int:
        return sum(a.virtual for a in self.arenas)

    @property
    def physical(self) -> int:
        return sum(a.physical for a in self.arenas)
