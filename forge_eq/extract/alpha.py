"""Every program that some alpha calls cheapest, and the alphas between which it is.

Takes a saturated e-graph, the captured Graph and a target. Gives :class:`Segment` from alpha = 0 to 1. Promises: the
total gain never falls along the path. Not here: which alpha to use.

The cost of a fixed program is linear in alpha: C - alpha * G, with G the total gain of its fusions. The cheapest cost
is the lower envelope of these lines. Two programs of neighbouring alphas meet at one alpha; either an extraction there
finds a cheaper third, or that is a breakpoint. So a path of k programs takes about 2 k extractions (parametric search
as for minimum cuts and paths, Eisner and Severance 1976).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forge_eq.egraph.view import EGraphView, ENode
from forge_eq.extract.base import Budget, Extraction, Extractor, check
from forge_eq.extract.cost import FusionGain
from forge_eq.extract.default import Default
from forge_eq.extract.problem import Problem
from forge_eq.extract.program import problem_of
from forge_eq.ir.graph import Graph
from forge_eq.options import Limits
from forge_eq.targets import Target

SAME = 1e-9  # relative difference of costs that counts as none


@dataclass(frozen=True)
class Segment:
    """From alpha ``low`` to ``high`` the program costs ``base - alpha * gain`` predicted microseconds.

    ``extraction`` is that at one alpha of the segment. ``fused``: its fusions by op name.
    """

    low: float
    high: float
    base: float
    gain: float
    fused: Mapping[str, int]
    extraction: Extraction

    def cost(self, alpha: float) -> float:
        """The program's cost at any alpha."""
        return self.base - alpha * self.gain


class _Path:
    def __init__(self, view: EGraphView, graph: Graph, target: Target, limits: Limits, solver: Extractor) -> None:
        self.view, self.graph, self.target, self.limits, self.solver = view, graph, target, limits, solver
        self.captured = frozenset(n.op for n in graph.nodes)
        self.ends = self.problem(0.0), self.problem(1.0)

    def problem(self, alpha: float) -> Problem:
        return problem_of(self.view, self.graph, FusionGain(self.target, alpha, self.captured), self.limits)

    def at(self, alpha: float) -> Segment:
        problem = self.problem(alpha)
        found = self.solver.solve(problem, Budget(moves=self.limits.moves))
        check(problem, found)
        base, full = (math.fsum(p.classes[c][i].cost for c, i in found.choice.items()) for p in self.ends)
        fused: dict[str, int] = {}
        for c, i in sorted(found.choice.items()):
            node = problem.classes[c][i].payload
            if isinstance(node, ENode) and node.rule and node.op.fused and node.op not in self.captured:
                fused[node.op.name] = fused.get(node.op.name, 0) + 1
        return Segment(alpha, alpha, base, base - full, fused, found)

    def between(self, left: Segment, right: Segment) -> list[Segment]:
        """The path from the program of ``left`` to that of ``right``, both ends included."""
        if math.isclose(left.gain, right.gain, rel_tol=SAME, abs_tol=SAME * left.base):
            return [left]
        meet = min(max((left.base - right.base) / (left.gain - right.gain), left.low), right.low)
        middle = self.at(meet) if left.low < meet < right.low else left
        if middle.cost(meet) >= min(left.cost(meet), right.cost(meet)) * (1 - SAME):
            return [replace(left, high=meet), replace(right, low=meet)]
        return _joined(self.between(left, middle), self.between(middle, right))


def _joined(first: list[Segment], then: list[Segment]) -> list[Segment]:
    """Two paths that share the program in the middle."""
    return [*first[:-1], replace(then[0], low=first[-1].low), *then[1:]]


def alpha_path(
    view: EGraphView, graph: Graph, target: Target, limits: Limits | None = None, extractor: Extractor | None = None
) -> list[Segment]:
    """The segments from alpha 0 to 1, in order. Raises ExtractError when there is no program."""
    path = _Path(view, graph, target, limits or Limits(), extractor or Default())
    found = path.between(path.at(0.0), path.at(1.0))
    return [*found[:-1], replace(found[-1], high=1.0)]
