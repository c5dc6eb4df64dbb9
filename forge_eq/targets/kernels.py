"""Times of the matrix kernels that lowering can choose among, as a table of measured points.

Takes points (form, weight k x n, tokens, microseconds). Gives the time of any size by interpolation. Promises: exact
at a point; strictly positive; between points the time per multiply-add is interpolated, so that ratios of forms at a
point carry over to its neighbourhood.
Not here: which op is which form (``ops``: :class:`forge_eq.ops.spec.Cost`), the measuring (``run.calibrate``).

OpenVINO's CPU plugin has no single matrix kernel: what runs, and how fast, depends on how the product is written.
``plain`` has the weight on the right; ``act`` the same with an activation in the kernel; ``left`` has the weight on the
left, stored [n, k], and the activations as [features, tokens]; ``packed`` has it on the right as integers with scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

FORMS = ("plain", "act", "left", "packed")
_NEAR = 1e-9


@dataclass(frozen=True, slots=True)
class Point:
    """``us`` microseconds for [tokens, k] times a weight [k, n] in this form, one launch included."""

    form: str
    k: int
    n: int
    tokens: int
    us: float


@dataclass(frozen=True)
class Kernels:
    """A table of points. An empty one knows nothing: the roofline of the target stands in."""

    points: tuple[Point, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.points)

    @cached_property
    def _curves(self) -> dict[str, dict[tuple[int, int], list[tuple[float, float]]]]:
        """form -> (k, n) -> [(log tokens, log microseconds per multiply-add)], tokens ascending."""
        found: dict[str, dict[tuple[int, int], list[tuple[float, float]]]] = {}
        for p in sorted(self.points, key=lambda p: (p.form, p.k, p.n, p.tokens)):
            rate = math.log(p.us) - math.log(p.tokens) - math.log(p.k * p.n)
            found.setdefault(p.form, {}).setdefault((p.k, p.n), []).append((math.log(p.tokens), rate))
        return found

    @cached_property
    def _times(self) -> dict[tuple[str, int, int, int], float | None]:
        """What was asked before."""
        return {}

    def has(self, form: str) -> bool:
        return form in self._curves

    def time(self, form: str, tokens: int, k: int, n: int) -> float | None:
        """Predicted microseconds; None when the table has no such form.

        Along tokens the logarithm of the time per multiply-add is linear between points and constant outside. Between
        shapes the curves are averaged with weights that fall with the squared distance of log k and log n.
        """
        asked = (form, tokens, k, n)
        if asked not in self._times:  # layers of a model are alike, and every stage asks again
            self._times[asked] = self._between(*asked)
        return self._times[asked]

    def _between(self, form: str, tokens: int, k: int, n: int) -> float | None:
        curves = self._curves.get(form)
        if not curves or min(tokens, k, n) <= 0:
            return None
        total = weight = 0.0
        for (ck, cn), curve in curves.items():
            far = math.log(k / ck) ** 2 + math.log(n / cn) ** 2
            near = 1.0 / (far + _NEAR)
            total, weight = total + near * _along(curve, math.log(tokens)), weight + near
        return math.exp(total / weight + math.log(tokens) + math.log(k * n))


def _along(curve: Sequence[tuple[float, float]], at: float) -> float:
    if at <= curve[0][0]:
        return curve[0][1] if len(curve) == 1 else curve[0][1] - (at - curve[0][0])  # below: the weight's traffic
    for (x, y), (x2, y2) in pairwise(curve):
        if at <= x2:
            return y + (y2 - y) * (at - x) / (x2 - x)
    return curve[-1][1]


def from_table(table: Mapping[str, Any]) -> Kernels:
    """``{"tokens": [1, 16], "plain": [[k, n, us, us], ...]}`` as points. Raises ValueError saying what is wrong."""
    tokens = table.get("tokens", [])
    points = []
    if not isinstance(tokens, list) or any(not _positive(t) or not isinstance(t, int) for t in tokens):
        raise ValueError("tokens is not a list of positive integers")
    for form, rows in table.items():
        if form == "tokens":
            continue
        if form not in FORMS:
            raise ValueError(f"{form!r} is not one of {', '.join(FORMS)}")
        for row in rows if isinstance(rows, list) else [None]:
            if not isinstance(row, list) or len(row) != 2 + len(tokens) or not all(map(_positive, row)):
                raise ValueError(f"{form}: a row must be k, n and {len(tokens)} positive times")
            points += [
                Point(form, int(row[0]), int(row[1]), t, float(us)) for t, us in zip(tokens, row[2:], strict=True)
            ]
    return Kernels(tuple(points))


def to_table(kernels: Kernels) -> dict[str, Any]:
    """The inverse of :func:`from_table`. Every shape must have been measured at the same numbers of tokens."""
    tokens = sorted({p.tokens for p in kernels.points})
    table: dict[str, Any] = {"tokens": tokens}
    times = {(p.form, p.k, p.n, p.tokens): p.us for p in kernels.points}
    for form, k, n in dict.fromkeys((p.form, p.k, p.n) for p in kernels.points):
        table.setdefault(form, []).append([k, n, *(times[form, k, n, t] for t in tokens)])
    return table


def _positive(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < float("inf")
