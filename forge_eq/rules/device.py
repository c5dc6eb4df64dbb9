"""Device constants: a program's constants live on the one device that reads them, so moves of them are nothing.

Which device that is, the scheduler decides; an equation may only say that the value is the same.
"""

from __future__ import annotations

from forge_eq.ops.movement import device_move
from forge_eq.ops.spec import Var
from forge_eq.rules.dsl import Equation, rule, to


@rule("device", exact="bit", source="a move between memories changes no value")
def device_move_is_identity(x: Var) -> Equation:
    """Exports lift constants and move buffers to the device they are on already."""
    return to(device_move(x), x)
