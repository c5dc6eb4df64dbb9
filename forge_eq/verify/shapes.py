"""The type obligation: whenever the guards hold and the left side has a type, the right side has the same.

Takes a rule and its instances. Gives counts, or a counterexample. The e-graph also refuses to apply a rule whose
sides differ in type, so a refusal is counted, not condemned; what it cannot see is (a number that changes the
dtype beside it). A rule that never fires proves nothing and fails. What holds under a symbolic size must hold for
every size. Not here: values.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forge_eq.errors import ShapeError
from forge_eq.ir.types import Sym, TensorType, TupleType, Type
from forge_eq.rules.dsl import Rule
from forge_eq.verify.interpret import Binding, Misplaced, Untyped, fires, holds, infer
from forge_eq.verify.numeric import Counterexample
from forge_eq.verify.samples import Samples, attempt

SIZES: tuple[Mapping[str, int], ...] = ({"s0": 2, "s1": 3}, {"s0": 1, "s1": 4}, {"s0": 0, "s1": 1}, {"s0": 3, "s1": 3})


@dataclass
class Obligation:
    """``fired`` instances have equal types; ``refused`` ones the e-graph's type check keeps out.

    ``symbolic`` instances fired under symbolic sizes; ``concrete`` holds what becomes of them at actual sizes.
    """

    fired: int = 0
    refused: int = 0
    symbolic: int = 0
    concrete: list[Binding] = field(default_factory=list)
    failed: Counterexample | None = None


def oblige(rule: Rule, samples: Samples, *, attempts: int = 200, seed: int = 0) -> Obligation:
    """Checks the obligation on the samples, and on ``attempts`` more with symbolic sizes."""
    found = Obligation(len(samples.fired), len(samples.refused))
    if samples.misplaced:
        binding, reason = samples.misplaced[0]
        found.failed = Counterexample(rule.id, "shape", reason, binding)
    elif not samples.fired:
        found.failed = _silent(rule, samples)
    else:
        _symbolic(rule, found, attempts, seed)
    return found


def _silent(rule: Rule, samples: Samples) -> Counterexample:
    if samples.refused:
        binding, reason = samples.refused[0]
        return Counterexample(rule.id, "shape", f"the sides never have the same type: {reason}", binding)
    return Counterexample(rule.id, "shape", f"no instance of the left side in {samples.attempts} attempts")


def _symbolic(rule: Rule, found: Obligation, attempts: int, seed: int) -> None:
    rng = random.Random(f"{rule.id} symbolic {seed}")
    for _ in range(attempts):
        binding = attempt(rule, rng, symbolic=True)
        if binding is None or not all(holds(g, binding) for g in rule.guards):
            continue
        try:
            if fires(rule, binding):
                continue
        except (Misplaced, ShapeError) as e:
            found.failed = Counterexample(rule.id, "shape", str(e), binding)
            return
        found.symbolic += 1
        for concrete in _instances(binding):
            if (reason := _breaks(rule, concrete)) is None:
                continue
            if reason:
                found.failed = Counterexample(
                    rule.id, "shape", f"holds for a symbolic size but not for an actual one: {reason}", concrete
                )
                return
            found.concrete.append(concrete)


def _breaks(rule: Rule, binding: Binding) -> str | None:
    """Why the rule does not hold here; empty when it does; None when the left side has no type at these sizes."""
    try:
        for left, _ in rule.pairs:
            infer(left, binding)
    except Untyped:
        return None
    failing = [g for g in rule.guards if not holds(g, binding)]
    return f"{failing[0]} says no" if failing else fires(rule, binding)


def _instances(binding: Binding) -> Iterator[Binding]:
    for sizes in SIZES:
        types = {n: _at(t, sizes) for n, t in binding.types.items()}
        yield Binding(types, {n: _value(v, sizes) for n, v in binding.attrs.items()}, binding.scalars)


def _at(type_: Type, sizes: Mapping[str, int]) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(_at(t, sizes) for t in type_.items))
    assert isinstance(type_, TensorType)
    return TensorType(type_.dtype, _value(type_.shape, sizes))


def _value(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(v, sizes) for v in value)
    return sizes[value.name] if isinstance(value, Sym) else value
