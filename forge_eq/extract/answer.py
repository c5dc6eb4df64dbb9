"""From a full choice to an :class:`Extraction`: what is needed, what it costs, how far from the best it can be.

Takes a :class:`Problem` and a choice for each of its classes. Gives an :class:`Extraction`. Promises: exact
arithmetic up to the final float. Not here: making or improving a choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

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


def lower_bound(problem: Problem, guide: Mapping[int, Iterable[int]]) -> float:
    """A bound from the independent parts of the pruned problem.

    ``guide`` tells which children each used class of a good choice uses. Classes that every extraction contains and
    that have one e-node left pay it; each part pays the better of :func:`forced_bound` and :func:`shared_bound`.
    Splitting first is what makes these bounds useful: a class that is paid in any case no longer hides behind cheap
    projections of a fused op. A gap of the linear relaxation remains, which only exact search closes.
    """
    pruned = prune(problem)
    decided, parts = split(pruned.problem)
    bounds = [pruned.problem.classes[c][0].cost for c in decided]
    for part in parts:
        inside = _renumber(guide, {pruned.class_ids[c]: new for new, c in enumerate(part.class_ids)})
        bounds.append(max(forced_bound(part.problem), shared_bound(part.problem, inside)) / part.problem.scale)
    return math.fsum(bounds)


def _renumber(guide: Mapping[int, Iterable[int]], number: Mapping[int, int]) -> dict[int, list[int]]:
    return {new: [number[k] for k in guide[old] if k in number] for old, new in number.items() if old in guide}


def summarise(
    problem: Problem, choice: Sequence[int], name: str, work: Mapping[str, int], *, stopped: bool = False
) -> Extraction:
    """The :class:`Extraction` of a full choice, with :func:`lower_bound`."""
    used, _ = settle(problem, choice)
    cost = math.fsum(problem.classes[c][i].cost for c, i in used.items())
    bound = lower_bound(problem, {c: problem.kids[c][i] for c, i in used.items()})
    return conclude(used, cost, bound, name, work, stopped=stopped)


def conclude(
    used: Mapping[int, int], cost: float, bound: float, name: str, work: Mapping[str, int], *, stopped: bool
) -> Extraction:
    """The :class:`Extraction` with its status; cost and bound that differ by rounding only are equal."""
    proved = bound >= cost or math.isclose(bound, cost, rel_tol=1e-12)
    status = "optimal" if proved else "budget" if stopped else "converged"
    return Extraction(used, cost, cost if proved else bound, status, name, work)
