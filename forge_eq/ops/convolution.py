"""Convolutions, pooling, and batch norm as it is after training: x is ``[n, channels, *space]``, one to three axes of space.

Window attributes have one number per axis of space. Padding stands at ``begin`` and ``end`` by itself, so that a
causal convolution is one operation. Weights are ``[out, in / groups, *kernel]``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import aten, shapes
from forge_eq.ops.elementwise import add, mul, rsqrt, sub
from forge_eq.ops.linalg import INEXACT
from forge_eq.ops.movement import reshape
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, compute, op

Ints = Sequence[int]

# ------------------------------------------------------------------------------------------- windows


def _space(x: Any) -> int:
    """Axes of space of a static float operand."""
    shapes.require(x.dtype in FLOATS and 3 <= x.rank <= 5, "[n, channels, space] of floats is due")
    shapes.require(all(isinstance(d, int) and d > 0 for d in x.shape[1:]), "a symbolic or empty size")
    return int(x.rank - 2)


def _sizes(x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> tuple[int, ...]:
    """Sizes of the result in space."""
    n = _space(x)
    shapes.require(all(len(v) == n for v in (kernel, strides, begin, end, dilation)), f"{n} numbers each are due")
    shapes.require(all(v >= 1 for v in (*kernel, *strides, *dilation)) and min(*begin, *end) >= 0, "no such window")
    found = []
    for size, k, s, b, e, d in zip(x.shape[2:], kernel, strides, begin, end, dilation, strict=True):
        room = size + b + e - (d * (k - 1) + 1)
        shapes.require(room >= 0, f"a window of {d * (k - 1) + 1} over {size + b + e}")
        found.append(room // s + 1)
    return tuple(found)


def space_of(x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> tuple[int, ...]:
    """Sizes in space of the convolution of x with w."""
    return _sizes(x, w.shape[2:], strides, begin, end, dilation)


def _patches(
    x: Any, out: Ints, kernel: Ints, strides: Ints, dilation: Ints
) -> Iterator[tuple[tuple[int, ...], Any]]:
    """(place in the kernel, what all windows have there), of a padded operand."""
    for at in itertools.product(*(range(k) for k in kernel)):
        first = [k * d for k, d in zip(at, dilation, strict=True)]
        cut = tuple(slice(f, f + (o - 1) * s + 1, s) for f, o, s in zip(first, out, strides, strict=True))
        yield at, x[(slice(None), slice(None), *cut)]


def _padded(xp: Any, x: Any, begin: Ints, end: Ints, value: float) -> Any:
    import numpy as np

    for axis, (b, e) in enumerate(zip(begin, end, strict=True), start=2):
        sides = [np.full((*x.shape[:axis], n, *x.shape[axis + 1 :]), value) for n in (b, e)]
        x = xp.concatenate([sides[0], x, sides[1]], axis=axis)
    return x


def _pad(x: torch.Tensor, begin: Ints, end: Ints, value: float = 0.0) -> torch.Tensor:
    sides = [n for b, e in zip(reversed(begin), reversed(end), strict=True) for n in (b, e)]
    return F.pad(x, sides, value=value) if any(sides) else x


# ------------------------------------------------------------------------------------------- convolution


def _conv_shape(types: Any, attrs: Any) -> TensorType:
    x, w, (strides, begin, end, dilation, groups) = types[0], types[1], attrs
    out = _sizes(x, w.shape[2:] if w.rank == x.rank else (), strides, begin, end, dilation)
    shapes.require(all(t.dtype == x.dtype for t in types) and w.static and min(w.shape) > 0, "weights of x's dtype")
    fits = groups >= 1 and w.shape[1] * groups == x.shape[1] and w.shape[0] % groups == 0
    shapes.require(fits, f"{x.shape[1]} channels in {groups} groups do not fit {w}")
    if len(types) > 2:
        shapes.require(types[2].shape == (w.shape[0],), f"a bias of type {types[2]}")
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *out))


def _conv_ref(
    xp: Any, x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int
) -> Any:
    kernel = w.shape[2:]
    x = _padded(xp, x, begin, end, 0.0)
    n, cin, *space = x.shape
    out = [(v - d * (k - 1) - 1) // s + 1 for v, k, s, d in zip(space, kernel, strides, dilation, strict=True)]
    cout, each = w.shape[:2]
    total = None
    for at, patch in _patches(x, out, kernel, strides, dilation):
        rows = xp.reshape(patch, (n, groups, each, math.prod(out)))
        part = xp.matmul(xp.reshape(w[(slice(None), slice(None), *at)], (1, groups, cout // groups, each)), rows)
        total = part if total is None else total + part
    return xp.reshape(total, (n, cout, *out))


_CONVS = (F.conv1d, F.conv2d, F.conv3d)


def _conv_torch(
    x: Any, w: Any, b: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int
) -> torch.Tensor:
    run = _CONVS[x.dim() - 3]
    if tuple(begin) == tuple(end):
        return run(x, w, b, strides, begin, dilation, groups)  # type: ignore[operator, no-any-return]
    return run(_pad(x, begin, end), w, b, strides, 0, dilation, groups)  # type: ignore[operator, no-any-return]


def _per_axis(value: Any, count: int) -> tuple[int, ...]:
    given = [value] if isinstance(value, int) else list(value)
    aten.need(all(isinstance(v, int) for v in given) and len(given) in (1, count), "these window sizes")
    return tuple(given * count if len(given) == 1 else given)


def _conv(
    imp: aten.Importer,
    op: Op,
    x: Any,
    w: Any,
    b: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> aten.Ref:
    tx, tw = aten.tensor(imp, x), aten.tensor(imp, w)
    aten.need(tx.dtype in ("f32", "f64") and tx.rank == tw.rank and 3 <= tx.rank <= 5, "a convolution without a batch")
    aten.need(all(isinstance(d, int) and d > 0 for d in (*tx.shape[1:], *tw.shape)), "a symbolic or empty size")
    n = tx.rank - 2
    pad = _per_axis(padding, n)
    attrs = [_per_axis(stride, n), pad, pad, _per_axis(dilation, n), groups]
    return imp.emit(op, [x, w], attrs) if b is None else imp.emit(conv_bias, [x, w, b], attrs)


def _convolution(
    imp: aten.Importer,
    op: Op,
    x: Any,
    w: Any,
    b: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> aten.Ref:
    aten.need(not transposed, "a transposed convolution")
    return _conv(imp, op, x, w, b, stride, padding, dilation, groups)


def _conv_flops(types: Any, attrs: Any, out: Any) -> float:
    return 2.0 * (out.elements or 1) * math.prod(types[1].shape[1:])


def _conv_nodes(
    g: Any, x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int
) -> Any:
    if groups == 1:
        return g.convolution(x, w, list(strides), list(begin), list(end), list(dilation))
    cout, *rest = g.shape(w)
    parts = g.reshaped(w, [groups, cout // groups, *rest])
    return g.group_convolution(x, parts, list(strides), list(begin), list(end), list(dilation))


def column(x: Any) -> tuple[int, ...]:
    """The shape in which one number per channel stands beside x."""
    return (x.shape[1], *[1] * (x.rank - 2))


def _along(g: Any, v: Any, x: Any) -> Any:
    """One number per channel, beside x."""
    return g.reshaped(v, [g.shape(v)[0], *[1] * (g.rank(x) - 2)])


CONV = Cost(flops=_conv_flops, cost_class="matmul")

conv = op(
    "conv(x, w; strides: ints, begin: ints, end: ints, dilation: ints, groups: int) -> y",
    "A convolution (a cross-correlation, as networks have it) of a padded operand; groups of channels stay apart.",
    shape=_conv_shape,
    aten={
        **dict.fromkeys(["aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"], _conv),
        "aten.convolution.default": _convolution,
    },
    ref=_conv_ref,
    torch=lambda x, w, *attrs: _conv_torch(x, w, None, *attrs),
    traits=INEXACT,
    cost=CONV,
    kernel=Kernel("matmul", _conv_nodes),
)


conv_bias = op(
    "conv_bias(x, w, b; strides: ints, begin: ints, end: ints, dilation: ints, groups: int) -> y",
    "A convolution and a number per channel of the result.",
    shape=_conv_shape,
    # No definition: the bias is part of the kernel that convolves, not a fusion that could cost efficiency.
    ref=lambda xp, x, w, b, *attrs: xp.add(_conv_ref(xp, x, w, *attrs), xp.reshape(b, (-1, *[1] * (w.ndim - 2)))),
    torch=_conv_torch,
    traits=INEXACT,
    cost=CONV,
    kernel=Kernel("matmul", lambda g, x, w, b, *attrs: g.add(_conv_nodes(g, x, w, *attrs), _along(g, b, x))),
)

# ------------------------------------------------------------------------------------------- batch norm


def _batch_norm_shape(types: Any, attrs: Any) -> TensorType:
    x = types[0]
    shapes.require(x.dtype in FLOATS and x.rank >= 2 and isinstance(x.shape[1], int), "[n, channels, ..] is due")
    shapes.require(all(t.dtype == x.dtype and t.shape == (x.shape[1],) for t in types[1:]), "a number per channel")
    return TensorType(x.dtype, x.shape)


def _batch_norm(
    imp: aten.Importer, op: Op, x: Any, w: Any, b: Any, mean: Any, var: Any, train: bool, momentum: Any, eps: float,
    *rest: Any,
) -> aten.Ref:  # fmt: skip
    aten.need(train is False, "a batch norm that learns")
    aten.need(all(isinstance(v, aten.Ref) for v in (w, b, mean, var)), "a batch norm without gain, bias or statistics")
    t = aten.tensor(imp, x)
    aten.need(t.dtype in ("f32", "f64") and t.rank >= 2 and isinstance(t.shape[1], int), "this batch norm")
    aten.need(all(aten.tensor(imp, v).dtype == t.dtype for v in (w, b, mean, var)), "statistics of another dtype")
    return imp.emit(op, [x, w, b, mean, var], [float(eps)])


def _spread(v: Any, x: Any) -> Any:
    return reshape(v, compute(column, x))


def scale(w: Any, var: Any, eps: Any) -> Any:
    """What batch norm multiplies a channel by."""
    return mul(w, rsqrt(add(var, eps)))


def _batch_norm_nodes(g: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    factor = _along(g, g.multiply(w, g.rsqrt(g.add(var, eps))), x)
    return g.add(g.multiply(g.subtract(x, _along(g, mean, x)), factor), _along(g, b, x))


batch_norm = op(
    "batch_norm(x, w, b, mean, var; eps: float) -> y",
    "Each channel by statistics that training left, then gain and bias.",
    shape=_batch_norm_shape,
    aten={"aten.batch_norm.default": _batch_norm},
    define=lambda x, w, b, mean, var, eps: add(
        mul(sub(x, _spread(mean, x)), _spread(scale(w, var, eps), x)), _spread(b, x)
    ),
    torch=lambda x, w, b, mean, var, eps: F.batch_norm(x, mean, var, w, b, False, 0.0, eps),
    traits=Traits(exact=False),
    cost=Cost(flops=lambda i, a, o: 4.0 * (o.elements or 1), cost_class="norm"),
    kernel=Kernel("norm", _batch_norm_nodes),
)

# ------------------------------------------------------------------------------------------- pooling


def _pool_shape(types: Any, attrs: Any) -> TensorType:
    x, (kernel, strides, begin, end, dilation) = types[0], attrs[:5]
    out = _sizes(x, kernel, strides, begin, end, dilation)
    shapes.require(all(2 * max(b, e) <= k for b, e, k in zip(begin, end, kernel, strict=True)), "a window of padding")
    return TensorType(x.dtype, (*x.shape[:2], *out))


def _pool_attrs(imp: aten.Importer, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    t = aten.tensor(imp, x)
    names_batch = t.rank == len(imp.out.shape) and 3 <= t.rank <= 5
    aten.need(t.dtype in ("f32", "f64") and names_batch, "this pooling")
    n = t.rank - 2
    aten.need(isinstance(kernel, int) or len(kernel) in (1, n), "pooling without a batch")
    k, pad = _per_axis(kernel, n), _per_axis(padding, n)
    return [k, _per_axis(stride, n) if stride else k, pad, pad, _per_axis(dilation, n)]


def _spatial(rank: int) -> Any:
    """For a pooling over ``rank`` axes: the batch axis must be there."""

    def max_adapter(
        imp: aten.Importer, op: Op, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil: bool = False,
    ) -> aten.Ref:  # fmt: skip
        aten.need(not ceil and aten.tensor(imp, x).rank == rank + 2, "pooling that rounds up, or without a batch")
        return imp.emit(op, [x], _pool_attrs(imp, x, kernel, stride, padding, dilation))

    def mean_adapter(
        imp: aten.Importer, op: Op, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
        include: bool = True, divisor: Any = None,
    ) -> aten.Ref:  # fmt: skip
        aten.need(not ceil and divisor is None and aten.tensor(imp, x).rank == rank + 2, "this average")
        attrs = _pool_attrs(imp, x, kernel, stride, padding, 1)
        aten.need(include or not any(attrs[2]), "an average that leaves padding out")
        return imp.emit(op, [x], attrs[:4])

    return max_adapter, mean_adapter


def _max_ref(xp: Any, x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> Any:
    x = _padded(xp, x, begin, end, -math.inf)
    out = [(v - d * (k - 1) - 1) // s + 1 for v, k, s, d in zip(x.shape[2:], kernel, strides, dilation, strict=True)]
    top = None
    for _, patch in _patches(x, out, kernel, strides, dilation):
        top = patch if top is None else xp.maximum(top, patch)
    return top


_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG_POOLS = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _max_torch(x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> torch.Tensor:
    if tuple(begin) == tuple(end):
        return _MAX_POOLS[x.dim() - 3](x, kernel, strides, begin, dilation)  # type: ignore[no-any-return]
    return _MAX_POOLS[x.dim() - 3](_pad(x, begin, end, -math.inf), kernel, strides, 0, dilation)  # type: ignore[no-any-return]


def _max_nodes(g: Any, x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> Any:
    """NaN wins and a window of -inf stays; OpenVINO's pooling skips NaN and starts from the lowest finite number."""
    window = (list(strides), list(dilation), list(begin), list(end), list(kernel))

    def over(v: Any) -> Any:
        return g.max_pool(v, *window).output(0)

    # 1 in a window with NaN; 1 in a window with something other than -inf.
    undefined = over(g.select(g.not_equal(x, x), 1.0, g.number(0.0, x)))
    finite = over(g.select(g.equal(x, -math.inf), 0.0, g.number(1.0, x)))
    top = g.select(g.equal(finite, 1.0), over(x), -math.inf)
    return g.select(g.equal(undefined, 1.0), math.nan, top)


def _mean_ref(xp: Any, x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints) -> Any:
    x = _padded(xp, x, begin, end, 0.0)
    out = [(v - k) // s + 1 for v, k, s in zip(x.shape[2:], kernel, strides, strict=True)]
    total = None
    for _, patch in _patches(x, out, kernel, strides, [1] * len(kernel)):
        total = patch if total is None else total + patch
    return xp.divide(total, float(math.prod(kernel)))


_POOLS = {n: _spatial(n) for n in (1, 2, 3)}
_WORK = Cost(flops=lambda i, a, o: float((o.elements or 1) * math.prod(a[0])))

max_pool = op(
    "max_pool(x; kernel: ints, strides: ints, begin: ints, end: ints, dilation: ints) -> y",
    "The largest value in each window; NaN wins, padding never does.",
    shape=_pool_shape,
    aten={f"aten.max_pool{n}d.default": _POOLS[n][0] for n in (1, 2, 3)},
    ref=_max_ref,
    torch=_max_torch,
    traits=INEXACT,  # which of 0.0 and -0.0 is larger, kernels decide by order
    cost=_WORK,
    kernel=Kernel("vector", _max_nodes),
)
avg_pool = op(
    "avg_pool(x; kernel: ints, strides: ints, begin: ints, end: ints) -> y",
    "The mean of each window, zeros of the padding included.",
    shape=lambda types, attrs: _pool_shape(types, (*attrs, (1,) * len(attrs[0]))),
    aten={f"aten.avg_pool{n}d.default": _POOLS[n][1] for n in (1, 2, 3)},
    ref=_mean_ref,
    torch=lambda x, kernel, strides, begin, end: _AVG_POOLS[x.dim() - 3](_pad(x, begin, end), kernel, strides),  # type: ignore[operator]
    traits=INEXACT,
    cost=_WORK,
    # Without stated dilations OpenVINO 2026.4 crashes on the pooling.
    kernel=Kernel(
        "vector",
        lambda g, x, kernel, strides, begin, end: g.avg_pool(
            x, list(strides), list(begin), list(end), list(kernel), False, dilations=[1] * len(kernel)
        ),
    ),
)
