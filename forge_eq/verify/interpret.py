"""One walk over a term for every reading of it: types, NumPy values, z3 values, torch values.

Takes a term and what its variables stand for. Gives the term's type and value. Promises: an op without its
own meaning on a backend is read through its definition, and both sides of a rule are read by the same code.
Not here: what the variables should stand for (``samples``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from forge_eq.errors import ShapeError
from forge_eq.ir.types import FLOATS, INTEGERS, WEAK, TensorType, Type
from forge_eq.ops.spec import App, AttrVar, Computed, Op, Term, Var
from forge_eq.rules.dsl import Guard, Rule

# What a rule's helper may raise to say that it has no answer; the same as in the e-graph.
UNKNOWN = (ShapeError, ArithmeticError, TypeError, ValueError, IndexError, AttributeError)


class Untyped(Exception):
    """The term has no type under this binding; the text says where."""


class Misplaced(Untyped):
    """A number stands beside a dtype that it would change (a float beside integers, a bool beside floats)."""


class Undefined(Exception):
    """The backend has no value for the term, e.g. the negative of a bool."""


@dataclass(frozen=True)
class Binding:
    """What the variables of a rule stand for: types of tensors, values of attributes.

    A tensor variable may stand for a literal operand: its type is then weak and ``scalars`` has its value.
    """

    types: Mapping[str, Type]
    attrs: Mapping[str, Any]
    scalars: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{n}: {self.scalars.get(n, t)}" for n, t in self.types.items()]
        return ", ".join([*parts, *(f"{n} = {v!r}" for n, v in self.attrs.items())])


def resolve(value: Any, types: Mapping[str, Type], attrs: Mapping[str, Any]) -> Any:
    """The value of an attribute of a term. Raises Untyped when a computed one has no answer."""
    if isinstance(value, tuple):
        return tuple(resolve(v, types, attrs) for v in value)
    if isinstance(value, AttrVar):
        return attrs[value.name]
    if not isinstance(value, Computed):
        return value
    args = [types[n] if n in types else attrs[n] for n in value.args]
    try:
        found = value.fn(*args)
    except UNKNOWN as e:
        raise Untyped(f"{value.fn}({', '.join(value.args)}) has no answer: {e!r}") from e
    if found is None:
        raise Untyped(f"{value.fn}({', '.join(value.args)}) has no answer")
    return found


def fits(value: Any, dtype: str) -> bool:
    """Whether a number may stand beside a tensor of this dtype without changing it."""
    if isinstance(value, bool):
        return dtype == "bool"
    return dtype in FLOATS if isinstance(value, float) else dtype in FLOATS | INTEGERS


def typed_call(op: Op, types: list[Type], attrs: tuple[Any, ...], numbers: list[Any]) -> Type:
    """The type of a call. ``numbers`` are the values of literal operands.

    Raises Untyped when the shape rule refuses, or when a number would change the dtype of what is beside it.
    """
    try:
        found = op.infer(types, attrs)
    except ShapeError as e:
        raise Untyped(str(e)) from e
    beside = {t.dtype for t in types if isinstance(t, TensorType) and t.dtype != WEAK}
    beside = beside - {"bool"} if len(beside) > 1 else beside
    if numbers and not all(fits(v, d) for v in numbers for d in beside):
        raise Misplaced(f"{op.name}: the numbers {numbers} beside {sorted(beside)}")
    return found


class Backend(Protocol):
    """Executes one call; ``None`` means: read the op through its definition."""

    def call(self, op: Op, args: list[Any], attrs: tuple[Any, ...]) -> Any: ...


class Types:
    """The backend that computes no values."""

    def call(self, op: Op, args: list[Any], attrs: tuple[Any, ...]) -> Any:
        return 0


class Reference:
    """Values by ``Op.ref`` on ``xp``: NumPy, or a stand-in for it. Floats are float64 throughout."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp

    def call(self, op: Op, args: list[Any], attrs: tuple[Any, ...]) -> Any:
        return None if op.ref is None else op.ref(self.xp, *args, *attrs)


class Torch:
    """Values by ``Op.torch``."""

    def call(self, op: Op, args: list[Any], attrs: tuple[Any, ...]) -> Any:
        return None if op.torch is None else op.torch(*args, *attrs)


class Walk:
    """Reads terms under one binding; equal subtrees of a term object are read once.

    Args:
        values: tensor variable -> value on the backend.
        symbols: attribute variable -> value on the backend, where it is not the binding's own.
    """

    def __init__(
        self, backend: Backend, binding: Binding, values: Mapping[str, Any], symbols: Mapping[str, Any] | None = None
    ) -> None:
        self.backend, self.binding, self.values = backend, binding, values
        self.symbols = {**binding.attrs, **(symbols or {})}
        self.known: dict[int, tuple[Type, Any]] = {}

    def __call__(self, term: Term) -> tuple[Type, Any]:
        """(type, value). Raises Untyped or Undefined."""
        if isinstance(term, Var):
            scalar = self.binding.scalars.get(term.name)
            return self.binding.types[term.name], self.values.get(term.name, scalar)
        if id(term) not in self.known:
            self.known[id(term)] = self._app(term)
        return self.known[id(term)]

    def _app(self, term: App) -> tuple[Type, Any]:
        read = [self(a) for a in term.args]
        types, args = [t for t, _ in read], [v for _, v in read]
        attrs = resolve(term.attrs, self.binding.types, self.binding.attrs)
        made = typed_call(term.op, types, attrs, [n for a in term.args if (n := self._number(a)) is not None])
        shown = resolve(term.attrs, self.binding.types, self.symbols)
        return made, self._value(term.op, types, args, attrs, shown)

    def _number(self, term: Term) -> Any:
        if isinstance(term, Var):
            return self.binding.scalars.get(term.name)
        if term.op.leaf == "literal":
            return resolve(term.attrs[0], self.binding.types, self.binding.attrs)
        return None

    def _value(self, op: Op, types: list[Type], args: list[Any], attrs: tuple[Any, ...], shown: tuple[Any, ...]) -> Any:
        try:
            found = self.backend.call(op, args, shown)
        except (TypeError, RuntimeError, NotImplementedError, ValueError, IndexError, ZeroDivisionError) as e:
            raise Undefined(f"{op.name}: {e}") from e
        if found is not None:
            return found
        if op.define is None:
            raise Undefined(f"{op.name} has no value on this backend")
        return self._defined(op, types, args, attrs, shown)

    def _defined(
        self, op: Op, types: list[Type], args: list[Any], attrs: tuple[Any, ...], shown: tuple[Any, ...]
    ) -> Any:
        assert op.define is not None
        names = [n for n, _ in op.attrs]
        scalars = {n: v for n, v, t in zip(op.inputs, args, types, strict=True) if getattr(t, "dtype", "") == WEAK}
        inner = Binding(dict(zip(op.inputs, types, strict=True)), dict(zip(names, attrs, strict=True)), scalars)
        # A text attribute selects which definition is meant, so it is passed as it is.
        given = [v if k == "str" else AttrVar(n) for (n, k), v in zip(op.attrs, attrs, strict=True)]
        made = op.define(*(Var(n) for n in op.inputs), *given)
        walk = Walk(self.backend, inner, dict(zip(op.inputs, args, strict=True)), dict(zip(names, shown, strict=True)))
        try:
            return tuple(walk(t)[1] for t in made) if isinstance(made, tuple) else walk(made)[1]
        except Untyped as e:
            raise Undefined(f"the definition of {op.name} has no type here: {e}") from e


def infer(term: Term, binding: Binding) -> Type:
    """The type of a term. Raises Untyped."""
    return Walk(Types(), binding, {})(term)[0]


def holds(guard: Guard, binding: Binding) -> bool:
    """Whether the guard answers yes. A guard on a fact of the e-graph (``fn`` None) is granted.

    A guard that cannot answer says no, as the e-graph has it.
    """
    if guard.fn is None:
        return True
    try:
        return guard.fn(*(binding.types[n] if n in binding.types else binding.attrs[n] for n in guard.args)) is True
    except UNKNOWN:
        return False


def fires(rule: Rule, binding: Binding) -> str:
    """Empty when every right side has the type of its left side, else the reason why the e-graph refuses.

    Raises Misplaced when the right side has a number where it changes the dtype: the e-graph does not see that.
    """
    for left, right in rule.pairs:
        due = infer(left, binding)
        try:
            got = infer(right, binding)
        except Misplaced:
            raise
        except Untyped as e:
            return f"the right side has no type: {e}"
        if got != due:
            return f"{due} would become {got}"
    return ""
