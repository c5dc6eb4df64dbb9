"""Tempting wrong rules that promise to save work: twins of ``contraction``, ``reductions``, ``pooling``, ``slices``.

Takes nothing. Gives ``wrong_gains``, a set that is part of ``rejected``. What a guard of the right twin says is left
out, or one word of it is another.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from forge_eq.ops.attention import attention, attention_causal
from forge_eq.ops.composite import gelu, rms_norm, rope, softmax
from forge_eq.ops.convolution import conv_bias
from forge_eq.ops.elementwise import add, clamp, div, eq, logical_or, mul, ne, relu
from forge_eq.ops.elementwise import cast as cast_
from forge_eq.ops.linalg import linear, linear_bias, matmul
from forge_eq.ops.movement import slice_
from forge_eq.ops.pooling import avg_pool, max_pool
from forge_eq.ops.reduction import amax, sum_
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, RuleSet, rule, to
from forge_eq.rules.guards import fact, is_last_axis

wrong = partial(rule, "rejected", source="none: it is wrong")

# ------------------------------------------------------------------------------------------------ products


@wrong(exact="real")
def products_commute(a: Var, b: Var) -> Equation:
    """Square factors hide it from the type check."""
    return to(matmul(a, b), matmul(b, a))


@wrong(exact="real")
def layers_meet_through_relu(x: Var, v: Var, w: Var) -> Equation:
    """The activation is why there are two layers."""
    return to(linear(relu(linear(x, v, True)), w, True), linear(x, matmul(w, v), True))


@wrong(exact="real")
def layers_meet_when_empty(x: Var, v: Var, w: Var) -> Equation:
    """Without a feature in between both products are zero, unless a weight that was not read is infinite."""
    return to(linear(linear(x, v, True), w, True), linear(x, matmul(w, v), True))


@wrong(exact="real")
def scale_of_bias_lost(x: Var, w: Var, b: Var, t: Attr, s: Attr) -> Equation:
    """The scale goes into the weight only."""
    return to(mul(linear_bias(x, w, b, t), lit(s)), linear_bias(x, mul(w, lit(s)), b, t))


@wrong(exact="real")
def division_past_product(e: Var, y: Var, v: Var) -> Equation:
    """A divisor of its own for each key does not leave the sum over keys; one for each row does."""
    return to(matmul(div(e, y), v), div(matmul(e, v), y))


@wrong(exact="real")
def division_past_sum(x: Var, y: Var, a: Attr) -> Equation:
    """The same for a sum written out."""
    return to(sum_(div(x, y), a, True), div(sum_(x, a, True), sum_(y, a, True)))


# ------------------------------------------------------------------------------------------------ reductions


def _keeps_features(a: Any, x: Any) -> bool:
    return x.rank - 1 not in tuple(a)


@wrong(exact="real", when=[fact("keeps_features", _keeps_features, "a", "x")])
def sum_of_rows_counts_one_bias(x: Var, w: Var, b: Var, t: Attr, a: Attr, k: Attr) -> Equation:
    """True of the mean: a sum has the bias once for each row."""
    return to(sum_(linear_bias(x, w, b, t), a, k), linear_bias(sum_(x, a, k), w, b, t))


@wrong(exact="real", when=[is_last_axis("a", "x")])
def largest_feature_is_one_column(x: Var, w: Var, a: Attr) -> Equation:
    """A maximum is not linear."""
    return to(amax(linear(x, w, True), a, True), linear(x, amax(w, (0,), True), True))


@wrong(exact="real")
def largest_of_scaled(x: Var, s: Attr, a: Attr, k: Attr) -> Equation:
    """A negative scale makes the smallest the largest."""
    return to(amax(mul(x, lit(s)), a, k), mul(amax(x, a, k), lit(s)))


@wrong(exact="real")
def softmax_forgets_what_rows_share(x: Var, y: Var, a: Attr) -> Equation:
    """True of finite rows: minus infinity for a whole row, as masks have it, makes it NaN."""
    return to(softmax(add(x, amax(y, a, True)), a), softmax(x, a))


def _single(x: Any, a: Any) -> bool:
    return len(a) == 1 and x.shape[a[0]] == 1


@wrong(exact="real", when=[fact("is_single", _single, "x", "a")])
def softmax_of_one_is_one(x: Var, a: Attr) -> Equation:
    """Of infinity and NaN it is NaN."""
    return to(softmax(x, a), cast_(logical_or(eq(x, x), ne(x, x)), "f32"))


@wrong(exact="real")
def norm_of_scaled_forgets_epsilon(x: Var, w: Var, s: Attr, a: Attr, e: Attr) -> Equation:
    """A norm divides by the scale, but for epsilon."""
    return to(rms_norm(mul(x, lit(s)), w, a, e), rms_norm(x, w, a, e))


@wrong(exact="real")
def norm_of_scaled_by_any_sign(x: Var, w: Var, s: Attr, a: Attr, e: Attr) -> Equation:
    """The root of a square is a magnitude."""
    return to(
        rms_norm(mul(x, lit(s)), w, a, e), rms_norm(x, w, a, compute(lambda e, s: e / (s * s) if s * s else None, e, s))
    )


# ------------------------------------------------------------------------------------------------ pooling


@wrong(exact="real")
def means_of_overlapping_windows(x: Var, k: Attr, s: Attr, m: Attr, t: Attr, p: Attr) -> Equation:
    """What lies in two windows counts twice."""
    far = compute(lambda s, t: tuple(a * b for a, b in zip(s, t, strict=True)), s, t)
    wide = compute(lambda k, s, m: tuple(a + (b - 1) * c for a, b, c in zip(k, m, s, strict=True)), k, s, m)
    return to(avg_pool(avg_pool(x, k, s, p, p), m, t, p, p), avg_pool(x, wide, far, p, p))


@wrong(exact="real")
def largest_of_gelu(x: Var, k: Attr, s: Attr, p: Attr, q: Attr, d: Attr) -> Equation:
    """Gelu falls before it rises."""
    return to(max_pool(gelu(x), k, s, p, q, d), gelu(max_pool(x, k, s, p, q, d)))


def _astride(x: Any, k: Any, p: Any, d: Any) -> bool:
    return any(n == 1 and a > 1 and b > 0 and c > 1 for n, a, b, c in zip(x.shape[2:], k, p, d, strict=True))


@wrong(exact="real", when=[fact("is_astride", _astride, "x", "k", "p", "d")])
def largest_of_relu_in_padding(x: Var, k: Attr, s: Attr, p: Attr, q: Attr, d: Attr) -> Equation:
    """A dilated window may lie in the padding alone: its maximum is minus infinity, and relu of that is 0."""
    return to(max_pool(relu(x), k, s, p, q, d), relu(max_pool(x, k, s, p, q, d)))


def _padded_point(w: Any, s: Any, p: Any, q: Any, b: Any, e: Any) -> bool:
    return all(v == 1 for v in (*w.shape[2:], *s)) and not any((*p, *q)) and any((*b, *e))


@wrong(exact="real", when=[fact("is_padded_after", _padded_point, "w", "s", "p", "q", "b", "e")])
def padded_mean_keeps_bias(
    x: Var, w: Var, c: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, k: Attr, t: Attr, b: Attr, e: Attr
) -> Equation:
    """Zeros of the padding thin the bias out."""
    pooled = conv_bias(avg_pool(x, k, t, b, e), w, c, s, p, q, d, n)
    return to(avg_pool(conv_bias(x, w, c, s, p, q, d, n), k, t, b, e), pooled)


@wrong(exact="real")
def clamp_forgets_relu(x: Var, l: Attr, h: Attr) -> Equation:  # noqa: E741
    """A lower bound below zero is none after relu."""
    return to(clamp(relu(x), l, h), clamp(x, l, h))


# ------------------------------------------------------------------------------------------------ slices


def _keeps_some(a: int, n: Any, i: int, j: int) -> bool:
    return tuple(n) == (a,) and i < j


@wrong(exact="real", when=[fact("keeps_some", _keeps_some, "a", "n", "i", "j")])
def softmax_of_a_part(x: Var, n: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Along its own axis a softmax needs all of them."""
    return to(slice_(softmax(x, n), a, i, j, k), softmax(slice_(x, a, i, j, k), n))


def _half(x: Any, a: int, i: int, j: int, k: int) -> bool:
    return bool(a == x.rank - 1 and 0 < 2 * (j - i) == x.shape[-1] and k == 1 and (j - i) % 2 == 0)


@wrong(exact="real", when=[fact("is_half", _half, "x", "a", "i", "j", "k")])
def rope_of_half_a_head(x: Var, c: Var, s: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Along the last axis the halves turn each other."""
    cut = [slice_(v, a, i, j, k) for v in (x, c, s)]
    return to(slice_(rope(x, c, s), a, i, j, k), rope(*cut))


@wrong(exact="real")
def any_query_sees_all_keys(q: Var, k: Var, v: Var, s: Attr, a: Attr, i: Attr, j: Attr, d: Attr) -> Equation:
    """Only the last one does."""
    return to(slice_(attention_causal(q, k, v, s), a, i, j, d), attention(slice_(q, a, i, j, d), k, v, s))


wrong_gains = RuleSet(
    one
    for made in (
        products_commute,
        layers_meet_through_relu,
        layers_meet_when_empty,
        scale_of_bias_lost,
        division_past_product,
        division_past_sum,
        sum_of_rows_counts_one_bias,
        largest_feature_is_one_column,
        largest_of_scaled,
        softmax_forgets_what_rows_share,
        softmax_of_one_is_one,
        norm_of_scaled_forgets_epsilon,
        norm_of_scaled_by_any_sign,
        means_of_overlapping_windows,
        largest_of_gelu,
        largest_of_relu_in_padding,
        padded_mean_keeps_bias,
        clamp_forgets_relu,
        softmax_of_a_part,
        rope_of_half_a_head,
        any_query_sees_all_keys,
    )
    for one in made
)
