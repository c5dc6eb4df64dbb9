"""Reductions move before linear operations: a sum over features needs one column of the weight, not all.

Rules that sum a weight rely on its being a constant; those that reduce rows do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from forge_eq.ops.convolution import conv, conv_bias
from forge_eq.ops.elementwise import mul
from forge_eq.ops.linalg import linear, linear_bias
from forge_eq.ops.movement import reshape
from forge_eq.ops.reduction import amax, mean, sum_
from forge_eq.ops.spec import AttrVar, Op, Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, Guard, build, register, rule, to
from forge_eq.rules.guards import fact, is_constant, is_last_axis, is_not_empty, moderate

FEATURES = "a sum of a product's columns is the product with the sum of the weight's columns"
ROWS = "a sum of a product's rows is the product of the sum of the rows"
X, W, B, A, K, T, S = Var("x"), Var("w"), Var("b"), AttrVar("a"), AttrVar("k"), AttrVar("t"), AttrVar("s")


def _enter(op: Op, name: str, equation: Equation, doc: str, source: str, when: Iterable[Guard], bit: bool) -> None:
    name, exact = f"{op.name}_{name}", "bit" if bit else "real"
    register(build("reductions", name, equation, doc=doc, source=source, exact=exact, when=when, where=__file__))


# ------------------------------------------------------------------------------------------------ features


def _out_axis(t: bool) -> tuple[int, ...]:
    return (0,) if t else (1,)


def _lead(t: Any) -> tuple[Any, ...]:
    return tuple(t.shape[:-1])


def _features() -> None:
    """The result's last axis: one rule for each of kept and dropped axis, with and without bias."""
    last, some = is_last_axis("a", "x"), is_not_empty("w")
    for op in (sum_, mean):
        weight, bias = op(W, compute(_out_axis, T), True), op(B, (0,), True)
        # The kernel of linear wants a weight of two axes; a kept axis keeps it so.
        for suffix, inner, right, constants in (
            ("of_linear", linear(X, W, T), linear(X, weight, T), "w"),
            ("of_linear_bias", linear_bias(X, W, B, T), linear_bias(X, weight, bias, T), "wb"),
        ):
            # A mean of no bias is NaN on both sides.
            needed = [] if op is mean and inner.op is linear_bias else [some]
            when = [last, *needed, *(is_constant(n) for n in constants)]
            doc = f"A {op.name} over all features is one feature."
            _enter(op, suffix, to(op(inner, A, True), right), doc, FEATURES, when, False)
            dropped = to(op(inner, A, False), reshape(right, compute(_lead, X)))
            _enter(op, f"{suffix}_dropped", dropped, doc, FEATURES, when, False)


_features()

# ------------------------------------------------------------------------------------------------ rows


def _keeps_features(a: Any, x: Any) -> bool:
    return x.rank - 1 not in tuple(a) and isinstance(x.shape[-1], int) and x.shape[-1] > 0


def _rows_meet(a: Any, x: Any) -> bool:
    """A sum of no rows is zero, and zero times infinity is not; a mean of none is NaN on both sides."""
    return _keeps_features(a, x) and all(isinstance(x.shape[i], int) and x.shape[i] > 0 for i in a)


def _rows() -> None:
    rows = fact("keeps_features", _keeps_features, "a", "x")
    for op, when in ((sum_, fact("rows_meet", _rows_meet, "a", "x")), (mean, rows)):
        equation = to(op(linear(X, W, T), A, K), linear(op(X, A, K), W, T))
        _enter(op, "rows_of_linear", equation, "Pooling over tokens, then one row.", ROWS, [when], False)
    equation = to(mean(linear_bias(X, W, B, T), A, K), linear_bias(mean(X, A, K), W, B, T))
    _enter(mean, "rows_of_linear_bias", equation, "The mean keeps the bias; a sum would count it.", ROWS, [rows], False)


_rows()


def _pointwise(x: Any, w: Any, s: Any, p: Any, q: Any, a: Any) -> bool:
    """A kernel of one element, without stride or padding, and a reduction over all of space."""
    ones = all(v == 1 for v in (*w.shape[2:], *s)) and not any((*p, *q))
    return ones and tuple(a) == tuple(range(2, x.rank))


POINTWISE = fact("is_pointwise", _pointwise, "x", "w", "s", "p", "q", "a")


@rule("reductions", exact="real", source=ROWS, when=[POINTWISE])
def mean_of_pointwise_conv(x: Var, w: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, a: Attr) -> Equation:
    """Global pooling after a convolution of kernel 1."""
    return to(mean(conv(x, w, s, p, q, d, n), a, True), conv(mean(x, a, True), w, s, p, q, d, n))


@rule("reductions", exact="real", source=ROWS, when=[POINTWISE])
def mean_of_pointwise_conv_bias(
    x: Var, w: Var, b: Var, s: Attr, p: Attr, q: Attr, d: Attr, n: Attr, a: Attr
) -> Equation:
    """The same with a bias."""
    return to(mean(conv_bias(x, w, b, s, p, q, d, n), a, True), conv_bias(mean(x, a, True), w, b, s, p, q, d, n))


# ------------------------------------------------------------------------------------------------ scales and axes


def _single(t: Any, a: Any) -> bool:
    return bool(a) and all(t.shape[i] == 1 for i in a)


def _one_each(t: Any, a: Any, keep: bool) -> tuple[Any, ...]:
    return tuple(d for i, d in enumerate(t.shape) if keep or i not in a)


def _union(a: Any, b: Any) -> tuple[int, ...]:
    return tuple(sorted({*a, *b}))


def _axes() -> None:
    b = AttrVar("b")
    for op in (sum_, mean, amax):
        alone = to(op(X, A, K), reshape(X, compute(_one_each, X, A, K)))
        single = fact("is_single", _single, "x", "a")
        doc, source = "Nothing meets along an axis of size 1.", "a reduction of one element is the element"
        _enter(op, "of_one", alone, doc, source, [single], op.traits.exact)
        nested = to(op(op(X, A, True), b, True), op(X, compute(_union, A, b), True))
        doc, source = "Two passes are one.", "reductions over different axes are one reduction"
        _enter(op, "of_" + op.name, nested, doc, source, [], op.traits.exact)
    for op in (sum_, mean):
        equation = to(op(mul(X, lit(S)), A, K), mul(op(X, A, K), lit(S)))
        doc, source = "A number multiplies the few instead of the many.", "a sum is linear"
        _enter(op, "of_scaled", equation, doc, source, [moderate("s")], False)


_axes()
