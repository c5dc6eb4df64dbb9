"""Which chosen node computes which captured value.

Takes the e-graph, the captured and the chosen Graph (before folding). Gives both as rows of one kind, named alike:
a value that was captured keeps its captured name on both sides. Not here: layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forge_eq.egraph.view import EGraphView
from forge_eq.ir.graph import Graph, Node
from forge_eq.ir.types import TupleType


@dataclass(frozen=True, slots=True)
class Row:
    """One call. ``cls`` is the e-class it computes, ``text`` the call as it would be typed."""

    cls: int
    op: str
    text: str
    module: str
    rule: str


def rows(view: EGraphView, graph: Graph, chosen: bool) -> list[Row]:
    """The calls of a graph that run each time, in order; what depends on constants only is left out.

    Args:
        chosen: whether the graph was rebuilt from the e-graph, rather than loaded into it.
    """
    classes = classes_of(view, graph) if chosen else [view.class_of[n.id] for n in graph.nodes]
    names = _names(view)
    found = []
    for node in calls(graph):
        if view.classes[classes[node.id]].constant:
            continue
        text = f"{_value(view, classes[node.id], names)} = {_call(view, graph, node, classes, names)}"
        found.append(Row(classes[node.id], node.op.name, text, node.origin.module, node.origin.rule))
    return found


def calls(graph: Graph) -> list[Node]:
    """The nodes that compute something and are needed: no leaves, no parts of a multi-output value."""
    needed = {*graph.outputs, *graph.effects}
    for node in reversed(graph.nodes):
        if node.id in needed:
            needed.update(node.inputs)
    return [n for n in graph.nodes if n.id in needed and not n.op.leaf and not _part(graph, n)]


def _part(graph: Graph, node: Node) -> bool:
    return any(isinstance(graph.nodes[i].type, TupleType) for i in node.inputs)


def constants_only(view: EGraphView, graph: Graph) -> int:
    """Number of captured calls that depend on constants only."""
    return sum(view.classes[view.class_of[n.id]].constant for n in calls(graph))


def classes_of(view: EGraphView, graph: Graph) -> list[int]:
    """The class of each node of a graph that was chosen from the e-graph."""
    index = {(n.op, n.children, repr(n.attrs)): c for c, cls in enumerate(view.classes) for n in cls.nodes}
    classes: list[int] = []
    for node in graph.nodes:
        classes.append(index[node.op, tuple(classes[i] for i in node.inputs), repr(node.attrs)])
    return classes


def _names(view: EGraphView) -> dict[int, str]:
    """``%7`` for a class that holds captured node 7 (the first of them), ``%n1`` for what only rules know."""
    names: dict[int, str] = {}
    for node, cls in sorted(view.class_of.items()):
        names.setdefault(cls, f"%{node}")
    return names


def _value(view: EGraphView, cls: int, names: dict[int, str]) -> str:
    if cls not in names:
        names[cls] = f"%n{sum(name.startswith('%n') for name in names.values()) + 1}"
    return names[cls]


def _call(view: EGraphView, graph: Graph, node: Node, classes: list[int], names: dict[int, str]) -> str:
    args = ", ".join(_operand(view, graph, graph.nodes[i], classes, names) for i in node.inputs)
    attrs = ", ".join(f"{n}={short(v)}" for (n, _), v in zip(node.op.attrs, node.attrs, strict=True))
    return f"{node.op.name}({'; '.join(filter(None, (args, attrs)))})"


def _operand(view: EGraphView, graph: Graph, node: Node, classes: list[int], names: dict[int, str]) -> str:
    if node.op.leaf == "literal":
        return short(node.attrs[0])
    if node.op.leaf == "constant":
        return ".".join(str(node.attrs[0]).split(".")[-2:])
    if node.op.leaf == "input":
        known = graph.signature.inputs
        return known[node.attrs[0]] if node.attrs[0] < len(known) else f"%{node.id}"
    cls = classes[node.id]
    if view.classes[cls].constant:
        return f"<{view.classes[cls].type}>"
    if _part(graph, node):
        return f"{_value(view, classes[node.inputs[0]], names)}.{short(node.attrs[0]) if node.attrs else ''}"
    return _value(view, cls, names)


def short(value: Any) -> str:
    """A value for reading: floats to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))})"
    return value if isinstance(value, str) and len(value) < 24 else repr(value)
