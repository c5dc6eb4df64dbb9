"""The scale of attention in the weights that make its queries, for a device that multiplies the scores by it.

Takes an expanded graph. Gives an equal graph. Promises: only powers of two are moved, so that every product and sum
on the way is the same number times that power, rounded alike; a weight that is read elsewhere stays as it is.
"""

from __future__ import annotations

import math

from forge_eq.ir.graph import Builder, Graph, Node
from forge_eq.ops.composite import rope
from forge_eq.ops.leaves import constant
from forge_eq.ops.linalg import linear, linear_bias
from forge_eq.ops.movement import permute, reshape

LINEAR_IN_FIRST = (reshape, permute, rope)  # f(a x) = a f(x), the other operands being what they are
SCALE = "scale"


def with_scaled_queries(graph: Graph) -> Graph:
    """The graph in which attention finds its queries scaled, where a layer over constants makes them."""
    readers = [len(users) for users in graph.users()]
    factor: dict[int, float] = {}  # layer -> what its weights are multiplied by
    plain = set[int]()  # attention that is left without a scale
    for node in graph.nodes:
        made = _layer(graph, node, readers) if _scale(node) != 1.0 else None
        if made is not None:
            factor[made] = _scale(node)
            plain.add(node.id)
    if not plain:
        return graph
    builder, data, ids = Builder(graph), dict(graph.constants), dict[int, int]()

    def times(id: int, by: float) -> int:
        node = graph.nodes[id]
        name = f"{node.attrs[0]} * {by:g}"
        data[name] = data[str(node.attrs[0])] * by
        return builder.add(constant, (), (name,), node.type, node.origin)

    for node in graph.nodes:
        inputs, attrs = tuple(ids[i] for i in node.inputs), node.attrs
        if node.id in factor:
            inputs = (inputs[0], *(times(i, factor[node.id]) for i in node.inputs[1:]))
        if node.id in plain:
            attrs = tuple(1.0 if name == SCALE else a for (name, _), a in zip(node.op.attrs, attrs, strict=True))
        ids[node.id] = builder.add(node.op, inputs, attrs, node.type, node.origin)
    return builder.finish(tuple(ids[i] for i in graph.outputs), constants=data).live()


def _scale(node: Node) -> float:
    """The scale of attention, if it is a power of two; else 1."""
    if node.op.kernel is None or node.op.kernel.unit != "attention":
        return 1.0
    named = dict(zip((name for name, _ in node.op.attrs), node.attrs, strict=True))
    scale = float(named.get(SCALE, 1.0))
    return scale if math.frexp(scale)[0] == 0.5 else 1.0


def _layer(graph: Graph, node: Node, readers: list[int]) -> int | None:
    """The layer that makes the queries and nothing else, its weights being constants whose data are there."""
    at = graph.nodes[node.inputs[0]]
    while at.op in LINEAR_IN_FIRST and readers[at.id] == 1:
        at = graph.nodes[at.inputs[0]]
    weights = [graph.nodes[i] for i in at.inputs[1:]]
    fits = at.op in (linear, linear_bias) and readers[at.id] == 1 and at.id not in graph.outputs
    return at.id if fits and all(w.op is constant and w.attrs[0] in graph.constants for w in weights) else None
