"""Convolutions: batch norm goes into the weights, and a part that is cut off is not computed."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.convolution import batch_norm, conv, conv_bias, scale, space_of
from forge_eq.ops.elementwise import add, mul, sub
from forge_eq.ops.movement import reshape, slice_
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import is_constant, moderate

CHANNELS = "a convolution is linear in its weights, channel by channel of the result"


def _rows(w: Any) -> tuple[int, ...]:
    """The shape in which one number per output channel stands beside the weights."""
    return (w.shape[0], *[1] * (w.rank - 1))


def _scaled(w: Var, factor: Any) -> Any:
    return mul(w, reshape(factor, compute(_rows, w)))


@rule("convolution", exact="real", source=CHANNELS, when=[is_constant(n) for n in "wgbmv"])
def batch_norm_into_conv(
    x: Var, w: Var, g: Var, b: Var, m: Var, v: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, e: Attr
) -> Equation:
    """After training the statistics are constants, so the norm costs nothing."""
    f = scale(g, v, e)
    left = batch_norm(conv(x, w, s, p, q, d, n), g, b, m, v, e)
    return to(left, conv_bias(x, _scaled(w, f), sub(b, mul(m, f)), s, p, q, d, n))


@rule("convolution", exact="real", source=CHANNELS, when=[is_constant(n) for n in "wcgbmv"])
def batch_norm_into_conv_bias(
    x: Var, w: Var, c: Var, g: Var, b: Var, m: Var, v: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, e: Attr
) -> Equation:
    """The same where the convolution has a bias."""
    f = scale(g, v, e)
    left = batch_norm(conv_bias(x, w, c, s, p, q, d, n), g, b, m, v, e)
    return to(left, conv_bias(x, _scaled(w, f), add(b, mul(sub(c, m), f)), s, p, q, d, n))


@rule("convolution", exact="real", source=CHANNELS, when=[is_constant("w"), moderate("f")])
def scale_into_conv(x: Var, w: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, f: Attr) -> Equation:
    """A number after a convolution."""
    return to(mul(conv(x, w, s, p, q, d, n), lit(f)), conv(x, mul(w, lit(f)), s, p, q, d, n))


@rule("convolution", exact="real", source=CHANNELS, when=[is_constant("w"), is_constant("b"), moderate("f")])
def scale_into_conv_bias(x: Var, w: Var, b: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, f: Attr) -> Equation:
    """The same with a bias."""
    scaled = conv_bias(x, mul(w, lit(f)), mul(b, lit(f)), s, p, q, d, n)
    return to(mul(conv_bias(x, w, b, s, p, q, d, n), lit(f)), scaled)


CUT = "each place of the result looks at a window of its own"


def less_padding(x: Any, w: Any, s: Any, p: Any, q: Any, d: Any, a: int, stop: int) -> tuple[int, ...] | None:
    """Padding at the end with which axis ``a`` of the result has size ``stop``; None when it would be negative."""
    if a < 2:
        return None
    out = space_of(x, w, s, p, q, d)
    left = q[a - 2] - (out[a - 2] - stop) * s[a - 2]
    return (*q[: a - 2], left, *q[a - 1 :]) if left >= 0 else None


@rule("convolution", exact="real", source=CUT)
def cut_conv(x: Var, w: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, a: Attr, t: Attr) -> Equation:
    """A causal convolution is written as one that is padded on both sides and cut: LFM2's short convolutions."""
    less = compute(less_padding, x, w, s, p, q, d, a, t)
    return to(slice_(conv(x, w, s, p, q, d, n), a, 0, t, 1), conv(x, w, s, p, less, d, n))


@rule("convolution", exact="real", source=CUT)
def cut_conv_bias(x: Var, w: Var, b: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, a: Attr, t: Attr) -> Equation:
    """The same with a bias."""
    less = compute(less_padding, x, w, s, p, q, d, a, t)
    return to(slice_(conv_bias(x, w, b, s, p, q, d, n), a, 0, t, 1), conv_bias(x, w, b, s, p, less, d, n))
