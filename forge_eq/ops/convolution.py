"""Convolutions, and batch norm as it is after training: x is ``[n, channels, *space]``.

Windows are as in :mod:`forge_eq.ops.windows`; weights are ``[out, in / groups, *kernel]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import aten, shapes
from forge_eq.ops.elementwise import add, mul, rsqrt, sub
from forge_eq.ops.linalg import INEXACT
from forge_eq.ops.movement import reshape
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, compute, op
from forge_eq.ops.windows import Ints, pad, padded, patches, per_axis, sizes

# ------------------------------------------------------------------------------------------- convolution


def space_of(x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> tuple[int, ...]:
    """Sizes in space of the convolution of x with w."""
    return sizes(x, w.shape[2:], strides, begin, end, dilation)


def _conv_shape(types: Any, attrs: Any) -> TensorType:
    x, w, (strides, begin, end, dilation, groups) = types[0], types[1], attrs
    out = sizes(x, w.shape[2:] if w.rank == x.rank else (), strides, begin, end, dilation)
    shapes.require(all(t.dtype == x.dtype for t in types) and w.static and min(w.shape) > 0, "weights of x's dtype")
    fits = groups >= 1 and w.shape[1] * groups == x.shape[1] and w.shape[0] % groups == 0
    shapes.require(fits, f"{x.shape[1]} channels in {groups} groups do not fit {w}")
    if len(types) > 2:
        shapes.require(types[2].shape == (w.shape[0],), f"a bias of type {types[2]}")
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *out))


def _conv_ref(xp: Any, x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int) -> Any:
    kernel = w.shape[2:]
    x = padded(xp, x, begin, end, 0.0)
    n, _, *space = x.shape
    out = [(v - d * (k - 1) - 1) // s + 1 for v, k, s, d in zip(space, kernel, strides, dilation, strict=True)]
    cout, each = w.shape[:2]
    total = None
    for at, patch in patches(x, out, kernel, strides, dilation):
        rows = xp.reshape(patch, (n, groups, each, math.prod(out)))
        part = xp.matmul(xp.reshape(w[(slice(None), slice(None), *at)], (1, groups, cout // groups, each)), rows)
        total = part if total is None else total + part
    return xp.reshape(total, (n, cout, *out))


_CONVS: tuple[Callable[..., Any], ...] = (F.conv1d, F.conv2d, F.conv3d)


def _conv_torch(x: Any, w: Any, b: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int) -> Any:
    run = _CONVS[x.dim() - 3]
    if tuple(begin) == tuple(end):
        return run(x, w, b, strides, begin, dilation, groups)
    return run(pad(x, begin, end), w, b, strides, 0, dilation, groups)


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
    around = per_axis(padding, n)
    attrs = [per_axis(stride, n), around, around, per_axis(dilation, n), groups]
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
    return float(2 * (out.elements or 1) * math.prod(types[1].shape[1:]))


def _conv_nodes(g: Any, x: Any, w: Any, strides: Ints, begin: Ints, end: Ints, dilation: Ints, groups: int) -> Any:
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
