"""The allocation checker: runs the program on symbols.

Takes a scheduled program, its target and an allocation. Gives nothing; raises CheckError at the first clobber.
Memory maps byte ranges to the value that was last written there; every read must find all its bytes. It knows
nothing of intervals, shares no code with the allocator, and looks at slots only for device, offset and size.
Not here: whether the peak is good.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from forge_eq.alloc.plan import Allocation
from forge_eq.errors import CheckError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Instr, Program
from forge_eq.targets import Target

Place = tuple[str, int, int]  # device, first byte, one past the last


def check(program: Program, target: Target, allocation: Allocation) -> None:
    """Raises CheckError unless every read of every instruction finds the value that it names."""
    machine = _Machine(program, allocation)
    machine.write(machine.stored(program.inputs), "entry")
    machine.read(program.inputs, "entry")
    for unit in _units(program, target, allocation):
        machine.step(unit, boundary=allocation.granularity == "segment" and len(unit[0]) > 0 and _plugin(unit, target))
    machine.read(program.outputs, "return")


def _plugin(unit: tuple[Sequence[Instr], str], target: Target) -> bool:
    return target.device(unit[1]).kind == "openvino"


def _units(program: Program, target: Target, allocation: Allocation) -> Iterable[tuple[Sequence[Instr], str]]:
    """What runs as one: an instruction, or a run of instructions that a plugin executes in an order of its own."""
    run: list[Instr] = []
    for instr in program.instrs:
        whole = allocation.granularity == "segment" and target.device(instr.device).kind == "openvino"
        if run and (not whole or run[-1].device != instr.device):
            yield run, run[-1].device
            run = []
        if whole:
            run.append(instr)
        else:
            yield [instr], instr.device
    if run:
        yield run, run[-1].device


class _Machine:
    """Symbolic memory. ``value`` maps a register to the register whose bytes it is; views are what they look at."""

    def __init__(self, program: Program, allocation: Allocation) -> None:
        self.program = program
        self.memory: dict[str, list[tuple[int, int, int]]] = {}  # device -> (start, end, value), disjoint
        self.constants = {v for v, _ in program.constants}
        self.value = {v.id: v.id for v in program.vregs}
        # What is written in place is the caller's memory, one piece for each such input.
        self.place: dict[int, Place] = {v: (f"v{v}", 0, program.vregs[v].nbytes) for v in program.state}
        loose = {*program.inputs, *(program.root(o) for o in program.outputs)}
        for vreg in allocation.outside:
            if vreg not in loose or vreg in self.place or vreg in self.constants:
                fail(f"v{vreg}", "is neither an argument nor made to be returned, so it cannot lie outside the arenas")
            self.place[vreg] = (f"v{vreg}", 0, program.vregs[vreg].nbytes)
        for arena in allocation.arenas:
            for slot in arena.slots:
                self.enter(arena.device, arena.peak, slot.vreg, slot.offset, slot.nbytes, allocation.alignment)

    def enter(self, device: str, peak: int, vreg: int, offset: int, nbytes: int, alignment: int) -> None:
        if not 0 <= vreg < len(self.program.vregs) or vreg in self.place or vreg in self.constants:
            fail(f"v{vreg}", "cannot have a slot, or has two")
        type = self.program.vregs[vreg].type
        if not isinstance(type, TensorType) or type.nbytes != nbytes or self.program.vregs[vreg].device != device:
            fail(f"v{vreg}", f"its slot of {nbytes} bytes on {device} does not fit {type}")
        if offset < 0 or offset % alignment or offset + nbytes > peak:
            fail(f"v{vreg}", f"offset {offset} is misaligned or outside the arena of {peak} bytes")
        self.place[vreg] = (device, offset, offset + nbytes)

    def lives(self, vreg: int) -> bool:
        """Whether the register's value has bytes in an arena, so that reading it means reading memory."""
        type = self.program.vregs[vreg].type
        return isinstance(type, TensorType) and bool(type.nbytes) and self.value[vreg] not in self.constants

    def stored(self, vregs: Iterable[int]) -> list[int]:
        return [v for v in dict.fromkeys(vregs) if self.value[v] == v and self.lives(v)]

    def where(self, vreg: int, who: str) -> Place:
        if self.value[vreg] not in self.place:
            fail(who, f"v{vreg} has no storage")
        return self.place[self.value[vreg]]

    def read(self, vregs: Iterable[int], who: str) -> list[Place]:
        """Checks that each register's bytes hold its value; gives the places read."""
        places = []
        for vreg in vregs:
            if self.lives(vreg):
                places.append(self.where(vreg, who))
                self.demand(vreg, places[-1], who)
        return places

    def demand(self, vreg: int, place: Place, who: str) -> None:
        device, start, end = place
        at = start
        for low, high, value in sorted(self.memory.get(device, [])):
            if low <= at < min(high, end):
                if value != self.value[vreg]:
                    fail(who, f"v{vreg} was overwritten by v{value} at byte {at} of {device}")
                at = high
        if at < end:
            fail(who, f"byte {at} of v{vreg} on {device} was never written")

    def write(self, vregs: Iterable[int], who: str) -> None:
        for vreg in vregs:
            device, start, end = self.where(vreg, who)
            kept = []
            for low, high, value in self.memory.get(device, []):
                kept += [(a, b, value) for a, b in ((low, min(high, start)), (max(low, end), high)) if a < b]
            self.memory[device] = [*kept, (start, end, vreg)]

    def step(self, unit: tuple[Sequence[Instr], str], boundary: bool) -> None:
        instrs = unit[0]
        made: set[int] = set()
        reads: list[int] = []
        for instr in instrs:
            reads += [r for r in instr.reads if self.value[r] not in made]
            for dst in instr.dsts:
                alias = self.program.vregs[dst].alias_of
                self.value[dst] = dst if alias is None or self.program.in_place(instr) else self.value[alias]
                if alias is not None and self.value[dst] == dst:
                    self.place[dst] = self.place[self.value[alias]]
                made.add(dst)
        who = f"{instrs[0].opcode} {', '.join(f'v{d}' for d in instrs[0].dsts)}"
        places = self.read(reads, who)
        writes = self.stored(made)
        if boundary:
            writes = [w for w in writes if w in self.place]  # the rest stays inside the plugin
        self.overlaps(instrs, boundary, reads, places, sorted(writes), who)
        self.write(sorted(writes), who)

    def overlaps(
        self,
        instrs: Sequence[Instr],
        boundary: bool,
        reads: Sequence[int],
        places: Sequence[Place],
        writes: Sequence[int],
        who: str,
    ) -> None:
        """Refuses a write over bytes that the same step reads or writes, unless it is a legal in-place write."""
        taken: list[Place] = []
        for vreg in writes:
            place = self.where(vreg, who)
            if any(_meet(place, other) for other in taken):
                fail(who, f"two results share bytes with v{vreg}")
            taken.append(place)
            hit = {r for r in reads if self.lives(r) and _meet(place, self.where(r, who))}
            if not hit:
                continue
            op = instrs[0].op
            if self.program.in_place(instrs[0]) and hit == {instrs[0].srcs[0]}:
                continue
            if boundary or op is None or not op.traits.elementwise or len(hit) != 1 or len(instrs[0].dsts) != 1:
                fail(who, f"v{vreg} is written over {', '.join(f'v{h}' for h in sorted(hit))}, which is being read")
            (source,) = hit
            vregs = self.program.vregs
            if place != self.where(source, who) or vregs[source].type != vregs[vreg].type:
                fail(who, f"v{vreg} covers v{source} only in part or in another shape")


def _meet(a: Place, b: Place) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def fail(who: str, reason: str) -> NoReturn:
    raise CheckError("alloc", who, reason, "this is a bug in the allocator: report it with the printed allocation")
