"""Statistics: means, kept axes, and where the gain of a norm or the factors of a gate stand."""

from __future__ import annotations

import math
from typing import Any

from forge_eq.ops.composite import layer_norm, rms_norm, swiglu
from forge_eq.ops.elementwise import div, mul, rsqrt, sigmoid
from forge_eq.ops.movement import reshape
from forge_eq.ops.reduction import amax, mean, sum_
from forge_eq.ops.spec import AttrVar, Op, Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, build, register, rule, to
from forge_eq.rules.guards import fact, is_tensor


def _count(t: Any, axes: Any) -> int:
    """How many elements meet in one; 0 where a size is not known."""
    sizes = [t.shape[a] for a in axes]
    return math.prod(sizes) if all(isinstance(s, int) for s in sizes) else 0


def _is_count(t: Any, axes: Any, n: Any) -> bool:
    return isinstance(n, float) and n == _count(t, axes) and n > 0


def _is_share(t: Any, axes: Any, s: Any) -> bool:
    n = _count(t, axes)
    return n > 0 and isinstance(s, float) and s == 1.0 / n


@rule("statistics", exact="real", source="definition of mean", when=[fact("is_count", _is_count, "x", "a", "n")])
def sum_over_count(x: Var, a: Attr, k: Attr, n: Attr) -> Equation:
    """A mean by hand."""
    return to(div(sum_(x, a, k), lit(n)), mean(x, a, k))


@rule("statistics", exact="real", source="definition of mean", when=[fact("is_share", _is_share, "x", "a", "s")])
def sum_times_share(x: Var, a: Attr, k: Attr, s: Attr) -> Equation:
    """A mean by hand, with the size's inverse."""
    return to(mul(sum_(x, a, k), lit(s)), mean(x, a, k))


def _keeps(t: Any, axes: Any, s: Any) -> bool:
    return bool(axes) and tuple(s) == tuple(1 if i in axes else d for i, d in enumerate(t.shape))


def _kept(op: Op) -> None:
    x, a, s = Var("x"), AttrVar("a"), AttrVar("s")
    register(
        build(
            "statistics",
            f"{op.name}_keeps_axes",
            to(reshape(op(x, a, False), s), op(x, a, True)),
            doc="An axis that is reduced and put back is an axis that is kept.",
            source="definition of keepdim",
            exact="bit" if op.traits.exact else "real",
            when=[fact("keeps_axes", _keeps, "x", "a", "s")],
            where=__file__,
        )
    )


for _op in (sum_, mean, amax):
    _kept(_op)

# ------------------------------------------------------------------------------------------------ norms

ASSOCIATES = "multiplication is associative"


def _is_gain(x: Any, w: Any) -> bool:
    return bool(w.rank < x.rank)


# Without the first the product of scale and gain would be built too; numbers are for the rules on scales.
GAIN = [fact("is_gain", _is_gain, "x", "w", soundness=False), is_tensor("w", soundness=True)]


@rule("statistics", exact="real", source=ASSOCIATES, when=GAIN)
def gain_after_scale(x: Var, w: Var, v: Var) -> Equation:
    """A norm that applies the gain first."""
    return to(mul(mul(x, w), rsqrt(v)), mul(mul(x, rsqrt(v)), w))


@rule("statistics", exact="real", source=ASSOCIATES, when=GAIN)
def gain_beside_scale(x: Var, w: Var, v: Var) -> Equation:
    """A norm that multiplies scale and gain first."""
    return to(mul(x, mul(rsqrt(v), w)), mul(mul(x, rsqrt(v)), w))


def _is_positive(s: Any) -> bool:
    return isinstance(s, float) and 1e-3 <= s <= 1e3


def _over_square(e: float, s: float) -> float:
    return e / (s * s)


SCALED = "a norm divides by the scale of its operand, epsilon by its square"
POSITIVE = fact("is_positive", _is_positive, "s")


def _is_epsilon(e: Any) -> bool:
    return isinstance(e, float) and 0.0 <= e <= 1.0


EPSILON = fact("is_epsilon", _is_epsilon, "e")  # over a square it could leave the range of floats otherwise


@rule("statistics", exact="real", source=SCALED, when=[POSITIVE, EPSILON])
def rms_norm_of_scaled(x: Var, w: Var, s: Attr, a: Attr, e: Attr) -> Equation:
    """A scale before a norm goes into epsilon. A negative one would change the sign."""
    return to(rms_norm(mul(x, lit(s)), w, a, e), rms_norm(x, w, a, compute(_over_square, e, s)))


@rule("statistics", exact="real", source=SCALED, when=[POSITIVE, EPSILON])
def layer_norm_of_scaled(x: Var, w: Var, b: Var, s: Attr, a: Attr, e: Attr) -> Equation:
    """The same for layer norm."""
    return to(layer_norm(mul(x, lit(s)), w, b, a, e), layer_norm(x, w, b, a, compute(_over_square, e, s)))


# ------------------------------------------------------------------------------------------------ gates


@rule("statistics", exact="real", source=ASSOCIATES)
def gate_of_product(gate: Var, up: Var) -> Equation:
    """The product first, the sigmoid last."""
    return to(mul(mul(gate, up), sigmoid(gate)), swiglu(gate, up))


@rule("statistics", exact="real", source=ASSOCIATES)
def gate_beside_product(gate: Var, up: Var) -> Equation:
    """The sigmoid beside the other factor."""
    return to(mul(gate, mul(up, sigmoid(gate))), swiglu(gate, up))
