"""Slices move toward the inputs: a head that reads the last token, or the first, shrinks the layer before it.

Every rule takes the elements that the slice keeps and asks for the elements of the operands that these need. The
guard ``in_part`` says where that is worth a node: what somebody reads as a whole is computed as a whole anyway
(docs/decisions/0011). Where a slice may not pass, mostly the types say so; a guard stands where they do not.
"""

from __future__ import annotations

from typing import Any

from forge_eq.ops.composite import ACTIVATIONS, layer_norm, rms_norm, softmax
from forge_eq.ops.elementwise import add, cast, div, erf, exp, mul, neg, pow_, rsqrt, sigmoid, sub
from forge_eq.ops.linalg import embedding, linear, linear_bias, matmul, matmul_nt
from forge_eq.ops.movement import slice_
from forge_eq.ops.reduction import amax, mean, sum_
from forge_eq.ops.spec import AttrVar, Computed, Op, Var, compute
from forge_eq.rules.dsl import Attr, Equation, Guard, build, register, rule, to
from forge_eq.rules.guards import fact, in_part

ROWS = "each row of the result depends on the same row of the operand only"
PLACES = "each element of the result depends on the element at its place only"
PART = in_part()


def count(i: int, j: int, k: int) -> int:
    """How many elements start, stop and step keep."""
    return len(range(i, j, k))


# ------------------------------------------------------------------------------------------------ elementwise


def place(t: Any, rank: int, a: int) -> int | None:
    """The axis of an operand that broadcasting aligns with axis ``a`` of the result; None when it has none."""
    at = int(a) - rank + t.rank
    return at if at >= 0 else None


def _cut(*args: Any) -> tuple[int, int, int] | None:
    """(axis, start, stop) for the first of the operands' types: everything where its single element is repeated."""
    x, *others, a, i, j = args
    types = [x, *others]
    at = place(x, max(t.rank for t in types), a)
    if at is None:
        return None
    sizes = [t.shape[p] for t in types if (p := place(t, max(u.rank for u in types), a)) is not None]
    return (at, i, j) if x.shape[at] != 1 or all(s == 1 for s in sizes) else (at, 0, 1)


def _axis(*args: Any) -> int | None:
    found = _cut(*args)
    return None if found is None else found[0]


def _start(*args: Any) -> int | None:
    found = _cut(*args)
    return None if found is None else found[1]


def _stop(*args: Any) -> int | None:
    found = _cut(*args)
    return None if found is None else found[2]


def aligned(x: Var, others: tuple[Var, ...], a: AttrVar, i: AttrVar, j: AttrVar, k: AttrVar) -> Any:
    """The part of an operand that meets elements i to j along axis a of the result."""
    axis, start, stop = (Computed(fn, (x.name, *(o.name for o in others), a.name, i.name, j.name)) for fn in FIELDS)
    return slice_(x, axis, start, stop, k)


FIELDS = (_axis, _start, _stop)


def _first_wide(x: Any, y: Any) -> bool:
    """Axes of the result are those of the first operand."""
    return bool(x.rank >= y.rank)


def _enter(name: str, equation: Equation, doc: str, source: str, exact: str, *when: Guard) -> None:
    register(build("slices", name, equation, doc=doc, source=source, exact=exact, when=[*when, PART], where=__file__))


def _elementwise() -> None:
    x, y = Var("x"), Var("y")
    a, i, j, k, d = (AttrVar(n) for n in "aijkd")
    unary: tuple[Op, ...] = (neg, exp, sigmoid, erf, rsqrt, *(op for op, _ in ACTIVATIONS.values()))
    for op in unary:
        exact = "bit" if op.traits.exact else "real"
        left, right = slice_(op(x), a, i, j, k), op(slice_(x, a, i, j, k))
        _enter(op.name, to(left, right), f"Only the {op.name} of what is read.", PLACES, exact)
    _enter("cast", to(slice_(cast(x, d), a, i, j, k), cast(slice_(x, a, i, j, k), d)), "Norms cast.", PLACES, "bit")
    for op in (add, sub, mul, div):
        both_cut = op(aligned(x, (y,), a, i, j, k), aligned(y, (x,), a, i, j, k))
        _enter(op.name, to(slice_(op(x, y), a, i, j, k), both_cut), "Both operands have the axis.", PLACES, "bit")
    first = fact("is_first_wide", _first_wide, "x", "y")
    for op in (add, sub, mul, div, pow_):
        exact = "bit" if op.traits.exact else "real"
        alone = to(slice_(op(x, y), a, i, j, k), op(slice_(x, a, i, j, k), y))
        doc = "The second operand is the same for all elements."
        _enter(f"{op.name}_beside", alone, doc, PLACES, exact, first)


_elementwise()

# ------------------------------------------------------------------------------------------------ rows


@rule("slices", exact="real", source=ROWS, when=[PART])
def linear_rows(x: Var, w: Var, t: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The head of a language model for the last token only."""
    return to(slice_(linear(x, w, t), a, i, j, k), linear(slice_(x, a, i, j, k), w, t))


@rule("slices", exact="real", source=ROWS, when=[PART])
def linear_bias_rows(x: Var, w: Var, b: Var, t: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The same with a bias."""
    return to(slice_(linear_bias(x, w, b, t), a, i, j, k), linear_bias(slice_(x, a, i, j, k), w, b, t))


def _few(x: Any, w: Any, t: bool, a: int, i: int, j: int, k: int) -> bool:
    n = w.shape[0] if t else w.shape[1]
    return bool(a == x.rank - 1 and isinstance(n, int) and 4 * count(i, j, k) <= n)


FEW = fact("keeps_few", _few, "x", "w", "t", "a", "i", "j", "k", soundness=False)  # not the thirds of a merged layer


def _column_axis(t: bool) -> int:
    return 0 if t else 1


@rule("slices", exact="real", source="columns of a product are independent", when=[PART, FEW])
def linear_columns(x: Var, w: Var, t: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Logits of few words: the rest of the vocabulary is not multiplied."""
    part = slice_(w, compute(_column_axis, t), i, j, k)
    return to(slice_(linear(x, w, t), a, i, j, k), linear(x, part, t))


@rule("slices", exact="real", source=ROWS, when=[PART])
def layer_norm_rows(x: Var, w: Var, b: Var, n: Attr, e: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The norm before a head."""
    return to(slice_(layer_norm(x, w, b, n, e), a, i, j, k), layer_norm(slice_(x, a, i, j, k), w, b, n, e))


@rule("slices", exact="real", source=ROWS, when=[PART])
def rms_norm_rows(x: Var, w: Var, n: Attr, e: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The same for the norm of Llama."""
    return to(slice_(rms_norm(x, w, n, e), a, i, j, k), rms_norm(slice_(x, a, i, j, k), w, n, e))


def _outside(a: int, axes: Any) -> bool:
    return a not in tuple(axes)


OUTSIDE = fact("is_outside", _outside, "a", "n")


@rule("slices", exact="real", source=ROWS, when=[OUTSIDE, PART])
def softmax_rows(x: Var, n: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Attention that is written out."""
    return to(slice_(softmax(x, n), a, i, j, k), softmax(slice_(x, a, i, j, k), n))


def _reductions() -> None:
    x, a, i, j, k, n = Var("x"), *(AttrVar(v) for v in "aijkn")
    for op in (sum_, mean, amax):
        equation = to(slice_(op(x, n, True), a, i, j, k), op(slice_(x, a, i, j, k), n, True))
        exact = "bit" if op.traits.exact else "real"
        name = f"{op.name}_rows"
        doc = "Statistics of the rows that are read."
        register(
            build("slices", name, equation, doc=doc, source=ROWS, exact=exact, when=[OUTSIDE, PART], where=__file__)
        )


_reductions()


@rule("slices", exact="real", source=ROWS, when=[PART])
def matmul_rows(x: Var, y: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Scores and values of the queries that are read."""
    return to(slice_(matmul(x, y), a, i, j, k), matmul(slice_(x, a, i, j, k), y))


@rule("slices", exact="real", source=ROWS, when=[PART])
def matmul_nt_rows(x: Var, y: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The same with the second factor transposed."""
    return to(slice_(matmul_nt(x, y), a, i, j, k), matmul_nt(slice_(x, a, i, j, k), y))


@rule("slices", exact="bit", source="a lookup acts on each index by itself", when=[PART])
def lookup_rows(w: Var, x: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """An embedding of the indices that are read."""
    return to(slice_(embedding(w, x), a, i, j, k), embedding(w, slice_(x, a, i, j, k)))
