"""Arithmetic: one form for quotients, roots, powers and scales, so that a definition needs one spelling.

A rule that reassociates a product does so in one narrow form: a number moves out, or a statistic of a row moves in.
General associativity is not here: it makes an e-graph grow without end.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from forge_eq.ops.composite import gelu_tanh, silu
from forge_eq.ops.elementwise import add, div, exp, mul, neg, pow_, reciprocal, rsqrt, sigmoid, sqrt, tanh
from forge_eq.ops.reduction import mean
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, is_float, is_not_one, is_tensor, moderate

QUOTIENT = "a quotient is a product with the reciprocal"


@rule("arithmetic", exact="bit", source="definition of the reciprocal")
def one_over(x: Var) -> Equation:
    """1 / x, as norms and sigmoids are written."""
    return to(div(1.0, x), reciprocal(x))


@rule("arithmetic", exact="real", source="x to the power of -1 is its reciprocal")
def power_of_minus_one(x: Var) -> Equation:
    """The reciprocal as a power."""
    return to(pow_(x, -1.0), reciprocal(x))


@rule("arithmetic", exact="real", source=QUOTIENT)
def times_reciprocal(a: Var, b: Var) -> Equation:
    """A softmax that multiplies by one over its sum."""
    return to(mul(a, reciprocal(b)), div(a, b))


@rule("arithmetic", exact="real", source="definition of rsqrt")
def reciprocal_of_root(x: Var) -> Equation:
    """A norm's scale in two steps."""
    return to(reciprocal(sqrt(x)), rsqrt(x))


@rule("arithmetic", exact="real", source=QUOTIENT)
def over_root(a: Var, b: Var) -> Equation:
    """A norm that divides by its root. A root is no denormal, so its reciprocal is finite wherever the quotient is."""
    return to(div(a, sqrt(b)), mul(a, rsqrt(b)))


@rule("arithmetic", exact="bit", source="IEEE 754: multiplying by -1 changes the sign")
def minus_one_times(x: Var) -> Equation:
    """A sign written as a product."""
    return to(mul(x, -1.0), neg(x))


# ------------------------------------------------------------------------------------------------ powers


@rule("arithmetic", exact="real", source="definition of the power of two", when=[is_float("x")])
def square(x: Var) -> Equation:
    """x x, as norms are written."""
    return to(mul(x, x), pow_(x, 2.0))


@rule("arithmetic", exact="real", source="definition of the power of three")
def cube(x: Var) -> Equation:
    """x x x, as the polynomial of gelu is written."""
    return to(mul(pow_(x, 2.0), x), pow_(x, 3.0))


def _is_positive(s: Any) -> bool:
    return isinstance(s, float) and 0 < s < math.inf


POSITIVE = fact("is_positive", _is_positive, "e")


@rule("arithmetic", exact="real", source="definition of rsqrt, of what is no less than e > 0", when=[POSITIVE])
def power_of_minus_half(x: Var, a: Attr, k: Attr, e: Attr) -> Equation:
    """Of a mean of squares only: at -0.0 and at minus infinity the power and the root differ."""
    inside = add(mean(pow_(x, 2.0), a, k), lit(e))
    return to(pow_(inside, -0.5), rsqrt(inside))


@rule("arithmetic", exact="real", source="definition of sqrt")
def power_of_half(x: Var) -> Equation:
    """The root as a power."""
    return to(pow_(x, 0.5), sqrt(x))


# ------------------------------------------------------------------------------------------------ scales


TENSOR = is_tensor("a", soundness=False)  # two numbers and a tensor meet by mul_mul already
NOT_ONE = is_not_one("s")


@rule("arithmetic", exact="real", source="multiplication is associative", when=[moderate("s"), TENSOR, NOT_ONE])
def scale_out_of_product(a: Var, b: Var, s: Attr) -> Equation:
    """A number in a product stands outside."""
    return to(mul(a, mul(b, lit(s))), mul(mul(a, b), lit(s)))


@rule("arithmetic", exact="real", source="multiplication distributes over addition", when=[moderate("s")])
def scale_out_of_sum(x: Var, s: Attr) -> Equation:
    """0.5 + 0.5 t, as halves of a bracket are written."""
    return to(add(mul(x, lit(s)), lit(s)), mul(add(x, 1.0), lit(s)))


@rule("arithmetic", exact="bit", source="IEEE 754: doubling is exact", when=[is_float("x")])
def sum_with_itself(x: Var) -> Equation:
    """Twice a value, as a scale that may move on."""
    return to(add(x, x), mul(x, 2.0))


def _plus_one(s: float) -> float:
    return s + 1.0


@rule("arithmetic", exact="real", source="multiplication distributes over addition", when=[moderate("s")])
def share_and_whole(x: Var, s: Attr) -> Equation:
    """s x + x is one scale."""
    return to(add(mul(x, lit(s)), x), mul(x, lit(compute(_plus_one, s))))


def _sum(s: float, t: float) -> float:
    return s + t


@rule("arithmetic", exact="real", source="multiplication distributes over addition", when=[moderate("s", "t")])
def two_shares(x: Var, s: Attr, t: Attr) -> Equation:
    """s x + t x is one scale."""
    return to(add(mul(x, lit(s)), mul(x, lit(t))), mul(x, lit(compute(_sum, s, t))))


# Of definitions; no float is the root itself.
NUMBERS = (math.sqrt(0.5), math.sqrt(2.0 / math.pi), 2.0 * math.sqrt(2.0 / math.pi))


def _nearest(t: Any, s: Any) -> float | None:
    """The number of a definition that ``s`` stands for in the dtype of ``t``."""
    for c in NUMBERS:
        if isinstance(s, float) and s != c and abs(s - c) <= 1e-10 * c:
            one = abs(s - c) <= math.ulp(c) if t.dtype == "f64" else np.float32(s) == np.float32(c)
            if t.dtype in ("f64", "f32") and one:
                return c
    return None


def _stands_for(t: Any, s: Any) -> bool:
    return _nearest(t, s) is not None


@rule(
    "arithmetic",
    exact="real",
    source="both numbers are roundings of one real number, the same one in the dtype beside them",
    when=[fact("stands_for", _stands_for, "x", "s")],
)
def rounded_number(x: Var, s: Attr) -> Equation:
    """1 / sqrt(2) and sqrt(1 / 2) are neighbours; no other function is near: a window would take in others."""
    return to(mul(x, lit(s)), mul(x, lit(compute(_nearest, x, s))))


@rule("arithmetic", exact="real", source="multiplication distributes over addition")
def cubic(x: Var, c: Attr) -> Equation:
    """x (1 + c x x), the factored polynomial of gelu."""
    return to(mul(x, add(mul(pow_(x, 2.0), lit(c)), 1.0)), add(x, mul(pow_(x, 3.0), lit(c))))


# ------------------------------------------------------------------------------------------------ sigmoid


@rule("arithmetic", exact="real", source="definition of the logistic function")
def logistic(x: Var) -> Equation:
    """The sigmoid by hand."""
    return to(reciprocal(add(exp(neg(x)), 1.0)), sigmoid(x))


@rule("arithmetic", exact="real", source=QUOTIENT)
def over_logistic(a: Var, x: Var) -> Equation:
    """x / (1 + exp(-x)): the divisor is no less than 1, so its reciprocal is finite."""
    return to(div(a, add(exp(neg(x)), 1.0)), mul(a, sigmoid(x)))


@rule("arithmetic", exact="real", source="(1 + tanh(x / 2)) / 2 is the logistic function")
def silu_by_tanh(x: Var) -> Equation:
    """Silu as the frameworks without a sigmoid wrote it."""
    return to(mul(mul(x, add(tanh(mul(x, 0.5)), 1.0)), 0.5), silu(x))


@rule("arithmetic", exact="real", source="(1 + tanh(u)) / 2 is the logistic function of 2 u")
def gelu_by_sigmoid(x: Var) -> Equation:
    """The tanh approximation of gelu with a sigmoid, as kernels without a fast tanh write it."""
    inner = mul(add(x, mul(pow_(x, 3.0), 0.044715)), NUMBERS[2])
    return to(mul(x, sigmoid(inner)), gelu_tanh(x))
