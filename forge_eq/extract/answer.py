"""From a full choice to an :class:`Extraction`: what is needed, what it costs, how far from the best it can be.

Takes a :class:`Problem` and a choice for each of its classes. Gives an :class:`Extraction`. Promises: exact
arithmetic up to the final float. Not here: making or improving a choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from forge_eq.extract.base import Extraction
from forge_eq.extract.bounds import forced_bound, shared_bound
from forge_eq.extract.problem import Problem
from forge_eq.extract.prune import prune
from forge_eq.extract.split import split


def settle(problem: Problem, choice: Sequence[int]) -> tuple[dict[int, int], int]:
    """The part of a full choice that the roots need, and its exact cost in units of ``1 / scale``."""
    used = dict.fromkeys(problem.roots)
    frontier, cost = list(used), 0
    while frontier:
        c = frontier.pop()
        cost += problem.weights[c][choice[c]]
        for kid in problem.kids[c][choice[c]]:
            if kid not in used:
                used[kid] = None
                frontier.append(kid)
    return {c: choice[c] for c in sorted(used)}, cost


def lower_bound(problem: Problem, choice: Mapping[int, int]) -> float:
    """A bound from the independent parts of the pruned problem, guided by a choice over the used classes.

    Classes that every extraction contains and that have one e-node left pay it; each part pays the better of
    :func:`forced_bound` and :func:`shared_bound`. Splitting first is what makes these bounds sharp: a class that is
    paid in any case no longer hides behind cheap projections of a fused op.
    """
    pruned = prune(problem)
    decided, parts = split(pruned.problem)
    bounds = [pruned.problem.classes[c][0].cost for c in decided]
    for part in parts:
        original = [pruned.class_ids[c] for c in part.class_ids]
        number = {old: new for new, old in enumerate(original)}
        guide = {c: [number[k] for k in problem.kids[old][choice[old]] if k in number]
                 for c, old in enumerate(original) if old in choice}
        bounds.append(max(forced_bound(part.problem), shared_bound(part.problem, guide)) / part.problem.scale)
    return math.fsum(bounds)


def summarise(problem: Problem, choice: Sequence[int], name: str, work: Mapping[str, int], *,
              stopped: bool = False) -> Extraction:
    """The :class:`Extraction` of a full choice, with :func:`lower_bound`."""
    used, _ = settle(problem, choice)
    cost, bound = math.fsum(problem.classes[c][i].cost for c, i in used.items()), lower_bound(problem, used)
    return conclude(used, cost, bound, name, work, stopped=stopped)


def conclude(used: Mapping[int, int], cost: float, bound: float, name: str, work: Mapping[str, int], *,
             stopped: bool) -> Extraction:
    """The :class:`Extraction` with its status; cost and bound that differ by rounding only are equal."""
    proved = bound >= cost or math.isclose(bound, cost, rel_tol=1e-12)
    status = "optimal" if proved else "budget" if stopped else "converged"
    return Extraction(used, cost, cost if proved else bound, status, name, work)
