"""Guard mutation: a guard that can be dropped unnoticed is either idle or hides a weak test.

Takes a rule and the instances that exactly one guard keeps out. Gives, for each soundness guard, how dropping it
was noticed: by values that differ, or by the e-graph's type check. Guards that only keep the e-graph small, and
those that ask the e-graph, are exempt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from forge_eq.rules.dsl import Guard, Rule
from forge_eq.verify.interpret import Binding, Misplaced, fires
from forge_eq.verify.numeric import Counterexample, compare, odd_values, values_of
from forge_eq.verify.samples import Samples


@dataclass(frozen=True)
class Mutant:
    """``noticed``: ``values``, ``types``, or empty when the guard seems to do nothing."""

    guard: Guard
    noticed: str


def mutate(rule: Rule, samples: Samples, *, seed: int = 0) -> list[Mutant]:
    """One mutant for each guard that is there for soundness."""
    rng = np.random.default_rng(random.Random(f"{rule.id} mutation {seed}").getrandbits(64))
    return [
        Mutant(guard, _noticed(rule, samples.unguarded.get(i, []), rng))
        for i, guard in enumerate(rule.guards)
        if guard.soundness and guard.fn is not None
    ]


def _noticed(rule: Rule, bindings: list[Binding], rng: np.random.Generator) -> str:
    by_types = False
    for binding in bindings:
        try:
            refused = bool(fires(rule, binding))
        except Misplaced:
            refused = True
        if refused:
            by_types = True
        elif _differs(rule, binding, rng):
            return "values"
    return "types" if by_types else ""


def _differs(rule: Rule, binding: Binding, rng: np.random.Generator) -> bool:
    odd = odd_values(rule)
    plan = [("numeric", r) for r in (*[odd] * 8, "masked", *["ordinary"] * 6)] + [("torch", "ordinary")]
    if rule.exact == "bit":
        plan.append(("torch", odd))
    return any(
        isinstance(compare(rule, binding, values_of(binding, rng, regime, rule.finite), method), Counterexample)
        for method, regime in plan
    )
