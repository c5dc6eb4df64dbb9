"""A fit of weights to measured order: a descent on a smooth form of the share of pairs in order.

Takes variants. Gives weights under settings. Promises: deterministic; milliseconds. Not here: which settings, and the
judging (``tune.measured``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forge_eq.tune.variants import ALPHA, Variant, names, pairs

UNIT = ("matmul", "matmul.plain")
STEPS = 60  # of the descent


def _free(name: str, each: bool) -> bool:
    """Whether a fit may change a weight. The plain kernel of products is the unit: only ratios order anything."""
    return name not in UNIT and (each or "@" not in name)


@dataclass(frozen=True, slots=True)
class Settings:
    """How weights are fitted. ``prior`` is what a squared log of a weight costs, ``soft`` the share by which two times
    differ where their order begins to count as sure; ``each``: a weight for each number of tokens."""

    prior: float = 0.01
    soft: float = 0.03
    each: bool = False
    alpha: float = 1.0


class Sample:
    """Variants as matrices, so that a fit is a matter of milliseconds."""

    def __init__(self, variants: Sequence[Variant], each: bool) -> None:
        import torch

        cells = sorted({(part, v.tokens) for v in variants for part in v.classes})
        used = {cell: [n for n in names(*cell) if _free(n, each)] for cell in cells}
        self.names = sorted({n for names in used.values() for n in names})
        place = {cell: i for i, cell in enumerate(cells)}
        self.of = torch.tensor([[float(n in used[cell]) for n in self.names] for cell in cells], dtype=torch.float64)
        self.us = torch.zeros(len(variants), len(cells), dtype=torch.float64)
        for row, v in enumerate(variants):
            for part, us in v.classes.items():
                self.us[row, place[part, v.tokens]] = us
        self.gain = torch.tensor([v.gain for v in variants], dtype=torch.float64)
        at = {id(v): row for row, v in enumerate(variants)}
        self.pairs = [(v.model, at[id(v)], at[id(w)]) for v, w in pairs(variants)]

    def fit(self, settings: Settings, without: str | None = None) -> dict[str, float]:
        """Weights from the pairs of all models but one: a logistic loss of each pair's ratio, and the prior."""
        import torch

        rows = torch.tensor([[a, b] for model, a, b in self.pairs if model != without])
        logs = torch.zeros(len(self.names), dtype=torch.float64, requires_grad=True)
        descent = torch.optim.LBFGS([logs], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Any:
            descent.zero_grad()
            told = (self.us @ (self.of @ logs).exp() + (1.0 - settings.alpha) * self.gain).log()
            apart = (told[rows[:, 0]] - told[rows[:, 1]]) / settings.soft
            value = torch.nn.functional.softplus(apart).mean() + settings.prior * (logs**2).sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        with torch.enable_grad():
            descent.step(loss)  # type: ignore[no-untyped-call]
        return {**dict(zip(self.names, logs.detach().exp().tolist(), strict=True)), ALPHA: settings.alpha}
