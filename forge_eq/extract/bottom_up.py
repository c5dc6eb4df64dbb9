"""Bottom-up extraction: the cheapest tree of every class.

Takes a :class:`Problem`. Gives an :class:`Extraction`. Promises: tree-optimal, and acyclic by construction.
Not here: sharing; the cost reported is still the DAG cost of the choice.
"""

from __future__ import annotations

from forge_eq.extract.answer import summarise
from forge_eq.extract.base import Budget, Extraction, Promise
from forge_eq.extract.knuth import settle_in_order
from forge_eq.extract.problem import Problem


def cheapest_trees(problem: Problem) -> tuple[list[int], list[int]]:
    """Per class the e-node of its cheapest tree and that tree's cost (exact integer), -1 where there is none."""
    cost = [-1] * len(problem.classes)

    def price(c: int, i: int) -> int:
        return problem.weights[c][i] + sum(cost[kid] for kid in problem.classes[c][i].children)

    def settled(c: int, _i: int, total: int) -> None:
        cost[c] = total

    return settle_in_order(problem, problem.weights, price, settled), cost


class BottomUp:
    """The cheapest tree per class; linear but for the heap."""

    name = "bottom-up"
    promise: Promise = "tree-optimal"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term. The budget is not needed."""
        choice, _ = cheapest_trees(problem)
        return summarise(problem, choice, self.name, {"nodes": problem.size})
