"""The extractor that the pipeline uses.

Takes a :class:`Problem` and a :class:`Budget`. Gives a checked :class:`Extraction`. Promises: the cost is optimal or
the gap to the bound is stated; equal inputs give equal answers, whatever the numbering. Not here: the methods
themselves.

Prune, split into independent parts, repeat on each part until nothing falls apart; then per part: cheapest trees and
cheapest DAGs, each improved by local search, the better one handed to branch and bound, and if that does not settle
it, new starts near the best, and last the integer program where its solver is installed. Parts of equal structure
(the layers of a network) are solved once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from forge_eq.extract.answer import conclude, settle
from forge_eq.extract.base import Budget, Extraction, Promise, check
from forge_eq.extract.bottom_up import cheapest_trees
from forge_eq.extract.bounds import MANY, forced_bound, shared_bound
from forge_eq.extract.exact import branch_and_bound
from forge_eq.extract.greedy_dag import cheapest_dags
from forge_eq.extract.highs import SAFETY
from forge_eq.extract.ilp import LARGEST, SMALL, available, relaxed_bound, require, solve_ilp
from forge_eq.extract.local_search import improve
from forge_eq.extract.problem import Problem
from forge_eq.extract.prune import prune
from forge_eq.extract.split import NESTING, is_whole, split

Choice = dict[int, int]


class Default:
    """Prune, split, heuristics with local search, bounded exact search."""

    name = "default"
    promise: Promise = "dag-optimal-or-bound"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError when a root has no finite term, CheckError if the answer does not check (a bug)."""
        return self._solve(problem, budget, SMALL if available() else 0)

    def _solve(self, problem: Problem, budget: Budget, ilp: int) -> Extraction:
        run = _Run(budget, ilp)
        choice, bound = run.solve(problem, 0)
        if (
            run.stopped and len(problem.classes) <= MANY
        ):  # greedy on the whole can be luckier than the best found part by part
            plain = (settle(problem, start) for start in (cheapest_trees(problem)[0], cheapest_dags(problem)))
            choice = min((choice, *(used for used, _ in plain)), key=lambda c: _cost(problem, c))
        cost = math.fsum(problem.classes[c][i].cost for c, i in choice.items())
        answer = conclude(choice, cost, bound, self.name, {"nodes": problem.size, **run.work}, stopped=run.stopped)
        check(problem, answer)
        return replace(answer, notes=tuple(run.notes))


class Ilp(Default):
    """The same with the integer program for every part, instead of branch and bound."""

    name = "ilp"

    def solve(self, problem: Problem, budget: Budget) -> Extraction:
        """Raises ExtractError also when the solver is not installed."""
        require()
        return self._solve(problem, replace(budget, visits=0), LARGEST)


def solve(problem: Problem, budget: Budget | None = None) -> Extraction:
    """Extracts with the default stack. See :class:`Default`."""
    return Default().solve(problem, budget or Budget())


@dataclass(slots=True)
class _Run:
    """One call: what it has done, and the answers to the parts it has seen."""

    budget: Budget
    ilp: int  # e-nodes up to which a part is given to the integer program
    work: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("parts", "solved", "moves", "visits", "checks"), 0)
    )
    stopped: bool = False
    notes: list[str] = field(default_factory=list)
    known: dict[object, tuple[Choice, float]] = field(default_factory=dict)

    def solve(self, problem: Problem, depth: int) -> tuple[Choice, float]:
        """The best choice found, and a lower bound in the unit of the costs."""
        pruned = prune(problem)
        small = pruned.problem
        decided, parts = split(small)
        if depth >= NESTING or (depth and is_whole(small, decided, parts)):
            choice, bound = self.search(small)
            return pruned.restore(choice), bound
        choice = dict.fromkeys(decided, 0)
        bounds = [small.classes[c][0].cost for c in decided]
        for part in parts:
            self.work["parts"] += 1
            shape = _shape(part.problem)
            if shape not in self.known:
                self.known[shape] = self.solve(part.problem, depth + 1)
            choice |= part.restore(self.known[shape][0])
            bounds.append(self.known[shape][1])
        return pruned.restore(choice), math.fsum(bounds)

    def search(self, problem: Problem) -> tuple[Choice, float]:
        """The same for a pruned problem that does not split."""
        self.work["solved"] += 1
        many = len(problem.classes) > MANY
        starts = [cheapest_trees(problem)[0], *([] if many else [cheapest_dags(problem)])]
        used, cost = min((self.improve(problem, start) for start in starts), key=lambda found: found[1])
        guide = {c: problem.kids[c][i] for c, i in used.items()}
        bound = max(forced_bound(problem), shared_bound(problem, guide))
        if many:
            self.stopped |= bound < cost
            return used, bound / problem.scale
        if bound < cost:
            exact = branch_and_bound(problem, cost, self.budget.visits * 100 // max(100, len(problem.classes)))
            self.work["visits"] += exact.visits
            used, cost, bound = exact.choice or used, exact.cost, max(bound, exact.bound)
        for restart in range(self.budget.restarts if bound < cost else 0):
            again, total = self.improve(problem, _greedy_near(problem, used, 5 * 4**restart))
            if total < cost:
                used, cost = again, total
        if bound < cost and problem.size <= self.ilp and self.budget.checks:
            used, cost, better = self.integer(problem, used, cost)
            bound = max(bound, better)
        elif bound < cost and self.ilp and problem.size <= LARGEST and self.budget.checks:
            bound = max(bound, relaxed_bound(problem, cost))
        self.stopped |= bound < cost * (1 - 2 * SAFETY)
        return used, bound / problem.scale

    def integer(self, problem: Problem, used: Choice, cost: int) -> tuple[Choice, int, int]:
        """The integer program: choice, exact cost, bound."""

        def repair(hint: Choice) -> tuple[Choice, int]:
            return self.improve(problem, _greedy_near(problem, hint, 5))

        solved = solve_ilp(problem, used, cost, self.budget.checks, repair)
        self.work["checks"] += solved.checks
        self.notes += [f"ilp: {solved.note}; the best choice known before is kept"] if solved.note else []
        return solved.choice, solved.cost, solved.bound

    def improve(self, problem: Problem, start: Sequence[int]) -> tuple[Choice, int]:
        """Local search within the moves that are left: the choice over the used classes and its exact cost."""
        choice, cost, tried = improve(problem, start, self.budget.moves - self.work["moves"])
        self.work["moves"] += tried
        return settle(problem, choice)[0], cost


def _cost(problem: Problem, choice: Choice) -> int:
    return sum(problem.weights[c][i] for c, i in choice.items())


def _greedy_near(problem: Problem, used: Choice, factor: int) -> list[int]:
    """Greedy with everything that the choice does not use ``factor`` times dearer: it keeps what can be shared with
    the choice, and drops what was only worth it before other classes changed their minds."""
    return cheapest_dags(
        problem,
        [
            [w if used.get(c) == i else w * factor for i, w in enumerate(weights)]
            for c, weights in enumerate(problem.weights)
        ],
    )


def _shape(problem: Problem) -> object:
    """All that the answer to a part depends on: equal for the same part of another layer."""
    costs = tuple(tuple(node.cost for node in nodes) for nodes in problem.classes)
    return problem.kids, costs, problem.roots, problem.order
