"""An op against its own declaration: shape rule, reference and torch on random instances.

Takes an op. Gives a :class:`Checked`. Instances are found as for rules, so no op is told about. Promises: seeded.
Not here: device kernels, which are compared when a program is compiled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forge_eq.errors import InputError
from forge_eq.ir.types import FLOATS, TensorType, TupleType, Type
from forge_eq.ops.spec import App, AttrVar, Op, Var
from forge_eq.rules.dsl import Rule
from forge_eq.verify.interpret import Binding, Reference, Torch, Undefined, Untyped, Walk, infer
from forge_eq.verify.numeric import close, values_of
from forge_eq.verify.samples import attempt

TOLERANCE = 1e-9  # float64 on both sides, relative to the largest value


@dataclass
class Checked:
    """``instances`` types at which ``shapes`` results had the stated shape and ``agreed`` had torch's values."""

    instances: int = 0
    shapes: int = 0
    agreed: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.instances} instances, {self.shapes} of the stated shape, {self.agreed} agree with torch"


def check(op: Op, wanted: int = 60, attempts: int = 3000, seed: int = 0) -> Checked:
    """Checks up to ``wanted`` distinct instances. Raises InputError for what has no value: a leaf, an opaque call."""
    if op.leaf or (op.ref is None and op.define is None):
        raise InputError(
            "ops", op.name, "has no value of its own to check", "check an operation that computes something"
        )
    left = App(op, tuple(map(Var, op.inputs)), tuple(AttrVar(n) for n, _ in op.attrs))
    pattern = Rule("ops", op.name, ((left, left),), op.doc, "declaration", "real")
    rng, seen, found = random.Random(f"{op.name} {seed}"), set(), Checked()
    for _ in range(attempts):
        binding = attempt(pattern, rng)
        if binding is None or str(binding) in seen:
            continue
        seen.add(str(binding))
        _instance(left, binding, np.random.default_rng(len(seen)), found)
        if found.instances >= wanted:
            break
    if not found.instances:
        found.faults.append(f"no instance in {attempts} attempts")
    return found


def _instance(term: App, binding: Binding, rng: np.random.Generator, found: Checked) -> None:
    wide = Binding({n: _wide(t) for n, t in binding.types.items()}, binding.attrs, binding.scalars)
    try:
        due, values = infer(term, wide), values_of(wide, rng, "ordinary")
        with np.errstate(all="ignore"):
            made = Walk(Reference(), wide, values)(term)[1]
    except (Undefined, Untyped):
        return
    found.instances += 1
    shaped = [_fits(v, t) for v, t in _parts(made, due)]
    if not all(shaped):
        found.faults.append(
            f"{binding}: the reference gives {[np.shape(v) for v, _ in _parts(made, due)]}, {due} is due"
        )
        return
    found.shapes += 1
    import torch

    try:
        other = Walk(Torch(), wide, {n: torch.from_numpy(np.array(v)) for n, v in values.items()})(term)[1]
    except Undefined:
        return  # torch has no such kernel: the op is run through its definition
    if all(
        close(a, np.asarray(b), TOLERANCE) for (a, _), (b, _) in zip(_parts(made, due), _parts(other, due), strict=True)
    ):
        found.agreed += 1
    else:
        found.faults.append(f"{binding}: the reference gives {made!r}, torch {other!r}")


def _wide(type: Type) -> Type:
    """Floats as float64, in which both sides are compared."""
    return TensorType("f64", type.shape) if isinstance(type, TensorType) and type.dtype in FLOATS else type


def _parts(value: Any, type: Type) -> list[tuple[Any, Type]]:
    return list(zip(value, type.items, strict=True)) if isinstance(type, TupleType) else [(value, type)]


def _fits(value: Any, type: Type) -> bool:
    return not isinstance(type, TensorType) or np.shape(value) == type.shape
