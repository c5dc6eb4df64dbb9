"""Greedy DAG extraction: per class the e-node whose whole set of needed classes is cheapest.

Takes a :class:`Problem`. Gives an :class:`Extraction`. Promises: sharing below one class is paid once, and the
choice is acyclic by construction. Not here: sharing between siblings that neither needs alone (``extract.beam``).
"""

from __future__ import annotations

from collections.abc import Sequence

from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.bounds import members
from forge_eq.extract.knuth import settle_in_order
from forge_eq.extract.problem import Problem


def cheapest_dags(problem: Problem, weights: Sequence[Sequence[int]] | None = None) -> list[int]:
    """Per class an e-node, -1 where there is none. ``weights`` stand in for the problem's own if given.

    Classes are settled in order of the cost of their set; a settled class is never changed. Sets are integers used as
    bit sets, and a union starts from the dearest child's total, so that work follows what the children do not share.
    """
    given = weights or problem.weights
    count = len(problem.classes)
    cost, needs, own = [0] * count, [0] * count, [0] * count

    def price(c: int, i: int) -> int:
        return given[c][i] + _union_cost(problem.kids[c][i], cost, needs, own)

    def settled(c: int, i: int, total: int) -> None:
        cost[c], own[c], union = total, given[c][i], 1 << c
        for kid in problem.kids[c][i]:
            union |= needs[kid]
        needs[c] = union

    return settle_in_order(problem, given, price, settled)


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
