"""Rules generated from the traits of ops. They get names and are verified like any other."""

from __future__ import annotations

from forge_eq.ops.spec import REGISTRY, Op, Var
from forge_eq.rules.dsl import Equation, Guard, build, register, to
from forge_eq.rules.guards import is_tensor


def _add(op: Op, suffix: str, doc: str, source: str, equation: Equation, when: tuple[Guard, ...] = ()) -> None:
    name, exact = f"{op.name}_{suffix}", "bit" if op.traits.exact else "real"
    register(build("traits", name, equation, doc=doc, source=source, exact=exact, when=when, where=__file__))


# Numbers stand on the right, as captures write them: moving them to the left would only grow the e-graph.
NO_NUMBER_LEFT = is_tensor("b", soundness=False)


def generate() -> None:
    """Enters the trait rules of every declared op."""
    x, a, b = Var("x"), Var("a"), Var("b")
    for op in REGISTRY.values():
        if op.traits.commutative:
            _add(
                op,
                "commutes",
                "Patterns need one operand order.",
                "commutative",
                to(op(a, b), op(b, a)),
                (NO_NUMBER_LEFT,),
            )
        if op.attrs:
            continue
        if op.traits.involution:
            _add(op, "involution", "Applied twice it is nothing.", "an involution", to(op(op(x)), x))
        if op.traits.idempotent:
            _add(op, "idempotent", "Applied twice it is applied once.", "idempotent", to(op(op(x)), op(x)))


generate()
