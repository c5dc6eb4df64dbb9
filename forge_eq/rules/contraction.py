"""Contraction: in which order products are taken, and products that become one.

Associativity goes one way only, to fewer operations, so that no e-graph grows by it. Where a weight is a constant (the
guard says so) the product of weights is folded: extraction prices the bytes that it adds.
"""

from __future__ import annotations

import math
from typing import Any

from forge_eq.ir.types import FLOATS
from forge_eq.ops.elementwise import add, mul
from forge_eq.ops.linalg import linear, linear_bias, matmul, matmul_nt
from forge_eq.ops.movement import swap_last
from forge_eq.ops.shapes import broadcast_shapes
from forge_eq.ops.spec import Var, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, is_constant, is_not_empty, is_not_one, moderate

ASSOCIATES = "the matrix product is associative"
LINEAR = "a product is linear in its weight"


def _work(a: Any, b: Any, c: Any) -> tuple[int, int]:
    """Multiplications of (a b) c and of a (b c)."""
    m, k, n, p = a.shape[-2], b.shape[-2], b.shape[-1], c.shape[-1]
    ab, bc = broadcast_shapes([a.shape[:-2], b.shape[:-2]]), broadcast_shapes([b.shape[:-2], c.shape[:-2]])
    whole = math.prod(broadcast_shapes([ab, c.shape[:-2]]))  # type: ignore[arg-type]
    left = math.prod(ab) * m * k * n + whole * m * n * p  # type: ignore[arg-type]
    return left, math.prod(bc) * k * n * p + whole * m * k * p  # type: ignore[arg-type]


SOME_B, SOME_V = is_not_empty("b"), is_not_empty("v")


def _last_first(a: Any, b: Any, c: Any) -> bool:
    left, right = _work(a, b, c)
    return right < left


def _first_first(a: Any, b: Any, c: Any) -> bool:
    left, right = _work(a, b, c)
    return left < right


def _nt_last_first(a: Any, b: Any, c: Any) -> bool:
    return _last_first(a, type(b)(b.dtype, (*b.shape[:-2], b.shape[-1], b.shape[-2])), c)


FLOATS_ONLY = fact("is_float", lambda t: t.dtype in FLOATS, "a", soundness=False)
LAST_FIRST = fact("last_first", _last_first, "a", "b", "c", soundness=False)
FIRST_FIRST = fact("first_first", _first_first, "a", "b", "c", soundness=False)
NT_LAST_FIRST = fact("last_first", _nt_last_first, "a", "b", "c", soundness=False)


@rule("contraction", exact="real", source=ASSOCIATES, when=[FLOATS_ONLY, SOME_B, LAST_FIRST])
def chain_from_right(a: Var, b: Var, c: Var) -> Equation:
    """A chain of products that ends in a thin one."""
    return to(matmul(matmul(a, b), c), matmul(a, matmul(b, c)))


@rule("contraction", exact="real", source=ASSOCIATES, when=[FLOATS_ONLY, SOME_B, FIRST_FIRST])
def chain_from_left(a: Var, b: Var, c: Var) -> Equation:
    """A chain of products that begins with a thin one."""
    return to(matmul(a, matmul(b, c)), matmul(matmul(a, b), c))


@rule("contraction", exact="real", source=ASSOCIATES, when=[FLOATS_ONLY, SOME_B, NT_LAST_FIRST])
def scores_from_right(a: Var, b: Var, c: Var) -> Equation:
    """Attention without softmax: keys meet values first, and the square of the tokens is gone."""
    return to(matmul(matmul_nt(a, b), c), matmul(a, matmul(swap_last(b), c)))


# ------------------------------------------------------------------------------------------------ weights that meet


@rule("contraction", exact="real", source=ASSOCIATES, when=[SOME_V, is_constant("v"), is_constant("w")])
def layers_meet(x: Var, v: Var, w: Var) -> Equation:
    """Two layers with nothing between: a low-rank pair, where one layer is cheaper."""
    return to(linear(linear(x, v, True), w, True), linear(x, matmul(w, v), True))


@rule("contraction", exact="real", source=ASSOCIATES, when=[SOME_V, is_constant("v"), is_constant("w")])
def layers_meet_plain(x: Var, v: Var, w: Var) -> Equation:
    """The same with weights stored the other way."""
    return to(linear(linear(x, v, False), w, False), linear(x, matmul(v, w), False))


@rule("contraction", exact="real", source=ASSOCIATES, when=[SOME_V, is_constant("v"), is_constant("w")])
def layers_meet_biased(x: Var, v: Var, w: Var, b: Var) -> Equation:
    """The same where the second has a bias."""
    return to(linear_bias(linear(x, v, True), w, b, True), linear_bias(x, matmul(w, v), b, True))


@rule("contraction", exact="real", source=ASSOCIATES, when=[SOME_V, *map(is_constant, "vdw")])
def biased_layers_meet(x: Var, v: Var, d: Var, w: Var) -> Equation:
    """The same where the first has a bias."""
    return to(linear(linear_bias(x, v, d, True), w, True), linear_bias(x, matmul(w, v), linear(d, w, True), True))


@rule("contraction", exact="real", source=ASSOCIATES, when=[SOME_V, *map(is_constant, "vdwb")])
def biased_layers_meet_biased(x: Var, v: Var, d: Var, w: Var, b: Var) -> Equation:
    """The same where both have one."""
    inner = linear_bias(x, v, d, True)
    return to(linear_bias(inner, w, b, True), linear_bias(x, matmul(w, v), linear_bias(d, w, b, True), True))


@rule("contraction", exact="real", source=LINEAR, when=[is_constant("v"), is_constant("w")])
def layers_added(x: Var, v: Var, w: Var, t: Attr) -> Equation:
    """LoRA: once the low-rank pair is one weight, it joins the weight beside it."""
    return to(add(linear(x, w, t), linear(x, v, t)), linear(x, add(w, v), t))


@rule("contraction", exact="real", source=LINEAR, when=[is_constant("v"), is_constant("w")])
def layers_added_biased(x: Var, v: Var, w: Var, b: Var, t: Attr) -> Equation:
    """The same beside a layer with bias."""
    return to(add(linear_bias(x, w, b, t), linear(x, v, t)), linear_bias(x, add(w, v), b, t))


# ------------------------------------------------------------------------------------------------ scales


@rule("contraction", exact="real", source=LINEAR, when=[is_constant("w"), moderate("s"), is_not_one("s")])
def scale_into_weight(x: Var, w: Var, t: Attr, s: Attr) -> Equation:
    """A scale of LoRA, or of a head."""
    return to(mul(linear(x, w, t), lit(s)), linear(x, mul(w, lit(s)), t))


SCALES_BOTH = [is_constant("w"), is_constant("b"), moderate("s"), is_not_one("s")]


@rule("contraction", exact="real", source=LINEAR, when=SCALES_BOTH)
def scale_into_weight_and_bias(x: Var, w: Var, b: Var, t: Attr, s: Attr) -> Equation:
    """The same with a bias, as on queries."""
    return to(mul(linear_bias(x, w, b, t), lit(s)), linear_bias(x, mul(w, lit(s)), mul(b, lit(s)), t))


@rule("contraction", exact="real", source="addition is associative", when=[is_constant("b"), is_constant("c")])
def biases_meet(x: Var, w: Var, b: Var, c: Var, t: Attr) -> Equation:
    """A second bias joins the first."""
    return to(add(linear_bias(x, w, b, t), c), linear_bias(x, w, add(b, c), t))
