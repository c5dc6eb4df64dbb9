"""The reference executor: a flat graph, node by node, by torch.

Takes a graph and its flat inputs. Gives the values of its outputs. Promises: nodes run in order and all of
them run; nothing is written back and nothing is copied, so a result may share memory with an argument or a
weight. Not here: the call signature (``run.boundary``), one node (``capture.execute``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_eq.capture.execute import run_node
from forge_eq.ir.graph import Graph

__all__ = ["run_graph", "run_node"]


def run_graph(graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """The values of ``graph.outputs`` for the flat inputs, nodes in order; nothing is written back."""
    values: list[Any] = []
    for node in graph.nodes:
        if node.op.leaf == "input":
            values.append(inputs[node.attrs[0]])
        elif node.op.leaf == "constant":
            values.append(graph.constants[node.attrs[0]])
        else:
            values.append(run_node(node, [values[i] for i in node.inputs], graph.submodules))
    return tuple(values[i] for i in graph.outputs)
