"""Exact extraction as an integer linear program, solved by HiGHS (the optional package ``highspy``).

Takes a pruned :class:`Problem`, a known choice and a work limit. Gives the best acyclic choice found and a lower
bound. Promises: the bound holds whenever the solver stops, and the same input gives the same answer: one thread, a
fixed seed, work counted in points where the solver may be stopped, never in seconds. Not here: splitting, heuristics.

Binary x(n) says that e-node n is used; a class is used as far as its e-nodes are. Minimise the sum of cost(n) x(n)
such that each root has one e-node, no class has more than one, and for classes c and k: the e-nodes of c that have
k among their children are used no more than k is. Taking those e-nodes together is tighter than one row for each.

Cycles are not excluded at first. The linear relaxation is solved first and cut where a loop supports itself
(``extract.loops``), as long as that raises the bound; then rounds of the integer program, each with cuts against the
loops of the solution before. A round counts as work, and each round's bound holds because leaving cuts out only
relaxes. A cyclic solution still serves as a hint where to look for an acyclic one. Why not levels: decision 0006.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from forge_eq.errors import ExtractError
from forge_eq.extract.answer import settle
from forge_eq.extract.highs import Choice, Model
from forge_eq.extract.loops import Loops
from forge_eq.extract.problem import Problem

Repair = Callable[[Choice], tuple[Choice, int]]  # a choice that may have cycles -> an acyclic one near it, its cost

PROGRESS = 1e-4  # share of the cost by which a round has to raise the bound, or else find a cheaper choice
PATIENCE = 3, 10_000  # rounds without progress before it stops: so many, and this over the number of e-nodes more
ROUNDS, IDLE = 60, 8  # of the relaxation, at most; without a raise, before it stops
RAISE = 1e-3  # share of the cost by which a round has to raise the bound
SMALL = 5_000  # e-nodes up to which it belongs to the default stack: seconds at most
LARGE_ROUNDS = 3  # of the relaxation of a part that is not given to the integer program
LARGEST = 25_000  # e-nodes beyond which the first relaxation alone, which cannot be stopped, takes too long


@dataclass(frozen=True, slots=True)
class Solved:
    """``choice`` over the used classes with its exact integer ``cost``; ``bound`` in the same unit.

    ``checks``: points passed at which the solver may be stopped. ``note``: why the solver gave up, if it did.
    """

    choice: Choice
    cost: int
    bound: int
    checks: int
    note: str


def available() -> bool:
    """Whether the solver is installed."""
    return importlib.util.find_spec("highspy") is not None


def require() -> None:
    """Raises ExtractError when the solver is not installed."""
    if not available():
        raise ExtractError("extract", "ilp", "highspy is not installed", "pip install 'forge_eq[ilp]'")


def relaxed_bound(problem: Problem, cost: int) -> int:
    """A lower bound from the linear relaxation alone, with cuts against loops; ``cost`` is that of a known choice."""
    return min(cost, _relaxed(Model(problem, cost), Loops(problem), cost, LARGE_ROUNDS))


def solve_ilp(problem: Problem, incumbent: Choice, cost: int, checks: int, repair: Repair) -> Solved:
    """The best choice found, at least as good as the incumbent (with its exact integer cost).

    ``checks`` limits the points at which HiGHS asks whether to go on: between rounds of separation, heuristics and
    nodes. ``repair`` makes acyclic choices out of solutions with cycles. A solver that fails, or calls feasible
    problems infeasible, leaves the incumbent and says so in ``note``.
    """
    best, best_cost, spent, idle, note = incumbent, cost, 0, 0, ""
    model, loops = Model(problem, cost), Loops(problem)
    bound = _relaxed(model, loops, cost, ROUNDS) if loops.components else 0
    patience = PATIENCE[0] + PATIENCE[1] // problem.size
    while spent < checks:
        answer = model.solve(best, checks - spent)
        spent += max(answer.checks, 1)
        before = best_cost, bound
        bound = max(bound, model.bound(answer.dual))
        if answer.choice is None:
            note = answer.note
            break
        cuts = loops.violated(model.rows(answer.choice))
        choice, total = repair(answer.choice) if cuts else settle(problem, _full(problem, answer.choice))
        if total < best_cost:
            best, best_cost = choice, total
        idle = 0 if best_cost < before[0] or bound > before[1] + PROGRESS * cost else idle + 1
        if answer.stopped and bound < best_cost:
            note = f"HiGHS was stopped at its budget of {checks} checks"
        if not cuts or bound >= best_cost or idle >= patience:
            break
        model.add(cuts)
    return Solved(best, best_cost, min(bound, best_cost), spent, note)


def _relaxed(model: Model, loops: Loops, cost: int, rounds: int) -> int:
    """Rounds of the linear relaxation with cuts, while they raise the bound. Leaves the cuts in the model."""
    bound, idle = 0, 0
    for _ in range(rounds):
        dual, values = model.relax()
        idle = 0 if model.bound(dual) > bound + RAISE * cost else idle + 1
        bound = max(bound, model.bound(dual))
        cuts = loops.violated(values) if values else []
        if not cuts or idle > IDLE:
            break
        model.add(cuts)
    return bound


def _full(problem: Problem, choice: Choice) -> list[int]:
    return [choice.get(c, -1) for c in range(len(problem.classes))]
