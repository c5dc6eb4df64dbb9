"""Arena allocation by search: a placement within a given size, where one is found in a bounded number of steps.

Takes the groups of one arena and a capacity. Gives offsets, or None: there is no placement of that size, or it was
not found. Promises: deterministic; work is bounded by ``NODES`` and ``GROUPS``. Not here: which capacity to ask for,
and what to do without an answer (``alloc.linear_scan``).

The search is that over skylines: groups are placed in order of their offsets, each on the top of what lies under it,
as in branch and bound for strip packing (Martello, Monaci and Vigo 2003) and in MiniMalloc (Moffitt, ASPLOS 2023).
Without its bounds it would be complete: in the placement with the least sum of offsets every group touches what is
under it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from forge_eq.alloc.liveness import Group, aligned

NODES = 2_000  # partial placements that are looked at
GROUPS = 512  # beyond, nothing is tried: each node is linear in their number


def skyline(merged: Sequence[Group], alignment: int, capacity: int) -> dict[int, int] | None:
    """Offset in bytes of each group by its key, all of them ending within ``capacity``; None when none was found."""
    if len(merged) > GROUPS:
        return None
    order = sorted(merged, key=lambda g: (g.birth, -g.nbytes, g.key))
    search = _Search([aligned(g.nbytes, alignment) for g in order], _spans(order), capacity)
    return {g.key: at for g, at in zip(order, search.offsets, strict=True)} if search.run() else None


def _spans(order: Sequence[Group]) -> list[tuple[int, int]]:
    """Of each group (first, end) of the steps that it is live in, counting only steps that matter.

    They are births before the next of which something dies: at every other step fewer groups are live.
    """
    deaths = sorted({g.death for g in order})
    births = sorted({g.birth for g in order})
    following = [*births[1:], deaths[-1]]
    kept = [b for b, n in zip(births, following, strict=True) if deaths[bisect_left(deaths, b + 1)] <= n]
    return [(bisect_left(kept, g.birth), bisect_left(kept, g.death)) for g in order]


class _Search:
    """Depth first, a node's candidates lowest first. ``tops[i]`` is the top of what lies under group ``i`` by now."""

    def __init__(self, sizes: Sequence[int], spans: Sequence[tuple[int, int]], capacity: int) -> None:
        self.sizes, self.spans, self.capacity = sizes, spans, capacity
        self.members: list[list[int]] = [[] for _ in range(max(end for _, end in spans))]
        for i, span in enumerate(spans):
            for s in range(*span):
                self.members[s].append(i)
        self.beside = [[j for j, (a, b) in enumerate(spans) if a < end and start < b] for start, end in spans]
        self.left = [sum(sizes[i] for i in group) for group in self.members]  # bytes to place at each step
        self.tops = [0] * len(sizes)
        self.offsets = [-1] * len(sizes)
        self.placed: list[tuple[int, list[tuple[int, int]]]] = []  # (group, tops as they were)

    def run(self) -> bool:
        """Whether ``offsets`` hold a placement."""
        if max(self.left) > self.capacity:
            return False
        branches = [self.candidates()]
        for _ in range(NODES):
            while (i := next(branches[-1], None)) is None:
                branches.pop()
                if not branches:
                    return False
                self.take_back()
            if self.place(i):
                if len(self.placed) == len(self.sizes):
                    return True
                branches.append(self.candidates())
            else:
                self.take_back()
        return False

    def candidates(self) -> Iterator[int]:
        """What may lie next: not below the last group, and not so high that another fits under it."""
        last = self.placed[-1][0] if self.placed else -1
        floor = self.offsets[last] if self.placed else 0
        open_ = [i for i, at in enumerate(self.offsets) if at < 0]
        ceiling = min(max(floor, self.tops[i]) + self.sizes[i] for i in open_)
        found = [(self.tops[i], i) for i in open_ if (floor, last) < (self.tops[i], i) and self.tops[i] < ceiling]
        return iter([i for _, i in sorted(found)])

    def place(self, i: int) -> bool:
        """Lays the group on what is under it; whether the others may still fit."""
        at, end = self.tops[i], self.tops[i] + self.sizes[i]
        self.offsets[i] = at
        for s in range(*self.spans[i]):
            self.left[s] -= self.sizes[i]
        raised = [j for j in self.beside[i] if self.offsets[j] < 0 and self.tops[j] < end]
        self.placed.append((i, [(j, self.tops[j]) for j in raised]))
        for j in raised:
            self.tops[j] = end
        return at + max(self.left) <= self.capacity and self.fits(i, raised, at)

    def fits(self, i: int, raised: Sequence[int], floor: int) -> bool:
        """Whether at each step where something changed what is left fits over the lowest place that it may have."""
        if any(self.tops[j] + self.sizes[j] > self.capacity for j in raised):
            return False
        steps = {s for j in (i, *raised) for s in range(*self.spans[j]) if self.left[s]}
        for s in steps:
            lowest = min(self.tops[j] for j in self.members[s] if self.offsets[j] < 0)
            if max(floor, lowest) + self.left[s] > self.capacity:
                return False
        return True

    def take_back(self) -> None:
        i, before = self.placed.pop()
        for j, top in before:
            self.tops[j] = top
        self.offsets[i] = -1
        for s in range(*self.spans[i]):
            self.left[s] += self.sizes[i]
