"""Elementwise operations: one output element depends on the input elements at its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from forge_eq.ir.types import TensorType
from forge_eq.ops import aten
from forge_eq.ops.shapes import (
    broadcast,
    broadcast_float,
    broadcast_shapes,
    common_dtype,
    comparison,
    floating,
    require,
    same_as,
)
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, op

T = torch.ops.aten


def _unary(
    name: str, doc: str, ref: Callable[..., Any], run: Callable[..., Any], ov: str, flops: int = 1, **traits: Any
) -> Op:
    """A float function of one argument."""
    return op(
        f"{name}(x) -> y",
        doc,
        shape=floating(),
        aten={f"aten.{name}.default": aten.unary},
        ref=ref,
        torch=run,
        traits=Traits(elementwise=True, **traits),
        cost=Cost(flops=lambda i, a, o: flops * (o.elements or 1)),
        kernel=Kernel("vector", lambda g, x: getattr(g, ov)(x)),
    )


def _binary(
    name: str,
    doc: str,
    ref: Callable[..., Any],
    run: Callable[..., Any],
    ov: str,
    adapters: dict[str, Any],
    shape: Any = broadcast,
    **traits: Any,
) -> Op:
    return op(
        f"{name}(a, b) -> y",
        doc,
        shape=shape,
        aten=adapters,
        ref=ref,
        torch=_number_first(run),
        traits=Traits(elementwise=True, **traits),
        kernel=Kernel("vector", lambda g, a, b: getattr(g, ov)(a, b)),
    )


def _number_first(run: Callable[..., Any]) -> Callable[..., Any]:
    """torch takes a number as the second operand only; as the first it becomes a tensor of the other's dtype."""

    def call(a: Any, b: Any) -> Any:
        if isinstance(a, int | float) and isinstance(b, torch.Tensor):
            a = torch.tensor(a, dtype=b.dtype, device=b.device)
        return run(a, b)

    return call


def _arith(name: str) -> dict[str, Any]:
    return {f"aten.{name}.Tensor": aten.binary, f"aten.{name}.Scalar": aten.binary}


# ------------------------------------------------------------------------------------------- arithmetic

add = _binary("add", "a + b.", lambda xp, a, b: xp.add(a, b), torch.add, "add", _arith("add"), commutative=True)
mul = _binary(
    "mul", "a * b.", lambda xp, a, b: xp.multiply(a, b), torch.mul, "multiply", _arith("mul"), commutative=True
)
sub = _binary(
    "sub",
    "a - b.",
    lambda xp, a, b: xp.subtract(a, b),
    torch.sub,
    "subtract",
    {**_arith("sub"), "aten.rsub.Scalar": aten.reversed_binary, "aten.rsub.Tensor": aten.reversed_binary},
)
div = _binary(
    "div",
    "a / b on floats.",
    lambda xp, a, b: xp.divide(a, b),
    torch.div,
    "divide",
    {"aten.div.Tensor": aten.binary_float, "aten.div.Scalar": aten.binary_float},
    shape=broadcast_float,
)
# Which of 0.0 and -0.0 is larger, kernels decide by operand order: the extrema are not exact.
maximum = _binary(
    "maximum",
    "The larger of a and b; NaN wins.",
    lambda xp, a, b: xp.maximum(a, b),
    lambda a, b: _of_tensors(torch.maximum, a, b),
    "maximum",
    {"aten.maximum.default": aten.binary},
    commutative=True,
    exact=False,
)
minimum = _binary(
    "minimum",
    "The smaller of a and b; NaN wins.",
    lambda xp, a, b: xp.minimum(a, b),
    lambda a, b: _of_tensors(torch.minimum, a, b),
    "minimum",
    {"aten.minimum.default": aten.binary},
    commutative=True,
    exact=False,
)


def _of_tensors(fn: Callable[..., Any], a: Any, b: Any) -> Any:
    """For functions of torch that want a tensor on the left, or on both sides: a number becomes one."""
    like = a if isinstance(a, torch.Tensor) else b
    return fn(*(v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=like.dtype) for v in (a, b)))


def _power(imp: aten.Importer, op: Op, x: Any, exponent: Any) -> aten.Ref:
    """Constant exponents on floats only; the rest stays opaque."""
    aten.need(isinstance(exponent, int | float) and aten.tensor(imp, x).dtype == imp.out.dtype, "this power")
    return aten.binary_float(imp, op, x, exponent)


def _square(imp: aten.Importer, op: Op, x: Any) -> aten.Ref:
    """torch computes a square as the power of two."""
    return _power(imp, op, x, 2.0)


pow_ = _binary(
    "pow",
    "a raised to b.",
    lambda xp, a, b: xp.power(a, b),
    torch.pow,
    "power",
    {"aten.pow.Tensor_Scalar": _power, "aten.square.default": _square},
    shape=broadcast_float,
    exact=False,
)

# ------------------------------------------------------------------------------------------- functions

neg = op(
    "neg(x) -> y",
    "-x.",
    shape=same_as(),
    aten={"aten.neg.default": aten.unary},
    ref=lambda xp, x: xp.negative(x),
    torch=torch.neg,
    traits=Traits(elementwise=True, involution=True),
    kernel=Kernel("vector", lambda g, x: g.negative(x)),
)
exp = _unary("exp", "e to the x.", lambda xp, x: xp.exp(x), torch.exp, "exp", 8, exact=False)
log = _unary("log", "The natural logarithm.", lambda xp, x: xp.log(x), torch.log, "log", 8, exact=False)
# torch's vectorised sqrt is off by one in the last place now and then, so no bits are promised.
sqrt = _unary("sqrt", "The square root.", lambda xp, x: xp.sqrt(x), torch.sqrt, "sqrt", 4, exact=False)
rsqrt = _unary("rsqrt", "1 / sqrt(x).", lambda xp, x: 1 / xp.sqrt(x), torch.rsqrt, "rsqrt", 5, exact=False)
reciprocal = _unary("reciprocal", "1 / x.", lambda xp, x: 1 / x, torch.reciprocal, "reciprocal", 2)
tanh = _unary("tanh", "The hyperbolic tangent.", lambda xp, x: xp.tanh(x), torch.tanh, "tanh", 10, exact=False)
sigmoid = _unary(
    "sigmoid", "1 / (1 + exp(-x)).", lambda xp, x: 1 / (1 + xp.exp(-x)), torch.sigmoid, "sigmoid", 10, exact=False
)
sin = _unary("sin", "The sine.", lambda xp, x: xp.sin(x), torch.sin, "sin", 10, exact=False)
cos = _unary("cos", "The cosine.", lambda xp, x: xp.cos(x), torch.cos, "cos", 10, exact=False)
erf = _unary("erf", "The error function.", lambda xp, x: _erf(xp, x), torch.erf, "erf", 15, exact=False)
floor = _unary("floor", "The largest integer not above x.", lambda xp, x: xp.floor(x), torch.floor, "floor")
abs_ = op(
    "abs(x) -> y",
    "The magnitude.",
    shape=same_as(),
    aten={"aten.abs.default": aten.unary},
    ref=lambda xp, x: xp.abs(x),
    torch=torch.abs,
    traits=Traits(elementwise=True, idempotent=True),
    kernel=Kernel("vector", lambda g, x: g.abs(x)),
)
relu = op(
    "relu(x) -> y",
    "max(x, 0); NaN stays NaN.",
    shape=same_as(),
    aten={"aten.relu.default": aten.unary},
    ref=lambda xp, x: xp.maximum(x, 0),
    torch=torch.relu,
    traits=Traits(elementwise=True, idempotent=True),
    kernel=Kernel("vector", lambda g, x: g.relu(x)),
)


def _erf(xp: Any, x: Any) -> Any:
    """NumPy has no erf; the shims do."""
    found = getattr(xp, "erf", None)
    if found is not None:
        return found(x)
    import numpy as np

    return np.vectorize(math.erf, otypes=[float])(x) if np.size(x) else np.asarray(x, dtype=float)


# ------------------------------------------------------------------------------------------- comparison


def _compare(name: str, doc: str, ref: Callable[..., Any], run: Callable[..., Any], ov: str, **traits: Any) -> Op:
    return _binary(
        name,
        doc,
        ref,
        lambda a, b: _of_tensors(run, a, b),
        ov,
        {f"aten.{name}.Tensor": aten.compare, f"aten.{name}.Scalar": aten.compare},
        shape=comparison,
        **traits,
    )


eq = _compare("eq", "a = b.", lambda xp, a, b: xp.equal(a, b), torch.eq, "equal", commutative=True)
ne = _compare("ne", "a differs from b.", lambda xp, a, b: xp.not_equal(a, b), torch.ne, "not_equal", commutative=True)
lt = _compare("lt", "a < b.", lambda xp, a, b: xp.less(a, b), torch.lt, "less")
le = _compare("le", "a <= b.", lambda xp, a, b: xp.less_equal(a, b), torch.le, "less_equal")
gt = _compare("gt", "a > b.", lambda xp, a, b: xp.greater(a, b), torch.gt, "greater")
ge = _compare("ge", "a >= b.", lambda xp, a, b: xp.greater_equal(a, b), torch.ge, "greater_equal")


def _bools(types: Any, attrs: Any) -> TensorType:
    require(all(t.dtype == "bool" for t in types), "bools are due")
    return TensorType("bool", broadcast_shapes([t.shape for t in types]))


logical_and = op(
    "logical_and(a, b) -> y",
    "Both.",
    shape=_bools,
    ref=lambda xp, a, b: xp.logical_and(a, b),
    torch=torch.logical_and,
    aten=dict.fromkeys(["aten.__and__.Tensor", "aten.bitwise_and.Tensor", "aten.logical_and.default"], aten.boolean),
    traits=Traits(elementwise=True, commutative=True),
    kernel=Kernel("vector", lambda g, a, b: g.logical_and(a, b)),
)
logical_or = op(
    "logical_or(a, b) -> y",
    "Either.",
    shape=_bools,
    ref=lambda xp, a, b: xp.logical_or(a, b),
    torch=torch.logical_or,
    aten=dict.fromkeys(["aten.__or__.Tensor", "aten.bitwise_or.Tensor", "aten.logical_or.default"], aten.boolean),
    traits=Traits(elementwise=True, commutative=True),
    kernel=Kernel("vector", lambda g, a, b: g.logical_or(a, b)),
)
logical_not = op(
    "logical_not(x) -> y",
    "Not x.",
    shape=_bools,
    ref=lambda xp, x: xp.logical_not(x),
    torch=torch.logical_not,
    aten=dict.fromkeys(["aten.bitwise_not.default", "aten.logical_not.default"], aten.boolean),
    traits=Traits(elementwise=True, involution=True),
    kernel=Kernel("vector", lambda g, x: g.logical_not(x)),
)

# ------------------------------------------------------------------------------------------- selection


def _where_shape(types: Any, attrs: Any) -> TensorType:
    require(types[0].dtype == "bool", "the condition is a bool")
    return TensorType(common_dtype(types[1:]), broadcast_shapes([t.shape for t in types]))


def _where(imp: aten.Importer, op: Op, c: Any, x: Any, y: Any) -> aten.Ref:
    aten.need(
        aten.tensor(imp, c).dtype == "bool" and (isinstance(x, aten.Ref) or isinstance(y, aten.Ref)), "this where"
    )
    dtype = aten.computed_dtype(imp)
    return imp.emit(op, [c, aten.operand(imp, x, dtype), aten.operand(imp, y, dtype)])


def _masked_fill(imp: aten.Importer, op: Op, x: Any, mask: Any, value: Any) -> aten.Ref:
    aten.need(not isinstance(value, aten.Ref) and tuple(imp.out.shape) == aten.tensor(imp, x).shape, "this fill")
    return _where(imp, op, mask, value, x)


where = op(
    "where(c, x, y) -> z",
    "x where c holds, else y; the other value is never looked at.",
    shape=_where_shape,
    aten={
        "aten.where.self": _where,
        "aten.where.ScalarOther": _where,
        "aten.where.ScalarSelf": _where,
        "aten.masked_fill.Scalar": _masked_fill,
    },
    ref=lambda xp, c, x, y: xp.where(c, x, y),
    torch=lambda c, x, y: torch.where(c, x, y),
    traits=Traits(elementwise=True),
    kernel=Kernel("vector", lambda g, c, x, y: g.select(c, x, y)),
)


def _clamp(imp: aten.Importer, op: Op, x: Any, low: Any = None, high: Any = None) -> aten.Ref:
    numbers = all(v is None or isinstance(v, int | float) for v in (low, high))
    aten.need(numbers and aten.tensor(imp, x).dtype == imp.out.dtype and imp.out.dtype in ("f32", "f64"), "this clamp")
    return imp.emit(op, [x], [None if low is None else float(low), None if high is None else float(high)])


def _clip(xp: Any, x: Any, low: Any, high: Any) -> Any:
    x = x if low is None else xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


clamp = op(
    "clamp(x; low: float, high: float) -> y",
    "min(max(x, low), high); None leaves a side open.",
    shape=floating(),
    aten={"aten.clamp.default": _clamp},
    ref=_clip,
    torch=lambda x, low, high: torch.clamp(x, low, high),
    traits=Traits(elementwise=True, idempotent=True),
    kernel=Kernel("vector", lambda g, x, low, high: g.clip(x, low, high)),
)

# ------------------------------------------------------------------------------------------- casts


def _cast_dtype(imp: aten.Importer, op: Op, x: Any, *rest: Any, **kw: Any) -> aten.Ref:
    """``to``: the captured result dtype is the attribute; a move to another device stays opaque."""
    aten.need(
        aten.tensor(imp, x).dtype in aten.CASTABLE and imp.out.dtype in aten.CASTABLE, "a cast between these dtypes"
    )
    return imp.emit(op, [x], [imp.out.dtype])


_NUMPY = {"f64": "float64", "f32": "float32", "i64": "int64", "i32": "int32", "bool": "bool"}
_TORCH = {"f64": torch.float64, "f32": torch.float32, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool}
_FLOAT64 = {**_NUMPY, "f32": "float64"}  # the oracle works in float64 throughout

cast = op(
    "cast(x; dtype: dtype) -> y",
    "x in another element type, as torch converts.",
    shape=lambda types, attrs: TensorType(attrs[0], types[0].shape),
    aten=dict.fromkeys(
        ["aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.type_as.default"], _cast_dtype
    ),
    ref=lambda xp, x, dtype: x.astype(_FLOAT64[dtype]),
    torch=lambda x, dtype: x.to(_TORCH[dtype]),
    traits=Traits(elementwise=True),
    kernel=Kernel("vector", lambda g, x, dtype: g.cast(x, dtype)),
)
