"""Algebra that recognition and fusion rest on: how products, scales and transposes pass each other."""

from __future__ import annotations

from forge_eq.ops.elementwise import mul
from forge_eq.ops.linalg import linear, matmul, matmul_nt
from forge_eq.ops.movement import swap_last
from forge_eq.ops.spec import Var, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import is_constant, moderate

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
