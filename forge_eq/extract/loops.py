"""Loop cuts: what a relaxation of the integer program has to be told about cycles.

Takes a :class:`Problem` and a fractional or integral solution. Gives violated :class:`Cut`. Promises: every acyclic
choice satisfies every cut. Not here: the program.

Let S be classes of one strongly connected component. An acyclic choice that uses a class r of S computes some class of
S from outside S: following children that stay in S must end. So the e-nodes of S with no child in S are used at least
as far as r is. (Answer-set programming knows these as loop formulas, Lin and Zhao 2004; on graphs they are the cuts of
Steiner arborescences.) The larger S, the fewer e-nodes enter it cheaply, so S is all of the component that the
solution does not compute firmly: a class is as firm as its firmest e-node, an e-node as its weakest child or its own
value. One threshold on firmness per class r gives S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from forge_eq.extract.knuth import waiting
from forge_eq.extract.problem import Problem

TOLERANCE = 1e-4  # violation below which a cut is not worth its row
MOST = 100  # cuts per round, the most violated first


@dataclass(frozen=True, slots=True)
class Cut:
    """Sum of the ``entries`` (class, e-node) is at least the sum of ``uses``, the e-nodes of r that are no entries."""

    entries: tuple[tuple[int, int], ...]
    uses: tuple[tuple[int, int], ...]
    violation: float


class Loops:
    """Separation for one problem."""

    def __init__(self, problem: Problem) -> None:
        scc = problem.scc
        self.problem = problem
        self.inner = [
            [tuple(k for k in kids if scc[k] == scc[c]) for kids in nodes] if problem.cyclic[c] else []
            for c, nodes in enumerate(problem.kids)
        ]
        components: dict[int, list[int]] = {}
        for c, cyclic in enumerate(problem.cyclic):
            if cyclic:
                components.setdefault(scc[c], []).append(c)
        self.components = list(components.values())
        self.waits, _ = waiting(problem)

    def violated(self, values: Sequence[Sequence[float]]) -> list[Cut]:
        """Cuts that the solution (per class, per e-node: how far it is used) violates; none if it has no cycle."""
        found: list[Cut] = []
        used = [sum(row) for row in values]
        for component in self.components:
            wanted = [r for r in component if used[r] > TOLERANCE]
            if wanted:
                firm = self._firmness(component, values)
                found += self._cuts([r for r in wanted if firm[r] < used[r] - TOLERANCE], component, values, firm)
        return sorted(found, key=lambda cut: -cut.violation)[:MOST]

    def _firmness(self, component: Sequence[int], values: Sequence[Sequence[float]]) -> dict[int, float]:
        firm = dict.fromkeys(component, 0.0)
        done, least, heap = set[int](), dict[tuple[int, int], float](), list[tuple[float, int]]()
        pending = {(c, i): len(kids) for c in component for i, kids in enumerate(self.inner[c])}
        for (c, i), count in pending.items():
            least[c, i] = values[c][i]
            if not count and values[c][i] > 0.0:
                heappush(heap, (-values[c][i], c))
        while heap:
            negative, c = heappop(heap)
            if c in done:
                continue
            done.add(c)
            firm[c] = -negative
            for p, j in self.waits[c]:
                if (p, j) not in pending or c not in self.inner[p][j]:
                    continue
                pending[p, j] -= 1
                least[p, j] = min(least[p, j], firm[c])
                if not pending[p, j] and p not in done and least[p, j] > 0.0:
                    heappush(heap, (-least[p, j], p))
        return firm

    def _cuts(
        self, wanted: Sequence[int], component: Sequence[int], values: Sequence[Sequence[float]], firm: dict[int, float]
    ) -> list[Cut]:
        cuts = []
        levels: dict[float, list[int]] = {}
        for r in wanted:
            levels.setdefault(firm[r], []).append(r)
        for level, rows in sorted(levels.items()):
            inside = {c for c in component if firm[c] <= level}
            entries = [(c, i) for c in inside for i, kids in enumerate(self.inner[c]) if inside.isdisjoint(kids)]
            total = sum(values[c][i] for c, i in entries)
            for r in rows:
                missing = sum(values[r]) - total
                if missing > TOLERANCE:
                    own = {i for c, i in entries if c == r}
                    uses = tuple((r, i) for i in range(len(values[r])) if i not in own)
                    others = tuple(sorted(entry for entry in entries if entry[0] != r))
                    cuts.append(Cut(others, uses, missing))
        return cuts
