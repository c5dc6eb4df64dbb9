"""Equations, nothing else. ``default`` is every rule that carries evidence; see README.md for how to write one."""

from __future__ import annotations

from forge_eq.options import Options
from forge_eq.rules import (  # noqa: F401  (importing a family enters its rules)
    algebra,
    arithmetic,
    attention,
    composites,
    constants,
    contraction,
    convolution,
    device,
    from_definitions,
    from_traits,
    fusion,
    layout,
    pooling,
    reductions,
    simplify,
    slices,
    slices_moved,
    statistics,
)
from forge_eq.rules.dsl import REGISTRY, Attr, Guard, Rule, RuleSet, both, rule, to, together

default = RuleSet(REGISTRY.values())


def chosen(options: Options) -> RuleSet:
    """The rule set that options ask for."""
    return default if options.rules is None else options.rules


__all__ = ["REGISTRY", "Attr", "Guard", "Rule", "RuleSet", "both", "chosen", "default", "rule", "to", "together"]
