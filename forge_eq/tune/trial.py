"""One trial: extract again under other settings. The e-graph is the same for all.

Takes a job that was saturated. Gives a :class:`Choice` per settings. Promises: no rule runs; equal programs have
equal names, in any process. Not here: which settings to try, measuring.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from forge_eq.errors import OptionsError
from forge_eq.extract import Budget, Default, Problem
from forge_eq.extract.cost import FusionGain
from forge_eq.extract.program import Chosen, choose, problem_of
from forge_eq.pipeline import Job
from forge_eq.tune.space import apply, base_of, space_of


@dataclass(frozen=True)
class Choice:
    """What a trial chose: e-node index per class, its predicted microseconds, and a name of the program."""

    nodes: Mapping[int, int]
    predicted: float
    program: str


class Trials:
    """Extractions over one saturation. ``known`` holds every distinct program seen, by name."""

    def __init__(self, job: Job) -> None:
        if job.options.cost is not None:
            raise OptionsError("options", "cost", "has no settings to tune", "leave it out: tuning is of Fusion-Gain")
        self.job, self.graph, self.view = job, job["capture"], job["saturate"]
        self.target = job.target  # once: a job reads it from its file
        self.limits = job.options.limits
        self.space = space_of(self.view)
        self.base = base_of(self.space, self.target, job.options.alpha)
        self.captured = frozenset(n.op for n in self.graph.nodes)
        self.solver = job.options.extractor or Default()
        self.extractions = 0
        self.known: dict[str, Choice] = {}
        self.settings: dict[str, Mapping[str, float]] = {}
        # The judge of all trials: kernels run alone under the target as it is, with no penalty and no discount.
        self.judge = self._problem(FusionGain(self.target, 1.0, self.captured), kernels=True)

    def cost(self, settings: Mapping[str, float]) -> FusionGain:
        target, alpha = apply(settings, self.target)
        return FusionGain(target, alpha, self.captured)

    def run(self, settings: Mapping[str, float]) -> Choice:
        """Extracts under the settings."""
        problem = problem_of(self.view, self.graph, self.cost(settings), self.limits)
        found = self.solver.solve(problem, Budget(moves=self.limits.moves))
        self.extractions += 1
        nodes = found.choice
        choice = Choice(nodes, self.price(self.judge, nodes), self._name(problem, nodes))
        self.known.setdefault(choice.program, choice)
        self.settings.setdefault(choice.program, dict(settings))
        return choice

    def program(self, name: str) -> Chosen:
        """The program of a name, rebuilt by extracting under the settings that first gave it."""
        return choose(self.view, self.graph, self.cost(self.settings[name]), self.limits, self.solver)

    def predict(self, settings: Mapping[str, float], names: list[str]) -> list[float]:
        """Predicted microseconds of known programs under settings."""
        problem = problem_of(self.view, self.graph, self.cost(settings), self.limits)
        return [self.price(problem, self.known[name].nodes) for name in names]

    @staticmethod
    def price(problem: Problem, nodes: Mapping[int, int]) -> float:
        return math.fsum(problem.classes[c][i].cost for c, i in nodes.items())

    def _problem(self, cost: FusionGain, kernels: bool) -> Problem:
        return problem_of(self.view, self.graph, _Kernels(cost) if kernels else cost, self.limits)

    @staticmethod
    def _name(problem: Problem, nodes: Mapping[int, int]) -> str:
        parts = [f"{c}:{problem.classes[c][i].op}:{problem.classes[c][i].key!r}" for c, i in sorted(nodes.items())]
        return blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()


class _Kernels(FusionGain):
    """Every node at the time of its own kernel."""

    def __init__(self, cost: FusionGain) -> None:
        super().__init__(cost.target, 1.0, cost.captured)

    def node(self, node: Any, classes: Any, out: Any) -> float:
        return self.time(node.op, [classes[c].type for c in node.children], node.attrs, out)
