"""Permutations of many axes as ones of few, for a device whose values have at most so many.

Takes an expanded graph and that number. Gives an equal graph. Promises: axes are only joined where they stay neighbours
in their order, or have size 1, so that a reshape before and one behind make up for it; reshapes of reshapes are one, so
that no value of many axes is left where nothing else reads it. What cannot be joined stays as it is.
Not here: where it then runs (``lower.select``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from forge_eq.ir.graph import Builder, Graph, Node
from forge_eq.ir.types import TensorType
from forge_eq.ops.movement import permute, reshape


def with_fewer_axes(graph: Graph, most: int) -> Graph:
    """The graph in which permutations of more than ``most`` axes have as few as they need."""
    if not any(_wide(node, most) for node in graph.nodes):
        return graph
    builder, ids = Builder(graph), dict[int, int]()

    def reshaped(source: int, shape: Sequence[int], node: Node) -> int:
        found = builder.nodes[source]
        source = found.inputs[0] if found.op is reshape else source
        return builder.add(reshape, (source,), (tuple(shape),), None, node.origin)

    for node in graph.nodes:
        inputs = tuple(ids[i] for i in node.inputs)
        if _wide(node, most):
            before, order = joined(_sizes(graph.nodes[node.inputs[0]]), node.attrs[0])
            turned = builder.add(permute, (reshaped(inputs[0], before, node),), (tuple(order),), None, node.origin)
            ids[node.id] = reshaped(turned, _sizes(node), node)
        elif node.op is reshape:
            ids[node.id] = reshaped(inputs[0], node.attrs[0], node)
        else:
            ids[node.id] = builder.add(node.op, inputs, node.attrs, node.type, node.origin)
    return builder.finish(tuple(ids[o] for o in graph.outputs), constants=dict(graph.constants)).live()


def joined(shape: Sequence[int], perm: Sequence[int]) -> tuple[list[int], list[int]]:
    """(shape, permutation) with fewer axes that move the same elements."""
    kept = [axis for axis in perm if shape[axis] != 1]  # in the order of the result
    place = {axis: n for n, axis in enumerate(sorted(kept))}
    groups: list[list[int]] = []
    for axis in kept:
        if groups and place[axis] == place[groups[-1][-1]] + 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    given = sorted(range(len(groups)), key=lambda g: groups[g])
    return [math.prod(shape[a] for a in groups[g]) for g in given], [given.index(g) for g in range(len(groups))]


def _wide(node: Node, most: int) -> bool:
    if node.op is not permute or not isinstance(node.type, TensorType) or not node.type.static:
        return False
    return node.type.rank > most


def _sizes(node: Node) -> list[int]:
    assert isinstance(node.type, TensorType)
    return [int(str(size)) for size in node.type.shape]
