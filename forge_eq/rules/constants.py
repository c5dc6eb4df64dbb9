"""Constants: units of arithmetic, and numbers that meet. Folding itself is extraction (a constant class is free).

``x * 0``, ``x - x`` and ``x / x`` are not here: infinities and NaN refute them (``rejected``). ``x + 0.0`` is
not ``x`` when ``x`` is ``-0.0``.
"""

from __future__ import annotations

from forge_eq.ops.elementwise import add, div, mul, pow_, sub
from forge_eq.ops.spec import Var, compute, lit
from forge_eq.rules.dsl import Attr, Equation, rule, to
from forge_eq.rules.guards import equals, is_integer, is_power_of_two, moderate

IEEE = "IEEE 754: exact operation"


def reciprocal(s: float) -> float:
    return 1.0 / s


def product(s: float, t: float) -> float:
    """s t, and 1 where only rounding keeps it from 1: else x = x (1 - 1e-16) would follow, and its powers with it."""
    exact = s * t
    return 1.0 if abs(exact - 1.0) < 1e-12 else exact


@rule("constants", exact="bit", source=IEEE)
def mul_one(x: Var) -> Equation:
    """Rotary embeddings scale their angles by 1.0."""
    return to(mul(x, 1.0), x)


@rule("constants", exact="bit", source="integer arithmetic")
def mul_one_int(x: Var) -> Equation:
    """Index arithmetic."""
    return to(mul(x, 1), x)


@rule("constants", exact="bit", source="IEEE 754: adding -0.0 is exact, adding 0.0 is not", when=[equals("z", -0.0)])
def add_negative_zero(x: Var, z: Attr) -> Equation:
    """The unit of floating addition."""
    return to(add(x, lit(z)), x)


@rule("constants", exact="bit", source="integer arithmetic", when=[is_integer("x")])
def add_zero_int(x: Var) -> Equation:
    """Position arithmetic of exports adds an empty past."""
    return to(add(x, 0), x)


@rule("constants", exact="bit", source=IEEE, when=[equals("z", 0.0)])
def sub_zero(x: Var, z: Attr) -> Equation:
    """x - 0.0 keeps the sign of zero, where x + 0.0 does not."""
    return to(sub(x, lit(z)), x)


@rule("constants", exact="bit", source=IEEE)
def div_one(x: Var) -> Equation:
    """A scale of one."""
    return to(div(x, 1.0), x)


@rule("constants", exact="bit", source="x to the first power")
def pow_one(x: Var) -> Equation:
    """A power that does nothing."""
    return to(pow_(x, 1.0), x)


@rule("constants", exact="bit", source="the reciprocal of a power of two is exact", when=[is_power_of_two("s")])
def div_is_mul_exact(x: Var, s: Attr) -> Equation:
    """Head sizes of 64 and 16 give exact scales."""
    return to(div(x, lit(s)), mul(x, lit(compute(reciprocal, s))))


@rule("constants", exact="real", source="division by s is multiplication by 1/s", when=[moderate("s")])
def div_is_mul(x: Var, s: Attr) -> Equation:
    """One spelling of a scale is enough for recognition."""
    return to(div(x, lit(s)), mul(x, lit(compute(reciprocal, s))))


@rule("constants", exact="real", source="multiplication is associative", when=[moderate("s", "t")])
def mul_mul(x: Var, s: Attr, t: Attr) -> Equation:
    """Two scales are one. The guard keeps products that leave float32 apart."""
    return to(mul(mul(x, lit(s)), lit(t)), mul(x, lit(compute(product, s, t))))
