"""Simplify: noise that exports carry. Every rule here is exact to the bit and makes the program smaller."""

from __future__ import annotations

import math
from typing import Any

from forge_eq.ops.elementwise import cast, clamp, eq, logical_not, relu, where
from forge_eq.ops.movement import (
    alias,
    broadcast_to,
    clone,
    concat,
    contiguous,
    dropout_eval,
    permute,
    project,
    reshape,
    slice_,
    split,
    swap_last,
)
from forge_eq.ops.spec import Var, compute
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, has_dtype, has_shape, is_identity, keeps_order, swaps_last_two

AXIOM = "movement axiom: the same elements at the same places"


@rule("simplify", exact="bit", source="aten.alias is a view of the whole")
def alias_is_identity(x: Var) -> Equation:
    """Export puts an alias where a module returns a value under a second name."""
    return to(alias(x), x)


@rule("simplify", exact="bit", source="storage order is no part of a value")
def contiguous_is_identity(x: Var) -> Equation:
    """Eager attention asks for dense storage, which allocation decides here."""
    return to(contiguous(x), x)


@rule("simplify", exact="bit", source="storage order is no part of a value")
def clone_is_identity(x: Var) -> Equation:
    """A copy is taken where something else may be written, and nothing is here."""
    return to(clone(x), x)


@rule("simplify", exact="bit", source="dropout in evaluation mode passes its input")
def dropout_eval_is_identity(x: Var, p: Attr) -> Equation:
    """Every transformer block carries several."""
    return to(dropout_eval(x, p), x)


@rule("simplify", exact="bit", source="a cast to the dtype at hand changes nothing", when=[has_dtype("x", "d")])
def cast_same(x: Var, d: Attr) -> Equation:
    """Norms upcast to float32 what is float32 already."""
    return to(cast(x, d), x)


@rule("simplify", exact="bit", source=AXIOM, when=[has_shape("x", "s")])
def reshape_same(x: Var, s: Attr) -> Equation:
    """Views to the shape at hand."""
    return to(reshape(x, s), x)


@rule("simplify", exact="bit", source=AXIOM)
def reshape_reshape(x: Var, s: Attr, t: Attr) -> Equation:
    """Only the last of two views counts."""
    return to(reshape(reshape(x, s), t), reshape(x, t))


@rule("simplify", exact="bit", source=AXIOM, when=[has_shape("x", "s")])
def broadcast_same(x: Var, s: Attr) -> Equation:
    """Expands to the shape at hand."""
    return to(broadcast_to(x, s), x)


@rule("simplify", exact="bit", source=AXIOM)
def broadcast_broadcast(x: Var, s: Attr, t: Attr) -> Equation:
    """Only the last of two expansions counts."""
    return to(broadcast_to(broadcast_to(x, s), t), broadcast_to(x, t))


@rule("simplify", exact="bit", source=AXIOM, when=[is_identity("p")])
def permute_identity(x: Var, p: Attr) -> Equation:
    """A permutation that moves nothing."""
    return to(permute(x, p), x)


def compose(p: Any, r: Any) -> tuple[int, ...]:
    """First p, then r: axis i of the result is axis p[r[i]] of the operand."""
    return tuple(p[i] for i in r)


@rule("simplify", exact="bit", source="permutations compose")
def permute_permute(x: Var, p: Attr, r: Attr) -> Equation:
    """Two transposes are one."""
    return to(permute(permute(x, p), r), permute(x, compute(compose, p, r)))


@rule("simplify", exact="bit", source=AXIOM, when=[swaps_last_two("p")])
def permute_is_swap_last(x: Var, p: Attr) -> Equation:
    """Names the matrix transpose, so that product rules need no rank."""
    return to(permute(x, p), swap_last(x))


@rule("simplify", exact="bit", source=AXIOM, when=[keeps_order("x", "p")])
def permute_is_reshape(x: Var, p: Attr) -> Equation:
    """Moving an axis of size 1 moves no element: a view is free where a transpose is not."""
    return to(permute(x, p), reshape(x, compute(lambda t, p: tuple(t.shape[i] for i in p), x, p)))


def _whole(t: Any, axis: int, start: int, stop: int, step: int) -> bool:
    return start == 0 and step == 1 and stop == t.shape[axis]


@rule("simplify", exact="bit", source=AXIOM, when=[fact("is_whole", _whole, "x", "a", "b", "c", "d")])
def slice_whole(x: Var, a: Attr, b: Attr, c: Attr, d: Attr) -> Equation:
    """A slice that takes everything."""
    return to(slice_(x, a, b, c, d), x)


@rule("simplify", exact="bit", source=AXIOM)
def concat_of_one(x: Var, a: Attr) -> Equation:
    """Nothing is joined."""
    return to(concat(x, a), x)


def _covers(t: Any, axis: int, stop: int) -> bool:
    return bool(t.shape[axis] == stop)


@rule("simplify", exact="bit", source=AXIOM, when=[fact("covers", _covers, "x", "a", "n")])
def halves_joined(x: Var, a: Attr, m: Attr, n: Attr) -> Equation:
    """Two slices that meet, one after the other."""
    return to(concat(slice_(x, a, 0, m, 1), slice_(x, a, m, n, 1), a), x)


@rule("simplify", exact="bit", source=AXIOM)
def concat_with_no_rest(x: Var, y: Var, a: Attr, m: Attr) -> Equation:
    """Phi3 joins the rotated part of a head with the rest of it, of which there is none."""
    return to(concat(x, slice_(y, a, m, m, 1), a), x)


def _start(sizes: Any, i: int) -> int:
    return int(sum(sizes[:i]))


def _stop(sizes: Any, i: int) -> int:
    return int(sum(sizes[: i + 1]))


@rule("simplify", exact="bit", source="a part of a split is a slice")
def part_is_slice(x: Var, s: Attr, a: Attr, i: Attr) -> Equation:
    """Lets a program that needs one part only avoid the split."""
    return to(project(split(x, s, a), i), slice_(x, a, compute(_start, s, i), compute(_stop, s, i), 1))


@rule("simplify", exact="bit", source="a choice between equals")
def where_same(c: Var, x: Var) -> Equation:
    """Both branches are one value; the guard is that the condition does not broadcast it (types agree)."""
    return to(where(c, x, x), x)


@rule("simplify", exact="bit", source="a choice by the opposite")
def where_not(c: Var, x: Var, y: Var) -> Equation:
    """Two libraries mean opposite things by a mask of bools; the branches say which."""
    return to(where(logical_not(c), x, y), where(c, y, x))


@rule("simplify", exact="bit", source="a choice by the opposite")
def fill_is_where(c: Var, y: Var) -> Equation:
    """A mask that says what to hide, as masked_fill takes it, as one that says what to keep."""
    return to(where(c, -math.inf, y), where(logical_not(c), y, -math.inf))


@rule("simplify", exact="bit", source="a bool that is False is not True")
def is_false(c: Var) -> Equation:
    """mask == 0."""
    return to(eq(c, False), logical_not(c))


def _through(i: int, k: int, m: int, n: int, l: int) -> tuple[int, int]:  # noqa: E741
    """Start and stop of elements m to n, every l-th, of elements that begin at i, every k-th."""
    kept = len(range(m, n, l))
    return i + m * k, i + m * k + ((kept - 1) * k * l + 1 if kept else 0)


@rule("simplify", exact="bit", source=AXIOM)
def slice_of_slice(x: Var, a: Attr, i: Attr, j: Attr, k: Attr, m: Attr, n: Attr, l: Attr) -> Equation:  # noqa: E741
    """Two cuts along one axis are one."""
    start, stop = (compute(fn, i, k, m, n, l) for fn in (lambda *v: _through(*v)[0], lambda *v: _through(*v)[1]))
    once = slice_(x, a, start, stop, compute(lambda k, l: k * l, k, l))  # noqa: E741
    return to(slice_(slice_(x, a, i, j, k), a, m, n, l), once)


def _in_first(t: Any, a: int, j: int) -> bool:
    return isinstance(t.shape[a], int) and j <= t.shape[a]


@rule("simplify", exact="bit", source=AXIOM, when=[fact("is_in_first", _in_first, "x", "a", "j")])
def slice_of_first(x: Var, y: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """A prefix of what was joined."""
    return to(slice_(concat(x, y, a), a, i, j, k), slice_(x, a, i, j, k))


def _after(t: Any, a: int, i: int) -> int | None:
    return i - t.shape[a] if isinstance(t.shape[a], int) and i >= t.shape[a] else None


@rule("simplify", exact="bit", source=AXIOM)
def slice_of_second(x: Var, y: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """A suffix of what was joined: the new row of a cache."""
    return to(slice_(concat(x, y, a), a, i, j, k), slice_(y, a, compute(_after, x, a, i), compute(_after, x, a, j), k))


def _least(low: Any, high: Any) -> bool:
    return low is not None and 0.0 <= low < math.inf and (high is None or math.isfinite(high))


@rule("simplify", exact="real", source="max is associative", when=[fact("is_not_negative", _least, "l", "h")])
def clamp_of_relu(x: Var, l: Attr, h: Attr) -> Equation:  # noqa: E741
    """A lower bound under another."""
    return to(clamp(relu(x), l, h), clamp(x, l, h))


def _above(low: Any, high: Any) -> bool:
    return (high is None or 0.0 <= high < math.inf) and (low is None or math.isfinite(low))


def _at_least_zero(low: Any) -> float:
    return max(0.0, low) if low is not None else 0.0


@rule("simplify", exact="real", source="max is associative", when=[fact("is_not_negative", _above, "l", "h")])
def relu_of_clamp(x: Var, l: Attr, h: Attr) -> Equation:  # noqa: E741
    """The same the other way round."""
    return to(relu(clamp(x, l, h)), clamp(x, compute(_at_least_zero, l), h))
