"""Refutation in a prime field: both sides of the algebraic part of a rule, exactly, at every size.

Takes a rule and its instances. Gives a :class:`Counterexample`, or how many instances agreed. Values are drawn from
the integers modulo a prime of 61 bits: two different polynomials of degree d agree at a random point with probability
at most d / 2^61 (Schwartz, Zippel), so one trial decides an instance, large or small, where z3 sees small ones only.
Functions without algebra (exp, sqrt, tanh) are random functions, the same on both sides.

An infinity is one unknown residue. The larger of two is by the order of residues, which arithmetic does not respect:
sides that differ after such a choice are inconclusive, as is what no field has; only what agrees is counted then.

Promises: rounding plays no part, so no tolerance is needed. Not here: signed zeros, NaN, rounding (``numeric``).
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from forge_eq.ir.types import FLOATS, WEAK, TensorType
from forge_eq.rules.dsl import Rule, computed
from forge_eq.verify.interpret import Binding, Reference, Undefined, Untyped, Walk
from forge_eq.verify.numeric import Counterexample

PRIME = 2**61 - 1
ELEMENTS = 300  # of all tensors of an instance together
INFINITY = 0x5DEECE66D1234567 % PRIME  # any number will do: what is proved holds for every number in its place
SHORT = 2**20  # floats with a larger denominator stand for a number that they are not (a third, a root)


class Mod:
    """A residue, with Python's operators. A float is the fraction that it is."""

    __slots__ = ("value",)
    __array_ufunc__ = None  # an array beside a residue asks the residue's operators

    def __init__(self, value: int) -> None:
        self.value = value % PRIME

    @staticmethod
    def of(value: Any) -> Mod:
        """Raises TypeError for NaN."""
        if isinstance(value, Mod):
            return value
        if isinstance(value, float | np.floating) and not math.isfinite(value):
            if math.isnan(value):
                raise TypeError("no field has it")
            return Mod(INFINITY if value > 0 else -INFINITY)
        exact = Fraction(value if isinstance(value, Fraction) else value.item() if hasattr(value, "item") else value)
        return Mod(exact.numerator * pow(exact.denominator, -1, PRIME))

    def __add__(self, other: Any) -> Any:
        return _both(self, other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return _both(self, other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return _both(other, self, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _both(self, other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Any:
        return _both(self, other, _quotient)

    def __rtruediv__(self, other: Any) -> Any:
        return _both(other, self, _quotient)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Mod:
        return Mod(-self.value)

    def __bool__(self) -> bool:
        raise TypeError("a residue decides no branch")

    def __repr__(self) -> str:
        return str(self.value)


def _quotient(a: int, b: int) -> int:
    return a * pow(b, PRIME - 2, PRIME)


class Residues(np.ndarray[Any, Any]):
    """An object array of residues; a cast to floats changes nothing, another has no meaning."""

    def astype(self, dtype: Any, *rest: Any, **kw: Any) -> Any:
        if np.dtype(dtype).kind != "f":
            raise TypeError("a cast that no field has")
        return self


def _both(a: Any, b: Any, fn: Callable[[int, int], int]) -> Any:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _each(lambda x, y: _both(x, y, fn), a, b)
    return Mod(fn(Mod.of(a).value, Mod.of(b).value))


def _each(fn: Callable[..., Any], *args: Any) -> Any:
    arrays = np.broadcast_arrays(*(np.asarray(a, dtype=object) for a in args))
    made = np.empty(arrays[0].shape, dtype=object)
    for at in np.ndindex(*made.shape):
        made[at] = fn(*(a[at] for a in arrays))
    return made.view(Residues)


def _random_function(name: str, x: Any) -> Mod:
    """Any fixed function: equal arguments give equal values, and nothing else is known of it."""
    text = f"{name} {Mod.of(x).value}"
    return Mod(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big"))


def _power(x: Any, exponent: Any) -> Mod:
    if isinstance(exponent, float | int) and exponent == int(exponent) and abs(exponent) <= 8:
        return Mod(pow(Mod.of(x).value, int(exponent) % (PRIME - 1), PRIME))
    if isinstance(exponent, float) and abs(exponent) == 0.5:
        root = _random_function("sqrt", x)
        return root if exponent > 0 else Mod.of(Mod(1) / root)
    return _random_function(f"pow {exponent}", x)


LACKING = frozenset(["abs", "floor", "less", "less_equal", "greater", "greater_equal"])
ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: _both(a, b, lambda x, y: x + y),
    "subtract": lambda a, b: _both(a, b, lambda x, y: x - y),
    "multiply": lambda a, b: _both(a, b, lambda x, y: x * y),
    "divide": lambda a, b: _both(a, b, _quotient),
    "negative": lambda a: -Mod.of(a),
    "power": _power,
}
MOVED = frozenset(["reshape", "transpose", "swapaxes", "broadcast_to", "concatenate", "split", "repeat"])
SAME: dict[str, Callable[..., Any]] = {
    "equal": lambda a, b: Mod.of(a).value == Mod.of(b).value,
    "not_equal": lambda a, b: Mod.of(a).value != Mod.of(b).value,
}


class Field:
    """What stands for ``xp``. ``ordered``: an order was asked for, which is no algebra."""

    def __init__(self) -> None:
        self.ordered = False

    def __getattr__(self, name: str) -> Any:
        if name in LACKING:
            raise TypeError(f"no field has {name}")
        if name in SAME:
            return lambda a, b: np.asarray(_each(SAME[name], a, b), dtype=object).astype(bool)
        if name in ARITHMETIC:
            return functools.partial(_each, ARITHMETIC[name])
        if name in MOVED or name.startswith("logical_"):
            return getattr(np, name)
        return functools.partial(_each, functools.partial(_random_function, name))

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return _each(lambda take, x, y: _number(x if take else y), c, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        self.ordered = True
        return _each(lambda x, y: max(Mod.of(x), Mod.of(y), key=_place), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        self.ordered = True
        return _each(lambda x, y: min(Mod.of(x), Mod.of(y), key=_place), a, b)

    def max(self, x: Any, axis: Any, keepdims: bool) -> Any:
        for a in sorted((axis,) if isinstance(axis, int) else axis, key=lambda a: a % x.ndim, reverse=True):
            parts = [x[(slice(None),) * (a % x.ndim) + (slice(i, i + 1),)] for i in range(x.shape[a])]
            best = functools.reduce(self.maximum, parts)
            x = best if keepdims else best.reshape(best.shape[: a % x.ndim] + best.shape[a % x.ndim + 1 :])
        return x

    def matmul(self, a: Any, b: Any) -> Any:
        return np.matmul(np.asarray(a, dtype=object), np.asarray(b, dtype=object)).view(Residues)

    def sum(self, x: Any, axis: Any, keepdims: bool) -> Any:
        total = np.sum(np.asarray(x, dtype=object), axis=axis, keepdims=keepdims)
        return np.asarray(total, dtype=object).view(Residues)

    def mean(self, x: Any, axis: Any, keepdims: bool) -> Any:
        total = self.sum(x, axis, keepdims)
        return _each(lambda v: _both(v, Fraction(total.size, x.size), lambda a, b: a * b), total)


def _number(x: Any) -> Any:
    """A number as a residue; a bool stays one."""
    return x if isinstance(x, bool | np.bool_) else Mod.of(x)


def _place(x: Mod) -> int:
    return x.value


def _values(binding: Binding, rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, kind in binding.types.items():
        if not isinstance(kind, TensorType) or kind.dtype == WEAK:
            continue
        shape: Any = kind.shape
        array = np.empty(shape, dtype=object if kind.dtype in FLOATS else bool if kind.dtype == "bool" else int)
        for at in np.ndindex(*shape):
            small = rng.random() < 0.5 if kind.dtype == "bool" else rng.randrange(4)
            array[at] = Mod(rng.randrange(1, PRIME)) if kind.dtype in FLOATS else small
        made[name] = array.view(Residues) if kind.dtype in FLOATS else array
    return made


def _agrees(rule: Rule, binding: Binding, values: Mapping[str, Any], numbers: Mapping[str, Any]) -> tuple[bool, Any]:
    """(conclusive, the sides that differ or None)."""
    field = Field()
    walk = Walk(Reference(field), binding, values, numbers)
    try:
        sides = [(walk(left)[1], walk(right)[1]) for left, right in rule.pairs]
        differing = [pair for pair in sides if not _equal(*pair)]
    except (Undefined, Untyped, TypeError, ValueError, OverflowError):
        return False, None
    return (not (differing and field.ordered)), (differing[0] if differing and not field.ordered else None)


def _equal(left: Any, right: Any) -> bool:
    a, b = np.asarray(left, dtype=object).reshape(-1), np.asarray(right, dtype=object).reshape(-1)
    return len(a) == len(b) and all(Mod.of(x).value == Mod.of(y).value for x, y in zip(a, b, strict=True))


def _instance(rule: Rule, binding: Binding, rng: random.Random) -> tuple[bool, Counterexample | None]:
    """(conclusive, counterexample). Numbers of the rule are residues first, then what they are."""
    values = _values(binding, rng)
    floats = {n: v for n, v in binding.attrs.items() if isinstance(v, float)}
    free = {n: Mod(rng.randrange(1, PRIME)) for n in floats}
    known, differing = _agrees(rule, binding, values, free)
    if free and (not known or differing is not None):
        numbers = [*floats.values(), *(v for v in binding.scalars.values() if isinstance(v, float))]
        rounded = any(not math.isfinite(v) or Fraction(v).denominator > SHORT for v in numbers)
        if rounded or any(True for _, right in rule.pairs for _ in computed(right)):
            return False, None
        known, differing = _agrees(rule, binding, values, {})
    if differing is None:
        return known, None
    return True, Counterexample(rule.id, "field", "the sides differ modulo 2^61 - 1", binding, values, differing)


def refute_in_field(rule: Rule, bindings: list[Binding], seed: int = 0) -> tuple[int, Counterexample | None]:
    """(conclusive instances that agree, first counterexample), one trial for each instance that is not empty."""
    rng = random.Random(f"{rule.id} field {seed}")
    agreed = 0
    for binding in bindings:
        counts = [t.elements or 0 for t in binding.types.values() if isinstance(t, TensorType) and t.dtype != WEAK]
        if not all(counts) or sum(counts) > ELEMENTS:
            continue
        known, failed = _instance(rule, binding, rng)
        if failed is not None:
            return agreed, failed
        agreed += known
    return agreed, None
