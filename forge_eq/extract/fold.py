"""Folding: what depends on constants only is computed once, now.

Takes the chosen Graph. Gives a Graph in which every constant value that the program reads is a ``constant``
leaf. Promises: the values are torch's own, by the same calls the program would make; weights are not
copied; a value larger than the limit stays a computation; a value can be forgotten when a later form has
taken its place, and is there again when somebody asks (:class:`Folded`). Which values are constant the
e-graph decided; that folding them costs nothing at run time is why extraction chose them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import torch

from forge_eq.capture.execute import run_node
from forge_eq.ir.constness import constant_nodes
from forge_eq.ir.graph import Builder, Graph, Node, Origin
from forge_eq.ir.types import TensorType
from forge_eq.ops.leaves import constant
from forge_eq.options import Limits


class Folded(Mapping[str, torch.Tensor]):
    """Constants of a folded graph, ``computed`` ones among them: name -> their node in ``graph``, the unfolded one."""

    def __init__(self, data: Mapping[str, torch.Tensor], graph: Graph, computed: Mapping[str, int]) -> None:
        self.names, self.data, self.graph, self.computed = tuple(data), dict(data), graph, computed

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.data and name in self.computed:
            node = self.computed[name]
            self.data[name] = _evaluate(self.graph, {node})[node]
        return self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def forget(self, but: Container[str]) -> None:
        """Drops the computed values that ``but`` does not name; the next that asks for one computes it again."""
        for name in self.computed:
            if name not in but:
                self.data.pop(name, None)


def fold(graph: Graph, limits: Limits | None = None) -> Graph:
    """The graph with its constant values computed. Errors of torch pass through as they would at run time."""
    limit = (limits or Limits()).fold_bytes
    known = constant_nodes(graph)
    wanted = {i for n in graph.nodes if n.id not in known for i in n.inputs} | set(graph.outputs)
    folded = {i for i in wanted & known if not graph.nodes[i].op.leaf and _small(graph.nodes[i], limit)}
    if not folded:
        return graph
    values = _evaluate(graph, folded)
    builder, ids, data, computed = Builder(graph), dict[int, int](), dict(graph.constants), dict[str, int]()
    names = (name for k in count() if (name := f"folded.{k}") not in graph.constants)
    needed = _needed(graph, folded)
    for node in graph.nodes:
        if node.id in folded:
            name = next(names)
            data[name], computed[name] = values[node.id], node.id
            origin = Origin(node.origin.source, node.origin.module, node.origin.rule or "constants/fold")
            ids[node.id] = builder.add(constant, (), (name,), node.type, origin)
        elif node.id in needed:
            ids[node.id] = builder.add(node.op, tuple(ids[i] for i in node.inputs), node.attrs, node.type, node.origin)
    made = builder.finish(tuple(ids[i] for i in graph.outputs), constants=data)
    return replace(made, constants=Folded(made.constants, graph, computed))


def _small(node: Node, limit: int) -> bool:
    return isinstance(node.type, TensorType) and node.type.static and (node.type.nbytes or 0) <= limit


def _needed(graph: Graph, folded: set[int]) -> set[int]:
    """The nodes that stay: what outputs, effects and inputs reach without passing a folded value."""
    keep = {*graph.outputs, *graph.effects, *(n.id for n in graph.inputs)}
    for node in reversed(graph.nodes):
        if node.id in keep and node.id not in folded:
            keep.update(node.inputs)
    return keep


def _evaluate(graph: Graph, folded: set[int]) -> dict[int, Any]:
    """Values of the folded nodes; what they pass through is freed after its last reader."""
    needed = set(folded)
    for node in reversed(graph.nodes):
        if node.id in needed:
            needed.update(node.inputs)
    left = dict.fromkeys(needed, 0)
    for i in needed:
        for source in graph.nodes[i].inputs:
            left[source] += 1
    values: dict[int, Any] = {}
    for i in sorted(needed):
        node = graph.nodes[i]
        values[i] = (
            graph.constants[node.attrs[0]]
            if node.op is constant
            else run_node(node, [values[k] for k in node.inputs], graph.submodules)
        )
        for source in node.inputs:
            left[source] -= 1
            if not left[source] and source not in folded:
                del values[source]
    return {i: values[i].detach().contiguous().clone() if _shares(values[i]) else values[i] for i in folded}


def _shares(value: Any) -> bool:
    """Whether a value is a view of something larger, which keeping it would keep alive."""
    return bool(value.numel() * value.element_size() < value.untyped_storage().nbytes() or not value.is_contiguous())
