"""Rules as egglog text. One directed rule becomes two egglog rules around a question to Python.

``ask``   where the left side matches, write down which types and attributes it matched with;
``fire``  where it matches and the question has an answer, build the right side and union the roots.

The answer holds the computed attributes and the type of every node that the right side creates. There is
none when a guard says no, when a type cannot be inferred, or when the two sides differ in type: so a rule
can never fire outside its shape obligation. Questions are asked once per distinct key, and repeated
layers share keys, so their number does not grow with depth (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forge_eq.egraph.intern import INTERNER
from forge_eq.errors import ShapeError
from forge_eq.ir.check import fits
from forge_eq.ir.types import Type
from forge_eq.ops.spec import App, AttrVar, Computed, Op, Var
from forge_eq.rules.dsl import Rule

# What every engine has before any op or rule.
PREAMBLE = """
(sort T)
(constructor N (i64) T :unextractable)
(function ty (T) i64 :merge old)
(relation typed (T i64))
(relation is_constant (T))
(relation weight (T i64))
(relation in_part (T))
(relation l_type (i64 i64))
(relation l_constant (i64))
(relation l_weight (i64 i64))
(relation l_in_part (i64))
(ruleset load)
(ruleset facts)
(ruleset clear)
(rule ((l_type e t)) ((set (ty (N e)) t) (typed (N e) t)) :ruleset load :name "load types")
(rule ((l_constant e)) ((is_constant (N e))) :ruleset load :name "load constants")
(rule ((l_in_part e)) ((in_part (N e))) :ruleset load :name "load what is read in part")
(rule ((l_weight e i)) ((weight (N e) i)) :ruleset load :name "load weights")
"""
LOADED = {"l_type": 2, "l_constant": 1, "l_weight": 2, "l_in_part": 1}  # tables that programs are loaded from: columns


def constructor(op: Op, arity: int) -> str:
    """The egglog constructor of an op at one number of operands."""
    return f"op_{op.name}_{arity}"


@dataclass
class _Body:
    """Flattens left trees into egglog facts."""

    facts: list[str] = field(default_factory=list)
    seen: dict[Any, str] = field(default_factory=dict)

    def term(self, term: Any) -> str:
        if isinstance(term, Var):
            return f"t_{term.name}"
        if term not in self.seen:
            self.seen[term] = name = f"n{len(self.seen)}"
            args = [self.term(a) for a in term.args] + [_attr_pattern(a) for a in term.attrs]
            self.facts.append(f"(= {name} ({constructor(term.op, len(term.args))} {' '.join(args)}))")
        return self.seen[term]


def _attr_pattern(attr: Any) -> str:
    if isinstance(attr, AttrVar):
        return f"a_{attr.name}"
    if isinstance(attr, Computed):
        raise ShapeError("rules", "-", "a computed attribute on the left side", "bind it and use a guard")
    return str(INTERNER.id(attr))


def _constructors(term: Any) -> Iterator[tuple[Op, int]]:
    for app in _apps(term):
        yield app.op, len(app.args)


def _apps(term: Any) -> Iterator[App]:
    if isinstance(term, App):
        yield term
        for a in term.args:
            yield from _apps(a)


def _slots(term: Any) -> Iterator[tuple[Slot, Any]]:
    """Every attribute of the ops of a term, with where it stands."""
    for app in _apps(term):
        for place, attr in enumerate(app.attrs):
            yield (app.op, len(app.args), place), attr


Slot = tuple[Op, int, int]  # (op, number of operands, place among its attributes)
ANY = -1 << 62  # stands for every attribute: no value has this id


class CompiledRule:
    """A rule with its egglog text and its answer to questions."""

    def __init__(self, rule: Rule, index: int) -> None:
        self.rule, self.index, self.id = rule, index, rule.id
        self.wants_part = any(g.name == "in_part" for g in rule.guards)

    @cached_property
    def tensors(self) -> list[str]:
        return self.rule.tensors

    @cached_property
    def attrs(self) -> list[str]:
        return self.rule.attrs

    @cached_property
    def _right(self) -> tuple[list[App], list[Computed]]:
        """The nodes and computed attributes of the right sides, in post-order."""
        created: dict[App, None] = {}
        computed: dict[Computed, None] = {}

        def collect(term: Any) -> None:
            if isinstance(term, App) and term not in created:
                for part in (*term.args, *term.attrs):
                    collect(part)
                created[term] = None
            elif isinstance(term, Computed):
                computed[term] = None

        for _, right in self.rule.pairs:
            collect(right)
        return list(created), list(computed)

    @property
    def created(self) -> list[App]:
        return self._right[0]

    @property
    def computed(self) -> list[Computed]:
        return self._right[1]

    @cached_property
    def key_size(self) -> int:
        return len(self.tensors) + len(self.attrs)

    @cached_property
    def answer_size(self) -> int:
        return len(self.computed) + len(self.created)

    # ------------------------------------------------------------------------------------------ text

    @cached_property
    def tables(self) -> tuple[str, str]:
        """Names of the question and answer relations, shared by rules of the same sizes."""
        return f"want_{self.key_size}", f"answer_{self.key_size}_{self.answer_size}"

    @cached_property
    def head(self) -> tuple[Op, int] | None:
        """The (op, arity) at the root of the first left side; None where that is a variable."""
        left = self.rule.pairs[0][0]
        return (left.op, len(left.args)) if isinstance(left, App) else None

    @cached_property
    def matched(self) -> frozenset[tuple[Op, int]]:
        """Every (op, arity) that the left sides mention: without all of them the rule cannot match."""
        return frozenset(c for left, _ in self.rule.pairs for c in _constructors(left))

    @cached_property
    def made(self) -> frozenset[tuple[Op, int]]:
        """Every (op, arity) that the right sides mention."""
        return frozenset(c for _, right in self.rule.pairs for c in _constructors(right))

    @cached_property
    def fixed(self) -> tuple[tuple[Slot, int], ...]:
        """The attributes that the left sides name: slot, id."""
        left = [pair for left, _ in self.rule.pairs for pair in _slots(left)]
        return tuple((slot, INTERNER.id(a)) for slot, a in left if not isinstance(a, AttrVar))

    @cached_property
    def given(self) -> tuple[tuple[Slot, int | Slot], ...]:
        """Where each attribute of the right sides comes from: an id, a slot of the left sides, ANY where computed."""
        bound: dict[str, Slot] = {}
        for left, _ in self.rule.pairs:
            bound |= {a.name: slot for slot, a in _slots(left) if isinstance(a, AttrVar)}
        found = []
        for _, right in self.rule.pairs:
            for slot, a in _slots(right):
                source = ANY if isinstance(a, Computed) else bound[a.name] if isinstance(a, AttrVar) else INTERNER.id(a)
                found.append((slot, source))
        return tuple(found)

    @cached_property
    def _left(self) -> tuple[str, str, list[str]]:
        """(facts that the left sides match, key of the question, variables of the roots)."""
        body = _Body()
        roots = [body.term(left) for left, _ in self.rule.pairs]
        facts = [*body.facts, *(f"(= y_{n} (ty t_{n}))" for n in self.tensors), *self._graph_guards(body)]
        key = " ".join([str(self.index), *(f"y_{n}" for n in self.tensors), *(f"a_{n}" for n in self.attrs)])
        return " ".join(facts), key, roots

    def ask(self) -> str:
        """The ask rule, in a ruleset of its own."""
        (facts, key, _), number = self._left, self.index
        rule = f'(rule ({facts}) (({self.tables[0]} {key})) :ruleset ask_{number} :name "ask {self.id}")'
        return f"(ruleset ask_{number})\n{rule}"

    def fire(self) -> str:
        """The fire rule, in a ruleset of its own."""
        (facts, key, roots), number = self._left, self.index
        outs = " ".join(f"r{i}" for i in range(self.answer_size))
        met = f"{facts} ({self.tables[1]} {key} {outs})"
        rule = f'(rule ({met}) ({self._actions(roots)}) :ruleset fire_{number} :name "{self.id}")'
        return f"(ruleset fire_{number})\n{rule}"

    def _graph_guards(self, body: _Body) -> list[str]:
        """Guards that are facts of classes: constness, the order of distinct weights, and what is read in part."""
        facts = []
        for guard in self.rule.guards:
            if guard.fn is not None:
                continue
            if guard.name == "is_constant":
                facts.append(f"(is_constant t_{guard.args[0]})")
            elif guard.name == "in_part":
                read = [left.args[0] for left, _ in self.rule.pairs if isinstance(left, App)]
                facts += [f"(in_part {body.term(x)})" for x in read]
            else:
                facts += [f"(weight t_{n} w_{n})" for n in guard.args]
                facts += [f"(< w_{a} w_{b})" for a, b in zip(guard.args, guard.args[1:], strict=False)]
        return facts

    def _actions(self, roots: list[str]) -> str:
        names: dict[Any, str] = {}
        lines = []
        for i, computed in enumerate(self.computed):
            names[computed] = f"r{i}"
        for i, term in enumerate(self.created):
            call = " ".join([*(self._value(a, names) for a in term.args), *(self._value(a, names) for a in term.attrs)])
            head, new, kind = constructor(term.op, len(term.args)), f"m{i}", f"r{len(self.computed) + i}"
            names[term] = new
            lines.append(f"(let {new} ({head} {call})) (set (ty {new}) {kind}) (typed {new} {kind})")
            lines.append(f"(set (by_{head} {call}) {self.index})")
        for root, (_, right) in zip(roots, self.rule.pairs, strict=True):
            lines.append(f"(union {root} {self._value(right, names)})")
        return " ".join(lines)

    def _value(self, part: Any, names: Mapping[Any, str]) -> str:
        if isinstance(part, Var):
            return f"t_{part.name}"
        if isinstance(part, AttrVar):
            return f"a_{part.name}"
        if isinstance(part, App | Computed):
            return names[part]
        return str(INTERNER.id(part))

    # ---------------------------------------------------------------------------------------- answers

    def answer(self, key: tuple[int, ...]) -> tuple[int, ...] | None:
        """The answer to one question, or None: the rule does not hold, or nobody knows, for these types."""
        env: dict[str, Any] = {n: INTERNER.value(i) for n, i in zip((*self.tensors, *self.attrs), key, strict=True)}
        try:
            for guard in self.rule.guards:
                if guard.fn is not None and guard.fn(*(env[a] for a in guard.args)) is not True:
                    return None
            values: dict[Any, Any] = {c: c.fn(*(env[a] for a in c.args)) for c in self.computed}
            if any(v is None for v in values.values()):
                return None
            types: dict[Any, Type] = {}
            for left, right in self.rule.pairs:
                if self._infer(left, env, values, types) != self._infer(right, env, values, types):
                    return None
                if self.wants_part and isinstance(left, App) and types[left] == types.get(left.args[0]):
                    return None  # a cut that takes everything: its class reads itself, and would grow without end
            made = [INTERNER.id(values[c]) for c in self.computed]
            return (*made, *(INTERNER.id(types[t]) for t in self.created))
        except (ShapeError, ArithmeticError, TypeError, ValueError, IndexError, AttributeError):
            return None  # unknown means no

    def _infer(self, term: Any, env: Mapping[str, Any], values: Mapping[Any, Any], types: dict[Any, Type]) -> Type:
        if isinstance(term, Var):
            found: Type = env[term.name]
            return found
        if term not in types:
            attrs = tuple(
                env[a.name] if isinstance(a, AttrVar) else values[a] if isinstance(a, Computed) else a
                for a in term.attrs
            )
            if not all(fits(kind, value) for (_, kind), value in zip(term.op.attrs, attrs, strict=True)):
                raise ShapeError("rules", term.op.name, f"attributes {attrs} of the wrong kind", "write 2.0 for 2")
            types[term] = term.op.infer([self._infer(a, env, values, types) for a in term.args], attrs)
        return types[term]
