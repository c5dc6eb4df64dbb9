"""Nodes for the CPU plugin, as few as will do: each costs a compilation about 0.2 ms.

Takes and gives what :class:`forge_eq.run.openvino_builder.NodeBuilder` does. Promises: the same values; a constant that
is wanted in another shape is one of that shape, over the same memory, be it a parameter or not, and no node reshapes
it; axes, shapes and
permutations of one value are one node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from forge_eq.run.openvino_builder import NodeBuilder


class CpuBuilder(NodeBuilder):
    """Builds nodes for a model that runs on ``threads`` threads of the CPU plugin; 0: one for each core."""

    def __init__(self, threads: int = 0) -> None:
        super().__init__(threads or torch.get_num_threads())
        self._integers: dict[Any, Any] = {}
        self._values: dict[str, torch.Tensor] = {}  # name of a constant's node -> its value

    def i64(self, values: int | Sequence[int]) -> Any:
        key = values if isinstance(values, int) else tuple(values)
        if key not in self._integers:
            self._integers[key] = super().i64(values)
        return self._integers[key]

    def constant(self, value: torch.Tensor) -> Any:
        made = super().constant(value)
        if made.get_type_name() == "Constant":  # and no transposition of one
            name = made.get_name()
            self._values[name] = self.kept[name] if name in self.kept else value.detach().contiguous()
        return made

    def reshaped(self, x: Any, shape: Sequence[int]) -> Any:
        if self.shape(x) == list(shape) or not hasattr(x, "get_name"):
            return super().reshaped(x, shape)
        name = x.get_name()
        if name in self.weights:
            return self.weight(replace(self.weights[name][0], shape=tuple(shape)), self.type(x))
        value = self._values.get(name)
        if value is None:
            return super().reshaped(x, shape)
        made = self.constant(value.reshape(*shape))
        self.kept.pop(made.get_name(), None)  # the first constant's memory, which is kept under its name
        return made
