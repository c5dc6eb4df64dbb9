"""Greedy DAG extraction: per class the e-node whose whole set of needed classes is cheapest.

Takes a :class:`Problem`. Gives an :class:`Extraction`. Promises: sharing below one class is paid once, and the
choice is acyclic by construction. Not here: sharing between siblings that neither needs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.bottom_up import require
from forge_eq.extract.bounds import members
from forge_eq.extract.problem import Problem


def cheapest_dags(problem: Problem, weights: Sequence[Sequence[int]] | None = None) -> list[int]:
    """Per class an e-node, -1 where there is none. ``weights`` stand in for the problem's own if given.

    Classes are settled in order of the cost of their set, as in :func:`cheapest_trees`; a settled class is never
    changed, so that an e-node only ever stands on classes settled before its own. Sets are integers used as bit
    sets, and a union starts from the dearest child's total, so that work follows what the children do not share.
    """
    weights = weights or problem.weights
    count = len(problem.classes)
    choice, cost, needs, own = [-1] * count, [0] * count, [0] * count, [0] * count
    waits: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    pending = [[len(kids) for kids in nodes] for nodes in problem.kids]
    rank = [{i: r for r, i in enumerate(order)} for order in problem.order]
    heap = []
    for c, nodes in enumerate(problem.kids):
        for i, kids in enumerate(nodes):
            for kid in kids:
                waits[kid].append((c, i))
            if not kids:
                heap.append((weights[c][i], rank[c][i], c, i))
    heapify(heap)
    while heap:
        total, _, c, i = heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c], cost[c], own[c] = i, total, weights[c][i]
        union = 1 << c
        for kid in problem.kids[c][i]:
            union |= needs[kid]
        needs[c] = union
        for p, j in waits[c]:
            pending[p][j] -= 1
            if not pending[p][j] and choice[p] < 0:
                total = weights[p][j] + _union_cost(problem.kids[p][j], cost, needs, own)
                heappush(heap, (total, rank[p][j], p, j))
    require(problem, choice)
    return choice


def _union_cost(kids: tuple[int, ...], cost: list[int], needs: list[int], own: list[int]) -> int:
    first = max(kids, key=cost.__getitem__)
    total, union = cost[first], needs[first]
    for kid in kids:
        extra = needs[kid] & ~union
        if extra:
            union |= extra
            total += own[kid] if extra == 1 << kid else sum(map(own.__getitem__, members(extra)))
    return total


class GreedyDag:
    """Greedy with sharing; one look at each e-node."""

    name = "greedy-dag"
    promise: Promise = "dag-heuristic"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term. The budget is not needed."""
        return summarise(problem, cheapest_dags(problem), self.name, {"nodes": problem.size})
