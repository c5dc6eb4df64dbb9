"""Recognition rules of composite ops, derived from their definitions (``recognise=True``)."""

from __future__ import annotations

from forge_eq.ops.spec import REGISTRY, AttrVar, Op, Var
from forge_eq.rules.dsl import build, register, to


def recognition(op: Op) -> None:
    """Enters the rule: what the op is defined as may become the op."""
    assert op.define is not None
    params = [*(Var(n) for n in op.inputs), *(AttrVar(n) for n, _ in op.attrs)]
    register(
        build(
            "composites",
            op.name,
            to(op.define(*params), op(*params)),
            doc=f"Recognises: {op.doc}",
            source=f"definition of {op.name}",
            exact="real",
            where=__file__,
        )
    )


for _op in tuple(REGISTRY.values()):
    if _op.recognise:
        recognition(_op)
