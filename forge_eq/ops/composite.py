"""Composite operations, each given by its definition over simpler ones.

Where a definition is the same at every rank, ``recognise=True`` derives the rule that recognises it
(``rules.from_definitions``); the others are recognised by a rule that names the condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType, TupleType
from forge_eq.ops import aten, shapes
from forge_eq.ops.elementwise import add, div, erf, exp, mul, neg, pow_, rsqrt, sigmoid, sub, tanh
from forge_eq.ops.elementwise import relu as relu_op
from forge_eq.ops.linalg import INEXACT, LINEAR, _tw, left, linear, linear_bias
from forge_eq.ops.movement import broadcast_to, concat, reshape, slice_
from forge_eq.ops.reduction import amax, mean, sum_
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, compute, op

SMOOTH = Traits(elementwise=True, exact=False)


def _per_element(flops: int, cost_class: str = "elementwise") -> Cost:
    return Cost(flops=lambda i, a, o: float(flops * (i[0].elements or 1)), cost_class=cost_class)


# ---------------------------------------------------------------------------------------- activations


def _gelu(imp: aten.Importer, op: Op, x: Any, *, approximate: str = "none") -> aten.Ref:
    return aten.unary(imp, gelu if approximate == "none" else gelu_tanh, x)


gelu = op(
    "gelu(x) -> y",
    "x times the normal distribution function of x.",
    shape=shapes.floating(),
    define=lambda x: mul(mul(x, add(erf(mul(x, 0.7071067811865476)), 1.0)), 0.5),
    recognise=True,
    torch=F.gelu,
    traits=SMOOTH,
    cost=_per_element(20),
    kernel=Kernel("vector", lambda g, x: g.gelu(x, "erf")),
)
gelu_tanh = op(
    "gelu_tanh(x) -> y",
    "The tanh approximation of gelu.",
    shape=shapes.floating(),
    aten={"aten.gelu.default": _gelu},
    define=lambda x: mul(mul(x, add(tanh(mul(add(x, mul(pow_(x, 3.0), 0.044715)), 0.7978845608028654)), 1.0)), 0.5),
    recognise=True,
    torch=lambda x: F.gelu(x, approximate="tanh"),
    traits=SMOOTH,
    cost=_per_element(20),
    kernel=Kernel("vector", lambda g, x: g.gelu_apart(x)),
)
silu = op(
    "silu(x) -> y",
    "x times its sigmoid.",
    shape=shapes.floating(),
    aten={"aten.silu.default": aten.unary},
    define=lambda x: mul(x, sigmoid(x)),
    recognise=True,
    torch=F.silu,
    traits=SMOOTH,
    cost=_per_element(12),
    kernel=Kernel("vector", lambda g, x: g.silu_apart(x)),
)
swiglu = op(
    "swiglu(gate, up) -> y",
    "silu(gate) * up.",
    shape=shapes.broadcast_float,
    define=lambda gate, up: mul(silu(gate), up),
    recognise=True,
    torch=lambda gate, up: F.silu(gate) * up,
    traits=SMOOTH,
    cost=_per_element(13),
    kernel=Kernel("vector", lambda g, gate, up: g.multiply(g.swish(gate), up)),
)
geglu = op(
    "geglu(gate, up) -> y",
    "gelu_tanh(gate) * up.",
    shape=shapes.broadcast_float,
    define=lambda gate, up: mul(gelu_tanh(gate), up),
    recognise=True,
    torch=lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    traits=SMOOTH,
    cost=_per_element(21),
    kernel=Kernel("vector", lambda g, gate, up: g.multiply(g.gelu_apart(gate), up)),
)

# ---------------------------------------------------------------------------------------- softmax


def _softmax(imp: aten.Importer, op: Op, x: Any, dim: int, dtype: Any = None) -> aten.Ref:
    t = aten.tensor(imp, x)
    aten.need(t.dtype == imp.out.dtype and t.rank > 0, "a softmax that changes dtype")
    return imp.emit(op, [x], [(dim % t.rank,)])


def _one_axis(types: Any, attrs: Any) -> TensorType:
    shapes.require(
        types[0].dtype in FLOATS and len(attrs[0]) == 1 and 0 <= attrs[0][0] < types[0].rank, "one axis is due"
    )
    return TensorType(types[0].dtype, types[0].shape)


softmax = op(
    "softmax(x; axes: ints) -> y",
    "Exponentials normalised along one axis, shifted for stability.",
    shape=_one_axis,
    aten=dict.fromkeys(["aten.softmax.int", "aten._softmax.default"], _softmax),
    define=lambda x, axes: div(exp(sub(x, amax(x, axes, True))), sum_(exp(sub(x, amax(x, axes, True))), axes, True)),
    recognise=True,
    torch=lambda x, axes: torch.softmax(x, axes[0]),
    traits=INEXACT,
    cost=_per_element(12),
    kernel=Kernel("vector", lambda g, x, axes: g.softmax(x, axes[0])),
)

# ---------------------------------------------------------------------------------------- norms


def _norm_shape(types: Any, attrs: Any) -> TensorType:
    x, axes = types[0], attrs[0]
    shapes.require(
        x.dtype in FLOATS and x.rank > 0 and tuple(axes) == (x.rank - 1,), "a norm over the last axis is due"
    )
    for t in types[1:]:
        shapes.require(t.dtype == x.dtype and t.shape == (x.shape[-1],), f"a gain of type {t}")
    return TensorType(x.dtype, x.shape)


def _layer_norm(
    imp: aten.Importer, op: Op, x: Any, shape: Any, w: Any = None, b: Any = None, eps: float = 1e-5, *rest: Any
) -> aten.Ref:
    t = aten.tensor(imp, x)
    aten.need(len(shape) == 1 and t.dtype in ("f32", "f64"), "a norm over several axes")
    aten.need(isinstance(w, aten.Ref) and isinstance(b, aten.Ref), "a norm without gain or bias")
    aten.need(aten.tensor(imp, w).dtype == t.dtype, "a gain of another dtype")
    return imp.emit(op, [x, w, b], [(t.rank - 1,), float(eps)])


def _centred(x: Any, axes: Any) -> Any:
    return sub(x, mean(x, axes, True))


NORM = _per_element(10, "norm")

layer_norm = op(
    "layer_norm(x, w, b; axes: ints, eps: float) -> y",
    "Zero mean and unit variance along the last axis, then gain and bias.",
    shape=_norm_shape,
    aten={"aten.layer_norm.default": _layer_norm},
    define=lambda x, w, b, axes, eps: add(
        mul(mul(_centred(x, axes), rsqrt(add(mean(pow_(_centred(x, axes), 2.0), axes, True), eps))), w), b
    ),
    recognise=True,
    torch=lambda x, w, b, axes, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
    traits=INEXACT,
    cost=NORM,
    kernel=Kernel("norm", lambda g, x, w, b, axes, eps: g.add(g.multiply(g.mvn(x, axes, eps), w), b)),
)


def _rms_norm(imp: aten.Importer, op: Op, x: Any, shape: Any, w: Any = None, eps: Any = None) -> aten.Ref:
    t = aten.tensor(imp, x)
    aten.need(len(shape) == 1 and t.dtype in EPSILON and isinstance(w, aten.Ref), "this norm")
    aten.need(aten.tensor(imp, w).dtype == t.dtype, "a gain of another dtype")
    return imp.emit(op, [x, w], [(t.rank - 1,), EPSILON[t.dtype] if eps is None else float(eps)])


EPSILON = {"f32": torch.finfo(torch.float32).eps, "f64": torch.finfo(torch.float64).eps}  # what torch adds by default


def _rms(x: torch.Tensor, w: torch.Tensor, axes: Any, eps: float) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


rms_norm = op(
    "rms_norm(x, w; axes: ints, eps: float) -> y",
    "x over its root mean square along the last axis, times a gain.",
    shape=_norm_shape,
    aten={"aten.rms_norm.default": _rms_norm},
    define=lambda x, w, axes, eps: mul(w, mul(x, rsqrt(add(mean(pow_(x, 2.0), axes, True), eps)))),
    recognise=True,
    torch=_rms,
    traits=INEXACT,
    cost=NORM,
    kernel=Kernel("norm", lambda g, x, w, axes, eps: g.rms_norm(x, w, axes, eps)),
)


def _sum_and_norm(types: Any, attrs: Any) -> TupleType:
    total = shapes.broadcast(types[:2], ())
    assert isinstance(total, TensorType)
    shapes.require(types[0].shape == types[1].shape, "operands of one shape are due")
    return TupleType((total, _norm_shape([total, *types[2:]], attrs)))


add_layer_norm = op(
    "add_layer_norm(x, r, w, b; axes: ints, eps: float) -> *ys",
    "A residual sum and its layer norm, both in one pass.",
    shape=_sum_and_norm,
    define=lambda x, r, w, b, axes, eps: (add(x, r), layer_norm(add(x, r), w, b, axes, eps)),
    torch=lambda x, r, w, b, axes, eps: (s := x + r, F.layer_norm(s, s.shape[-1:], w, b, eps)),
    traits=replace(INEXACT, symmetric=True),
    cost=NORM,
    kernel=Kernel(
        "norm", lambda g, x, r, w, b, axes, eps: (s := g.add(x, r), g.add(g.multiply(g.mvn(s, axes, eps), w), b))
    ),
)
add_rms_norm = op(
    "add_rms_norm(x, r, w; axes: ints, eps: float) -> *ys",
    "A residual sum and its root-mean-square norm, both in one pass.",
    shape=_sum_and_norm,
    define=lambda x, r, w, axes, eps: (add(x, r), rms_norm(add(x, r), w, axes, eps)),
    torch=lambda x, r, w, axes, eps: (s := x + r, _rms(s, w, axes, eps)),
    traits=replace(INEXACT, symmetric=True),
    cost=NORM,
    kernel=Kernel("norm", lambda g, x, r, w, axes, eps: (s := g.add(x, r), g.rms_norm(s, w, axes, eps))),
)

# ---------------------------------------------------------------------------------------- linear + activation

# How each is spelled in OpenVINO here is how the plugin takes it into the product before it. Alone, an activation has
# another spelling (``NodeBuilder.silu_apart``), so that "fused" and "not fused" are two programs and not one.
ACTIVATIONS: dict[str, tuple[Op, Callable[..., Any]]] = {
    "relu": (relu_op, lambda g, x: g.relu(x)),
    "gelu": (gelu, lambda g, x: g.gelu(x, "erf")),
    "gelu_tanh": (gelu_tanh, lambda g, x: g.gelu(x, "tanh")),
    "silu": (silu, lambda g, x: g.swish(x)),
    "tanh": (tanh, lambda g, x: g.tanh(x)),
}  # name as an attribute -> (op, OpenVINO nodes)


def _run_act(act: str, x: torch.Tensor) -> Any:
    run = ACTIVATIONS[act][0].torch
    assert run is not None
    return run(x)


linear_act = op(
    "linear_act(x, w; transposed: bool, act: str) -> y",
    "A linear layer and an activation in one kernel.",
    shape=shapes.linear,
    define=lambda x, w, t, act: ACTIVATIONS[act][0](linear(x, w, t)),
    torch=lambda x, w, t, act: _run_act(act, F.linear(x, _tw(w, t))),
    traits=INEXACT,
    cost=replace(LINEAR, form="act"),
    kernel=Kernel(
        "matmul",
        lambda g, x, w, t, act: ACTIVATIONS[act][1](g, g.matmul(x, w, False, t)),
        left=lambda g, stored, x, w, t, act: ACTIVATIONS[act][1](g, left(g, stored, x, w, t)),
    ),
)
linear_bias_act = op(
    "linear_bias_act(x, w, b; transposed: bool, act: str) -> y",
    "A linear layer with bias and an activation in one kernel.",
    shape=shapes.linear,
    define=lambda x, w, b, t, act: ACTIVATIONS[act][0](linear_bias(x, w, b, t)),
    torch=lambda x, w, b, t, act: _run_act(act, F.linear(x, _tw(w, t), b)),
    traits=INEXACT,
    cost=replace(LINEAR, form="act"),
    kernel=Kernel(
        "matmul",
        lambda g, x, w, b, t, act: ACTIVATIONS[act][1](g, g.add(g.matmul(x, w, False, t), b)),
        left=lambda g, stored, x, w, b, t, act: ACTIVATIONS[act][1](g, g.add(left(g, stored, x, w, t), b)),
    ),
)

# ---------------------------------------------------------------------------------------- rotary and heads


def half(x: TensorType) -> tuple[int, int, int]:
    """(last axis, half its size, its size); ShapeError when the size is odd or symbolic."""
    size = x.shape[-1] if x.rank else 1
    shapes.require(isinstance(size, int) and size % 2 == 0, "an even last axis is due")
    assert isinstance(size, int)
    return x.rank - 1, size // 2, size


def _rotate_shape(types: Any, attrs: Any) -> TensorType:
    half(types[0])
    return TensorType(types[0].dtype, types[0].shape)


def _rotate(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


rotate_half = op(
    "rotate_half(x) -> y",
    "The halves of the last axis exchanged, the second one negated.",
    shape=_rotate_shape,
    define=lambda x: concat(
        neg(
            slice_(
                x,
                compute(lambda t: half(t)[0], x),
                compute(lambda t: half(t)[1], x),
                compute(lambda t: half(t)[2], x),
                1,
            )
        ),
        slice_(x, compute(lambda t: half(t)[0], x), 0, compute(lambda t: half(t)[1], x), 1),
        compute(lambda t: half(t)[0], x),
    ),
    torch=_rotate,
    cost=_per_element(1, "movement"),
    kernel=Kernel("move", lambda g, x: g.rotate_half(x)),
)


def _rope_shape(types: Any, attrs: Any) -> TensorType:
    x = types[0]
    half(x)
    shapes.require(x.dtype in FLOATS, "floats are due")
    out = shapes.broadcast(types, attrs)
    shapes.require(out == TensorType(x.dtype, x.shape), "the angles broadcast to x")
    return TensorType(x.dtype, x.shape)


rope = op(
    "rope(x, cos, sin) -> y",
    "Rotary position embedding by halves: x cos + rotate_half(x) sin.",
    shape=_rope_shape,
    define=lambda x, cos, sin: add(mul(x, cos), mul(rotate_half(x), sin)),
    recognise=True,
    torch=lambda x, cos, sin: x * cos + _rotate(x) * sin,
    traits=INEXACT,
    cost=_per_element(4),
    kernel=Kernel("vector", lambda g, x, cos, sin: g.rope(x, cos, sin)),
)


def _repeat_shape(types: Any, attrs: Any) -> TensorType:
    x, n = types[0], attrs[0]
    shapes.require(x.rank >= 3 and isinstance(x.shape[-3], int) and n >= 1, "a head axis is due")
    return TensorType(x.dtype, (*x.shape[:-3], x.shape[-3] * n, *x.shape[-2:]))


def _spread(x: TensorType, n: int) -> tuple[Any, ...]:
    return (*x.shape[:-2], n, *x.shape[-2:])


def _interleave(imp: aten.Importer, op: Op, x: Any, n: Any, dim: Any = None, *, output_size: Any = None) -> aten.Ref:
    rank = aten.tensor(imp, x).rank
    aten.need(isinstance(n, int) and n >= 1 and isinstance(dim, int) and dim % rank == rank - 3, "another axis")
    return imp.emit(op, [x], [n])


repeat_heads = op(
    "repeat_heads(x; n: int) -> y",
    "Every head n times in a row: [.., h, t, d] to [.., h n, t, d].",
    shape=_repeat_shape,
    aten={"aten.repeat_interleave.self_int": _interleave},
    define=lambda x, n: reshape(
        broadcast_to(reshape(x, compute(lambda t: _spread(t, 1), x)), compute(lambda t, n: _spread(t, n), x, n)),
        compute(lambda t, n: _repeat_shape([t], [n]).shape, x, n),
    ),
    torch=lambda x, n: x.repeat_interleave(n, -3),
    cost=_per_element(0, "movement"),
    kernel=Kernel("move", lambda g, x, n: g.repeat_heads(x, n)),
)
