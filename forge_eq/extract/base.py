"""What every extractor takes and gives, and the checker of their answers.

Takes a :class:`Problem` and a :class:`Budget`. Gives an :class:`Extraction`. Promises: budgets count work,
never time, and :func:`check` shares no code with any extractor. Not here: solving.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from forge_eq.errors import CheckError
from forge_eq.extract.problem import Problem

Promise = Literal["tree-optimal", "dag-heuristic", "dag-optimal-or-bound"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much work an extractor may do.

    ``moves``: moves that local search tries. ``visits``: branches that exact search enters, per independent
    part of the problem (in parts of over 100 classes fewer, in inverse proportion, as each takes longer there).
    ``width``: programs that a beam keeps per class.
    ``restarts``: new starts of local search, per part that exact search did not settle. ``checks``: points at which
    the solver of the integer program may be stopped, per part that is open even then; 0 leaves the program out.
    All are counts, so that two runs give the same answer on any machine.
    """

    moves: int = 200_000
    visits: int = 2_000
    restarts: int = 2
    checks: int = 40
    width: int = 4


@dataclass(frozen=True, slots=True)
class Extraction:
    """One e-node index for every class that the roots need.

    ``cost`` is the true DAG cost: each used class paid once. No extraction costs less than ``lower_bound``.
    ``status`` is "optimal" (the two meet), "converged" (the method ended) or "budget" (it was stopped).
    ``notes`` tell what a solver could not do, in sentences that name it.
    """

    choice: Mapping[int, int]
    cost: float
    lower_bound: float
    status: str
    extractor: str
    work: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """How far the cost can be from the optimum, as a fraction of the cost; 0 when proved optimal."""
        return (self.cost - self.lower_bound) / self.cost


class Extractor(Protocol):
    """A way to solve a problem. ``promise`` is held to by tests on random e-graphs."""

    @property
    def name(self) -> str: ...

    @property
    def promise(self) -> Promise: ...

    def solve(self, problem: Problem, budget: Budget) -> Extraction: ...


def check(problem: Problem, extraction: Extraction) -> None:
    """Raises CheckError unless the extraction is a valid, acyclic choice at the cost and above the bound it claims.

    The order of computation is rebuilt by Kahn's method from the e-nodes as given; nothing is taken from a solver.
    """
    needed = set(problem.roots)
    frontier = list(needed)
    while frontier:
        c = frontier.pop()
        if not 0 <= extraction.choice.get(c, -1) < len(problem.classes[c]):
            raise _broken(extraction, f"class {c}", "it is needed and no e-node of it is chosen")
        fresh = set(problem.classes[c][extraction.choice[c]].children) - needed
        needed |= fresh
        frontier.extend(fresh)
    if len(extraction.choice) != len(needed):
        extra = min(set(extraction.choice) - needed)
        raise _broken(extraction, f"class {extra}", "it is chosen and nothing needs it")
    inputs = {c: set(problem.classes[c][extraction.choice[c]].children) for c in needed}
    readers: dict[int, list[int]] = {c: [] for c in needed}
    for c, children in inputs.items():
        for child in children:
            readers[child].append(c)
    ready = [c for c, children in inputs.items() if not children]
    computed = 0
    while ready:
        child = ready.pop()
        computed += 1
        for c in readers[child]:
            inputs[c].discard(child)
            if not inputs[c]:
                ready.append(c)
    if computed != len(needed):
        stuck = min(c for c, children in inputs.items() if children)
        raise _broken(extraction, f"class {stuck}", "its value would depend on itself")
    cost = math.fsum(problem.classes[c][extraction.choice[c]].cost for c in needed)
    if not math.isclose(cost, extraction.cost, rel_tol=1e-12):
        raise _broken(extraction, "cost", f"{extraction.cost!r} is claimed and {cost!r} is paid")
    if not 0.0 <= extraction.lower_bound <= extraction.cost:
        raise _broken(extraction, "bound", f"lower bound {extraction.lower_bound!r} is above cost {extraction.cost!r}")
    if extraction.status == "optimal" and extraction.lower_bound != extraction.cost:
        raise _broken(extraction, "bound", "it claims to be optimal and its bound is below its cost")


def _broken(extraction: Extraction, node: str, reason: str) -> CheckError:
    return CheckError("extract", node, f"{extraction.extractor}: {reason}", "report this as a bug of the extractor")
