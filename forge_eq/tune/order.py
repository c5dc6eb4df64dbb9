"""How well a predicted order agrees with a measured one, and when one program is faster than another.

Takes predicted and measured times. Gives figures. Promises: pairs that noise alone could order are left out; a
resampled bound is the same in every run. Not here: the measuring.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

MARGIN = 1.03  # a program replaces the unoptimised one only if it is surely this much faster
RESAMPLES = 2000


def agreement(predicted: Sequence[float], measured: Sequence[float], noise: float = 0.0) -> float:
    """Kendall's tau: (pairs in the same order - pairs in the other) / pairs; a predicted tie counts as neither.

    Pairs whose measured times differ by no more than the share ``noise`` are left out. NaN when no pair is left.
    """
    score = pairs = 0
    for i, j in itertools.combinations(range(len(measured)), 2):
        if abs(measured[i] - measured[j]) <= noise * min(measured[i], measured[j]):
            continue
        pairs += 1
        gap = predicted[i] - predicted[j]
        score += 0 if math.isclose(predicted[i], predicted[j], rel_tol=1e-9) else _sign(gap, measured[i] - measured[j])
    return score / pairs if pairs else math.nan


def _sign(a: float, b: float) -> int:
    return 1 if (a > 0) == (b > 0) else -1


def speedup(base: Sequence[float], other: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """(median, lower 95 % bound) of ``base[i] / other[i]`` over interleaved rounds: a bootstrap of the median."""
    import numpy as np

    ratios = np.asarray([b / o for b, o in zip(base, other, strict=True)])
    draws = np.random.default_rng(seed).integers(0, len(ratios), size=(RESAMPLES, len(ratios)))
    return float(median(ratios)), float(np.quantile(np.median(ratios[draws], axis=1), 0.025))


def fastest(names: Sequence[str], times: Sequence[Sequence[float]], margin: float = MARGIN) -> str:
    """The first name, unless another's speed-up over it has a lower bound above ``margin``: then the best of those."""
    bounds = [speedup(times[0], other)[1] for other in times[1:]]
    if not bounds or not max(bounds) > margin:
        return names[0]
    return names[1 + bounds.index(max(bounds))]
