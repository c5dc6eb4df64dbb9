"""How a rule is written: one decorated function, called once with pattern variables.

Takes a function of pattern variables. Gives a :class:`Rule`: neutral trees that the e-graph compiler, the
NumPy evaluator, the z3 translator and the printer each walk. Promises: ids are unique, every variable of
a right side is bound on the left, and nothing about a rule can drift from the rule.

A parameter stands for a tensor, or for an attribute when it is annotated ``: Attr``.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from forge_eq.errors import RuleError
from forge_eq.ops.spec import App, AttrVar, Computed, Term, Var, variables
from forge_eq.rules import kept_hashes
from forge_eq.rules.fingerprint import Fingerprints


class Attr:
    """Annotation of a rule's parameter that stands for an attribute (an axis, a shape, a number)."""


@dataclass(frozen=True)
class Guard:
    """A named fact that a rule needs. ``fn`` gets the type of each tensor variable and the value of each
    attribute variable in ``args`` and answers True only when it knows. ``fn`` None asks the e-graph itself:
    ``is_constant`` and ``weights`` are facts of classes.

    ``soundness`` is False for guards that only keep the e-graph small: without them the rule still holds.
    """

    name: str
    args: tuple[str, ...]
    fn: Callable[..., bool] | None
    soundness: bool = True

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.args)})"


@dataclass(frozen=True)
class Rule:
    """A directed equation. ``pairs`` has one (left, right) tree, or several that hold at the same match."""

    family: str
    name: str
    pairs: tuple[tuple[Term, Term], ...]
    doc: str
    source: str
    exact: str  # "bit": bit for bit | "real": equal over the reals, same accumulator precision | "approx"
    guards: tuple[Guard, ...] = ()
    tolerance: float = 0.0  # of an approx rule, relative to the largest value
    finite: tuple[str, ...] = ()  # tensors of which the rule supposes that no element is NaN or infinite
    where: str = field(default="", compare=False)

    @property
    def id(self) -> str:
        return f"{self.family}/{self.name}"

    @property
    def tensors(self) -> list[str]:
        """Tensor variables, in order of first appearance on the left."""
        return _merge(variables(left)[0] for left, _ in self.pairs)

    @property
    def attrs(self) -> list[str]:
        """Attribute variables bound on the left."""
        return _merge(variables(left)[1] for left, _ in self.pairs)

    @property
    def constants(self) -> list[str]:
        """Tensor variables that must be constant."""
        return [name for g in self.guards if g.fn is None for name in g.args]

    @property
    def equation(self) -> str:
        """The rule from its code: ``mul(x, 1.0) -> x``."""
        arrow = "; ".join(f"{show(left)} -> {show(right)}" for left, right in self.pairs)
        needs = [*map(str, self.guards), *(f"{name} is finite" for name in self.finite)]
        return arrow + (f"  when {', '.join(needs)}" if needs else "")

    @cached_property
    def hash(self) -> str:
        """Changes whenever the meaning of the rule does: equation, guards, exactness, helpers, what the ops mean."""
        return self.hashed(Fingerprints())

    def hashed(self, texts: Fingerprints) -> str:
        """:attr:`hash`, with what is known of the functions of other rules."""
        helpers = [g.fn for g in self.guards]
        text = texts.of(self.id, self.equation, self.exact, self.tolerance, self.pairs, helpers)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _merge(groups: Iterable[list[str]]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group))


def computed(term: Any) -> Iterator[Computed]:
    """Every computed attribute of a term."""
    if isinstance(term, App):
        for part in (*term.args, *term.attrs):
            yield from computed(part)
    elif isinstance(term, Computed):
        yield term


def show(term: Any) -> str:
    """A term as it would be typed."""
    if isinstance(term, Var | AttrVar):
        return term.name
    if isinstance(term, Computed):
        return f"{getattr(term.fn, '__name__', 'f').strip('<>_')}({', '.join(term.args)})"
    if not isinstance(term, App):
        return repr(term)
    if term.op.leaf == "literal":
        return show(term.attrs[0])
    args = ", ".join(show(a) for a in term.args)
    attrs = ", ".join(f"{n}={show(v)}" for (n, _), v in zip(term.op.attrs, term.attrs, strict=True))
    return f"{term.op.name}({'; '.join(filter(None, (args, attrs)))})"


# ------------------------------------------------------------------------------------------- writing rules


@dataclass(frozen=True)
class Equation:
    """What a rule function returns."""

    pairs: tuple[tuple[Term, Term], ...]
    reversible: bool = False


def to(left: Any, right: Any) -> Equation:
    """left may become right."""
    return Equation(((left, right),))


def both(left: Any, right: Any) -> Equation:
    """left = right, usable in both directions: registers ``name`` and ``name.rev``."""
    return Equation(((left, right),), reversible=True)


def together(*pairs: tuple[Any, Any]) -> Equation:
    """Several equations that hold at one match of all their left sides."""
    return Equation(tuple(pairs))


def build(
    family: str,
    name: str,
    equation: Equation,
    *,
    doc: str,
    source: str,
    exact: str,
    when: Iterable[Guard] = (),
    tolerance: float = 0.0,
    finite: Iterable[str] = (),
    where: str = "",
) -> list[Rule]:
    """The directed rules of an equation, checked for the mistakes that an author can make.

    Raises:
        RuleError: an unknown exactness class, a missing docstring, an unbound variable, or a bare variable
            as a left side.
    """
    if exact not in ("bit", "real", "approx"):
        raise RuleError("rules", name, f"exactness {exact!r} is unknown", "use bit, real or approx")
    if not doc:
        raise RuleError("rules", name, "has no docstring", "say in one sentence why the rule is wanted")
    first = Rule(family, name, equation.pairs, doc, source, exact, tuple(when), tolerance, tuple(finite), where)
    made = [first]
    if equation.reversible:
        flipped = tuple((right, left) for left, right in equation.pairs)
        made.append(replace(first, name=f"{name}.rev", pairs=flipped))
    for one in made:
        bound = {*one.tensors, *one.attrs}
        for left, right in one.pairs:
            if not isinstance(left, App):
                raise RuleError("rules", one.id, "the left side is a bare variable", "start from an operation")
            free = {n for group in variables(right) for n in group} | {n for c in computed(right) for n in c.args}
            missing = (free | {a for g in one.guards for a in g.args}) - bound
            if missing:
                raise RuleError("rules", one.id, f"{sorted(missing)} not bound on the left", "bind every variable")
    return made


class RuleSet:
    """An immutable, ordered set of rules: ``rules.default + mine``, ``- rules.family("layout")``."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: tuple[Rule, ...] = tuple({r.id: r for r in rules}.values())

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __add__(self, other: Iterable[Rule]) -> RuleSet:
        return RuleSet((*self.rules, *_rules_of(other)))

    def __sub__(self, other: Iterable[Rule]) -> RuleSet:
        gone = {r.id for r in _rules_of(other)}
        return RuleSet(r for r in self.rules if r.id not in gone)

    def family(self, *names: str) -> RuleSet:
        """The rules of these families."""
        return RuleSet(r for r in self.rules if r.family in names)

    def select(self, pattern: str) -> RuleSet:
        """The rules whose id is ``pattern``, begins with ``pattern/``, or is ``pattern.rev``."""
        return RuleSet(r for r in self.rules if r.id in (pattern, f"{pattern}.rev") or r.family == pattern)

    @property
    def hash(self) -> str:
        """Identifies the set's content, whatever the order."""
        _hash_together([r for r in self.rules if "hash" not in r.__dict__])
        return hashlib.sha256(" ".join(sorted(r.hash for r in self.rules)).encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"<{len(self)} rules {self.hash}>"


def _hash_together(rules: Iterable[Rule]) -> None:
    """Fills in ``Rule.hash``: this package's rules from what is kept of its source, the others by looking at them."""
    waiting, texts = list(rules), Fingerprints()
    ours = [r for r in waiting if REGISTRY.get(r.id) is r]
    known = kept_hashes.read() if ours else {}
    stored = all(r.id in known for r in ours)
    for one in waiting:
        ready = known[one.id] if stored and REGISTRY.get(one.id) is one else None
        one.__dict__["hash"] = ready or one.hashed(texts)  # where ``cached_property`` keeps it
    if not stored and len(ours) == len(REGISTRY):
        kept_hashes.write({r.id: r.hash for r in ours})


def _rules_of(value: Any) -> Iterable[Rule]:
    """A rule, what ``rule`` gave, or any collection of these."""
    if isinstance(value, Rule):
        return (value,)
    return [one for part in value for one in _rules_of(part)]


REGISTRY: dict[str, Rule] = {}


def register(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Enters rules in the registry. Raises RuleError when an id is taken."""
    made = tuple(rules)
    for one in made:
        if one.id in REGISTRY:
            raise RuleError("rules", one.id, f"is already defined at {REGISTRY[one.id].where}", "rename one of them")
        REGISTRY[one.id] = one
    return made


def rule(
    family: str,
    *,
    exact: str,
    source: str,
    when: Iterable[Guard] = (),
    tolerance: float = 0.0,
    finite: Iterable[str] = (),
) -> Callable[[Callable[..., Equation]], RuleSet]:
    """Makes a function of pattern variables a rule. The function's name is the rule's name.

    The rules of this package join the registry, and with it the default set. Anybody else's are used by adding
    them to a set, so that running a definition twice is no error.

    Args:
        family: the group the rule is selected and reported by.
        exact: ``"bit"``, ``"real"`` or ``"approx"``; tolerances follow from it.
        source: what the equation rests on: a definition, an axiom, a paper.
        when: guards, see ``rules.guards``.
        finite: tensors of which the rule supposes that no element is NaN or infinite: what a program keeps from
            call to call. No type says so; the equation of the rule does.

    Example:
        >>> @rule("mine", exact="real", source="matmul is linear in its first argument")
        ... def matmul_over_add(a, b, c):
        ...     \"\"\"Exposes a shared right operand.\"\"\"
        ...     return both(matmul(add(a, b), c), add(matmul(a, c), matmul(b, c)))
    """

    def make(fn: Callable[..., Equation]) -> RuleSet:
        params = inspect.signature(fn).parameters.values()
        args = [AttrVar(p.name) if p.annotation in (Attr, "Attr") else Var(p.name) for p in params]
        code = fn.__code__
        rules = build(
            family,
            fn.__name__,
            fn(*args),
            doc=inspect.getdoc(fn) or "",
            source=source,
            exact=exact,
            when=when,
            tolerance=tolerance,
            finite=finite,
            where=f"{code.co_filename}:{code.co_firstlineno}",
        )
        ours = (fn.__module__ or "").startswith("forge_eq.rules.") and ".rejected" not in fn.__module__
        return RuleSet(register(rules) if ours else rules)

    return make
