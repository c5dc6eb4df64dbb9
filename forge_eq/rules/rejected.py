"""Tempting wrong rules. The verifier must refuse every one; ``tests/test_rejected.py`` says by what.

Takes nothing. Gives ``rejected``, a set of rules that never joins the registry. Each docstring says why somebody
would write the rule, and what refutes it. Some were in a draft of the default set.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from forge_eq.ops.attention import attention, attention_bias, attention_causal, attention_mask
from forge_eq.ops.composite import gelu, gelu_tanh, layer_norm, rms_norm, silu, softmax, swiglu
from forge_eq.ops.elementwise import (
    add,
    div,
    exp,
    logical_not,
    mul,
    pow_,
    reciprocal,
    relu,
    rsqrt,
    sigmoid,
    sqrt,
    sub,
    where,
)
from forge_eq.ops.linalg import matmul, matmul_nt
from forge_eq.ops.movement import concat
from forge_eq.ops.reduction import mean, sum_
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, RuleSet, rule, to
from forge_eq.rules.guards import fact, is_last_axis
from forge_eq.rules.rejected_arithmetic import wrong_arithmetic
from forge_eq.rules.rejected_gains import wrong_gains

wrong = partial(rule, "rejected", source="none: it is wrong")
LAST = is_last_axis("a", "q")


def _last_axis(t: Any) -> tuple[int, ...]:
    return (t.rank - 1,)


# -------------------------------------------------------------------------------------------- attention


@wrong(exact="real", when=[LAST])
def mask_dropped(q: Var, k: Var, v: Var, m: Var, s: Attr, a: Attr) -> Equation:
    """The mask "only hides padding". Any hidden key refutes it."""
    scores = where(m, mul(matmul_nt(q, k), lit(s)), -math.inf)
    return to(matmul(softmax(scores, a), v), attention(q, k, v, s))


@wrong(exact="real")
def mask_inverted(q: Var, k: Var, v: Var, m: Var, s: Attr, e: Attr) -> Equation:
    """Two libraries mean opposite things by a mask of bools."""
    return to(attention_mask(q, k, v, logical_not(m), s, e), attention_mask(q, k, v, m, s, e))


@wrong(exact="real")
def any_mask_is_causal(q: Var, k: Var, v: Var, m: Var, s: Attr) -> Equation:
    """Most masks are causal; an anti-causal one has the same type."""
    return to(attention_mask(q, k, v, m, s, "nan"), attention_causal(q, k, v, s))


@wrong(exact="real", when=[LAST])
def empty_row_is_zero(q: Var, k: Var, v: Var, b: Var, s: Attr, a: Attr) -> Equation:
    """torch's fused attention gives zeros where the written-out one gives NaN: a row of minus infinities."""
    return to(matmul(softmax(add(mul(matmul_nt(q, k), lit(s)), b), a), v), attention_bias(q, k, v, b, s, "zero"))


@wrong(exact="real", when=[LAST])
def scale_twice(q: Var, k: Var, v: Var, s: Attr, a: Attr) -> Equation:
    """A scale on the queries and one on the scores are not one scale."""
    return to(matmul(softmax(mul(matmul_nt(mul(q, lit(s)), k), lit(s)), a), v), attention(q, k, v, s))


@wrong(exact="real")
def tiled_heads_are_grouped(q: Var, k: Var, v: Var, s: Attr) -> Equation:
    """Tiling key heads (0 1 0 1) is not repeating each in a row (0 0 1 1); one key head hides it."""
    return to(attention(q, concat(k, k, 1), concat(v, v, 1), s), attention(q, k, v, s))


@wrong(exact="real")
def softmax_of_any_axis(x: Var, a: Attr) -> Equation:
    """Softmax is over the last axis nearly always."""
    return to(div(exp(x), sum_(exp(x), a, True)), softmax(x, compute(_last_axis, x)))


@wrong(exact="real")
def softmax_without_shift(x: Var, a: Attr) -> Equation:
    """A shift cancels in the quotient. With an infinity in the row the plain form gives zeros, the shifted one NaN."""
    return to(div(exp(x), sum_(exp(x), a, True)), softmax(x, a))


@wrong(exact="bit")
def scale_under_mask_of_any_sign(x: Var, m: Var, s: Attr) -> Equation:
    """A negative scale makes plus infinity of the mask's minus infinity."""
    return to(mul(where(m, x, -math.inf), lit(s)), where(m, mul(x, lit(s)), -math.inf))


@wrong(exact="real")
def softmax_passes_matmul(x: Var, w: Var, a: Attr) -> Equation:
    """Normalising early would save work."""
    return to(softmax(matmul(x, w), a), matmul(softmax(x, a), w))


@wrong(exact="real")
def causal_mask_dropped(q: Var, k: Var, v: Var, s: Attr) -> Equation:
    """A query would look at what comes after it."""
    return to(attention_causal(q, k, v, s), attention(q, k, v, s))


@wrong(exact="real")
def queries_and_keys_swapped(q: Var, k: Var, v: Var, s: Attr) -> Equation:
    """Their product looks symmetric."""
    return to(attention(q, k, v, s), attention(k, q, v, s))


@wrong(exact="real")
def axis_of_an_unpinned_rank(q: Var, k: Var, v: Var, s: Attr) -> Equation:
    """Axis 2 is the keys of three axes and the queries of four."""
    return to(matmul(softmax(mul(matmul_nt(q, k), lit(s)), (2,)), v), attention(q, k, v, s))


# -------------------------------------------------------------------------------------------- composites


@wrong(exact="real")
def gate_and_up_swapped(gate: Var, up: Var) -> Equation:
    """The product commutes, the activation does not."""
    return to(mul(silu(gate), up), swiglu(up, gate))


@wrong(exact="real")
def eps_outside_root(x: Var, w: Var, a: Attr, e: Attr) -> Equation:
    """x / (sqrt(mean) + eps) is another norm."""
    return to(mul(w, mul(x, reciprocal(add(sqrt(mean(pow_(x, 2.0), a, True)), lit(e))))), rms_norm(x, w, a, e))


@wrong(exact="real")
def eps_into_root(x: Var, v: Var, e: Attr) -> Equation:
    """The same the other way round."""
    return to(div(x, add(sqrt(v), lit(e))), mul(x, rsqrt(add(v, lit(e)))))


@wrong(exact="real")
def layer_norm_with_eps_outside(x: Var, w: Var, b: Var, a: Attr, e: Attr) -> Equation:
    """Some define the norm so."""
    centred = sub(x, mean(x, a, True))
    spread = add(sqrt(mean(pow_(centred, 2.0), a, True)), lit(e))
    return to(add(mul(div(centred, spread), w), b), layer_norm(x, w, b, a, e))


@wrong(exact="real")
def gelu_by_erf(x: Var) -> Equation:
    """The approximation is what such a model was trained with."""
    return to(gelu_tanh(x), gelu(x))


@wrong(exact="real")
def quick_gelu(x: Var) -> Equation:
    """The sigmoid approximation of gelu is off by 2e-2."""
    return to(mul(x, sigmoid(mul(x, 1.702))), gelu(x))


def _near(s: Any) -> bool:
    return isinstance(s, float) and abs(s - math.sqrt(0.5)) < 1e-2


@wrong(exact="real", when=[fact("is_near", _near, "s")])
def constant_in_a_window(x: Var, s: Attr) -> Equation:
    """0.7 is not the root of a half: a tolerance takes other functions in."""
    return to(mul(x, lit(s)), mul(x, math.sqrt(0.5)))


@wrong(exact="real")
def gelu_by_tanh(x: Var) -> Equation:
    """The approximation is off by up to 5e-4, which is no rounding."""
    return to(gelu(x), gelu_tanh(x))


@wrong(exact="real")
def relu_over_add(a: Var, b: Var) -> Equation:
    """Pushes an activation into both summands."""
    return to(relu(add(a, b)), add(relu(a), relu(b)))


rejected = RuleSet(
    one
    for made in (
        mask_dropped,
        mask_inverted,
        any_mask_is_causal,
        empty_row_is_zero,
        scale_twice,
        tiled_heads_are_grouped,
        softmax_of_any_axis,
        softmax_without_shift,
        scale_under_mask_of_any_sign,
        softmax_passes_matmul,
        causal_mask_dropped,
        queries_and_keys_swapped,
        axis_of_an_unpinned_rank,
        gate_and_up_swapped,
        eps_outside_root,
        eps_into_root,
        layer_norm_with_eps_outside,
        gelu_by_tanh,
        gelu_by_erf,
        quick_gelu,
        constant_in_a_window,
        relu_over_add,
        wrong_arithmetic,
        wrong_gains,
    )
    for one in made
)
