"""Slices of attention and of what moves elements, on their way to the inputs; the other half of ``slices``."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.attention import attention, attention_bias, attention_causal, attention_mask
from forge_eq.ops.composite import rope
from forge_eq.ops.movement import broadcast_to, concat, permute, reshape, slice_, swap_last
from forge_eq.ops.spec import Var, compute
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, moderate
from forge_eq.rules.slices import PART, ROWS, aligned, count, place

# ------------------------------------------------------------------------------------------------ attention

QUERIES = "each query attends by itself"


def _is_query(a: int, q: Any) -> bool:
    return bool(a == q.rank - 2)


QUERY = fact("is_query_axis", _is_query, "a", "q")


@rule("slices", exact="real", source=QUERIES, when=[QUERY, PART])
def attention_rows(q: Var, k: Var, v: Var, s: Attr, a: Attr, i: Attr, j: Attr, d: Attr) -> Equation:
    """Keys and values stay whole, queries shrink."""
    return to(slice_(attention(q, k, v, s), a, i, j, d), attention(slice_(q, a, i, j, d), k, v, s))


def _is_last_query(q: Any, k: Any, a: int, i: int, j: int) -> bool:
    last = q.shape[-2]
    return bool(a == q.rank - 2 and last == k.shape[-2] and (i, j) == (last - 1, last))


LAST_QUERY = fact("is_last_query", _is_last_query, "q", "k", "a", "i", "j")


ALL_KEYS = "the last of n queries looks at all of n keys"


@rule("slices", exact="real", source=ALL_KEYS, when=[LAST_QUERY, moderate("s"), PART])
def attention_causal_last(q: Var, k: Var, v: Var, s: Attr, a: Attr, i: Attr, j: Attr, d: Attr) -> Equation:
    """The last token needs no mask. Of infinite scores the causal kernel makes other rows than the plain one."""
    return to(slice_(attention_causal(q, k, v, s), a, i, j, d), attention(slice_(q, a, i, j, d), k, v, s))


def _mask_axis(q: Any, m: Any) -> int | None:
    return m.rank - 2 if m.rank >= 2 else None


def _mask_start(q: Any, m: Any, i: int) -> int:
    return i if m.shape[-2] == q.shape[-2] else 0


def _mask_stop(q: Any, m: Any, j: int) -> int:
    return j if m.shape[-2] == q.shape[-2] else 1


def _mask(q: Var, m: Var, i: Any, j: Any, d: Any) -> Any:
    """The rows of a mask; one row that serves all queries stays."""
    return slice_(m, compute(_mask_axis, q, m), compute(_mask_start, q, m, i), compute(_mask_stop, q, m, j), d)


@rule("slices", exact="real", source=QUERIES, when=[QUERY, PART])
def attention_mask_rows(
    q: Var, k: Var, v: Var, m: Var, s: Attr, e: Attr, a: Attr, i: Attr, j: Attr, d: Attr
) -> Equation:
    """The same under a mask of bools."""
    right = attention_mask(slice_(q, a, i, j, d), k, v, _mask(q, m, i, j, d), s, e)
    return to(slice_(attention_mask(q, k, v, m, s, e), a, i, j, d), right)


@rule("slices", exact="real", source=QUERIES, when=[QUERY, PART])
def attention_bias_rows(
    q: Var, k: Var, v: Var, m: Var, s: Attr, e: Attr, a: Attr, i: Attr, j: Attr, d: Attr
) -> Equation:
    """The same under an additive mask."""
    right = attention_bias(slice_(q, a, i, j, d), k, v, _mask(q, m, i, j, d), s, e)
    return to(slice_(attention_bias(q, k, v, m, s, e), a, i, j, d), right)


def _not_last(a: int, x: Any) -> bool:
    return bool(a != x.rank - 1)


@rule("slices", exact="real", source=ROWS, when=[fact("is_not_last", _not_last, "a", "x"), PART])
def rope_rows(x: Var, c: Var, s: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Rotary embeddings of the queries that are read."""
    xs, cs, ss = (
        aligned(v, tuple(o for o in (x, c, s) if o is not v), a, i, j, k)  # type: ignore[arg-type]
        for v in (x, c, s)
    )
    return to(slice_(rope(x, c, s), a, i, j, k), rope(xs, cs, ss))


# ------------------------------------------------------------------------------------------------ movement

MOVED = "movement axiom: the same elements at the same places"


def _view(x: Any, s: Any, a: int, i: int, j: int, k: int) -> tuple[Any, ...] | None:
    """The sliced shape, when a view leaves the axis and all before it alone."""
    return (*s[:a], count(i, j, k), *s[a + 1 :]) if tuple(s[: a + 1]) == x.shape[: a + 1] else None


@rule("slices", exact="bit", source=MOVED, when=[PART])
def reshape_rows(x: Var, s: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Heads that are split or joined behind the axis."""
    seen = compute(_view, x, s, a, i, j, k)
    return to(slice_(reshape(x, s), a, i, j, k), reshape(slice_(x, a, i, j, k), seen))


def _from(p: Any, a: int) -> int:
    return int(p[a])


@rule("slices", exact="bit", source=MOVED, when=[PART])
def permute_rows(x: Var, p: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The axis has another number below."""
    return to(slice_(permute(x, p), a, i, j, k), permute(slice_(x, compute(_from, p, a), i, j, k), p))


def _swapped(x: Any, a: int) -> int:
    return int({x.rank - 1: x.rank - 2, x.rank - 2: x.rank - 1}.get(a, a))


@rule("slices", exact="bit", source=MOVED, when=[PART])
def swap_last_rows(x: Var, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """The same for the matrix transpose."""
    return to(slice_(swap_last(x), a, i, j, k), swap_last(slice_(x, compute(_swapped, x, a), i, j, k)))


@rule("slices", exact="bit", source=MOVED, when=[PART])
def concat_rows(x: Var, y: Var, c: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Along another axis than the parts are joined: the types differ otherwise."""
    parts = concat(slice_(x, a, i, j, k), slice_(y, a, i, j, k), c)
    return to(slice_(concat(x, y, c), a, i, j, k), parts)


def _differ(a: int, b: int) -> bool:
    return a != b


@rule("slices", exact="bit", source=MOVED, when=[fact("differ", _differ, "a", "b"), PART])
def slice_rows(x: Var, b: Attr, m: Attr, n: Attr, l: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:  # noqa: E741
    """Slices along two axes change places."""
    return to(slice_(slice_(x, b, m, n, l), a, i, j, k), slice_(slice_(x, a, i, j, k), b, m, n, l))


def _spread(x: Any, s: Any, a: int, i: int, j: int, k: int) -> tuple[Any, ...] | None:
    """The sliced shape, when the axis only repeats one element."""
    at = place(x, len(s), a)
    return (*s[:a], count(i, j, k), *s[a + 1 :]) if at is None or x.shape[at] == 1 else None


@rule("slices", exact="bit", source=MOVED, when=[PART])
def broadcast_rows(x: Var, s: Attr, a: Attr, i: Attr, j: Attr, k: Attr) -> Equation:
    """Fewer copies of one element."""
    return to(slice_(broadcast_to(x, s), a, i, j, k), broadcast_to(x, compute(_spread, x, s, a, i, j, k)))
