"""Beam DAG extraction: per class the few cheapest whole programs, not just one.

Takes a :class:`Problem` and a :class:`Budget` (``width``). Gives an :class:`Extraction`. Promises: acyclic by
construction, and never dearer than greedy. Not here: revising a class with a full beam (``extract.local_search``).

A candidate of a class is a program for it: e-nodes as a bit set, with the cost of the set. An e-node joins candidates
of its children; where two of them compute one class differently, the one joined first wins. That is acyclic: the first
is complete by itself, so it never reads what the second adds. Greedy drops the dearer way to compute a class at once;
a beam keeps it until a reader that shares more with it is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import product

from forge_eq.extract.answer import settle, summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.bottom_up import cheapest_trees
from forge_eq.extract.bounds import members
from forge_eq.extract.greedy_dag import cheapest_dags
from forge_eq.extract.knuth import waiting
from forge_eq.extract.problem import Problem
from forge_eq.extract.prune import prune

Candidate = tuple[int, int, int]  # cost, e-nodes, all e-nodes of the classes that those compute
MEMORY = 2_000_000_000  # bits of all candidates at most; a beam too narrow for two is greedy and left out
JOINS = 6  # ways of joining the children's candidates that are tried per e-node and new candidate


class _Beam:
    """Bit j of a set is e-node ``j - first[c]`` of class c."""

    def __init__(self, problem: Problem, width: int) -> None:
        self.problem, self.width = problem, width
        self.first, count = [], 0
        for nodes in problem.classes:
            self.first.append(count)
            count += len(nodes)
        self.owner = [c for c, nodes in enumerate(problem.classes) for _ in nodes]
        self.weight = [w for weights in problem.weights for w in weights]
        self.whole = [((1 << len(n)) - 1) << f for f, n in zip(self.first, problem.classes, strict=True)]
        self.beams: list[list[Candidate]] = [[] for _ in problem.classes]

    def run(self) -> None:
        """Fills the beams, cheapest candidates first."""
        waits, pending = waiting(self.problem)
        rank = [{i: r for r, i in enumerate(order)} for order in self.problem.order]
        heap: list[tuple[int, int, int, int, int]] = []  # cost, rank of the e-node, class, e-nodes, cover

        def offer(c: int, i: int, found: Candidate | None) -> None:
            if found is not None:
                heappush(heap, (found[0], rank[c][i], c, found[1], found[2]))

        for c, counts in enumerate(pending):
            for i, count in enumerate(counts):
                if not count:
                    offer(c, i, self.join(c, i, ()))
        while heap:
            cost, _, c, nodes, cover = heappop(heap)
            beam = self.beams[c]
            if len(beam) >= self.width or any(nodes == other for _, other, _ in beam):
                continue
            beam.append((cost, nodes, cover))
            for p, j in waits[c]:
                if len(beam) == 1:
                    pending[p][j] -= 1
                if not pending[p][j] and len(self.beams[p]) < self.width:
                    for chosen in self.joins(self.problem.kids[p][j], c, beam[-1]):
                        offer(p, j, self.join(p, j, chosen))

    def joins(self, kids: Sequence[int], c: int, new: Candidate) -> list[tuple[Candidate, ...]]:
        """Ways to take one candidate per child, the new one for class ``c``."""
        sources = [[new] if k == c else self.beams[k] for k in kids]
        ways: list[tuple[Candidate, ...]] = []
        for way in product(*sources):
            ways.append(way)
            if len(ways) == JOINS:
                break
        return ways

    def join(self, c: int, i: int, chosen: Sequence[Candidate]) -> Candidate | None:
        """An e-node on candidates of its children; None if one of them computes class ``c`` itself."""
        cost, nodes, cover = 0, 0, 0
        for other_cost, other, other_cover in sorted(chosen, reverse=True):
            extra = other & ~cover
            cost += other_cost if extra == other else sum(map(self.weight.__getitem__, members(extra)))
            nodes |= extra
            cover |= other_cover
        if cover & self.whole[c]:
            return None
        at = self.first[c] + i
        return cost + self.weight[at], nodes | 1 << at, cover | self.whole[c]

    def choice(self) -> list[int]:
        """The cheapest candidates of the roots, joined; -1 where a class is not needed."""
        found = [-1] * len(self.problem.classes)
        for root in sorted(self.problem.roots, key=lambda r: (-self.beams[r][0][0], r)):
            for j in members(self.beams[root][0][1]):
                c = self.owner[j]
                if found[c] < 0:
                    found[c] = j - self.first[c]
        return found


def cheapest_of_beam(problem: Problem, width: int) -> list[int]:
    """Per class that the roots need an e-node, -1 elsewhere. The problem is pruned: every class has a finite term."""
    beam = _Beam(problem, width)
    beam.run()
    return beam.choice()


class Beam:
    """The best of the beam, of greedy and of the cheapest trees."""

    name = "beam-dag"
    promise: Promise = "dag-heuristic"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term."""
        pruned = prune(problem)
        small = pruned.problem
        width = min(budget.width, MEMORY // (2 * small.size * len(small.classes)))
        starts = [cheapest_of_beam(small, width)] if width > 1 else []
        starts += [cheapest_dags(small), cheapest_trees(small)[0]]
        best = min(starts, key=lambda choice: settle(small, choice)[1])
        work = {"nodes": problem.size, "width": max(1, width)}
        answer = summarise(small, best, self.name, work)
        return Extraction(
            pruned.restore(answer.choice), answer.cost, answer.lower_bound, answer.status, self.name, answer.work
        )
