"""What the recorder knows of an operator before it sees a call.

Takes an operator. Gives :class:`Facts`. Promises: an operator that may do more than compute a new tensor from its
operands, or whose result torch cannot describe without data, is refused with the reason. Not here: arguments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload

from forge_eq.capture import targets


class Facts:
    """Facts of an op that do not depend on its arguments; ``refusal`` says why it cannot be recorded."""

    __slots__ = ("factory", "refusal", "rewrapped", "takes_device")

    def __init__(self, func: Any) -> None:
        self.refusal, self.takes_device, self.factory, self.rewrapped = _refusal(func), False, False, False
        if self.refusal:
            return
        schema = func._schema
        self.takes_device = any(a.name == "device" for a in schema.arguments)
        self.factory = not any("Tensor" in str(a.type) for a in schema.arguments)
        self.rewrapped = self.factory or func._opname.endswith("_like") or func._opname.startswith("new_")


@lru_cache(maxsize=4096)
def facts_of(func: Any) -> Facts:
    return Facts(func)


def _sized(func: Any) -> set[torch.Tag]:
    """Indexing has a size of its own but for masks, and those the recorder looks for."""
    return {torch.Tag.dynamic_output_shape} if func is torch.ops.aten.index.Tensor else set()


def _refusal(func: Any) -> str:
    if not isinstance(func, OpOverload):
        return "is not a plain operator"
    schema = func._schema
    if schema.is_mutable:
        return "writes into a tensor"
    if not schema.returns or any(str(r.type) not in ("Tensor", "List[Tensor]") for r in schema.returns):
        return "gives Python a number that depends on tensors"
    if {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags) - _sized(func):
        return "its result or the size of it depends on values"
    if targets.depends_on_storage(str(func)):
        return "depends on how a value is stored"
    return ""


def is_mask(index: Any) -> bool:
    """Whether an index picks by truth, so that the size of the result depends on values."""
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
