"""Bottom-up extraction: the cheapest tree of every class.

Takes a :class:`Problem`. Gives an :class:`Extraction`. Promises: tree-optimal, and acyclic by construction.
Not here: sharing; the cost reported is still the DAG cost of the choice.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from forge_eq.errors import ExtractError
from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.problem import Problem


def cheapest_trees(problem: Problem) -> tuple[list[int], list[int]]:
    """Per class the e-node of its cheapest tree and that tree's cost (exact integer), -1 where there is none.

    Knuth's generalisation of Dijkstra (1977): an e-node waits until its last child is settled, and classes are
    settled in order of cost, so each e-node is looked at once. As costs are positive, all e-nodes that tie are
    waiting in the heap when their class is settled, and the smallest key wins whatever the numbering.
    """
    count = len(problem.classes)
    choice, cost = [-1] * count, [-1] * count
    waits: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    pending = [[len(kids) for kids in nodes] for nodes in problem.kids]
    rank = [{i: r for r, i in enumerate(order)} for order in problem.order]
    heap = []
    for c, nodes in enumerate(problem.kids):
        for i, kids in enumerate(nodes):
            for kid in kids:
                waits[kid].append((c, i))
            if not kids:
                heap.append((problem.weights[c][i], rank[c][i], c, i))
    heapify(heap)
    while heap:
        total, _, c, i = heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c], cost[c] = i, total
        for p, j in waits[c]:
            pending[p][j] -= 1
            if not pending[p][j] and choice[p] < 0:
                tree = problem.weights[p][j] + sum(cost[kid] for kid in problem.classes[p][j].children)
                heappush(heap, (tree, rank[p][j], p, j))
    require(problem, choice)
    return choice, cost


def require(problem: Problem, choice: list[int]) -> None:
    """Raises ExtractError when a root was left without a choice."""
    for root in problem.roots:
        if choice[root] < 0:
            raise ExtractError(
                "extract",
                f"root class {root}",
                "it has no finite term",
                "give some e-node of the class children that can be computed",
            )


class BottomUp:
    """The cheapest tree per class; linear but for the heap."""

    name = "bottom-up"
    promise: Promise = "tree-optimal"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term. The budget is not needed."""
        choice, _ = cheapest_trees(problem)
        return summarise(problem, choice, self.name, {"nodes": problem.size})
