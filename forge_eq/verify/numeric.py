"""Refutation: both sides on numbers.

Takes a rule and its instances. Gives a :class:`Counterexample`, or how many trials were passed. A ``bit`` rule
must agree bit for bit, signs of zero and places of NaN included, in NumPy float64 and in torch in the types
of the instance. A ``real`` rule must agree within a tolerance that the class fixes, in float64, and must be
finite in the same places: masks are made of infinities. Not here: proof (``smt``).
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forge_eq.ir.types import FLOATS, WEAK, TensorType, Type
from forge_eq.ops.elementwise import cast
from forge_eq.rules.dsl import Rule
from forge_eq.verify.interpret import Backend, Binding, Reference, Torch, Undefined, Walk

REAL_TOLERANCE = 1e-9  # of `real` rules in float64, relative to the largest value
INF, NAN = float("inf"), float("nan")
EXTREME = (0.0, -0.0, 0.0, -0.0, INF, -INF, NAN, 1e-40, 3e38, 1.0, -1.0)
# A number of 1e38 absorbs one beside it, in whichever order they are added: that is rounding, and says nothing of a
# rule about reals. Where float32 would overflow is a matter of bits.
SPECIAL = tuple(v for v in EXTREME if v not in (1e-40, 3e38))
ODD = {"special": SPECIAL, "extreme": EXTREME}
Values = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Counterexample:
    """An instance on which the two sides differ."""

    rule: str
    method: str  # shape | numeric | torch | smt
    reason: str
    binding: Binding | None = None
    values: Mapping[str, Any] | None = None
    sides: tuple[Any, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.rule} ({self.method}): {self.reason}"]
        if self.binding is not None:
            lines.append(f"  where {self.binding}")
        shown = [*(self.values or {}).items(), *zip(("left", "right"), self.sides, strict=False)]
        for name, value in shown:
            text = np.array2string(np.asarray(value), precision=9, threshold=40, separator=", ")
            lines.append(f"  {name} = {text}".replace("\n", "\n  " + " " * (len(name) + 3)))
        return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ values


def draw(type_: Type, rng: np.random.Generator, regime: str) -> np.ndarray[Any, Any]:
    """Values of a type. ``ordinary``; ``masked``: some minus infinities; ``special``: signed zeros, infinities, NaN;
    ``extreme``: also what float32 can only just hold."""
    assert isinstance(type_, TensorType)
    shape: Any = type_.shape
    if type_.dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if type_.dtype not in FLOATS:
        return np.asarray(rng.integers(-3, 4, shape))
    made = np.asarray(rng.standard_normal(shape))
    made = np.where(rng.random(shape) < 0.1, 0.0, made)
    if type_.dtype != "f64":
        made = made.astype(np.float32).astype(np.float64)
    if regime == "masked":
        made = np.where(rng.random(shape) < 0.35, -np.inf, made)
    if regime in ODD:
        made = np.where(rng.random(shape) < 0.5, rng.choice(ODD[regime], shape), made)
    return np.asarray(made)


def values_of(binding: Binding, rng: np.random.Generator, regime: str, finite: Collection[str] = ()) -> Values:
    """Values for the tensors; ordinary ones for those that the rule supposes to be ``finite``."""
    return {
        n: draw(t, rng, "ordinary" if n in finite else regime)
        for n, t in binding.types.items()
        if getattr(t, "dtype", WEAK) != WEAK
    }


# ------------------------------------------------------------------------------------------------ agreement


def same_bits(a: Any, b: Any) -> bool:
    """Equal types and values; 0.0 and -0.0 differ; NaN equals NaN whatever its payload."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return False
    if a.dtype.kind != "f":
        return True
    return bool(np.array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)])))


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Finite in the same places, and there within ``tolerance`` times the largest value (at least 1).

    Which of NaN and the infinities stands in the other places is free: (0 + 1) inf is inf, 0 inf + 1 inf is NaN,
    and the product distributes over the sum nevertheless. A finite value in place of NaN hides an error.
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype.kind != b.dtype.kind:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)):
        return False
    x, y = a[finite], b[finite]
    return not x.size or float(np.max(np.abs(x - y))) <= tolerance * max(1.0, float(np.max(np.abs(x))))


def agreement(rule: Rule) -> Callable[[Any, Any], bool]:
    """What the exactness class demands; tolerances come from nowhere else."""
    if rule.exact == "bit":
        return same_bits
    tolerance = REAL_TOLERANCE if rule.exact == "real" else rule.tolerance
    return lambda a, b: close(a, b, tolerance)


# ------------------------------------------------------------------------------------------------ trials


def _sides(rule: Rule, backend: Backend, binding: Binding, values: Mapping[str, Any]) -> list[tuple[Any, Any]] | None:
    """(left, right) values of each pair; None when the left is not defined. Raises Undefined for the right."""
    walk = Walk(backend, binding, values)
    try:
        lefts = [walk(left)[1] for left, _ in rule.pairs]
    except Undefined:
        return None
    return [(left, walk(right)[1]) for left, (_, right) in zip(lefts, rule.pairs, strict=True)]


def compare(rule: Rule, binding: Binding, values: Values, method: str) -> Counterexample | bool:
    """A counterexample, True when the sides agree, False when the left side has no value here."""
    agree = agreement(rule)
    given: Mapping[str, Any] = values
    backend: Backend = Reference()
    if method == "torch":
        backend, given = Torch(), {n: _tensor(v, binding.types[n], rule.exact) for n, v in values.items()}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sides = _sides(rule, backend, binding, given)
        except Undefined as e:
            if "not implemented for" in str(e):  # torch has no kernel of this dtype, so that no program computes it
                return False
            return Counterexample(rule.id, method, f"the right side has no value: {e}", binding, values)
        for left, right in sides or ():
            if not agree(left, right):
                return Counterexample(rule.id, method, _reason(rule), binding, values, (left, right))
    return sides is not None


def _reason(rule: Rule) -> str:
    return "the sides differ" + (" in their bits" if rule.exact == "bit" else "")


def _tensor(value: Any, type_: Type, exact: str) -> torch.Tensor:
    """Types of the instance for a rule about bits, float64 otherwise."""
    assert isinstance(type_, TensorType)
    assert cast.torch is not None
    dtype = "f64" if exact != "bit" and type_.dtype in FLOATS else type_.dtype
    made: torch.Tensor = cast.torch(torch.from_numpy(np.array(value)), dtype)
    return made


def odd_values(rule: Rule) -> str:
    """The regime of odd numbers for a rule's class."""
    return "extreme" if rule.exact == "bit" else "special"


@dataclass
class Trials:
    """Passed trials by method, and the first counterexample."""

    passed: dict[str, int]
    failed: Counterexample | None = None


def refute(rule: Rule, bindings: list[Binding], *, trials: int = 50, seed: int = 0) -> Trials:
    """``trials`` trials on each backend and regime, at least one for each binding; stops at a difference."""
    rng = np.random.default_rng(random.Random(f"{rule.id} {seed}").getrandbits(64))
    found = Trials({"numeric": 0, "torch": 0})
    odd = odd_values(rule)
    plan = [("numeric", "ordinary"), ("numeric", "masked"), ("numeric", odd), ("torch", "ordinary")]
    if rule.exact == "bit":
        plan += [("numeric", odd), ("torch", odd)]
    if not bindings:
        return found
    for k in range(max(trials, len(bindings))):
        binding = bindings[k % len(bindings)]
        for method, regime in plan:
            outcome = compare(rule, binding, values_of(binding, rng, regime, rule.finite), method)
            if isinstance(outcome, Counterexample):
                found.failed = outcome
                return found
            found.passed[method] += outcome
    return found
