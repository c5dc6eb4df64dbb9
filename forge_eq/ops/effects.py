"""Calls outside the vocabulary. They keep their exact ATen target and are executed by torch.

``args`` is the call's argument structure as text (see ``capture.template``); its holes are the operands.
A pure call may be merged with an equal one and folded; an effectful one carries a token that makes it
unique and gives its place in the order of effects.
"""

from __future__ import annotations

from forge_eq.ops.shapes import given
from forge_eq.ops.spec import Cost, Traits, op

opaque = op(
    "opaque(*xs; target: str, args: str) -> y",
    "A pure call of target that torch executes.",
    shape=given,
    traits=Traits(exact=False),
    cost=Cost(cost_class="opaque"),
)
opaque_effect = op(
    "opaque_effect(*xs; target: str, args: str, token: int) -> y",
    "A call with an effect (random numbers, an assertion, a write): never merged, never dropped, kept in order.",
    shape=given,
    effectful=True,
    traits=Traits(exact=False),
    cost=Cost(cost_class="opaque"),
)
