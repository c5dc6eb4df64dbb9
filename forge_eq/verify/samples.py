"""Instances of a rule: types and attribute values under which its left sides type-check.

Takes a rule and a seed. Gives bindings, sorted by what the guards say and by whether the e-graph would fire.
The search is bottom-up: where an op meets unknown operands or attributes, candidates are drawn until the
op's own shape rule accepts them, so it works for any op without being told about it.

Promises: deterministic for a rule id and seed. Not here: values of tensors (``numeric``, ``smt``).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from forge_eq.ir.types import WEAK, TensorType, TupleType, Type
from forge_eq.ops.spec import App, AttrVar, Term, Var
from forge_eq.rules.dsl import Rule
from forge_eq.verify.interpret import Binding, Misplaced, Untyped, fires, holds, infer, resolve, typed_call
from forge_eq.verify.propose import Proposer

KEPT_OUT = 4  # instances that a guard keeps out, to each that fires: few of them show what the guard is for
LONGER = 20  # times the attempts for a rule that has not fired yet: some need many sizes to meet
TRIES = 80  # candidates at one op before the attempt is given up


class _Dead(Exception):
    """This attempt met an op that nothing fits."""


class _Search:
    """One attempt at a binding."""

    def __init__(self, propose: Proposer) -> None:
        self.propose = propose
        self.types: dict[str, Type] = {}
        self.attrs: dict[str, Any] = {}
        self.scalars: dict[str, Any] = {}

    def walk(self, term: Term) -> Type:
        if isinstance(term, Var):
            if term.name not in self.types:
                self.types[term.name] = self.propose.type(self._seen())
            return self.types[term.name]
        if term.op.samples is not None and all(isinstance(a, Var) for a in term.args):
            self._given(term)
        closed = {i: self.walk(a) for i, a in enumerate(term.args) if not self._open(a)}
        unknown = [a for a in term.args if self._open(a)]
        attrs = [(i, v) for i, v in enumerate(term.attrs) if isinstance(v, AttrVar) and v.name not in self.attrs]
        for _ in range(TRIES if unknown or attrs else 1):
            self._draw(term, unknown, attrs, list(closed.values()))
            try:
                return self._type(term, closed)
            except Untyped:
                self._forget(unknown, attrs)
        raise _Dead

    def _given(self, term: App) -> None:
        """Binds the free variables of a call as the op itself proposes, if it does."""
        names = [a.name for a in term.args if isinstance(a, Var)]
        known = [self.attrs.get(v.name) if isinstance(v, AttrVar) else v for v in term.attrs]
        found = term.op.samples(self.propose.rng, [self.types.get(n) for n in names], known)  # type: ignore[misc]
        if found is not None:
            self.types = {**dict(zip(names, found[0], strict=True)), **self.types}
            free = [(v.name, a) for v, a in zip(term.attrs, found[1], strict=True) if isinstance(v, AttrVar)]
            self.attrs = {**dict(free), **self.attrs}

    def _open(self, term: Term) -> bool:
        """An operand whose candidates depend on what stands beside it."""
        if isinstance(term, Var):
            return term.name not in self.types
        return term.op.leaf == "literal" and isinstance(term.attrs[0], AttrVar) and term.attrs[0].name not in self.attrs

    def _seen(self) -> list[TensorType]:
        return [t for t in self.types.values() if isinstance(t, TensorType)]

    def _draw(self, term: App, unknown: list[Term], attrs: list[tuple[int, AttrVar]], beside: list[Type]) -> None:
        around = [t for t in beside if isinstance(t, TensorType)]
        around += [p for t in beside if isinstance(t, TupleType) for p in t.items if isinstance(p, TensorType)]
        alike = self.propose.rng.random() < 0.5
        made: list[TensorType] = []
        for one in sorted(unknown, key=lambda t: isinstance(t, App)):
            if isinstance(one, App):
                self.attrs[one.attrs[0].name] = self.propose.number([*around, *made])
            elif one.name not in self.types:
                pick = made[-1] if made and alike else self.propose.type((around + made) or self._seen())
                self.types[one.name] = pick
                made.append(pick)
                if pick.dtype == WEAK:
                    self.scalars[one.name] = self.propose.number([*around, *made])
        types = [self.types[a.name] if isinstance(a, Var) else beside[0] if beside else None for a in term.args]
        known = [t for t in types if t is not None]
        for i, var in attrs:
            if var.name not in self.attrs:
                name, kind = term.op.attrs[i]
                self.attrs[var.name] = self.propose.attr(name, kind, known, [*self._seen(), *around])

    def _forget(self, unknown: list[Term], attrs: list[tuple[int, AttrVar]]) -> None:
        for one in unknown:
            if isinstance(one, App):
                self.attrs.pop(one.attrs[0].name, None)
            else:
                self.types.pop(one.name, None)
                self.scalars.pop(one.name, None)
        for _, var in attrs:
            self.attrs.pop(var.name, None)

    def _type(self, term: App, closed: dict[int, Type]) -> Type:
        types = [closed[i] if i in closed else self._leaf(a) for i, a in enumerate(term.args)]
        numbers = [v for a in term.args if (v := self._number(a)) is not None]
        return typed_call(term.op, types, resolve(term.attrs, self.types, self.attrs), numbers)

    def _leaf(self, term: Term) -> Type:
        return self.types[term.name] if isinstance(term, Var) else TensorType(WEAK, ())

    def _number(self, term: Term) -> Any:
        if isinstance(term, Var):
            return self.scalars.get(term.name)
        return resolve(term.attrs[0], self.types, self.attrs) if term.op.leaf == "literal" else None


def _before_writes(term: Term) -> Term:
    """The term without what writes over an operand: that changes no type, and what reads it is harder to fit."""
    if not isinstance(term, App):
        return term
    args = tuple(_before_writes(a) for a in term.args)
    if term.op.update is not None:
        return args[0]
    return App(term.op, args, term.attrs) if args != term.args else term


def attempt(rule: Rule, rng: random.Random, *, extreme: bool = False, symbolic: bool = False) -> Binding | None:
    """One binding under which every left side of the rule type-checks, or None."""
    search = _Search(Proposer(rng, extreme, symbolic))
    try:
        for left, _ in rule.pairs:
            search.walk(_before_writes(left))
            search.walk(left)
    except _Dead:
        return None
    return Binding(search.types, search.attrs, search.scalars)


@dataclass
class Samples:
    """Bindings of one rule.

    ``fired``: the guards hold and the right sides have the same types. ``refused``: the guards hold, the
    e-graph's type check refuses; with its reason. ``unguarded[i]``: only guard i says no. ``misplaced``: the
    right side has a number that changes the dtype beside it.
    """

    fired: list[Binding] = field(default_factory=list)
    misplaced: list[tuple[Binding, str]] = field(default_factory=list)
    refused: list[tuple[Binding, str]] = field(default_factory=list)
    unguarded: dict[int, list[Binding]] = field(default_factory=dict)
    attempts: int = 0

    def enough(self, rule: Rule, wanted: int) -> bool:
        guards = [i for i, g in enumerate(rule.guards) if g.soundness and g.fn is not None]
        return len(self.fired) >= wanted and all(len(self.unguarded.get(i, ())) >= KEPT_OUT * wanted for i in guards)


def sample(rule: Rule, wanted: int, attempts: int, seed: int = 0) -> Samples:
    """Distinct bindings: up to ``wanted`` of each kind, in at most ``attempts`` attempts, more until one fires.

    Half of the attempts also draw extreme numbers (infinities, 1e200), which some guards exist to keep out. To these
    come, up to half as many again, bindings that fire with one of their sizes made 0 or 1.
    """
    rng = random.Random(f"{rule.id} {seed}")
    found, seen = Samples(), set[str]()
    while found.attempts < (attempts if found.fired else LONGER * attempts) and not found.enough(rule, wanted):
        found.attempts += 1
        binding = attempt(rule, rng, extreme=found.attempts % 2 == 0)
        if binding is not None:
            _enter(rule, binding, found, seen, wanted)
    for binding in found.fired[:wanted]:
        for made in _degenerate(binding):
            if _typed(rule, made):
                _enter(rule, made, found, seen, wanted + wanted // 2)
    return found


def _enter(rule: Rule, binding: Binding, found: Samples, seen: set[str], wanted: int) -> None:
    """Files a new binding under what the guards say."""
    if (key := str(binding)) in seen:
        return
    seen.add(key)
    failing = [i for i, g in enumerate(rule.guards) if not holds(g, binding)]
    if len(failing) == 1:
        kept = found.unguarded.setdefault(failing[0], [])
        if len(kept) < KEPT_OUT * wanted:
            kept.append(binding)
    elif not failing:
        _file(rule, binding, found, wanted)


def _typed(rule: Rule, binding: Binding) -> bool:
    try:
        return all(infer(left, binding) is not None for left, _ in rule.pairs)
    except Untyped:
        return False


def _degenerate(binding: Binding) -> Iterator[Binding]:
    """The binding with one size, wherever it occurs, made 0 or 1."""
    tensors = [t for t in binding.types.values() if isinstance(t, TensorType)]
    for old, new in itertools.product(sorted({d for t in tensors for d in t.shape if isinstance(d, int)}), (0, 1)):
        if old != new:
            types = {n: _resized(t, old, new) for n, t in binding.types.items()}
            attrs = {n: _with(v, old, new) if isinstance(v, tuple) else v for n, v in binding.attrs.items()}
            yield Binding(types, attrs, binding.scalars)


def _with(sizes: Any, old: int, new: int) -> tuple[Any, ...]:
    return tuple(new if type(d) is int and d == old else d for d in sizes)


def _resized(kind: Type, old: int, new: int) -> Type:
    return TensorType(kind.dtype, _with(kind.shape, old, new)) if isinstance(kind, TensorType) else kind


def _file(rule: Rule, binding: Binding, found: Samples, wanted: int) -> None:
    """Enters a binding whose guards hold under what the e-graph does with it."""
    try:
        reason = fires(rule, binding)
    except Misplaced as e:
        found.misplaced.append((binding, str(e)))
        return
    if reason:
        found.refused.append((binding, reason))
    elif len(found.fired) < wanted:
        found.fired.append(binding)
