"""Composites whose definition depends on sizes: recognised under a named condition."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.composite import half, repeat_heads, rope, rotate_half
from forge_eq.ops.elementwise import add, mul, neg, sub
from forge_eq.ops.movement import broadcast_to, concat, reshape, slice_
from forge_eq.ops.spec import Var, compute
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact


def _halves(t: Any, a: int, m: int, n: int) -> bool:
    size = t.shape[-1] if t.rank else 1
    return isinstance(size, int) and size % 2 == 0 and bool((a, m, n) == half(t))


ARE_HALVES = fact("are_halves", _halves, "x", "a", "m", "n")


@rule("composites", exact="bit", source="definition of rotate_half", when=[ARE_HALVES])
def rotate_half_from_slices(x: Var, a: Attr, m: Attr, n: Attr) -> Equation:
    """How transformers spells rotary embeddings."""
    return to(concat(neg(slice_(x, a, m, n, 1)), slice_(x, a, 0, m, 1), a), rotate_half(x))


def _is_repeat(t: Any, s: Any, w: Any, r: Any) -> bool:
    """x [.., h, t, d] -> [.., h, 1, t, d] -> [.., h, n, t, d] -> [.., h n, t, d]."""
    if t.rank < 3 or len(w) != t.rank + 1:
        return False
    *lead, heads, rows, size = t.shape
    if not (isinstance(heads, int) and isinstance(w[-3], int)):
        return False
    return bool(
        tuple(s) == (*lead, heads, 1, rows, size)
        and tuple(w) == (*lead, heads, w[-3], rows, size)
        and tuple(r) == (*lead, heads * w[-3], rows, size)
    )


def _count(w: Any) -> int:
    return int(w[-3])


REPEATS_HEADS = fact("repeats_heads", _is_repeat, "x", "s", "w", "r")


@rule("composites", exact="bit", source="definition of repeat_heads", when=[REPEATS_HEADS])
def repeat_heads_from_expand(x: Var, s: Attr, w: Attr, r: Attr) -> Equation:
    """How transformers spells grouped-query attention."""
    return to(reshape(broadcast_to(reshape(x, s), w), r), repeat_heads(x, compute(_count, w)))


def _half_tables(x: Any, y: Any, c: Any, s: Any, a: Any) -> bool:
    size = x.shape[-1] if x.rank else None
    return bool(x.shape == y.shape and a == x.rank - 1 and all(t.rank and t.shape[-1] == size for t in (c, s)))


def _last(t: Any) -> int:
    return int(t.rank - 1)


@rule(
    "composites",
    exact="real",
    source="rotate_half exchanges the halves and negates the second",
    when=[fact("half_tables", _half_tables, "x", "y", "c", "s", "a")],
)
def rope_from_halves(x: Var, y: Var, c: Var, s: Var, a: Attr) -> Equation:
    """Rotary embeddings that turn each half by tables of half the width."""
    turned = concat(sub(mul(x, c), mul(y, s)), add(mul(y, c), mul(x, s)), a)
    cos, sin = (concat(t, t, compute(_last, t)) for t in (c, s))
    return to(turned, rope(concat(x, y, a), cos, sin))
