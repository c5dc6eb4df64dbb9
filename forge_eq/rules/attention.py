"""Attention: one equation for each kind of mask, on top of softmax; other spellings reach it by algebra.

If a second pattern is needed that differs only in spelling, a missing algebra rule is the bug.
"""

from __future__ import annotations

import math
from typing import Any

from forge_eq.ops.attention import attention, attention_bias, attention_causal, attention_mask
from forge_eq.ops.cache import attention_parts_bias, attention_parts_mask, rows_hit, rows_last, take_rows, write_rows
from forge_eq.ops.composite import repeat_heads, softmax
from forge_eq.ops.elementwise import add, div, logical_and, logical_not, mul, where
from forge_eq.ops.linalg import matmul, matmul_nt
from forge_eq.ops.movement import concat, slice_
from forge_eq.ops.reduction import sum_
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, is_last_axis, moderate

DEFINITION = "definition of scaled dot product attention (Vaswani et al. 2017, eq. 1)"
LAST = is_last_axis("a", "q")


@rule("attention", exact="real", source=DEFINITION, when=[LAST, moderate("s")])
def scaled(q: Var, k: Var, v: Var, s: Attr, a: Attr) -> Equation:
    """Attention without a mask. Fused kernels take a NaN scale for a row without keys and give zero."""
    return to(matmul(softmax(mul(matmul_nt(q, k), lit(s)), a), v), attention(q, k, v, s))


@rule("attention", exact="real", source=DEFINITION, when=[LAST])
def unscaled(q: Var, k: Var, v: Var, a: Attr) -> Equation:
    """A scale of one is not written out (T5 folds it into the weights)."""
    return to(matmul(softmax(matmul_nt(q, k), a), v), attention(q, k, v, 1.0))


@rule("attention", exact="real", source=DEFINITION, when=[LAST])
def biased(q: Var, k: Var, v: Var, b: Var, s: Attr, a: Attr) -> Equation:
    """An additive mask or bias. A row that may look at nothing stays NaN, as written."""
    return to(matmul(softmax(add(mul(matmul_nt(q, k), lit(s)), b), a), v), attention_bias(q, k, v, b, s, "nan"))


@rule("attention", exact="real", source=DEFINITION, when=[LAST])
def masked(q: Var, k: Var, v: Var, m: Var, s: Attr, a: Attr) -> Equation:
    """A mask of bools that sets scores to minus infinity."""
    return to(
        matmul(softmax(where(m, mul(matmul_nt(q, k), lit(s)), -math.inf), a), v), attention_mask(q, k, v, m, s, "nan")
    )


@rule("attention", exact="real", source=DEFINITION, when=[LAST])
def biased_unscaled(q: Var, k: Var, v: Var, b: Var, a: Attr) -> Equation:
    """An additive bias on plain products (T5)."""
    return to(matmul(softmax(add(matmul_nt(q, k), b), a), v), attention_bias(q, k, v, b, 1.0, "nan"))


@rule("attention", exact="real", source=DEFINITION, when=[LAST])
def masked_unscaled(q: Var, k: Var, v: Var, m: Var, a: Attr) -> Equation:
    """A mask of bools on plain products."""
    return to(matmul(softmax(where(m, matmul_nt(q, k), -math.inf), a), v), attention_mask(q, k, v, m, 1.0, "nan"))


def _is_scale(s: Any) -> bool:
    return isinstance(s, float) and 1e-6 <= s <= 1e6


@rule("attention", exact="bit", source="s times minus infinity", when=[fact("is_scale", _is_scale, "s")])
def scale_under_mask(x: Var, m: Var, s: Attr) -> Equation:
    """A scale after the mask. A negative one would turn the mask's sign, a tiny one is 0 and makes it NaN."""
    return to(mul(where(m, x, -math.inf), lit(s)), where(m, mul(x, lit(s)), -math.inf))


def _has_keys(e: Any) -> bool:
    return isinstance(e.shape[-1], int) and e.shape[-1] > 0


# Of no keys the left side makes 0 / 0.
DIVIDED = [is_last_axis("a", "e"), fact("has_keys", _has_keys, "e")]


@rule("attention", exact="real", source="a quotient of rows passes a product", when=DIVIDED)
def divided_last(e: Var, v: Var, a: Attr) -> Equation:
    """Weights that are normalised after they met the values. The divisor is a sum over keys, one for each row."""
    total = sum_(e, a, True)
    return to(div(matmul(e, v), total), matmul(div(e, total), v))


GROUPED = "each key head serves a run of query heads (Ainslie et al. 2023, grouped-query attention)"


@rule("attention", exact="real", source=GROUPED)
def grouped(q: Var, k: Var, v: Var, n: Attr, s: Attr) -> Equation:
    """Repeating key heads is what the grouped kernel does without copies."""
    return to(attention(q, repeat_heads(k, n), repeat_heads(v, n), s), attention(q, k, v, s))


@rule("attention", exact="real", source=GROUPED)
def grouped_causal(q: Var, k: Var, v: Var, n: Attr, s: Attr) -> Equation:
    """The same under a causal mask."""
    return to(attention_causal(q, repeat_heads(k, n), repeat_heads(v, n), s), attention_causal(q, k, v, s))


@rule("attention", exact="real", source=GROUPED)
def grouped_biased(q: Var, k: Var, v: Var, b: Var, n: Attr, s: Attr, e: Attr) -> Equation:
    """The same under an additive mask."""
    return to(attention_bias(q, repeat_heads(k, n), repeat_heads(v, n), b, s, e), attention_bias(q, k, v, b, s, e))


@rule("attention", exact="real", source=GROUPED)
def grouped_masked(q: Var, k: Var, v: Var, m: Var, n: Attr, s: Attr, e: Attr) -> Equation:
    """The same under a mask of bools."""
    return to(attention_mask(q, repeat_heads(k, n), repeat_heads(v, n), m, s, e), attention_mask(q, k, v, m, s, e))


WRITTEN = "a sum over keys does not depend on where they lie: the new rows apart, the rows that they replace left out"


def _rows_axis(a: Any, q: Any) -> bool:
    return bool(a == q.rank - 2)


def _own_place(m: Any, k: Any) -> bool:
    """The mask has a place of its own for each key."""
    return bool(m.rank >= 1 and m.shape[-1] == k.shape[-2])


def _last(m: Any) -> int:
    return int(m.rank - 1)


def _keys(k: Any) -> Any:
    return k.shape[-2]


JOINED = "a sum over keys does not depend on where they lie: keys that were joined stay where they are"


def _all_keys(k: Any, x: Any) -> Any:
    return k.shape[-2] + x.shape[-2]


def _place_for_both(m: Any, k: Any, x: Any) -> bool:
    """Known sizes, and a mask with a place for each key of both; joined along another axis they had fewer keys."""
    known = isinstance(k.shape[-2], int) and isinstance(x.shape[-2], int)
    return bool(known and m.rank >= 1 and m.shape[-1] == _all_keys(k, x))


BOTH = [fact("has_a_place_for_each_key", _place_for_both, "m", "k", "x")]


@rule("attention", exact="real", source=JOINED, when=BOTH)
def masked_over_joined(q: Var, k: Var, v: Var, x: Var, y: Var, m: Var, a: Attr, s: Attr, e: Attr) -> Equation:
    """A cache and new rows need not be copied into one place to be looked at."""
    old = slice_(m, compute(_last, m), 0, compute(_keys, k), 1)
    new = slice_(m, compute(_last, m), compute(_keys, k), compute(_all_keys, k, x), 1)
    return to(
        attention_mask(q, concat(k, x, a), concat(v, y, a), m, s, e),
        attention_parts_mask(q, k, v, x, y, old, new, s, e),
    )


# What is replaced, be it in the cache or of two new rows for one place the earlier, has weight zero: it must be finite.
BEFORE = [fact("is_rows_axis", _rows_axis, "a", "q"), fact("has_a_place_for_each_key", _own_place, "m", "k")]


@rule("attention", exact="real", source=WRITTEN, when=BEFORE, finite=("k", "v", "y"))
def masked_before_write(q: Var, k: Var, v: Var, i: Var, x: Var, y: Var, m: Var, a: Attr, s: Attr, e: Attr) -> Equation:
    """Looks at a cache before the new rows are in it, so that they can be written once all is computed."""
    old = logical_and(m, logical_not(rows_hit(i, compute(_keys, k))))
    new = logical_and(take_rows(m, i, compute(_last, m)), rows_last(i))
    return to(
        attention_mask(q, write_rows(k, i, x, a), write_rows(v, i, y, a), m, s, e),
        attention_parts_mask(q, k, v, x, y, old, new, s, e),
    )


@rule("attention", exact="real", source=WRITTEN, when=BEFORE, finite=("q", "k", "v", "x", "y"))
def biased_before_write(q: Var, k: Var, v: Var, i: Var, x: Var, y: Var, m: Var, a: Attr, s: Attr, e: Attr) -> Equation:
    """The same under an additive mask; minus infinity added to an infinite score would be no number."""
    old = where(rows_hit(i, compute(_keys, k)), -math.inf, m)
    new = where(rows_last(i), take_rows(m, i, compute(_last, m)), -math.inf)
    return to(
        attention_bias(q, write_rows(k, i, x, a), write_rows(v, i, y, a), m, s, e),
        attention_parts_bias(q, k, v, x, y, old, new, s, e),
    )
