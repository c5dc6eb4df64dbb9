"""Medians and their intervals from runs in several processes.

Two levels vary: calls within a process, and processes (where memory lands differs, which at one token moves a time by
up to 20 %). The bootstrap therefore draws rounds first and blocks within them (Davison & Hinkley, "Bootstrap Methods
and their Application", 1997, section 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval."""

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.low:.2f}, {self.high:.2f}]"


def interval(rounds: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The median of all values, grouped by round, and where it would lie were the rounds drawn again."""
    kept = [np.asarray(r, dtype=np.float64) for r in rounds if len(r)]
    if not kept:
        return Interval(float("nan"), float("nan"), float("nan"))
    draw = np.random.default_rng(seed)
    medians = []
    for _ in range(DRAWS):
        chosen = draw.integers(len(kept), size=len(kept))
        values = [kept[c][draw.integers(len(kept[c]), size=len(kept[c]))] for c in chosen]
        medians.append(np.median(np.concatenate(values)))
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(float(np.median(np.concatenate(kept))), float(low), float(high))


def ratios(theirs: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> list[list[float]]:
    """Their block's median over ours of the same block, by round: above 1 where we are faster."""
    return [[a / b for a, b in zip(t, o, strict=False)] for t, o in zip(theirs, ours, strict=False)]


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(np.asarray(values, dtype=np.float64), share)) if len(values) else float("nan")


def geomean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if len(values) else float("nan")


def blocks(samples: Sequence[Sequence[float]]) -> list[float]:
    """The median of each block."""
    return [median(b) for b in samples if len(b)]
