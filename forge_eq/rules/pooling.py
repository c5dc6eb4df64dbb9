"""Pooling: windows of windows are windows, and what commutes with a window is done after it, on fewer elements."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.convolution import conv, conv_bias
from forge_eq.ops.elementwise import relu, sigmoid, tanh
from forge_eq.ops.pooling import avg_pool, max_pool
from forge_eq.ops.reduction import amax
from forge_eq.ops.spec import AttrVar, Var, compute
from forge_eq.rules.dsl import Attr, Equation, build, register, rule, to
from forge_eq.rules.guards import fact

WINDOWS = "a window of windows that leave no gap is a window"


def _wide(k: Any, s: Any, m: Any) -> tuple[int, ...]:
    """The window that an outer window of m inner ones covers."""
    return tuple(a + (b - 1) * c for a, b, c in zip(k, m, s, strict=True))


def _far(s: Any, t: Any) -> tuple[int, ...]:
    return tuple(a * b for a, b in zip(s, t, strict=True))


def _no_gap(k: Any, s: Any, p: Any, q: Any, b: Any, e: Any, d: Any, f: Any) -> bool:
    """Inner windows touch, nothing is padded or dilated."""
    touch = all(a >= c for a, c in zip(k, s, strict=True))
    return touch and not any((*p, *q, *b, *e)) and all(v == 1 for v in (*d, *f))


@rule(
    "pooling",
    exact="real",
    source=WINDOWS,
    when=[fact("leaves_no_gap", _no_gap, "k", "s", "p", "q", "b", "e", "d", "f")],
)
def max_of_max(
    x: Var, k: Attr, s: Attr, p: Attr, q: Attr, d: Attr, m: Attr, t: Attr, b: Attr, e: Attr, f: Attr
) -> Equation:
    """Two poolings are one."""
    twice = max_pool(max_pool(x, k, s, p, q, d), m, t, b, e, f)
    return to(twice, max_pool(x, compute(_wide, k, s, m), compute(_far, s, t), p, q, d))


def _tiles(k: Any, s: Any, p: Any, q: Any, b: Any, e: Any) -> bool:
    """Inner windows meet edge to edge: every element counts once."""
    return tuple(k) == tuple(s) and not any((*p, *q, *b, *e))


@rule("pooling", exact="real", source=WINDOWS, when=[fact("tiles", _tiles, "k", "s", "p", "q", "b", "e")])
def mean_of_mean(x: Var, k: Attr, s: Attr, p: Attr, q: Attr, m: Attr, t: Attr, b: Attr, e: Attr) -> Equation:
    """The same for means, whose windows must not overlap."""
    twice = avg_pool(avg_pool(x, k, s, p, q), m, t, b, e)
    return to(twice, avg_pool(x, compute(_wide, k, s, m), compute(_far, s, t), p, q))


# ------------------------------------------------------------------------------------------------ past a window

MONOTONE = "the larger of two numbers has the larger image under an increasing function"


def _meets_data(p: Any, q: Any, d: Any) -> bool:
    """No window lies in the padding alone, where the largest value is minus infinity. Dilated ones may."""
    return not any((*p, *q)) or all(v == 1 for v in d)


def _increasing() -> None:
    """Functions that increase. Gelu and silu fall before they rise, so the larger image may be the smaller number's."""
    x = Var("x")
    window = [AttrVar(n) for n in "kspqd"]
    for op in (relu, tanh, sigmoid):
        register(
            build(
                "pooling",
                f"max_of_{op.name}",
                to(max_pool(op(x), *window), op(max_pool(x, *window))),
                doc=f"The {op.name} of the winners only.",
                source=MONOTONE,
                exact="real",
                when=[fact("meets_data", _meets_data, "p", "q", "d")],
                where=__file__,
            )
        )


_increasing()


@rule("pooling", exact="real", source=MONOTONE)
def amax_of_relu(x: Var, a: Attr, k: Attr) -> Equation:
    """The same for a maximum over axes."""
    return to(amax(relu(x), a, k), relu(amax(x, a, k)))


# ------------------------------------------------------------------------------------------------ linear pooling

POINT = "a convolution of kernel 1 acts on each place by itself, linearly"


def _point(w: Any, s: Any, p: Any, q: Any) -> bool:
    return all(v == 1 for v in (*w.shape[2:], *s)) and not any((*p, *q))


def _point_unpadded(w: Any, s: Any, p: Any, q: Any, b: Any, e: Any) -> bool:
    return _point(w, s, p, q) and not any((*b, *e))


@rule("pooling", exact="real", source=POINT, when=[fact("is_pointwise", _point, "w", "s", "p", "q")])
def mean_of_pointwise_conv(
    x: Var, w: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, k: Attr, t: Attr, b: Attr, e: Attr
) -> Equation:
    """The transitions of DenseNet: pool first, and multiply a quarter."""
    return to(avg_pool(conv(x, w, s, p, q, d, n), k, t, b, e), conv(avg_pool(x, k, t, b, e), w, s, p, q, d, n))


@rule("pooling", exact="real", source=POINT, when=[fact("is_pointwise", _point_unpadded, "w", "s", "p", "q", "b", "e")])
def mean_of_pointwise_conv_bias(
    x: Var, w: Var, c: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, k: Attr, t: Attr, b: Attr, e: Attr
) -> Equation:
    """The same with a bias, which padding would thin out."""
    pooled = conv_bias(avg_pool(x, k, t, b, e), w, c, s, p, q, d, n)
    return to(avg_pool(conv_bias(x, w, c, s, p, q, d, n), k, t, b, e), pooled)
