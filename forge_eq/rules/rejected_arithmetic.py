"""Tempting wrong rules of arithmetic, casts and movement.

Takes nothing. Gives ``wrong_arithmetic``, a set that is part of ``rejected``.
"""

from __future__ import annotations

from functools import partial

from forge_eq.ops.elementwise import (
    add,
    cast,
    div,
    eq,
    floor,
    logical_and,
    logical_or,
    maximum,
    mul,
    ne,
    pow_,
    sqrt,
    sub,
    where,
)
from forge_eq.ops.linalg import linear
from forge_eq.ops.movement import permute, reshape, swap_last
from forge_eq.ops.reduction import sum_
from forge_eq.ops.spec import App, Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, RuleSet, rule, to
from forge_eq.rules.guards import is_float

wrong = partial(rule, "rejected", source="none: it is wrong")


def _zero(x: Var) -> App:
    """0.0 in the shape of x, whatever x holds."""
    return cast(logical_and(eq(x, x), ne(x, x)), "f32")


def _one(x: Var) -> App:
    return cast(logical_or(eq(x, x), ne(x, x)), "f32")


# -------------------------------------------------------------------------------------------- arithmetic


@wrong(exact="real")
def mul_zero(x: Var) -> Equation:
    """Infinity times zero is NaN."""
    return to(mul(x, 0.0), _zero(x))


@wrong(exact="real")
def div_self(x: Var) -> Equation:
    """Zero over zero is NaN."""
    return to(div(x, x), _one(x))


@wrong(exact="real")
def sub_self(x: Var) -> Equation:
    """Infinity less infinity is NaN."""
    return to(sub(x, x), _zero(x))


@wrong(exact="bit")
def add_zero(x: Var) -> Equation:
    """-0.0 + 0.0 is 0.0."""
    return to(add(x, 0.0), x)


@wrong(exact="bit")
def add_zero_of_any_dtype(x: Var) -> Equation:
    """The whole number 0 beside floats is 0.0; without a guard the integer rule meets them."""
    return to(add(x, 0), x)


@wrong(exact="bit")
def maximum_commutes_to_the_bit(a: Var, b: Var) -> Equation:
    """Which zero is larger, 0.0 or -0.0, depends on the order."""
    return to(maximum(a, b), maximum(b, a))


@wrong(exact="bit")
def add_reassociates_to_the_bit(a: Var, b: Var, c: Var) -> Equation:
    """True of reals, and z3 proves it; rounding refutes it."""
    return to(add(add(a, b), c), add(a, add(b, c)))


@wrong(exact="bit")
def div_is_mul_to_the_bit(x: Var, s: Attr) -> Equation:
    """Exact for powers of two only."""
    return to(div(x, lit(s)), mul(x, lit(compute(lambda s: 1.0 / s, s))))


@wrong(exact="real", when=[is_float("x")])
def scales_merge_without_bound(x: Var, s: Attr, t: Attr) -> Equation:
    """The product of two large numbers is infinite, and infinity times zero is NaN."""
    return to(mul(mul(x, lit(s)), lit(t)), mul(x, lit(compute(lambda s, t: s * t, s, t))))


@wrong(exact="real", when=[is_float("x"), is_float("y")])
def where_by_arithmetic(c: Var, x: Var, y: Var) -> Equation:
    """True of reals; a NaN in the branch not taken gets through."""
    chosen = cast(c, "f32")
    return to(where(c, x, y), add(mul(x, chosen), mul(y, sub(1.0, chosen))))


@wrong(exact="real")
def root_of_square(x: Var) -> Equation:
    """That is the magnitude."""
    return to(sqrt(pow_(x, 2.0)), x)


@wrong(exact="real")
def floor_over_add(a: Var, b: Var) -> Equation:
    """Two halves make a whole."""
    return to(floor(add(a, b)), add(floor(a), floor(b)))


@wrong(exact="real")
def floor_is_truncation(x: Var) -> Equation:
    """They differ below zero."""
    return to(cast(floor(x), "i64"), cast(x, "i64"))


@wrong(exact="real")
def floor_division_is_division(a: Var, b: Var) -> Equation:
    """True of multiples."""
    return to(floor(div(a, b)), div(a, b))


@wrong(exact="real")
def sum_of_products(a: Var, b: Var, axes: Attr, keep: Attr) -> Equation:
    """True on one element, which is what a test on size 1 sees."""
    return to(sum_(mul(a, b), axes, keep), mul(sum_(a, axes, keep), sum_(b, axes, keep)))


@wrong(exact="real")
def cast_to_int_and_back(x: Var) -> Equation:
    """Two casts that meet cancel only when the first loses nothing."""
    return to(cast(cast(x, "i64"), "f32"), x)


@wrong(exact="bit")
def cast_down_and_up(x: Var) -> Equation:
    """float64 through float32 rounds; invisible to an oracle that computes in float64."""
    return to(cast(cast(x, "f32"), "f64"), x)


@wrong(exact="bit")
def cast_through_fewer_bits(x: Var) -> Equation:
    """A large number wraps on the way."""
    return to(cast(cast(x, "i32"), "i64"), cast(x, "i64"))


# -------------------------------------------------------------------------------------------- movement


@wrong(exact="bit")
def any_permute_is_swap_last(x: Var, p: Attr) -> Equation:
    """On a cube every permutation has the type of the transpose."""
    return to(permute(x, p), swap_last(x))


@wrong(exact="bit")
def reshape_swallows_permute(x: Var, p: Attr, s: Attr) -> Equation:
    """The elements are the same, their order is not."""
    return to(reshape(permute(x, p), s), reshape(x, s))


@wrong(exact="real")
def transpose_flag_lost(x: Var, w: Var) -> Equation:
    """Square weights hide it from the type check."""
    return to(linear(x, swap_last(w), True), linear(x, w, True))


wrong_arithmetic = RuleSet(
    one
    for made in (
        mul_zero,
        div_self,
        sub_self,
        add_zero,
        add_zero_of_any_dtype,
        maximum_commutes_to_the_bit,
        add_reassociates_to_the_bit,
        div_is_mul_to_the_bit,
        scales_merge_without_bound,
        where_by_arithmetic,
        root_of_square,
        floor_over_add,
        floor_is_truncation,
        floor_division_is_division,
        sum_of_products,
        cast_to_int_and_back,
        cast_down_and_up,
        cast_through_fewer_bits,
        any_permute_is_swap_last,
        reshape_swallows_permute,
        transpose_flag_lost,
    )
    for one in made
)
