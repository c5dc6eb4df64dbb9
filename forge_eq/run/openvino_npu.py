"""Nodes for the NPU: the plain operations of OpenVINO, in the forms that Intel's NPU compiler recognises.

Takes and gives what :class:`forge_eq.run.openvino_builder.NodeBuilder` does. Promises: the same values on finite
numbers. The NPU computes in f16 and has no NaN semantics to keep, so what the CPU builder adds for NaN, infinities and
miscompiles of the CPU plugin is left out: each such repair would be one more kernel on the SHAVEs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forge_eq.run.openvino_builder import NodeBuilder

MASKED = -65504.0  # the lowest finite f16: the compiler's masks are additive, and its own -inf is this number
LOOKUPS = 9  # parts in which rows of a table are read: of an even number the last two run one after the other
TABLE = 1 << 20  # elements of a table that is worth it


class NpuBuilder(NodeBuilder):
    """Builds nodes for the NPU; what is not overridden here is the opset's own. ``fused``: attention as one node."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self._matrices: dict[tuple[str, int], Any] = {}  # by name and how often its rows are stacked

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

    def gelu_apart(self, x: Any) -> Any:
        """The compiler's own kernel: it takes none into a product, and in parts there are nine on the SHAVEs."""
        return self.gelu(x, "tanh")

    def silu_apart(self, x: Any) -> Any:
        """As :meth:`gelu_apart`: 413 us in parts for 128 x 256 values, 5 us as one kernel, simulated."""
        return self.swish(x)

    def clip(self, x: Any, low: float | None, high: float | None) -> Any:
        bottom, top = -math.inf if low is None else low, math.inf if high is None else high
        return self._named(self.opset.clamp(x, min(bottom, top), top))

    # ------------------------------------------------------------------------------------------ reductions, norms

    def reduce_max(self, x: Any, axes: Any, keepdim: bool) -> Any:
        return self._named(self.opset.reduce_max(x, axes, keepdim))

    def softmax(self, x: Any, axis: int) -> Any:
        return self.plain_softmax(x, axis)

    # ------------------------------------------------------------------------------------------ matrices, heads

    def gather(self, table: Any, ids: Any, axis: Any) -> Any:
        """Rows of a table, its columns in parts: one lookup is one task of one of the two DMA engines, and is charged
        for the whole table. 1189 us in one, 685 in nine for 128 rows of 49152 x 576 and a product, simulated."""

        def whole(given: Any) -> Any:
            return self._named(self.opset.gather(given, ids, axis))

        if table.get_type_name() != "Constant" or self.rank(table) != 2 or math.prod(self.shape(table)) < TABLE:
            return whole(table)
        columns = torch.from_numpy(table.get_data().copy()).tensor_split(LOOKUPS, 1)
        return self.concat([whole(self.constant(part.contiguous())) for part in columns], self.rank(ids))

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
        """Scores, an additive mask, softmax, product: the compiler makes its own attention kernel of it.

        Query heads that share a key head are stacked along the tokens, so that no key or value is repeated: 1290 us
        against 1369 us for two layers of Granite, simulated. A mask is stacked too: a constant one when it is made.
        """
        *outer, heads, queries, size = self.shape(q)
        *_, groups, keys, width = self.shape(v)
        times = heads // groups
        if self.fused:
            given = self.causal_mask(queries, keys) if causal else bias if mask is None else mask
            k, v = (x if times == 1 else self.repeated(x, times) for x in (k, v))
            return self._named(self.opset.scaled_dot_product_attention(q, k, v, given, self.number(scale, q)))
        q = q if times == 1 else self.reshaped(q, [*outer, groups, times * queries, size])
        scores = self.matmul(q, k, False, True)
        scores = scores if scale == 1.0 else self.multiply(scores, scale)
        allowed = self.causal_mask(queries, keys) if causal else mask
        if allowed is not None or bias is not None:
            scores = self.add(scores, self.stacked(bias if allowed is None else allowed, scores, times, queries))
        out = self.matmul(self.plain_softmax(scores, self.rank(scores) - 1), v, False, False)
        return out if times == 1 else self.reshaped(out, [*outer, heads, queries, width])

    def repeated(self, x: Any, times: int) -> Any:
        """[.., h, t, d] with each head ``times`` times in a row."""
        *outer, heads, rows, size = self.shape(x)
        spread = self.reshaped(x, [*outer, heads, 1, rows, size])
        spread = self.broadcast(spread, self.i64([*outer, heads, times, rows, size]))
        return self.reshaped(spread, [*outer, heads * times, rows, size])

    def attention_parts(
        self, q: Any, parts: Sequence[tuple[Any, Any, Any]], scale: float, kind: str, empty: str
    ) -> Any:
        """Attention over keys in several places, which are copied into one.

        With scores joined in their place, as on the CPU, the compiler takes the halves of the weights for an attention
        of its own and fails ("DecomposeAttention").
        """
        keys, values = ([part[n] for part in parts] for n in (0, 1))
        rows = max(self.rank(mask) for _, _, mask in parts)
        masks = [self.reshaped(m, [1] * (rows - self.rank(m)) + self.shape(m)) for _, _, m in parts]
        shapes = [self.shape(m) for m in masks]
        wide = [max(sizes) for sizes in zip(*(shape[:-1] for shape in shapes), strict=True)]
        masks = [
            m if shape[:-1] == wide else self.broadcast(m, self.i64([*wide, shape[-1]]))
            for m, shape in zip(masks, shapes, strict=True)
        ]
        joined = self.concat(masks, rows - 1)
        k, v = (self.concat(x, self.rank(x[0]) - 2) for x in (keys, values))
        return self.attention(q, k, v, scale, **({"bias": joined} if kind == "bias" else {"mask": joined}))

    def stacked(self, given: Any, scores: Any, times: int, queries: int) -> Any:
        """A mask or bias over [.., h, s, t] as what is added to scores [.., h / n, n s, t], ``n`` being ``times``."""
        if given.get_type_name() == "Constant":
            return self.matrix(given, lambda table: _stacked(additive(table), times, queries), times)
        if self.type(given).is_integral():  # boolean
            given = self.select(given, self.number(0.0, scores), self.number(MASKED, scores))
        shape = [1] * (3 - self.rank(given)) + self.shape(given)
        if times == 1 or shape[-3:-1] == [1, 1]:
            return given
        if shape[-3] == 1:
            return self.concat([self.reshaped(given, shape)] * times, len(shape) - 2)
        if shape[-2] == 1 < queries:
            shape[-2] = queries
            given = self.broadcast(given, self.i64(shape))
        return self.reshaped(given, [*shape[:-3], shape[-3] // times, times * queries, shape[-1]])

    def matrix(self, node: Any, change: Callable[[torch.Tensor], torch.Tensor], times: int) -> Any:
        """A constant changed, once for all layers, and without its leading axes of size 1.

        A matrix is kept on the device from one layer to the next: 336 us against 398 us for two layers of GPT-2's
        attention, simulated.
        """
        key = node.get_friendly_name(), times
        if key not in self._matrices:
            table = change(torch.from_numpy(node.get_data().copy()))
            while table.dim() > 2 and table.shape[0] == 1:
                table = table[0]
            self._matrices[key] = self.constant(table)
        return self._matrices[key]


class Npu3720Builder(NpuBuilder):
    """Builds nodes for the NPU 3720, whose compiler refuses a form that those of its successors take."""

    def gather(self, table: Any, ids: Any, axis: Any) -> Any:
        """In one: vector units look words up here, and are charged for the rows."""
        return self._named(self.opset.gather(table, ids, axis))

    def rope(self, x: Any, cos: Any, sin: Any) -> Any:
        """Two heads are rotated before they change places with the tokens: behind that they are refused
        ("UnrollPermuteDMA"). More are not: on 4000 it takes two layers of Granite from 1290 to 1366 us."""
        node = x.get_node() if hasattr(x, "get_node") else x  # an output or a node
        turned = node.get_type_name() == "Transpose" and self.rank(x) == 4 and self.shape(x)[1] == 2
        if not turned or list(node.input_value(1).get_node().get_data()) != [0, 2, 1, 3]:
            return super().rope(x, cos, sin)
        shapes = [[1] * (4 - self.rank(t)) + self.shape(t) for t in (cos, sin)]
        if any(shape[1] != 1 for shape in shapes):
            return super().rope(x, cos, sin)
        tables = [self.reshaped(t, [s[0], s[2], 1, s[3]]) for t, s in zip((cos, sin), shapes, strict=True)]
        return self.transpose(super().rope(node.input_value(0), *tables), self.i64([0, 2, 1, 3]))


def additive(table: torch.Tensor) -> torch.Tensor:
    """A boolean mask, or a bias, as what is added to scores that are f16."""
    return torch.where(table, 0.0, MASKED) if table.dtype is torch.bool else table.clamp(min=MASKED)


def _stacked(table: torch.Tensor, times: int, queries: int) -> torch.Tensor:
    """A table over [.., h, s, t] for heads stacked along the tokens: [.., h / n, n s, t], or a matrix that fits it."""
    while table.dim() < 3:
        table = table[None]
    if times == 1 or table.shape[-3:-1] == (1, 1):
        return table
    if table.shape[-3] == 1:
        return table.repeat(*[1] * (table.dim() - 2), times, 1)
    wide = table.expand(*table.shape[:-2], queries, table.shape[-1])
    return wide.reshape(*table.shape[:-3], table.shape[-3] // times, times * queries, table.shape[-1])


def builder_of(platform: str) -> type[NpuBuilder]:
    """The builder for a platform."""
    return Npu3720Builder if platform == "3720" else NpuBuilder
