"""The text form of a graph.

Takes a Graph or its text. Gives the other. Promises: ``parse(text(g))`` is ``g`` but for the data of
constants and submodules, which the caller attaches; the text depends on the graph alone.
Not here: the reader (``ir.parse``), whether the graph makes sense (``ir.check``).

::

    graph @attn(%0 q: f32[2,4,8], %1 k: f32[2,4,8]) -> f32[2,4,4]
      %2 = matmul_nt(%0, %1) : f32[2,4,4]  ; - attn model.py:12
      %4 = mul(%2, 0.125) : f32[2,4,4]  ; algebra/div_as_mul
      return %4

A node is named by its position. A literal read once, right after it is made, stands inline: it takes the
position before its reader (hence no ``%3`` above) and has its reader's origin. After ``;`` come rule, module
and source, ``-`` for an empty one. In hand-written text names are free, types may be left out where they can be
inferred, and an operand named ``%q`` in the head names the input.
"""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree

from forge_eq.errors import ForgeError
from forge_eq.ir.graph import NOWHERE, Graph, Node, Origin
from forge_eq.ir.lexer import ident, plain, show
from forge_eq.ir.parse import parse
from forge_eq.ir.types import WEAK, TensorType, Type
from forge_eq.ops.leaves import literal

__all__ = ["parse", "reparse", "text"]


def text(graph: Graph) -> str:
    """The graph as text, ending in a newline. Raises CheckError when an attribute has no text form."""
    inline = _inline(graph)
    lines = [_head(graph)]
    implied = {n.id for k, n in enumerate(graph.inputs) if _implied(n, k)}
    lines += [_line(graph, n, inline) for n in graph.nodes if n.id not in implied and n.id not in inline]
    lines.append("  return" + (" " + ", ".join(f"%{i}" for i in graph.outputs) if graph.outputs else ""))
    return "\n".join(lines + _tail(graph)) + "\n"


def _inline(graph: Graph) -> frozenset[int]:
    """Ids of the literals that stand inline: read once, made right before their reader, in operand order."""
    reads = [0] * len(graph.nodes)
    for i in (*graph.outputs, *(i for n in graph.nodes for i in n.inputs)):
        reads[i] += 1
    found = set()
    for node in graph.nodes:
        due = node.id - 1
        for i in reversed(node.inputs):
            made = graph.nodes[i]
            if i == due and made.op is literal and reads[i] == 1 and made.origin == node.origin and _is_lit(made.type):
                found.add(i)
                due -= 1
    return frozenset(found)


def _is_lit(type: Type) -> bool:
    return type == TensorType(WEAK, ())


def _implied(node: Node, index: int) -> bool:
    """Whether the head says everything about an input."""
    return node.id == index and node.attrs == (index,) and node.origin == NOWHERE


def _head(graph: Graph) -> str:
    names = graph.signature.inputs
    named = len(names) == len(graph.inputs)
    shown = [f"%{n.id}{' ' + ident(names[k]) if named else ''}: {n.type}" for k, n in enumerate(graph.inputs)]
    results = ", ".join(str(graph.nodes[i].type) for i in graph.outputs)
    return f"graph @{ident(graph.name)}({', '.join(shown)})" + (f" -> {results}" if results else "")


def _line(graph: Graph, node: Node, inline: frozenset[int]) -> str:
    operands = [show(graph.nodes[i].attrs[0]) if i in inline else f"%{i}" for i in node.inputs]
    attrs = [
        f"{name}={value if kind == 'dtype' and isinstance(value, str) else show(value)}"
        for (name, kind), value in zip(node.op.attrs, node.attrs, strict=True)
    ]
    inside = "; ".join(part for part in (", ".join(operands), ", ".join(attrs)) if part)
    return f"  %{node.id} = {node.op.name}({inside}) : {node.type}{_origin(node.origin)}"


def _origin(origin: Origin) -> str:
    parts = [plain(p) if p else "-" for p in (origin.rule, origin.module, origin.source)]
    while parts and parts[-1] == "-":
        parts.pop()
    return "  ; " + " ".join(parts) if parts else ""


def _tail(graph: Graph) -> list[str]:
    """What the caller sees, and what higher-order nodes call."""
    sig = graph.signature
    lines = []
    if sig.inputs and len(sig.inputs) != len(graph.inputs):
        lines.append(f"  inputs {show(tuple(sig.inputs))}")
    for name, spec in (("in_spec", sig.in_spec), ("out_spec", sig.out_spec)):
        if spec is not None:
            lines.append(f"  {name} {_spec(spec)}")
    lines += [f"  result {kind} {_result(value)}" for kind, value in sig.outputs]
    lines += [f"  write {w.output} -> {plain(w.target)}" for w in sig.write_backs]
    lines += [f"  baked {position} {_result(value)}" for position, value in sig.baked]
    lines += [f"  range {show(bounds)}" for bounds in sig.ranges]
    lines += [f"  guard {show(guard)}" for guard in sig.guards]
    lines += [f"  note {show(note)}" for note in graph.notes]
    return lines + [f"  submodule {plain(name)}" for name in sorted(graph.submodules)]


def _spec(spec: Any) -> str:
    """A treespec as JSON, or what cannot be read back after a question mark."""
    try:
        return str(pytree.treespec_dumps(spec))
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        return f"? {show(str(spec))}"


def _result(value: Any) -> str:
    try:
        return show(value)
    except ForgeError:
        return f"? {show(repr(value))}"


def reparse(graph: Graph) -> Graph:
    """What the graph's text reads as, with the data that text leaves out: equal to the graph."""
    return parse(text(graph), graph.constants, graph.submodules, graph.signature)
