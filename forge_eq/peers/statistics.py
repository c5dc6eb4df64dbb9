"""Medians and their intervals from runs in several processes.

Two levels vary: calls within a process, and processes (where memory lands differs, which at one token moves a time by
up to 20 %). The bootstrap therefore draws rounds first and blocks within them (Davison & Hinkley, "Bootstrap Methods
and their Application", 1997, section 3.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

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
    return _drawn([np.asarray(r, dtype=np.float64) for r in rounds], np.median, seed)


def tail(rounds: Sequence[Sequence[Sequence[float]]], seed: int = 0) -> Interval:
    """p99 over p50, grouped by round and block, which are drawn whole: slow calls come in runs.

    Calls count relative to the median of their process: what one process is slower than another is no tail of either.
    """
    kept = [[np.asarray(b, dtype=np.float64) for b in r if len(b)] for r in rounds]
    return _drawn([[b / np.median(np.hstack(r)) for b in r] for r in kept if r], _tail, seed)


def _tail(values: Any) -> Any:
    middle, far = np.percentile(values, [50, 99])
    return far / middle


def _drawn(rounds: Sequence[Any], statistic: Callable[[Any], Any], seed: int) -> Interval:
    kept = [r for r in rounds if len(r)]
    if not kept:
        return Interval(float("nan"), float("nan"), float("nan"))
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        chosen = draw.integers(len(kept), size=len(kept))
        values = [kept[c][i] for c in chosen for i in draw.integers(len(kept[c]), size=len(kept[c]))]
        found.append(statistic(np.hstack(values)))
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(float(statistic(np.hstack([v for r in kept for v in r]))), float(low), float(high))


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
