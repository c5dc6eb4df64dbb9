"""Measured variants of models: what is compared, and what weights make of a prediction.

Takes nothing. Gives :class:`Variant` and the pairs that count. Not here: reading and judging (``tune.measured``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forge_eq.targets.kernels import FORMS

Weights = Mapping[str, float]  # 1 where absent
ALPHA = "alpha"


@dataclass(frozen=True, slots=True)
class Variant:
    """One program of a model: predicted microseconds by part, its measured time and the spread of that.

    ``gain``: predicted microseconds that its fused ops save over their parts.
    """

    model: str
    tokens: int
    name: str
    classes: Mapping[str, float]
    measured: float
    noise: float = 0.0
    gain: float = 0.0

    def predicted(self, weights: Weights) -> float:
        """Predicted microseconds under weights."""
        parts = (
            us * math.prod(weights.get(n, 1.0) for n in names(part, self.tokens))
            for part, us in sorted(self.classes.items())
        )
        return math.fsum(parts) + (1.0 - weights.get(ALPHA, 1.0)) * self.gain


def names(part: str, tokens: int) -> Iterator[str]:
    """The names of the weights that a part is multiplied by."""
    words = part.split(".")
    for end in range(1, len(words) + 1):
        name = ".".join(words[:end])
        yield name
        if words[end - 1] in FORMS:
            yield f"{name}@{tokens}"


def pairs(variants: Sequence[Variant]) -> list[tuple[Variant, Variant]]:
    """(faster, slower) of one model at one size, apart by more than twice the larger of their spreads."""
    groups: dict[tuple[str, int], list[Variant]] = {}
    for v in variants:
        groups.setdefault((v.model, v.tokens), []).append(v)
    found = []
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            fast, slow = sorted((a, b), key=lambda v: v.measured)
            if slow.measured - fast.measured > 2 * max(a.noise, b.noise) * fast.measured:
                found.append((fast, slow))
    return found
