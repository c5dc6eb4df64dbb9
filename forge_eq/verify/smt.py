"""Proof on small shapes: both sides as z3 terms, their difference unsatisfiable.

Takes a rule and its instances. Gives how many instances were proved, or why one was not. Effort is counted in
z3's own resource units, so the answer is the same on every machine. A number of the rule (a scale, an epsilon)
is an unknown first, so that one proof covers every value; where the guard fixes its value, it is that value.

Promises: "unknown" is a failure, unless :data:`TESTED_ONLY` lists the rule. Not here: rounding, NaN, signed
zeros (``numeric``): the proof is over the reals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_eq.ir.types import WEAK, TensorType, Type
from forge_eq.rules.dsl import Rule
from forge_eq.verify.interpret import Binding, Reference, Undefined, Untyped, Walk
from forge_eq.verify.numeric import Counterexample
from forge_eq.verify.symbolic import Elem, Namespace, SymArray, symbols, term

EFFORT = 1_000_000  # z3 resource units for one instance, some seconds; the default rules need an eighth at most
LAST_STOP = 120_000  # milliseconds; only for a step of z3 that counts no units
ELEMENTS = 40  # of all tensors of an instance together

TESTED_ONLY: dict[str, str] = {  # rule id -> why z3 has no theory for it
    "arithmetic/rounded_number": "two floats stand for one irrational number, which z3 does not know",
    "arithmetic/gelu_by_sigmoid": "tanh and exp are uninterpreted: z3 does not know what joins them",
    "statistics/rms_norm_of_scaled": "the root is uninterpreted: z3 does not know that it is multiplicative",
    "statistics/layer_norm_of_scaled": "the root is uninterpreted: z3 does not know that it is multiplicative",
    "arithmetic/silu_by_tanh": "tanh and exp are uninterpreted: z3 does not know what joins them",
    "pooling/max_of_relu": "the maxima of windows that overlap branch more often than z3 decides",
    "pooling/max_of_tanh": "tanh is uninterpreted: z3 does not know that it increases",
    "pooling/max_of_sigmoid": "exp is uninterpreted: z3 does not know that it increases",
    "slices/lookup_rows": "an unknown index looks nothing up",
    "attention/biased_before_write": "which row a number names is not decided by terms",
    "attention/masked_before_write": "which row a number names is not decided by terms",
    "attention/scale_under_mask": "an infinity is an unknown number, which a factor changes",
}


@dataclass
class Proof:
    """``proved`` instances; ``unknown``: why z3 did not decide; ``failed``: it found the sides to differ."""

    proved: int = 0
    unknown: str = ""
    failed: Counterexample | None = None


def _elements(binding: Binding) -> int:
    """Of all tensors together; 0 when one is empty, which proves nothing."""
    counts = [t.elements or 0 for t in binding.types.values() if isinstance(t, TensorType) and t.dtype != WEAK]
    return sum(counts) if all(counts) else 0


def choose(bindings: list[Binding], count: int) -> list[Binding]:
    """The largest small ones; the smallest of all when none is small."""
    sized = [(n, i) for i, b in enumerate(bindings) if (n := _elements(b))]
    small = sorted((n, i) for n, i in sized if n <= ELEMENTS)
    picked = small[-count:] if small else sorted(sized)[:1]
    return [bindings[i] for _, i in picked]


def prove(rule: Rule, bindings: list[Binding], *, instances: int = 4) -> Proof:
    """Proves the rule on a few of its instances."""
    found = Proof()
    for binding in choose(bindings, instances):
        reason, failed = "", None
        for numbers in _numbers(rule, binding):
            reason, failed = _instance(rule, binding, numbers)
            if (not reason and failed is None) or (failed is not None and not _pinned(rule, binding)):
                break
        if failed is not None:
            found.failed = failed
            return found
        if reason:
            found.unknown = f"{reason} ({binding})"
            return found
        found.proved += 1
    if not found.proved:
        found.unknown = "no instance is small enough"
    return found


def _pinned(rule: Rule, binding: Binding) -> set[str]:
    """Float attributes that a guard speaks of: the equation may hold for the values it lets through only."""
    named = {n for g in rule.guards if g.fn is not None for n in g.args}
    return {n for n, v in binding.attrs.items() if isinstance(v, float) and n in named}


def _numbers(rule: Rule, binding: Binding) -> Iterator[dict[str, Elem]]:
    """Float attributes as unknowns; then those that a guard speaks of as they are; then all as they are.

    The last is for helpers that compute with Python floats only. When z3 finds values for which the sides differ,
    only the attributes that a guard speaks of are tried again.
    """
    import z3

    free = {n: Elem(z3.Real(n)) for n, v in binding.attrs.items() if isinstance(v, float)}
    pinned = _pinned(rule, binding)
    yield free
    if pinned:
        yield {n: v for n, v in free.items() if n not in pinned}
    elif free:
        yield {}


def _symbol(name: str, type_: Type) -> SymArray:
    assert isinstance(type_, TensorType)
    return symbols(name, type_.dtype, tuple(int(str(d)) for d in type_.shape))


def _instance(rule: Rule, binding: Binding, numbers: Mapping[str, Elem]) -> tuple[str, Counterexample | None]:
    """("", None) when proved; a reason when not decided; a counterexample when the sides differ."""
    import z3

    values = {n: _symbol(n, t) for n, t in binding.types.items() if getattr(t, "dtype", WEAK) != WEAK}
    walk = Walk(Reference(Namespace()), binding, values, numbers)
    try:
        sides = [(walk(left)[1], walk(right)[1]) for left, right in rule.pairs]
        differ = [d for left, right in sides for d in _differences(left, right)]
    except (Undefined, Untyped, AttributeError, TypeError, z3.Z3Exception) as e:
        return f"no symbolic meaning: {e}", None
    if not differ:
        return "", None
    own = z3.Context()  # in one that other instances have used, the way to the answer and its effort depend on these
    solver = z3.Solver(ctx=own)
    solver.set("rlimit", EFFORT)
    solver.set("timeout", LAST_STOP)
    solver.add(z3.Or(differ).translate(own))
    answer = solver.check()
    if answer == z3.unsat:
        return "", None
    if answer == z3.unknown:
        return f"z3 did not decide: {solver.reason_unknown()}", None
    model = solver.model()
    shown = {n: _shown(v, model) for n, v in [*values.items(), *numbers.items()]}
    return "", Counterexample(rule.id, "smt", "the sides differ over the reals", binding, shown)


def _differences(left: Any, right: Any) -> list[Any]:
    """One disequation for each place where the terms are not the same term."""
    a, b = np.asarray(left, dtype=object), np.asarray(right, dtype=object)
    pairs = [(term(x), term(y)) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    return [x != y for x, y in pairs if not x.eq(y)]


def _shown(value: Any, model: Any) -> Any:
    array: Any = np.asarray(value, dtype=object)
    made = np.empty(array.shape, dtype=object)
    for at in np.ndindex(*array.shape):
        made[at] = str(model.eval(term(array[at]).translate(model.ctx), model_completion=True))
    return made
