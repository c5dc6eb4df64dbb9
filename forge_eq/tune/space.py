"""The search space of tuning, as data.

Takes an e-graph. Gives the :class:`Range` of each setting that can matter in it. Promises: a setting stands for a
factor or a share, never for a rule: one saturation serves every trial. Not here: sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forge_eq.egraph.view import EGraphView
from forge_eq.targets import Target

ALPHA, WEIGHT, PENALTY = "alpha", "weight.", "penalty."


@dataclass(frozen=True, slots=True)
class Range:
    """One setting: from ``low`` to ``high``, on a logarithmic scale if ``log``."""

    name: str
    low: float
    high: float
    log: bool = False

    def __str__(self) -> str:
        return f"{self.name:20} {self.low:g} .. {self.high:g}{' (log)' if self.log else ''}"


def space_of(view: EGraphView) -> tuple[Range, ...]:
    """alpha; for each cost class in the e-graph a factor on its weight; for each class of fused ops a penalty.

    A factor on all weights at once changes no choice but against views, so matmul's weight is the unit and stays.
    """
    nodes = [n for cls in view.classes for n in cls.nodes if not n.op.leaf]
    classes = sorted({n.op.cost.cost_class for n in nodes} - {"view"})
    fused = sorted({n.op.cost.cost_class for n in nodes if n.op.fused and n.rule} - {"view"})
    return (
        Range(ALPHA, 0.0, 1.0),
        *(Range(WEIGHT + c, 0.25, 4.0, log=True) for c in classes if c != "matmul"),
        *(Range(PENALTY + c, 0.0, 0.5) for c in fused),
    )


def base_of(space: Sequence[Range], target: Target, alpha: float) -> dict[str, float]:
    """The settings that a target stands for, moved into their ranges."""
    found = {}
    for one in space:
        kind, _, cls = one.name.partition(".")
        value = alpha if one.name == ALPHA else 1.0 if kind + "." == WEIGHT else target.penalty(cls)
        found[one.name] = min(max(value, one.low), one.high)
    return found


def apply(settings: Mapping[str, float], target: Target) -> tuple[Target, float]:
    """The target with settings applied, and alpha."""
    weights, penalties = dict(target.weights), dict(target.penalties)
    for name, value in settings.items():
        if name.startswith(WEIGHT):
            cls = name.removeprefix(WEIGHT)
            weights[cls] = target.weight(cls) * value
        elif name.startswith(PENALTY):
            penalties[name.removeprefix(PENALTY)] = value
    return replace(target, weights=weights, penalties=penalties), settings[ALPHA]
