"""Rules generated from the traits of ops. They get names and are verified like any other."""

from __future__ import annotations

from forge_eq.ops.spec import REGISTRY, Op, Var
from forge_eq.rules.dsl import Equation, build, register, to


def _add(op: Op, suffix: str, doc: str, source: str, equation: Equation) -> None:
    exact = "bit" if op.traits.exact else "real"
    register(build("traits", f"{op.name}_{suffix}", equation, doc=doc, source=source, exact=exact, where=__file__))


def generate() -> None:
    """Enters the trait rules of every declared op."""
    x, a, b = Var("x"), Var("a"), Var("b")
    for op in REGISTRY.values():
        if op.traits.commutative:
            _add(op, "commutes", "Patterns need one operand order.", "commutative", to(op(a, b), op(b, a)))
        if op.attrs:
            continue
        if op.traits.involution:
            _add(op, "involution", "Applied twice it is nothing.", "an involution", to(op(op(x)), x))
        if op.traits.idempotent:
            _add(op, "idempotent", "Applied twice it is applied once.", "idempotent", to(op(op(x)), op(x)))


generate()
