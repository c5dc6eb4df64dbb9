"""Nodes for the NPU: the plain operations of OpenVINO, in the forms that Intel's NPU compiler recognises.

Takes and gives what :class:`forge_eq.run.openvino_builder.NodeBuilder` does. Promises: the same values on finite
numbers. The NPU computes in f16 and has no NaN semantics to keep, so what the CPU builder adds for NaN, infinities and
miscompiles of the CPU plugin is left out: each such repair would be one more kernel on the SHAVEs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from forge_eq.run.openvino_builder import NodeBuilder

MASKED = -65504.0  # the lowest finite f16: the compiler's masks are additive, and its own -inf is this number


class NpuBuilder(NodeBuilder):
    """Builds nodes for the NPU; what is not overridden here is the opset's own."""

    def __init__(self) -> None:
        super().__init__()
        self._matrices: dict[str, Any] = {}

    def _plain(self, name: str, *operands: Any) -> Any:
        return self._named(getattr(self.opset, name)(*self._alike(operands)))

    # ------------------------------------------------------------------------------------------ elementwise

    def greater(self, a: Any, b: Any) -> Any:
        return self._plain("greater", a, b)

    def greater_equal(self, a: Any, b: Any) -> Any:
        return self._plain("greater_equal", a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._plain("maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._plain("minimum", a, b)

    def divide(self, a: Any, b: Any) -> Any:
        return self._plain("divide", a, b)

    def relu(self, x: Any) -> Any:
        return self._named(self.opset.relu(x))

    def exp(self, x: Any) -> Any:
        return self._named(self.opset.exp(x))

    def clip(self, x: Any, low: float | None, high: float | None) -> Any:
        bottom, top = -math.inf if low is None else low, math.inf if high is None else high
        return self._named(self.opset.clamp(x, min(bottom, top), top))

    # ------------------------------------------------------------------------------------------ reductions, norms

    def reduce_max(self, x: Any, axes: Any, keepdim: bool) -> Any:
        return self._named(self.opset.reduce_max(x, axes, keepdim))

    def softmax(self, x: Any, axis: int) -> Any:
        return self.plain_softmax(x, axis)

    # ------------------------------------------------------------------------------------------ matrices, heads

    def matmul(self, a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
        return self._named(self.opset.matmul(a, b, transpose_a, transpose_b))

    def attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        scale: float,
        bias: Any = None,
        mask: Any = None,
        causal: bool = False,
        empty: str = "nan",
    ) -> Any:
        """Scores, an additive mask, softmax, product: the compiler makes its own attention kernel of it."""
        *_, heads, queries, _ = self.shape(q)
        *_, groups, keys, _ = self.shape(v)
        if groups != heads:
            k, v = self.repeat_heads(k, heads // groups), self.repeat_heads(v, heads // groups)
        scores = self.matmul(q, k, False, True)
        scores = scores if scale == 1.0 else self.multiply(scores, scale)
        if causal:
            mask = self.causal_mask(queries, keys)
        if mask is not None:
            bias = self.additive(mask, scores)
        elif bias is not None and bias.get_type_name() == "Constant":
            bias = self.matrix(bias, lambda table: table.clamp(min=MASKED))
        scores = scores if bias is None else self.add(scores, bias)
        return self.matmul(self.plain_softmax(scores, self.rank(scores) - 1), v, False, False)

    def additive(self, mask: Any, like: Any) -> Any:
        """A boolean mask as what is added to the scores: 0 where it holds. A constant one is computed here."""
        if mask.get_type_name() != "Constant":
            return self.select(mask, self.number(0.0, like), self.number(MASKED, like))
        return self.matrix(mask, lambda table: torch.where(table.bool(), 0.0, MASKED))

    def matrix(self, node: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """A constant changed, once for all layers, and without its leading axes of size 1.

        A matrix is kept on the device from one layer to the next: 336 us against 398 us for two layers of GPT-2's
        attention, simulated.
        """
        name = node.get_friendly_name()
        if name not in self._matrices:
            table = change(torch.from_numpy(node.get_data().copy()))
            while table.dim() > 2 and table.shape[0] == 1:
                table = table[0]
            self._matrices[name] = self.constant(table)
        return self._matrices[name]
