"""Reductions: ``axes`` are non-negative and ascending, ``keepdim`` keeps them with size 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import aten
from forge_eq.ops.elementwise import pow_, sub
from forge_eq.ops.shapes import reduced, require
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, op


def _elements(types: Any, attrs: Any, out: Any) -> float:
    return float(types[0].elements or 1)


def _shape(types: Any, attrs: Any) -> TensorType:
    require(types[0].dtype in FLOATS, "floats are due")
    out = reduced(types, attrs)
    assert isinstance(out, TensorType)
    return out


def _sum_shape(types: Any, attrs: Any) -> TensorType:
    require(types[0].dtype in FLOATS | {"i64"}, "a sum of small integers changes dtype")
    out = reduced(types, attrs)
    assert isinstance(out, TensorType)
    return out


def _reduce(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    run: Callable[..., Any],
    ov: str,
    names: list[str],
    shape: Any,
    more: dict[str, Any] | None = None,
) -> Op:
    return op(
        f"{name}(x; axes: ints, keepdim: bool) -> y",
        doc,
        shape=shape,
        aten={**dict.fromkeys(names, aten.reduction), **(more or {})},
        ref=ref,
        torch=run,
        traits=Traits(exact=name == "amax"),
        cost=Cost(flops=_elements),
        kernel=Kernel("vector", lambda g, x, axes, keepdim: getattr(g, ov)(x, g.i64(axes), keepdim)),
    )


def _var(
    imp: aten.Importer, op: Op, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> aten.Ref:
    """The mean of the squared distances from the mean. With a correction it is no mean, and stays opaque."""
    t = aten.tensor(imp, x)
    aten.need(correction == 0 and t.dtype in ("f32", "f64") and imp.out.dtype == t.dtype, "this variance")
    axes = aten.axes_of(imp, x, dim)
    centred = imp.emit(sub, [x, imp.emit(op, [x], [axes, True])])
    square = imp.emit(pow_, [centred, aten.operand(imp, 2.0, t.dtype)])
    return imp.emit(op, [square], [axes, bool(keepdim)])


def _var_dim(imp: aten.Importer, op: Op, x: Any, dim: Any, unbiased: bool = True, keepdim: bool = False) -> aten.Ref:
    return _var(imp, op, x, dim, correction=int(unbiased), keepdim=keepdim)


def _max_dim(imp: aten.Importer, op: Op, x: Any, dim: int, keepdim: bool = False) -> Any:
    """The values alone, where nothing reads the positions."""
    t = aten.tensor(imp, x)
    aten.need(imp.parts <= {0} and t.rank > 0, "positions of the largest values")
    return (imp.emit(op, [x], [aten.axes_of(imp, x, dim), bool(keepdim)]), None)


def _global_mean(space: int) -> aten.Adapter:
    """Adaptive pooling to one value: the mean over the axes of space."""

    def adapter(imp: aten.Importer, op: Op, x: Any, size: Any) -> aten.Ref:
        t = aten.tensor(imp, x)
        one = all(isinstance(s, int) and s == 1 for s in size)
        aten.need(one and t.dtype in ("f32", "f64"), "pooling to several values")
        return imp.emit(op, [x], [tuple(range(t.rank - space, t.rank)), True])

    return adapter


sum_ = _reduce(
    "sum",
    "The sum over axes.",
    lambda xp, x, axes, keep: xp.sum(x, axis=axes, keepdims=keep),
    lambda x, axes, keep: torch.sum(x, dim=axes, keepdim=keep) if axes else x.clone(),
    "reduce_sum",
    ["aten.sum.dim_IntList", "aten.sum.default"],
    _sum_shape,
)
mean = _reduce(
    "mean",
    "The mean over axes.",
    lambda xp, x, axes, keep: xp.mean(x, axis=axes, keepdims=keep),
    lambda x, axes, keep: torch.mean(x, dim=axes, keepdim=keep) if axes else x.clone(),
    "reduce_mean",
    ["aten.mean.dim", "aten.mean.default"],
    _shape,
    {
        "aten.var.dim": _var_dim,
        "aten.var.correction": _var,
        "aten.adaptive_avg_pool1d.default": _global_mean(1),
        "aten.adaptive_avg_pool2d.default": _global_mean(2),
    },
)
amax = _reduce(
    "amax",
    "The largest value over axes; NaN wins.",
    lambda xp, x, axes, keep: xp.max(x, axis=axes, keepdims=keep),
    lambda x, axes, keep: torch.amax(x, dim=axes, keepdim=keep) if axes else x.clone(),
    "reduce_max",
    ["aten.amax.default"],
    _shape,
    {"aten.max.dim": _max_dim},
)
