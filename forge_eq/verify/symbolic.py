"""A stand-in for NumPy whose numbers are z3 terms, for ``Op.ref`` to run on.

Takes arrays of :class:`Elem`. Gives arrays of :class:`Elem`. Division is multiplication by an uninterpreted
reciprocal, and exp, sqrt, tanh, erf and the like are uninterpreted: z3 decides such terms in milliseconds, and
does not finish with true division. An infinity is an unknown number: what is proved holds for any number in
its place. Not here: NaN and rounding (``numeric``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np


class Elem:
    """One z3 term of sort Real, Int or Bool, with Python's operators."""

    __slots__ = ("e",)
    __array_ufunc__ = None  # an array beside an Elem asks the Elem's operators

    def __init__(self, e: Any) -> None:
        self.e = e

    def __add__(self, other: Any) -> Any:
        return _binary(self, other, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Any:
        return _binary(other, self, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return _binary(self, other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return _binary(other, self, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _binary(self, other, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Any:
        return _binary(other, self, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Any:
        return _divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _divide(other, self)

    def __neg__(self) -> Elem:
        return Elem(-_number(self))

    def __bool__(self) -> bool:
        raise TypeError("a symbolic truth value decides no branch")

    def __float__(self) -> float:
        raise TypeError("a symbolic number is no float")


class SymArray(np.ndarray[Any, Any]):
    """An object array of terms; ``astype`` converts the terms."""

    def astype(self, dtype: Any, *rest: Any, **kw: Any) -> Any:
        return _map(functools.partial(_cast, kind=np.dtype(dtype).kind), self)


def symbols(name: str, dtype: str, shape: tuple[int, ...]) -> SymArray:
    """An array of unknowns: bools, integers, or reals."""
    import z3

    make = z3.Bool if dtype == "bool" else z3.Int if dtype.startswith(("i", "u")) else z3.Real
    made = np.empty(shape, dtype=object)
    for at in np.ndindex(*shape):
        made[at] = Elem(make(f"{name}{list(at)}"))
    return made.view(SymArray)


# ------------------------------------------------------------------------------------------------ terms


def term(value: Any) -> Any:
    """The z3 term of a Python number or an Elem."""
    import z3

    if isinstance(value, Elem):
        return value.e
    if isinstance(value, bool | np.bool_):
        return z3.BoolVal(bool(value))
    if isinstance(value, int | np.integer):
        return z3.IntVal(int(value))
    if math.isnan(value):
        return z3.Real("nan")
    if math.isinf(value):
        return z3.Real("infinity") if value > 0 else -z3.Real("infinity")
    return z3.RealVal(Fraction(float(value)) if not isinstance(value, Fraction) else value)


def _number(value: Any) -> Any:
    """The term as a number: a bool counts 0 or 1."""
    import z3

    e = term(value)
    return z3.If(e, z3.IntVal(1), z3.IntVal(0)) if z3.is_bool(e) else e


def _real(value: Any) -> Any:
    import z3

    e = _number(value)
    return z3.ToReal(e) if z3.is_int(e) else e


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Two terms of one sort."""
    import z3

    x, y = term(a), term(b)
    if x.sort() == y.sort():
        return x, y
    x, y = _number(a), _number(b)
    return (x, y) if z3.is_int(x) and z3.is_int(y) else (_real(a), _real(b))


def _ordered(a: Any, b: Any) -> tuple[Any, Any]:
    """Two terms of one sort that has an order."""
    import z3

    x, y = _pair(a, b)
    return (_number(a), _number(b)) if z3.is_bool(x) else (x, y)


def _binary(a: Any, b: Any, fn: Callable[[Any, Any], Any]) -> Any:
    if isinstance(b, np.ndarray):
        return _map(lambda x, y: _binary(x, y, fn), a, b)
    if isinstance(a, np.ndarray):
        return _map(lambda x, y: _binary(x, y, fn), a, b)
    return Elem(fn(*_ordered(a, b)))


def apply(name: str, *args: Any) -> Elem:
    """An uninterpreted real function."""
    import z3

    sorts = [z3.RealSort()] * (len(args) + 1)
    return Elem(z3.Function(name, *sorts)(*(_real(a) for a in args)))


def _inverse(value: Any) -> Elem:
    import z3

    e = z3.simplify(_real(value))
    if z3.is_rational_value(e) and e.as_fraction() != 0:
        return Elem(z3.RealVal(1 / e.as_fraction()))
    return apply("inv", value)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _map(_divide, a, b)
    return Elem(_real(a) * _inverse(b).e)


def _power(a: Any, b: Any) -> Elem:
    """Small whole constant exponents are products, -1 and the halves what they mean; other powers are uninterpreted."""
    import z3

    e = z3.simplify(_real(b))
    if z3.is_rational_value(e) and e.as_fraction() in (1, 2, 3, 4):
        return Elem(math.prod([_real(a)] * (int(e.as_fraction()) - 1), start=_real(a)))
    if z3.is_rational_value(e) and e.as_fraction() == -1:
        return _inverse(a)
    if z3.is_rational_value(e) and abs(e.as_fraction()) == Fraction(1, 2):
        root = apply("sqrt", a)
        return root if e.as_fraction() > 0 else _inverse(root)
    return apply("pow", a, b)


def _larger(a: Any, b: Any, sign: int = 1) -> Elem:
    import z3

    x, y = _ordered(a, b)
    return Elem(z3.If(x >= y if sign > 0 else x <= y, *_pair(a, b)))


def _choose(c: Any, a: Any, b: Any) -> Elem:
    import z3

    return Elem(z3.If(term(c), *_pair(a, b)))


def _magnitude(a: Any) -> Elem:
    import z3

    x = _number(a)
    return Elem(z3.If(x >= 0, x, -x))


def _cast(value: Any, kind: str) -> Elem:
    import z3

    e = term(value)
    if kind == "b":
        return Elem(e if z3.is_bool(e) else _number(value) != 0)
    if kind == "f":
        return Elem(_real(value))
    if z3.is_real(e):
        return Elem(z3.Function("trunc", z3.RealSort(), z3.IntSort())(e))
    return Elem(_number(value))


def _compare(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b: Elem(fn(*_ordered(a, b)))


def _logic(name: str) -> Callable[..., Any]:
    def fn(*args: Any) -> Elem:
        import z3

        return Elem(getattr(z3, name)(*(term(a) for a in args)))

    return fn


# ------------------------------------------------------------------------------------------------ arrays


def _map(fn: Callable[..., Any], *args: Any) -> SymArray:
    """fn on every element, with broadcasting."""
    arrays = np.broadcast_arrays(*(_array(a) for a in args))
    made = np.empty(arrays[0].shape, dtype=object)
    for at in np.ndindex(*made.shape):
        made[at] = fn(*(a[at] for a in arrays))
    return made.view(SymArray)


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    made = np.empty((), dtype=object)
    made[()] = value
    return made


def _reduce(x: Any, axis: Any, keepdims: bool, fn: Callable[[Any, Any], Any]) -> SymArray:
    """A left fold over the axes, in row-major order."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(a % x.ndim for a in axes)
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    made = np.empty(shape, dtype=object)
    for at in np.ndindex(*x.shape):
        to = tuple(0 if i in axes else k for i, k in enumerate(at))
        made[to] = x[at] if made[to] is None else fn(made[to], x[at])
    kept = made if keepdims else made.reshape(tuple(d for i, d in enumerate(shape) if i not in axes))
    return kept.view(SymArray)


def _matmul(a: Any, b: Any) -> SymArray:
    return np.asarray(np.matmul(np.asarray(a), np.asarray(b))).view(SymArray)


MAPPED: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: _binary(a, b, lambda x, y: x + y),
    "multiply": lambda a, b: _binary(a, b, lambda x, y: x * y),
    "subtract": lambda a, b: _binary(a, b, lambda x, y: x - y),
    "divide": _divide,
    "power": _power,
    "negative": lambda a: -a,
    "abs": _magnitude,
    "maximum": _larger,
    "minimum": functools.partial(_larger, sign=-1),
    "where": _choose,
    "logical_and": _logic("And"),
    "logical_or": _logic("Or"),
    "logical_not": _logic("Not"),
    "equal": _compare(lambda a, b: a == b),
    "not_equal": _compare(lambda a, b: a != b),
    "less": _compare(lambda a, b: a < b),
    "less_equal": _compare(lambda a, b: a <= b),
    "greater": _compare(lambda a, b: a > b),
    "greater_equal": _compare(lambda a, b: a >= b),
}  # NumPy's name -> function of elements
MOVED = ("reshape", "transpose", "swapaxes", "broadcast_to", "concatenate", "split", "repeat")


class Namespace:
    """What stands for ``xp``. Other functions of one number are uninterpreted; the rest is an AttributeError."""

    def __getattr__(self, name: str) -> Any:
        if name in MAPPED:
            return functools.partial(_map, MAPPED[name])
        if name in MOVED:
            return getattr(np, name)
        known = getattr(np, name, None)  # NumPy has no error function: what it lacks is a function of elements, too
        if known is None or (isinstance(known, np.ufunc) and known.nin == 1):
            return functools.partial(_map, functools.partial(apply, name))
        raise AttributeError(f"no symbolic {name}")

    def matmul(self, a: Any, b: Any) -> SymArray:
        return _matmul(a, b)

    def sum(self, x: Any, axis: Any, keepdims: bool) -> SymArray:
        return _reduce(x, axis, keepdims, lambda a, b: a + b)

    def max(self, x: Any, axis: Any, keepdims: bool) -> SymArray:
        return _reduce(x, axis, keepdims, _larger)

    def mean(self, x: Any, axis: Any, keepdims: bool) -> SymArray:
        total = self.sum(x, axis, keepdims)
        return _map(lambda v: v * Fraction(total.size, x.size), total)
