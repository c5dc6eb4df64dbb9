"""The text form of a saturated e-graph: one paragraph a class, one line an e-node.

Takes an EGraphView or its text. Gives the other. Promises: ``parse(text(v)) == v``; classes stand in
structural order; how often rules matched, which depends on what the process asked before, is not printed.

::

    egraph @mlp  stop=saturated classes=2 nodes=3
      c0 : f32[8,64]  %0
        input(; index=0)
      c1 : f32[8,64]  %1 %2
        cast(c0; dtype=f32)
        relu(c0)  ; traits/relu_idempotent

``%`` names the captured nodes of a class; ``constant`` says that it depends on constants only.
"""

from __future__ import annotations

from typing import Any

from forge_eq.egraph.view import EClass, EGraphView, ENode, Saturation
from forge_eq.errors import ParseError
from forge_eq.ir.lexer import Cursor, ident, plain, show
from forge_eq.ir.types import Type, parse_type
from forge_eq.ops.spec import REGISTRY


def text(view: EGraphView) -> str:
    """The e-graph as text, ending in a newline."""
    s = view.saturation
    figures = f"classes={len(view.classes)} nodes={view.nodes}"
    lines = [f"egraph @{ident(view.name)}  stop={ident(s.stop.replace(' ', '_'))} {figures}"]
    members: list[list[int]] = [[] for _ in view.classes]
    for node, index in sorted(view.class_of.items()):
        members[index].append(node)
    for index, cls in enumerate(view.classes):
        marks = (" constant" if cls.constant else "") + "".join(f" %{m}" for m in members[index])
        lines.append(f"  c{index} : {cls.type}{' ' + marks if marks else ''}")
        lines += [f"    {_node(n)}" for n in cls.nodes]
    return "\n".join(lines) + "\n"


def _node(node: ENode) -> str:
    args = ", ".join(f"c{c}" for c in node.children)
    attrs = ", ".join(f"{name}={show(v)}" for (name, _), v in zip(node.op.attrs, node.attrs, strict=True))
    inside = "; ".join((args, attrs)) if attrs else args
    return f"{node.op.name}({inside})" + (f"  ; {plain(node.rule)}" if node.rule else "")


def parse(source: str) -> EGraphView:
    """Reads what :func:`text` wrote. Raises ParseError, which names the line."""
    reader = _Reader()
    for number, line in enumerate(source.splitlines(), 1):
        if line.strip():
            reader.line(Cursor(line, number, "egraph"))
    return reader.finish()


class _Reader:
    def __init__(self) -> None:
        self.name = self.stop = ""
        self.types: list[tuple[Type, bool]] = []
        self.nodes: list[list[ENode]] = []
        self.class_of: dict[int, int] = {}

    def line(self, c: Cursor) -> None:
        if c.take("egraph @"):
            self.head(c)
        elif c.text.startswith("    "):
            if not self.nodes:
                c.fail("a node outside any class", "start with a class line")
            self.nodes[-1].append(self.node(c))
        else:
            self.cls(c)
        c.end()

    def head(self, c: Cursor) -> None:
        self.name = c.ident()
        c.need("stop=")
        self.stop = c.ident().replace("_", " ")
        while not c.done:
            c.word()  # sizes, which follow from the rest
            c.need("=")
            c.value()

    def cls(self, c: Cursor) -> None:
        c.need(f"c{len(self.nodes)} :")
        words = c.until("\n")
        shown, _, marks = words.partition("  ")
        try:
            type_ = parse_type(shown)
        except ValueError as e:
            c.fail(str(e), "write a type")
        found = marks.split()
        self.types.append((type_, "constant" in found))
        for mark in found:
            if mark.startswith("%"):
                self.class_of[int(mark[1:])] = len(self.nodes)
        self.nodes.append([])

    def node(self, c: Cursor) -> ENode:
        name = c.word()
        if name not in REGISTRY:
            c.fail(f"{name!r} is no operation", "see forge-eq ops")
        c.need("(")
        children: list[int] = []
        while not c.peek(")") and not c.peek(";"):
            if children:
                c.need(",")
            c.need("c")
            children.append(c.value())
        attrs: list[Any] = []
        if c.take(";"):
            for known, _ in REGISTRY[name].attrs:
                if attrs:
                    c.need(",")
                c.need(f"{known}=")
                attrs.append(c.value())
        c.need(")")
        return ENode(REGISTRY[name], tuple(children), tuple(attrs), c.name() if c.take(";") else "")

    def finish(self) -> EGraphView:
        if not self.stop:
            raise ParseError("egraph", "line 1", "no 'egraph @name stop=...' line", "start with the head line")
        classes = tuple(EClass(t, k, tuple(n)) for (t, k), n in zip(self.types, self.nodes, strict=True))
        return EGraphView(self.name, classes, self.class_of, Saturation(self.stop))
