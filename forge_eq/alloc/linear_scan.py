"""Arena allocation: linear scan, greedy orders that sometimes beat it, and a short search where neither is tight.

Takes a scheduled program. Gives an :class:`Allocation`. Promises: deterministic; offsets are aligned; no two buffers
that are live together overlap, except where an elementwise instruction writes over an operand that dies there.
Not here: the proof of that (``alloc.checker``, which shares no code with this).

Linear scan is Poletto and Sarkar's (TOPLAS 1999) with byte offsets in place of registers: a best-fit list of free
blocks, merged with their neighbours on release. The greedy orders place the largest (or longest) buffers first, each
at the lowest offset that is free for its whole life. The lowest peak is kept. Where it is above the bound, a placement
within the bound is searched for (``alloc.skyline``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush

from forge_eq.alloc.liveness import INSTR, SEGMENT, Group, aligned, groups, intervals, max_live, steps
from forge_eq.alloc.plan import Allocation, Arena, Slot
from forge_eq.alloc.skyline import skyline
from forge_eq.errors import AllocError
from forge_eq.lower.npu import Program
from forge_eq.targets import Target

Offsets = dict[int, int]  # key of a group -> offset in bytes


def allocate(program: Program, target: Target, granularity: str = INSTR, outside: Collection[int] = ()) -> Allocation:
    """Storage for every register of a scheduled program.

    Args:
        granularity: ``"instr"`` or ``"segment"``, see :class:`forge_eq.alloc.plan.Allocation`.
        outside: inputs and returned registers that lie in memory of their own, not in an arena.

    Raises:
        AllocError: an arena exceeds the memory of its device, or the granularity is unknown.
    """
    if granularity not in (INSTR, SEGMENT):
        raise AllocError("alloc", granularity, "is not a granularity", "use 'instr' or 'segment'")
    sequence = steps(program, target, granularity)
    merged = groups(program, sequence, intervals(program, sequence, outside))
    arenas = []
    for device in target.devices:
        mine = [g for g in merged if g.members[0].device == device.name]
        if not mine:
            continue
        arena = _arena(device.name, mine, target.alignment)
        if 0 < device.memory_mib < arena.peak / 2**20:
            raise AllocError(
                "alloc",
                device.name,
                f"{arena.peak} bytes do not fit in {device.memory_mib:g} MiB (at least {arena.bound} are needed)",
                "use a smaller batch or sequence, or a target with more memory",
            )
        arenas.append(arena)
    kept = tuple(sorted(outside))
    return Allocation(program.name, granularity, target.alignment, len(sequence), tuple(arenas), kept)


def _arena(device: str, merged: Sequence[Group], alignment: int) -> Arena:
    bound = max_live(merged, alignment)
    best: tuple[int, str, Offsets] | None = None
    for name, strategy in STRATEGIES:
        offsets = strategy(merged, alignment)
        peak = max(offsets[g.key] + aligned(g.nbytes, alignment) for g in merged)
        if best is None or peak < best[0]:
            best = (peak, name, offsets)
        if peak == bound:
            break
    assert best is not None
    peak, name, offsets = best
    if peak > bound and (tight := skyline(merged, alignment, bound)) is not None:
        peak, name, offsets = bound, "skyline", tight
    slots = [Slot(i.vreg, offsets[g.key], i.nbytes, i.birth, i.death) for g in merged for i in g.members]
    return Arena(device, peak, bound, name, tuple(sorted(slots, key=lambda s: (s.birth, s.vreg))))


# --------------------------------------------------------------------------------------------- linear scan


class _FreeList:
    """Free blocks ``(offset, size)`` in order of offset, and the top of the arena."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []
        self.top = 0

    def take(self, size: int) -> int:
        """The smallest block that fits, else the top (which starts in the last block when that is free)."""
        fits = [(s, o, i) for i, (o, s) in enumerate(self.blocks) if s >= size]
        if fits:
            block, offset, index = min(fits)
            self.blocks[index : index + 1] = [(offset + size, block - size)] if block > size else []
            return offset
        offset = self.top
        if self.blocks and sum(self.blocks[-1]) == self.top:
            offset = self.blocks.pop()[0]
        self.top = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Releases a block and merges it with its neighbours."""
        index = next((i for i, (o, _) in enumerate(self.blocks) if o > offset), len(self.blocks))
        self.blocks.insert(index, (offset, size))
        for left in (index, index - 1):
            if 0 <= left < len(self.blocks) - 1 and sum(self.blocks[left]) == self.blocks[left + 1][0]:
                self.blocks[left : left + 2] = [(self.blocks[left][0], self.blocks[left][1] + self.blocks[left + 1][1])]


def linear_scan(merged: Sequence[Group], alignment: int) -> Offsets:
    """Buffers in order of birth; those born together largest first."""
    free, offsets = _FreeList(), Offsets()
    active: list[tuple[int, int, int, int]] = []  # (death, key, offset, size)
    for group in sorted(merged, key=lambda g: (g.birth, -g.nbytes, g.key)):
        while active and active[0][0] <= group.birth:
            _, _, offset, size = heappop(active)
            free.give(offset, size)
        size = aligned(group.nbytes, alignment)
        offsets[group.key] = free.take(size)
        heappush(active, (group.death, group.key, offsets[group.key], size))
    return offsets


# ------------------------------------------------------------------------------------------------- greedy


def _greedy(merged: Sequence[Group], alignment: int, order: Callable[[Group], tuple[int, ...]]) -> Offsets:
    """Each buffer at the lowest offset that no placed buffer with a common step uses."""
    offsets = Offsets()
    placed: list[tuple[int, int, Group]] = []  # (offset, end, group), by offset
    for group in sorted(merged, key=order):
        size, at = aligned(group.nbytes, alignment), 0
        for offset, end, other in placed:
            if other.birth < group.death and group.birth < other.death:
                if offset - at >= size:
                    break
                at = max(at, end)
        offsets[group.key] = at
        entry = (at, at + size, group)
        index = next((i for i, p in enumerate(placed) if p[0] > at), len(placed))
        placed.insert(index, entry)
    return offsets


def largest_first(merged: Sequence[Group], alignment: int) -> Offsets:
    return _greedy(merged, alignment, lambda g: (-g.nbytes, g.birth - g.death, g.birth, g.key))


def longest_first(merged: Sequence[Group], alignment: int) -> Offsets:
    return _greedy(merged, alignment, lambda g: (g.birth - g.death, -g.nbytes, g.birth, g.key))


def area_first(merged: Sequence[Group], alignment: int) -> Offsets:
    return _greedy(merged, alignment, lambda g: (-g.nbytes * (g.death - g.birth), g.birth, g.key))


def birth_first(merged: Sequence[Group], alignment: int) -> Offsets:
    return _greedy(merged, alignment, lambda g: (g.birth, -g.nbytes, g.key))


STRATEGIES: tuple[tuple[str, Callable[[Sequence[Group], int], Offsets]], ...] = (
    ("linear_scan", linear_scan),
    ("largest_first", largest_first),
    ("longest_first", longest_first),
    ("area_first", area_first),
    ("birth_first", birth_first),
)
