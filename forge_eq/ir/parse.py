"""Reads the text form of a graph: see ``ir.text`` for the form.

Takes text. Gives a Graph. Promises: every error names the line and says what to write instead.
Not here: whether the graph makes sense (``ir.check``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.utils import _pytree as pytree

from forge_eq.ir.graph import NOWHERE, Builder, Graph, Origin, Signature, WriteBack
from forge_eq.ir.lexer import Cursor
from forge_eq.ir.types import Type, parse_type
from forge_eq.ops import REGISTRY
from forge_eq.ops.leaves import input_, literal
from forge_eq.ops.spec import Op

_DEFINES = re.compile(r"\s*%(\w+)\s*=")
_NAME = re.compile(r"%(\w+)")
_ATTR = re.compile(r"\s*[a-z_]+\s*=")
_KEYS = "return, inputs, in_spec, out_spec, result, write, baked, range, guard, note or submodule"


def parse(
    source: str,
    constants: Mapping[str, Any] | None = None,
    submodules: Mapping[str, Any] | None = None,
    like: Signature | None = None,
    what: str = "text",
) -> Graph:
    """Reads what ``ir.text.text`` wrote.

    Args:
        constants: data by name; only the names that the graph has are attached.
        submodules: modules by name; a name without one gets None.
        like: where pytree specs and results that have no text form are taken from.
        what: the name of the text in error messages.

    Raises:
        ParseError: with line, column and remedy.
        ShapeError: a type is left out and the operands do not fit.
    """
    cursors = [Cursor(t, i, what) for i, t in enumerate(source.split("\n"), 1)]
    cursors = [c for c in cursors if not c.done]
    if not cursors:
        Cursor("", 1, what).fail("no graph", "begin with: graph @name(...)")
    reader = _Reader(like)
    body = {m[1] for c in cursors for m in [_DEFINES.match(c.text)] if m}
    reader.head(cursors[0], body)
    for cursor in cursors[1:]:
        reader.line(cursor)
    return reader.finish(cursors[-1], constants or {}, submodules or {})


class _Reader:
    """The state of one reading."""

    def __init__(self, like: Signature | None) -> None:
        self.builder, self.like = Builder(), like or Signature()
        self.ids: dict[str, int] = {}
        self.due: dict[str, tuple[int, Type]] = {}  # inputs of the head that have a line of their own
        self.results: str | None = None
        self.name = ""
        self.outputs: tuple[int, ...] | None = None
        self.submodules: list[str] = []
        self.notes: list[str] = []
        self.sig: dict[str, Any] = {}

    def head(self, c: Cursor, body: set[str]) -> None:
        """``graph @name(%0 x: type, ...) -> types``."""
        c.need("graph")
        c.need("@")
        self.name = c.ident()
        c.need("(")
        names: list[str] = []
        while not c.take(")"):
            if self.ids or self.due:
                c.need(",")
            ref = self.reference(c)
            if not c.peek(":"):
                names.append(c.ident())
            elif not ref.isdigit():
                names.append(ref)
            c.need(":")
            index, type = len(self.ids) + len(self.due), self.type(c, _type_text(c))
            if ref in self.ids or ref in self.due:
                c.fail(f"%{ref} is named twice", "give every input its own name")
            if ref in body:
                self.due[ref] = index, type
            else:
                self.ids[ref] = self.builder.add(input_, (), (index,), type)
        if c.take("->"):
            self.results = c.until(";")
        c.end()
        if names and len(names) != len(self.ids) + len(self.due):
            c.fail("some inputs have a name and some have none", "name all or none")
        self.sig["inputs"] = tuple(names)

    def reference(self, c: Cursor) -> str:
        found = c.match(_NAME)
        return found[1:] if found else c.fail("a value such as %3 is due", "write % and the name of a value")

    def value(self, c: Cursor) -> int:
        ref = self.reference(c)
        if ref not in self.ids:
            c.fail(f"%{ref} is not defined above", "define it before it is read")
        return self.ids[ref]

    def type(self, c: Cursor, source: str) -> Type:
        try:
            return parse_type(source)
        except ValueError as e:
            c.fail(str(e), "write dtype[dims], int, float, bool, none, or a tuple of types")

    def line(self, c: Cursor) -> None:
        """One line after the head."""
        if c.peek("%"):
            if self.outputs is not None:
                c.fail("a node after return", "move it above return")
            self.node(c)
            return
        key = c.word()
        read = getattr(self, f"read_{key}", None)
        if read is None:
            c.fail(f"{key!r} begins no line", f"write a node, {_KEYS}")
        read(c)
        c.end()

    def node(self, c: Cursor) -> None:
        """``%4 = name(operands; attributes) : type  ; rule module source``."""
        ref = self.reference(c)
        if ref in self.ids:
            c.fail(f"%{ref} is defined twice", "give it another name")
        c.need("=")
        name = c.word()
        op = REGISTRY.get(name)
        if op is None:
            c.fail(f"no op is called {name!r}", "see `forge-eq ops` for the names")
        c.need("(")
        operands: list[int | tuple[Any]] = []  # ids, and values of inline literals
        while not (c.peek(")") or c.peek(";") or (op.attrs and _ATTR.match(c.text, c.at))):
            if operands:
                c.need(",")
            operands.append(self.value(c) if c.peek("%") else (c.value(),))
        c.take(";")
        attrs = self.attributes(c, op)
        if not op.variadic and len(operands) != len(op.inputs):
            c.fail(f"{len(operands)} operands for {op.signature}", "follow the signature")
        type = self.type(c, c.until(";")) if c.take(":") else None
        origin = self.origin(c)
        inputs = tuple(i if isinstance(i, int) else self.builder.add(literal, (), i, origin=origin) for i in operands)
        if type is None and (op.effectful or (op.leaf and op is not literal)):
            c.fail(f"the type of {name} cannot be inferred", "write it after a colon")
        self.ids[ref] = self.builder.add(op, inputs, attrs, type, origin)
        if self.due.pop(ref, (None, type))[1] != type:
            c.fail(f"%{ref} has another type in the head", "let both say the same")

    def attributes(self, c: Cursor, op: Op) -> tuple[Any, ...]:
        values = []
        for k, (name, _) in enumerate(op.attrs):
            if k:
                c.need(",")
            c.need(name)
            c.need("=")
            values.append(c.value())
        c.need(")")
        return tuple(values)

    def origin(self, c: Cursor) -> Origin:
        if not c.take(";"):
            c.end()
            return NOWHERE
        parts: list[str] = []
        while not c.done and len(parts) < 3:
            quoted = c.peek('"')
            part = c.name()
            parts.append("" if part == "-" and not quoted else part)
        c.end()
        rule, module, source = (*parts, "", "", "")[:3]
        return Origin(source=source, module=module, rule=rule)

    def read_return(self, c: Cursor) -> None:
        if self.outputs is not None:
            c.fail("a second return", "keep one")
        outputs: list[int] = []
        while not c.done:
            if outputs:
                c.need(",")
            outputs.append(self.value(c))
        self.outputs = tuple(outputs)
        shown = ", ".join(str(self.builder.nodes[i].type) for i in outputs)
        if self.results not in (None, shown):
            c.fail(f"returns {shown}, the head says {self.results}", "let both say the same")

    def read_inputs(self, c: Cursor) -> None:
        self.sig["inputs"] = c.value()

    def read_in_spec(self, c: Cursor) -> None:
        self.sig["in_spec"] = self.spec(c, self.like.in_spec)

    def read_out_spec(self, c: Cursor) -> None:
        self.sig["out_spec"] = self.spec(c, self.like.out_spec)

    def spec(self, c: Cursor, like: Any) -> Any:
        if self.unprinted(c):
            return like if like is not None else c.fail("a treespec without a text form", "pass the signature as like=")
        try:
            return pytree.treespec_loads(c.until("\n"))
        except Exception as e:  # the loader raises whatever the JSON or a node type provokes
            c.fail(f"no treespec ({type(e).__name__}: {e})", "register the type with pytree, or import what does")

    def unprinted(self, c: Cursor) -> bool:
        found = c.take("?")
        if found:
            c.string()
        return found

    def read_result(self, c: Cursor) -> None:
        kind, results = c.word(), self.sig.setdefault("outputs", [])
        if self.unprinted(c):
            if len(self.like.outputs) <= len(results):
                c.fail("a value without a text form", "pass the signature as like=")
            results.append(self.like.outputs[len(results)])
        else:
            results.append((kind, c.value()))

    def read_write(self, c: Cursor) -> None:
        output = c.value()
        c.need("->")
        self.sig.setdefault("write_backs", []).append(WriteBack(output, c.name()))

    def read_baked(self, c: Cursor) -> None:
        position, baked = c.value(), self.sig.setdefault("baked", [])
        if self.unprinted(c):
            if len(self.like.baked) <= len(baked):
                c.fail("a value without a text form", "pass the signature as like=")
            baked.append(self.like.baked[len(baked)])
        else:
            baked.append((position, c.value()))

    def read_range(self, c: Cursor) -> None:
        self.sig.setdefault("ranges", []).append(c.value())

    def read_guard(self, c: Cursor) -> None:
        self.sig.setdefault("guards", []).append(c.string())

    def read_note(self, c: Cursor) -> None:
        self.notes.append(c.string())

    def read_submodule(self, c: Cursor) -> None:
        self.submodules.append(c.name())

    def finish(self, last: Cursor, constants: Mapping[str, Any], submodules: Mapping[str, Any]) -> Graph:
        if self.outputs is None:
            last.fail("the graph does not return", "end it with: return %n, ...")
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in self.sig.items()}
        graph = self.builder.finish(self.outputs, name=self.name, constants=constants, signature=Signature(**fields))
        found = {name: submodules.get(name) for name in self.submodules}
        return replace(graph, submodules=found, notes=tuple(self.notes))


def _type_text(c: Cursor) -> str:
    """The type of one input in the head: up to the comma or parenthesis outside every bracket."""
    c.skip()
    depth, start = 0, c.at
    while c.at < len(c.text) and (depth or c.text[c.at] not in ",)"):
        depth += c.text[c.at] in "(["
        depth -= c.text[c.at] in ")]"
        c.at += 1
    return c.text[start : c.at]
