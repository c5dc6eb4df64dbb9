"""Which chosen node computes which captured value.

Takes the e-graph, the captured and the chosen Graph (before folding). Gives both as rows of one kind, named alike:
on the right, a value that was captured has the name of the first node that computed it. Not here: layout.
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
    names = _Names(view, chosen)
    found = []
    for node in calls(graph):
        if view.classes[classes[node.id]].constant:
            continue
        text = f"{names(node.id, classes)} = {_call(view, graph, node, classes, names)}"
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


class _Names:
    """``%7`` for captured node 7 and, in a chosen program, for the class that holds it; ``%n1`` for what is new."""

    def __init__(self, view: EGraphView, chosen: bool) -> None:
        self.chosen, self.new = chosen, dict[int, str]()
        self.first: dict[int, str] = {}
        for node, cls in sorted(view.class_of.items()):
            self.first.setdefault(cls, f"%{node}")

    def __call__(self, node: int, classes: list[int]) -> str:
        if not self.chosen:
            return f"%{node}"
        cls = classes[node]
        return self.first.get(cls) or self.new.setdefault(cls, f"%n{len(self.new) + 1}")


def _call(view: EGraphView, graph: Graph, node: Node, classes: list[int], names: _Names) -> str:
    args = ", ".join(_operand(view, graph, graph.nodes[i], classes, names) for i in node.inputs)
    attrs = ", ".join(f"{n}={short(v)}" for (n, _), v in zip(node.op.attrs, node.attrs, strict=True))
    return f"{node.op.name}({'; '.join(filter(None, (args, attrs)))})"


def _operand(view: EGraphView, graph: Graph, node: Node, classes: list[int], names: _Names) -> str:
    if node.op.leaf == "literal":
        return short(node.attrs[0])
    if node.op.leaf == "constant":
        return ".".join(str(node.attrs[0]).split(".")[-2:])
    if node.op.leaf == "input":
        known = graph.signature.inputs
        return known[node.attrs[0]] if node.attrs[0] < len(known) else f"%{node.id}"
    if view.classes[classes[node.id]].constant:
        return f"<{node.type}>"
    if _part(graph, node):
        return f"{names(node.inputs[0], classes)}.{short(node.attrs[0]) if node.attrs else ''}"
    return names(node.id, classes)


def short(value: Any) -> str:
    """A value for reading: floats to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"({', '.join(map(short, value))})"
    return value if isinstance(value, str) and len(value) < 24 else repr(value)
