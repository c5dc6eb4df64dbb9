"""Live intervals over the final order.

Takes a scheduled program. Gives :class:`Interval` per storage-owning register, the in-place writes that are legal,
and the max-live bound. Promises: views keep the buffer they look at alive; inputs live from step -1, outputs to the
step after the last. Linear in the size of the program.
Not here: offsets (``alloc.linear_scan``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from forge_eq.lower.npu import Instr, Program
from forge_eq.targets import Target

INSTR, SEGMENT = "instr", "segment"


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at once: storage read and written (roots), and the instruction when there is exactly one."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    instr: Instr | None


@dataclass(frozen=True, slots=True)
class Interval:
    """Root register ``vreg`` of ``nbytes`` on ``device`` is live during steps ``[birth, death)``."""

    vreg: int
    device: str
    nbytes: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Group:
    """Registers that take turns in one buffer through in-place writes; ``members`` in order of birth."""

    members: tuple[Interval, ...]

    @property
    def nbytes(self) -> int:
        return self.members[0].nbytes

    @property
    def birth(self) -> int:
        return self.members[0].birth

    @property
    def death(self) -> int:
        return self.members[-1].death

    @property
    def key(self) -> int:
        return self.members[0].vreg


def steps(program: Program, target: Target, granularity: str) -> tuple[Step, ...]:
    """The program as steps of ``granularity``, see :class:`forge_eq.alloc.plan.Allocation`."""
    if granularity == INSTR:
        return tuple(_step(program, [i], i) for i in program.instrs)
    needed = _read_later(program)
    found: list[Step] = []
    for segment in program.segments:
        body = program.instrs[segment.start : segment.stop]
        if target.device(segment.device).kind == "openvino":
            found.append(_boundary(program, body, needed, segment.stop))
        else:
            found += [_step(program, [i], i) for i in body]
    return tuple(found)


def _step(program: Program, body: Sequence[Instr], instr: Instr) -> Step:
    reads = dict.fromkeys(program.root(r) for i in body for r in i.reads)
    writes = dict.fromkeys(d for i in body for d in i.dsts if program.vregs[d].alias_of is None)
    return Step(tuple(reads), tuple(writes), instr)


def _read_later(program: Program) -> dict[int, int]:
    """Root -> position of its last read; the number of instructions for outputs."""
    last = {program.root(r): p for p, i in enumerate(program.instrs) for r in i.reads}
    return {**last, **{program.root(o): len(program.instrs) for o in program.outputs}}


def _boundary(program: Program, body: Sequence[Instr], needed: dict[int, int], stop: int) -> Step:
    whole = _step(program, body, body[0])
    made = set(whole.writes)
    return Step(
        tuple(r for r in whole.reads if r not in made),
        tuple(w for w in whole.writes if needed.get(w, -1) >= stop),
        None,
    )


def intervals(program: Program, sequence: Sequence[Step], outside: Collection[int] = ()) -> list[Interval]:
    """Live intervals of the registers that own storage here, in order of (birth, register)."""
    elsewhere = {*program.constant_names, *outside}
    birth = {v: -1 for v in program.inputs if v not in program.state}  # that memory is the caller's
    death = dict.fromkeys(birth, 0)
    for position, step in enumerate(sequence):
        for write in step.writes:
            birth[write], death[write] = position, position + 1
        for read in step.reads:
            if read in birth:
                death[read] = position + 1
    for out in program.outputs:
        if (root := program.root(out)) in birth:
            death[root] = len(sequence) + 1
    found = [
        Interval(v, program.vregs[v].device, program.vregs[v].nbytes, birth[v], death[v])
        for v in birth
        if program.vregs[v].nbytes and v not in elsewhere
    ]
    return sorted(found, key=lambda i: (i.birth, i.vreg))


def groups(program: Program, sequence: Sequence[Step], live: Iterable[Interval]) -> list[Group]:
    """Intervals merged where an elementwise instruction may write over an operand that dies there.

    The operand must have the result's type and own its storage, and nothing else in the instruction may look at that
    storage. The first operand that qualifies is taken.
    """
    by_vreg = {i.vreg: i for i in live}
    chain: dict[int, list[Interval]] = {}  # last member -> members
    for interval in sorted(by_vreg.values(), key=lambda i: (i.birth, i.vreg)):
        over = _overwritten(program, sequence, interval, by_vreg)
        members = [*chain.pop(over), interval] if over is not None and over in chain else [interval]
        chain[interval.vreg] = members
    return sorted((Group(tuple(m)) for m in chain.values()), key=lambda g: (g.birth, g.key))


def _overwritten(
    program: Program,
    sequence: Sequence[Step],
    dst: Interval,
    by_vreg: dict[int, Interval],
) -> int | None:
    if dst.birth < 0 or (instr := sequence[dst.birth].instr) is None or instr.op is None:
        return None
    if not instr.op.traits.elementwise or len(instr.dsts) != 1:
        return None
    for source in dict.fromkeys(instr.reads):
        src, looks = by_vreg.get(source), sum(program.root(r) == source for r in dict.fromkeys(instr.reads))
        same = program.vregs[source].type == program.vregs[dst.vreg].type
        if src is not None and same and looks == 1 and src.death == dst.birth + 1 and src.device == dst.device:
            return source
    return None


def aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def max_live(merged: Iterable[Group], alignment: int) -> int:
    """The largest number of live bytes at any step, each buffer rounded up to ``alignment``."""
    change: dict[int, int] = {}
    for group in merged:
        size = aligned(group.nbytes, alignment)
        change[group.birth] = change.get(group.birth, 0) + size
        change[group.death] = change.get(group.death, 0) - size
    level = peak = 0
    for step in sorted(change):
        level += change[step]
        peak = max(peak, level)
    return peak


def live_peaks(program: Program, target: Target) -> dict[str, int]:
    """The max-live bound of each device's arena, in bytes, at instruction granularity."""
    sequence = steps(program, target, INSTR)
    merged = groups(program, sequence, intervals(program, sequence))
    devices = dict.fromkeys(g.members[0].device for g in merged)
    return {d: max_live([g for g in merged if g.members[0].device == d], target.alignment) for d in devices}


def live_levels(program: Program) -> dict[str, list[int]]:
    """For each device that runs something, the bytes live on it at each instruction (in-place writes not deducted)."""
    count = len(program.instrs)
    change = {i.device: [0] * (count + 1) for i in program.instrs}
    sequence = tuple(_step(program, [i], i) for i in program.instrs)
    for interval in intervals(program, sequence):
        if interval.device in change:
            change[interval.device][max(interval.birth, 0)] += interval.nbytes
            change[interval.device][min(interval.death, count)] -= interval.nbytes
    return {d: list(accumulate(c))[:count] for d, c in change.items()}
