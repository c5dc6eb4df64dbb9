"""List scheduling by device phases.

Takes a program with final devices and explicit copies. Gives the same program in another order, and figures.
Promises: dependences and the order of effects are kept; peak memory is at most ``slack`` times that of the given
order, or as many bytes more as are moved in the time of one transition; among the candidates the fewest transitions
win, then the lowest peak; deterministic.
Not here: devices, copies, offsets.

An instruction's phase is the largest number of device changes on a path to it. Running phase after phase needs as
many transitions as the longest alternating chain has, and no order needs fewer: so the phases also give the lower
bound. An instruction may run in any phase of its device between its earliest and its latest; both ends are candidates
(early frees operands, late shortens the life of results), and within a phase instructions keep program order or
follow a memory-aware order. Where phases would keep too much alive, running ahead is bounded: a device goes on only
while what it makes early fits under the limit until the step that would have made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from forge_eq.alloc.liveness import live_levels, live_peaks
from forge_eq.lower.npu import Instr, Program, readers_before
from forge_eq.targets import Target

Order = list[int]  # positions in the given program


@dataclass(frozen=True, slots=True)
class Figures:
    """What ordering achieved. Bytes are the max-live sum over all arenas.

    ``transitions_before`` and ``peak_before`` are those of the given order with the same devices and copies;
    ``transitions_least`` is a lower bound over all orders.
    """

    transitions_before: int
    transitions: int
    transitions_least: int
    copies: int
    copy_bytes: int
    peak_before: int
    peak: int
    strategy: str


def dependences(program: Program) -> list[list[int]]:
    """For each instruction the earlier ones that it must follow.

    These are the definitions of what it reads, the last effect, and before a write in place all who read the old value.
    """
    definers, readers = program.definers(), readers_before(program)
    found: list[list[int]] = []
    effect: int | None = None
    for position, instr in enumerate(program.instrs):
        before = {definers[r] for r in instr.reads if r in definers} | readers.get(position, set())
        if instr.effectful:
            if effect is not None:
                before.add(effect)
            effect = position
        found.append(sorted(before))
    return found


def order(program: Program, target: Target, slack: float = 1.1) -> tuple[Program, Figures]:
    """The program in the best of a few orders; ``slack`` bounds peak memory relative to the given order.

    A step of one token has values of a few kilobytes: there no transition is worth what ``slack`` would save. So memory
    may always grow by what a transition costs, in bytes at the transfer rate.
    """
    before = dependences(program)
    given = live_peaks(program, target)
    peak_before = sum(given.values())
    worth = target.transfer_us * target.transfer_gbps * 1e3
    limit = max(peak_before * max(slack, 1.0), peak_before + worth)
    least = _least_transitions(program.instrs, before)
    name, made, peak = _best(program, target, before, given, limit)
    copies = [i for i in made.instrs if i.is_copy]
    return made, Figures(
        program.transitions,
        made.transitions,
        least,
        len(copies),
        sum(program.vregs[d].nbytes for i in copies for d in i.dsts),
        peak_before,
        peak,
        name,
    )


def _best(
    program: Program, target: Target, before: Sequence[Sequence[int]], given: dict[str, int], limit: float
) -> tuple[str, Program, int]:
    """The candidate within the limit with the fewest transitions, then the lowest peak.

    The costly kinds are built only when the plain phases exceed the limit: none of them has fewer transitions.
    """
    given_order = list(range(len(program.instrs)))
    peak = sum(given.values())
    if program.transitions == 0:
        return "program order", program, peak
    phases = _phases(program, before)
    plain = [(name, sorted(given_order, key=lambda p: (phase[p], p))) for name, phase in phases]
    chosen = _choose(program, target, peak, plain, limit)
    if chosen is None:
        lean = [(f"{n}, lean", _lean(program, before, p)) for n, p in phases]
        chosen = _choose(program, target, peak, lean, limit)
    if chosen is None:
        rest = [*_run_ahead(program, before, given, limit), ("program order", given_order)]
        chosen = _choose(program, target, peak, rest, limit)
    assert chosen is not None, "the given order is within the limit"
    return chosen


def _choose(
    program: Program, target: Target, given: int, candidates: Sequence[tuple[str, Order]], limit: float
) -> tuple[str, Program, int] | None:
    """``given`` is the peak of the program as it is."""

    def peak(made: Program) -> int:
        return given if made.instrs == program.instrs else sum(live_peaks(made, target).values())

    distinct = {tuple(o): name for name, o in reversed(candidates)}
    made = [(n, replace(program, instrs=tuple(program.instrs[p] for p in o))) for o, n in reversed(distinct.items())]
    counts = [m.transitions for _, m in made]
    for count in sorted(set(counts)):
        equal = [(*e, peak(e[1])) for e, c in zip(made, counts, strict=True) if c == count]
        within = [e for e in equal if e[2] <= limit]
        if within:
            return min(within, key=lambda e: e[2])
    return None


def _phases(program: Program, before: Sequence[Sequence[int]]) -> list[tuple[str, list[int]]]:
    found = []
    for first in dict.fromkeys(i.device for i in program.instrs):
        early = _early(program.instrs, before, first)
        late = _late(program.instrs, before, early)
        found += [(f"early phases from {first}", early), (f"late phases from {first}", late)]
    return found


def _early(instrs: Sequence[Instr], before: Sequence[Sequence[int]], first: str) -> list[int]:
    """Earliest phase of each instruction when phase 0 belongs to device ``first``."""
    phase: list[int] = []
    for position, instr in enumerate(instrs):  # positions are a topological order
        start = 0 if instr.device == first else 1
        phase.append(max([start, *(phase[b] + (instrs[b].device != instr.device) for b in before[position])]))
    return _paired(instrs, phase)


def _paired(instrs: Sequence[Instr], phase: list[int]) -> list[int]:
    """With more than two devices a phase number may belong to several: one (phase, device) pair is one phase."""
    devices = list(dict.fromkeys(i.device for i in instrs))
    if len(devices) <= 2:
        return phase
    return [p * len(devices) + devices.index(i.device) for p, i in zip(phase, instrs, strict=True)]


def _late(instrs: Sequence[Instr], before: Sequence[Sequence[int]], early: Sequence[int]) -> list[int]:
    """Latest phase of each instruction that does not lengthen the schedule."""
    last: dict[str, int] = {}
    for instr, phase in zip(instrs, early, strict=True):
        last[instr.device] = max(last.get(instr.device, 0), phase)
    late = [last[i.device] for i in instrs]
    used = {d: sorted({p for i, p in zip(instrs, early, strict=True) if i.device == d}) for d in last}
    for position in reversed(range(len(instrs))):
        for b in before[position]:
            limit = late[position] - (instrs[b].device != instrs[position].device)
            if late[b] > limit:
                late[b] = max(p for p in used[instrs[b].device] if p <= limit)
    return late


def _least_transitions(instrs: Sequence[Instr], before: Sequence[Sequence[int]]) -> int:
    """Fewest transitions of any order: exact for two devices, else the longest alternating chain."""
    devices = list(dict.fromkeys(i.device for i in instrs))
    if len(devices) == 2:  # the first device fixes the earliest phase of everything, and phases alternate
        return min(max(_early(instrs, before, first)) for first in devices)
    change: list[int] = []
    for position, instr in enumerate(instrs):
        change.append(max([0, *(change[b] + (instrs[b].device != instr.device) for b in before[position])]))
    return max([*change, len(devices) - 1, 0])


def _lean(program: Program, before: Sequence[Sequence[int]], phase: Sequence[int]) -> Order:
    """List scheduling: of the ready instructions of the lowest phase, the one that frees the most bytes, net."""
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(b) for b in before]
    for position, earlier in enumerate(before):
        for b in earlier:
            after[b].append(position)
    uses: dict[int, int] = {program.root(o): 1 << 30 for o in program.outputs}
    for instr in program.instrs:
        for root in {program.root(r) for r in instr.reads}:
            uses[root] = uses.get(root, 0) + 1

    def growth(p: int) -> int:
        instr = program.instrs[p]
        made = sum(program.vregs[d].nbytes for d in instr.dsts if program.vregs[d].alias_of is None)
        freed = sum(program.vregs[r].nbytes for r in {program.root(r) for r in instr.reads} if uses[r] == 1)
        return made - freed

    ready = [(phase[p], growth(p), p) for p, w in enumerate(waiting) if w == 0]
    heapify(ready)
    done: Order = []
    while ready:
        _, stale, p = heappop(ready)
        if (now := growth(p)) != stale:
            heappush(ready, (phase[p], now, p))
            continue
        done.append(p)
        for root in {program.root(r) for r in program.instrs[p].reads}:
            uses[root] -= 1
        for a in after[p]:
            waiting[a] -= 1
            if waiting[a] == 0:
                heappush(ready, (phase[a], growth(a), a))
    return done


# ----------------------------------------------------------------------------------------- bounded run-ahead


def _run_ahead(
    program: Program, before: Sequence[Sequence[int]], given: dict[str, int], limit: float
) -> Iterable[tuple[str, Order]]:
    """Orders that stay on a device as long as memory allows; the spare memory goes to one device or another."""
    spare = int(limit) - sum(given.values())
    devices = list(dict.fromkeys(i.device for i in program.instrs))
    for favoured in devices if len(devices) > 1 else []:
        budget = {d: peak + (spare if d == favoured else 0) for d, peak in given.items()}
        for first in devices:
            yield f"run ahead from {first}, memory for {favoured}", _Ahead(program, before, budget).run(first)


class _Ahead:
    """``level[d][t]``: bytes on device d while the instruction at position t runs, with everything made early added.

    An instruction may run early, now instead of at its position, if what it makes fits under the budget at every
    position in between. The first instruction not yet run is always ready and never early, so there is progress.
    """

    def __init__(self, program: Program, before: Sequence[Sequence[int]], budget: dict[str, int]) -> None:
        self.program, self.before, self.budget = program, before, budget
        self.level = live_levels(program)
        self.done = [False] * len(program.instrs)
        self.next = 0  # first position not yet run

    def run(self, device: str) -> Order:
        order: Order = []
        left = {d: [p for p, i in enumerate(self.program.instrs) if i.device == d] for d in self.level}
        while self.next < len(self.done):
            taken = self.phase(left[device])
            left[device] = [p for p in left[device] if not self.done[p]]
            order += taken
            if self.next < len(self.done):
                device = self.program.instrs[self.next].device
        return order

    def phase(self, waiting: Sequence[int]) -> Order:
        """What one device runs without a change, in program order."""
        taken: Order = []
        for p in waiting:
            if all(self.done[b] for b in self.before[p]) and self.fits(p):
                self.done[p] = True
                taken.append(p)
                while self.next < len(self.done) and self.done[self.next]:
                    self.next += 1
        return taken

    def fits(self, p: int) -> bool:
        """Whether ``p`` may run now; if so its results are counted from now on."""
        if p == self.next:
            return True
        vregs, device = self.program.vregs, self.program.instrs[p].device
        made = sum(vregs[d].nbytes for d in self.program.instrs[p].dsts if vregs[d].alias_of is None)
        level = self.level[device]
        if made and max(level[self.next : p]) + made > self.budget.get(device, 0):
            return False
        for t in range(self.next, p) if made else ():
            level[t] += made
        return True
