"""List scheduling by device phases.

Takes a program with final devices and explicit copies. Gives the same program in another order, and figures.
Promises: dependences and the order of effects are kept; peak memory is at most ``slack`` times that of the given
order; among the candidates the fewest transitions win, then the lowest peak; deterministic.
Not here: devices, copies, offsets.

An instruction's phase is the largest number of device changes on a path to it. Running phase after phase needs as
many transitions as the longest alternating chain has, and no order needs fewer: so the phases also give the lower
bound. An instruction may run in any phase of its device between its earliest and its latest; both ends are candidates
(early frees operands, late shortens the life of results), and within a phase instructions keep program order or
follow a memory-aware order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from forge_eq.alloc.liveness import live_bytes
from forge_eq.lower.npu import Instr, Program
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
    """For each instruction the earlier ones that it must follow: definitions of what it reads, and the last effect."""
    definers = program.definers()
    found: list[list[int]] = []
    effect: int | None = None
    for position, instr in enumerate(program.instrs):
        before = {definers[r] for r in instr.reads if r in definers}
        if instr.effectful:
            if effect is not None:
                before.add(effect)
            effect = position
        found.append(sorted(before))
    return found


def order(program: Program, target: Target, slack: float = 1.1) -> tuple[Program, Figures]:
    """The program in the best of a few orders; ``slack`` bounds peak memory relative to the given order."""
    before = dependences(program)
    given = live_bytes(program, target)
    best: tuple[tuple[int, int, int], str, Program, int] | None = None
    least = _least_transitions(program.instrs, before)
    for rank, (name, candidate) in enumerate(_candidates(program, before)):
        made = replace(program, instrs=tuple(program.instrs[p] for p in candidate))
        peak = live_bytes(made, target)
        key = (made.transitions, peak, rank)
        if peak <= max(given * slack, given) and (best is None or key < best[0]):
            best = (key, name, made, peak)
    assert best is not None, "the given order is a candidate"
    _, name, made, peak = best
    copies = [i for i in made.instrs if i.is_copy]
    return made, Figures(
        program.transitions, made.transitions, least, len(copies),
        sum(program.vregs[d].nbytes for i in copies for d in i.dsts), given, peak, name,
    )


def _candidates(program: Program, before: Sequence[Sequence[int]]) -> Iterable[tuple[str, Order]]:
    count = len(program.instrs)
    yield "program order", list(range(count))
    for first in dict.fromkeys(i.device for i in program.instrs):
        early = _early(program.instrs, before, first)
        late = _late(program.instrs, before, early)
        for name, phase in (("early", early), ("late", late)):
            yield f"{name} phases from {first}", sorted(range(count), key=lambda p: (phase[p], p))
            yield f"{name} phases from {first}, lean", _lean(program, before, phase)


def _early(instrs: Sequence[Instr], before: Sequence[Sequence[int]], first: str) -> list[int]:
    """Earliest phase of each instruction when phase 0 belongs to device ``first``."""
    phase: list[int] = []
    for position, instr in enumerate(instrs):
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
    used: dict[str, list[int]] = {d: sorted({p for i, p in zip(instrs, early, strict=True) if i.device == d}) for d in last}
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
