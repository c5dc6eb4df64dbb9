"""Named facts that rules may ask for. Unknown is no: a symbolic size never satisfies a guard on sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from forge_eq.ir.types import FLOATS, INTEGERS, WEAK
from forge_eq.rules.dsl import Guard


def is_constant(name: str) -> Guard:
    """The tensor depends on constants only. Says where a rule is worth it: an equation never needs it to be true."""
    return Guard("is_constant", (name,), None, soundness=False)


def weights(*names: str) -> Guard:
    """The tensors are distinct weights, in the program's order: each set is met once, not once per ordering.

    Holds of leaves only, and asks nothing of their values: without it the rule is as true, only costlier.
    """
    return Guard("weights", names, None, soundness=False)


def in_part() -> Guard:
    """The program reads only a part of what the left side's root reads: of a slice, that the rest is dead.

    Elements that nothing reads are a fact of the captured program; asking for it keeps the e-graph small.
    """
    return Guard("in_part", (), None, soundness=False)


def fact(name: str, fn: Callable[..., bool], *args: str, soundness: bool = True) -> Guard:
    """A guard from a function of types (tensor variables) and values (attribute variables)."""
    return Guard(name, args, fn, soundness)


def is_float(x: str) -> Guard:
    return fact("is_float", lambda t: t.dtype in FLOATS, x)


def is_integer(x: str) -> Guard:
    return fact("is_integer", lambda t: t.dtype in INTEGERS, x)


def is_tensor(x: str, *, soundness: bool) -> Guard:
    """Not a number that stands where a tensor may. For soundness where a number could leave the range of floats."""
    return fact("is_tensor", lambda t: t.dtype != WEAK, x, soundness=soundness)


def is_not_empty(x: str) -> Guard:
    """The tensor has elements. A sum of none is zero whatever stands beside it, and zero times infinity is not."""
    return fact("is_not_empty", lambda t: t.static and all(t.shape), x)


def has_dtype(x: str, dtype: str) -> Guard:
    """The tensor already has the dtype that the attribute names."""
    return fact("has_dtype", lambda t, d: t.dtype == d, x, dtype)


def has_shape(x: str, shape: str) -> Guard:
    """The tensor already has the shape that the attribute names."""
    return fact("has_shape", lambda t, s: t.shape == tuple(s), x, shape)


def is_identity(perm: str) -> Guard:
    return fact("is_identity", lambda p: tuple(p) == tuple(range(len(p))), perm)


def swaps_last_two(perm: str) -> Guard:
    """The permutation exchanges the last two axes and keeps the others."""

    def fn(p: Any) -> bool:
        return len(p) >= 2 and tuple(p) == (*range(len(p) - 2), len(p) - 1, len(p) - 2)

    return fact("swaps_last_two", fn, perm)


def keeps_order(x: str, perm: str) -> Guard:
    """The permutation moves only axes of size 1, so the elements stay in their order."""

    def fn(t: Any, p: Any) -> bool:
        kept = [a for a in p if t.shape[a] != 1]
        return t.static and kept == sorted(kept)

    return fact("keeps_order", fn, x, perm)


def is_last_axis(axes: str, x: str) -> Guard:
    """The axes are just the last one of the tensor."""
    return fact("is_last_axis", lambda a, t: tuple(a) == (t.rank - 1,), axes, x)


def moderate(*names: str) -> Guard:
    """The numbers, and their product, are ordinary: scaling by them cannot leave the range of float32."""

    def fn(*values: Any) -> bool:
        product = math.prod(values)
        return all(isinstance(v, float) and math.isfinite(v) and 1e-6 <= abs(v) <= 1e6 for v in (*values, product))

    return fact("moderate", fn, *names)


def is_not_one(name: str) -> Guard:
    """The number is another than one: where x = x 1.0 is known, a rule on scales would go round without end."""
    return fact("is_not_one", lambda v: v != 1.0, name, soundness=False)


def is_power_of_two(name: str) -> Guard:
    """Multiplying by the number, or by its reciprocal, rounds nothing."""

    def fn(v: Any) -> bool:
        return isinstance(v, float) and abs(math.frexp(v)[0]) == 0.5 and 2.0**-60 <= abs(v) <= 2.0**60

    return fact("is_power_of_two", fn, name)


def equals(name: str, value: Any) -> Guard:
    """The attribute is this very value (1, 1.0 and True are three values, as are 0.0 and -0.0)."""
    return fact("equals", lambda v: type(v) is type(value) and repr(v) == repr(value), name)
