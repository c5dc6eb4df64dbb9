"""Nodes past what the CPU plugin gets wrong when it merges nodes or shares weights (2026.4).

Takes a :class:`forge_eq.run.openvino_builder.NodeBuilder` and nodes. Gives a node. Promises: the plugin
- does not merge a true division that has a constant operand into the product, convolution, norm or reduction before
  it: c / y would come out as y / c, and y / c after a maximum or a mean as y;
- does not merge arithmetic with a vector into a reduction that drops axes: the vector would run along another axis;
- does not take the packed form of a square weight for that of its transpose, where a program multiplies by both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from forge_eq.run.openvino_builder import NodeBuilder

# Types of nodes that the plugin merges elementwise nodes into; all other non-elementwise ones end the search too.
_TAKES = ("MatMul", "Convolution", "GroupConvolution", "MVN", "RMS", "Interpolate", "FakeQuantize")
_ENDS = ("Parameter", "Constant", "Reshape", "Transpose", "Concat", "Split", "VariadicSplit", "Softmax", "Gather")


def divide(g: NodeBuilder, a: Any, b: Any) -> Any:
    """A true division. The plugin would otherwise multiply by 1 / b, which rounds twice and can overflow."""
    fixed = [_constant(x) for x in (a, b)]
    if any(fixed) and not all(fixed) and _merges(a if fixed[1] else b):
        if fixed[0] or _invertible(b):
            return g.opset.divide(a, b)  # twice rounded, and right
        axis = g.opset.constant(np.array([0], dtype=np.int64))
        a = g.opset.roll(a, axis, axis) if g.rank(a) else a  # by no place: the plugin merges nothing past it
    node = g.opset.divide(a, b)
    node.get_rt_info()["nonconvertable_divide_0"] = ""
    return node


def reduce(g: NodeBuilder, name: str, x: Any, axes: Any, keepdim: bool) -> Any:
    """``reduce_sum``, ``reduce_mean``, ... by ``name`` over a constant of axes, which a node of its own drops."""
    over = axes.get_data().tolist()
    if not over:
        return x
    made = getattr(g.opset, name)(x, axes, True)
    return made if keepdim else g.reshaped(made, [d for i, d in enumerate(g.shape(x)) if i not in over])


def weight(g: NodeBuilder, b: Any, turned: bool) -> Any:
    """The right operand of a product; a copy of it where its memory was read the other way round before."""
    node = _node(b)
    moved = node.get_type_name() == "Transpose"
    source = node.input_value(0).get_node() if moved else node
    shape = list(source.get_output_shape(0))
    square = len(shape) > 1 and shape[-1] == shape[-2]
    if source.get_type_name() != "Constant" or not square or g.type(b) == g.ov.Type.bf16:
        return b
    way = turned != moved
    if g.ways.setdefault(source.data.ctypes.data, way) == way:
        return b
    order = node.input_value(1).get_node().data if moved else range(len(shape))
    return g.opset.constant(np.array(np.transpose(source.data, order), order="C"))


def _node(x: Any) -> Any:
    return x if hasattr(x, "get_type_name") else x.get_node()


def _constant(x: Any) -> bool:
    node = _node(x)
    inputs = [source.get_source_output() for source in node.inputs()]
    return bool(node.get_type_name() == "Constant" or (inputs and all(map(_constant, inputs))))


def _merges(x: Any) -> bool:
    """Whether elementwise nodes alone lie between ``x`` and something that they would be merged into."""
    todo, seen = [_node(x)], set()
    while todo:
        node = todo.pop()
        kind, name = node.get_type_name(), node.get_name()
        if name in seen or kind in _ENDS:
            continue
        seen.add(name)
        if kind in _TAKES or kind.startswith("Reduce"):
            return True
        todo += [source.get_source_output().get_node() for source in node.inputs()]
    return False


def _invertible(x: Any) -> bool:
    """Whether 1 / x is an ordinary number for every element of a constant."""
    node = _node(x)
    if node.get_type_name() != "Constant":
        return False
    least = float(np.finfo(np.float32).tiny)
    return all(v and math.isfinite(v) and abs(1.0 / v) >= least for v in np.abs(node.get_data()).ravel().tolist())
