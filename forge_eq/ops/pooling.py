"""Pooling: one value for each window of each channel; see :mod:`forge_eq.ops.windows`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from forge_eq.ir.types import TensorType
from forge_eq.ops import aten, shapes
from forge_eq.ops.linalg import INEXACT
from forge_eq.ops.spec import Cost, Kernel, Op, op
from forge_eq.ops.windows import Ints, pad, padded, patches, per_axis, sizes


def _pool_shape(types: Any, attrs: Any) -> TensorType:
    x, (kernel, strides, begin, end, dilation) = types[0], attrs[:5]
    out = sizes(x, kernel, strides, begin, end, dilation)
    shapes.require(all(2 * max(b, e) <= k for b, e, k in zip(begin, end, kernel, strict=True)), "a window of padding")
    return TensorType(x.dtype, (*x.shape[:2], *out))


def _pool_attrs(imp: aten.Importer, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    t = aten.tensor(imp, x)
    names_batch = t.rank == len(imp.out.shape) and 3 <= t.rank <= 5
    aten.need(t.dtype in ("f32", "f64") and names_batch, "this pooling")
    n = t.rank - 2
    aten.need(isinstance(kernel, int) or len(kernel) in (1, n), "pooling without a batch")
    k, around = per_axis(kernel, n), per_axis(padding, n)
    return [k, per_axis(stride, n) if stride else k, around, around, per_axis(dilation, n)]


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
    x = padded(xp, x, begin, end, -math.inf)
    out = [(v - d * (k - 1) - 1) // s + 1 for v, k, s, d in zip(x.shape[2:], kernel, strides, dilation, strict=True)]
    top = None
    for _, patch in patches(x, out, kernel, strides, dilation):
        top = patch if top is None else xp.maximum(top, patch)
    return top


_MAX_POOLS: tuple[Callable[..., Any], ...] = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG_POOLS: tuple[Callable[..., Any], ...] = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _max_torch(x: Any, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilation: Ints) -> Any:
    if tuple(begin) == tuple(end):
        return _MAX_POOLS[x.dim() - 3](x, kernel, strides, begin, dilation)
    return _MAX_POOLS[x.dim() - 3](pad(x, begin, end, -math.inf), kernel, strides, 0, dilation)


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
    x = padded(xp, x, begin, end, 0.0)
    out = [(v - k) // s + 1 for v, k, s in zip(x.shape[2:], kernel, strides, strict=True)]
    total = None
    for _, patch in patches(x, out, kernel, strides, [1] * len(kernel)):
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
    torch=lambda x, kernel, strides, begin, end: _AVG_POOLS[x.dim() - 3](pad(x, begin, end), kernel, strides),
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
