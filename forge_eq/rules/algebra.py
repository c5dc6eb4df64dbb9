"""Algebra that recognition and fusion rest on: how products, scales and transposes pass each other."""

from __future__ import annotations

from typing import Any

from forge_eq.ops.elementwise import mul
from forge_eq.ops.linalg import linear, matmul, matmul_nt
from forge_eq.ops.movement import reshape, swap_last
from forge_eq.ops.spec import Var, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import fact, is_constant, moderate

LINEAR = "a matrix product is linear in each factor"


@rule("algebra", exact="real", source="definition of matmul_nt")
def matmul_swapped(a: Var, b: Var) -> Equation:
    """Scores are q times k transposed; the transpose is a flag of the kernel."""
    return to(matmul(a, swap_last(b)), matmul_nt(a, b))


@rule("algebra", exact="real", source=LINEAR, when=[moderate("s")])
def scale_out_of_left(a: Var, b: Var, s: Attr) -> Equation:
    """A scale on the queries is a scale on the scores."""
    return to(matmul_nt(mul(a, lit(s)), b), mul(matmul_nt(a, b), lit(s)))


@rule("algebra", exact="real", source=LINEAR, when=[moderate("s")])
def scale_out_of_right(a: Var, b: Var, s: Attr) -> Equation:
    """A scale on the keys is a scale on the scores."""
    return to(matmul_nt(a, mul(b, lit(s))), mul(matmul_nt(a, b), lit(s)))


@rule("algebra", exact="real", source="definition of linear", when=[is_constant("w")])
def matmul_is_linear(x: Var, w: Var) -> Equation:
    """A product with a weight of two axes."""
    return to(matmul(x, w), linear(x, w, False))


@rule("algebra", exact="real", source="definition of linear", when=[is_constant("w")])
def matmul_nt_is_linear(x: Var, w: Var) -> Equation:
    """A product with a transposed weight of two axes, as a tied output head is."""
    return to(matmul_nt(x, w), linear(x, w, True))


def _merges(t: Any, s: Any) -> bool:
    """[.., m, n] with every leading axis merged into one."""
    return t.static and t.rank >= 3 and len(s) == 3 and tuple(s[1:]) == t.shape[-2:]


def _same_batches(a: Any, b: Any, s: Any, t: Any, r: Any) -> bool:
    return _merges(a, s) and _merges(b, t) and a.shape[:-2] == b.shape[:-2] and tuple(r[:-2]) == a.shape[:-2]


BATCHES = "matrices of a batch are multiplied each by itself, whatever the batch is called"


@rule("algebra", exact="real", source=BATCHES, when=[fact("same_batches", _same_batches, "a", "b", "s", "t", "r")])
def batches_merged(a: Var, b: Var, s: Attr, t: Attr, r: Attr) -> Equation:
    """bmm on heads that were flattened into the batch."""
    return to(reshape(matmul(reshape(a, s), reshape(b, t)), r), matmul(a, b))


@rule("algebra", exact="real", source=BATCHES, when=[fact("same_batches", _same_batches, "a", "b", "s", "t", "r")])
def batches_merged_nt(a: Var, b: Var, s: Attr, t: Attr, r: Attr) -> Equation:
    """The same with the second factor transposed."""
    return to(reshape(matmul_nt(reshape(a, s), reshape(b, t)), r), matmul_nt(a, b))
