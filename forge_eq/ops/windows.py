"""Windows over axes of space: what convolution and pooling share. x is ``[n, channels, *space]``.

Window attributes have one number per axis of space. Padding stands at ``begin`` and ``end`` by itself, so that a
causal convolution is one operation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS
from forge_eq.ops import aten, shapes

Ints = Sequence[int]


def space(x: Any) -> int:
    """Axes of space of a static float operand."""
    shapes.require(x.dtype in FLOATS and 3 <= x.rank <= 5, "[n, channels, space] of floats is due")
    shapes.require(all(isinstance(d, int) and d > 0 for d in x.shape[1:]), "a symbolic or empty size")
    return int(x.rank - 2)


def sizes(x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> tuple[int, ...]:
    """Sizes of the result in space."""
    n = space(x)
    shapes.require(all(len(v) == n for v in (kernel, strides, begin, end, dilation)), f"{n} numbers each are due")
    shapes.require(all(v >= 1 for v in (*kernel, *strides, *dilation)) and min(*begin, *end) >= 0, "no such window")
    found = []
    for size, k, s, b, e, d in zip(x.shape[2:], kernel, strides, begin, end, dilation, strict=True):
        room = size + b + e - (d * (k - 1) + 1)
        shapes.require(room >= 0, f"a window of {d * (k - 1) + 1} over {size + b + e}")
        found.append(room // s + 1)
    return tuple(found)


def patches(x: Any, out: Ints, kernel: Ints, strides: Ints, dilation: Ints) -> Iterator[tuple[tuple[int, ...], Any]]:
    """(place in the kernel, what all windows have there), of a padded operand."""
    for at in itertools.product(*(range(k) for k in kernel)):
        first = [k * d for k, d in zip(at, dilation, strict=True)]
        cut = tuple(slice(f, f + (o - 1) * s + 1, s) for f, o, s in zip(first, out, strides, strict=True))
        yield at, x[(slice(None), slice(None), *cut)]


def padded(xp: Any, x: Any, begin: Ints, end: Ints, value: float) -> Any:
    import numpy as np

    for axis, (b, e) in enumerate(zip(begin, end, strict=True), start=2):
        sides = [np.full((*x.shape[:axis], n, *x.shape[axis + 1 :]), value) for n in (b, e)]
        x = xp.concatenate([sides[0], x, sides[1]], axis=axis)
    return x


def pad(x: torch.Tensor, begin: Ints, end: Ints, value: float = 0.0) -> torch.Tensor:
    sides = [n for b, e in zip(reversed(begin), reversed(end), strict=True) for n in (b, e)]
    return F.pad(x, sides, value=value) if any(sides) else x


def per_axis(value: Any, count: int) -> tuple[int, ...]:
    given = [value] if isinstance(value, int) else list(value)
    aten.need(all(isinstance(v, int) for v in given) and len(given) in (1, count), "these window sizes")
    return tuple(given * count if len(given) == 1 else given)
