"""Layout motion: reshapes and transposes move until they vanish or become flags."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.linalg import linear, linear_bias
from forge_eq.ops.movement import permute, reshape, slice_, swap_last
from forge_eq.ops.spec import Var, compute
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact

ROWS = "a linear layer acts on the last axis only, row by row"


def _absorb(p: tuple[int, ...]) -> tuple[int, ...]:
    swapped = (*range(len(p) - 2), len(p) - 1, len(p) - 2)
    return tuple(swapped[i] for i in p)


@rule("layout", exact="real", source=ROWS)
def reshape_around_linear(x: Var, w: Var, s: Attr, r: Attr, t: Attr) -> Equation:
    """Flattening to rows and back around a layer: GPT-2's addmm."""
    return to(reshape(linear(reshape(x, s), w, t), r), linear(x, w, t))


@rule("layout", exact="real", source=ROWS)
def reshape_around_linear_bias(x: Var, w: Var, b: Var, s: Attr, r: Attr, t: Attr) -> Equation:
    """The same with a bias."""
    return to(reshape(linear_bias(reshape(x, s), w, b, t), r), linear_bias(x, w, b, t))


@rule("layout", exact="real", source="x w' is x times w transposed")
def transposed_weight(x: Var, w: Var) -> Equation:
    """A transpose on a weight is a flag of the kernel."""
    return to(linear(x, swap_last(w), False), linear(x, w, True))


@rule("layout", exact="real", source="x w'' is x w")
def transposed_weight_twice(x: Var, w: Var) -> Equation:
    """The same the other way round."""
    return to(linear(x, swap_last(w), True), linear(x, w, False))


@rule("layout", exact="bit", source="permutations compose")
def permute_of_swap(x: Var, p: Attr) -> Equation:
    """Lets a permutation absorb the matrix transpose under it."""
    return to(permute(swap_last(x), p), permute(x, compute(_absorb, p)))


def _picks_one(t: Any, s: Any, a: Any, i: Any, j: Any, k: Any, r: Any) -> bool:
    """[.., m n] as [.., m, n], row i of it, as [.., n]."""
    if not t.static or t.rank < 1 or len(s) != t.rank + 1 or tuple(s[:-2]) != t.shape[:-1]:
        return False
    return bool(a == t.rank - 1 and j == i + 1 and k == 1 and tuple(r) == (*t.shape[:-1], s[-1]))


def _first(s: Any, i: int) -> int:
    return int(i * s[-1])


@rule(
    "layout",
    exact="bit",
    source="row i of n columns is elements i n to (i + 1) n",
    when=[fact("picks_one", _picks_one, "x", "s", "a", "i", "j", "k", "r")],
)
def row_is_slice(x: Var, s: Attr, a: Attr, i: Attr, j: Attr, k: Attr, r: Attr) -> Equation:
    """Halves that are cut by unflatten and unbind."""
    row = reshape(slice_(reshape(x, s), a, i, j, k), r)
    return to(row, slice_(x, a, compute(_first, s, i), compute(_first, s, j), 1))
