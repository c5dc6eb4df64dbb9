"""The one place that executes a node by torch.

Takes a node and the values of its operands. Gives its value (a tuple for a multi-output node, None for a
pure effect). Promises: the same result as the captured call, from the op's own ``torch`` function, else from
its definition, else from the call that an opaque node keeps. Not here: order, memory, inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from forge_eq.capture.first_calls import settle_kernels
from forge_eq.capture.targets import resolve
from forge_eq.capture.template import decode
from forge_eq.capture.values import type_of
from forge_eq.errors import RunError
from forge_eq.ir.expand import expand
from forge_eq.ir.graph import Builder, Graph, Node
from forge_eq.ir.sizes import bind, evaluate, is_symbolic, sized
from forge_eq.ops.effects import opaque, opaque_effect
from forge_eq.ops.leaves import constant, literal
from forge_eq.ops.spec import Op

OPAQUE = frozenset({opaque, opaque_effect})
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

settle_kernels()


def call_of(node: Node, operands: Sequence[Any], submodules: Mapping[str, Any] | None = None) -> Call:
    """(function, args, kwargs) that compute the node; the operands may be tensors or stand-ins for them.

    Raises:
        RunError: the op has neither a torch function nor a definition, or the node is an input or constant.
    """
    if node.op in OPAQUE:
        target, text = node.attrs[0], node.attrs[1]
        args, kwargs = decode(text, operands, submodules)
        return resolve(target), args, kwargs
    if node.op.torch is not None:
        return _named(node.op), (*operands, *node.attrs), {}
    if node.op.define is not None:
        return _defined(node.op), (*operands, *node.attrs), {}
    reason, remedy = "nothing says how torch computes it", "declare the op with torch= or define="
    raise RunError("run", f"%{node.id} {node.op.name}", reason, remedy)


def run_node(node: Node, operands: Sequence[Any], submodules: Mapping[str, Any] | None = None) -> Any:
    """The node's value, computed by torch from ``operands`` (literals are Python numbers)."""
    function, args, kwargs = call_of(node, operands, submodules)
    return function(*args, **kwargs)


def run_graph(graph: Graph, inputs: Sequence[Any], run: Callable[..., Any] = run_node) -> tuple[Any, ...]:
    """The values of ``graph.outputs`` for the flat inputs, nodes in order; nothing is written back.

    A value is dropped after its last reader, so that the peak is what is live. ``run`` computes a node, as
    :func:`run_node` does.
    """
    left = [len(users) for users in graph.users()]
    for i in graph.outputs:
        left[i] += 1
    values: dict[int, Any] = {}
    sizes = bind([n.type for n in graph.inputs], [getattr(v, "shape", None) for v in inputs])

    def value(i: int) -> Any:
        node = graph.nodes[i]
        return graph.constants[node.attrs[0]] if node.op is constant else values[i]

    for node in graph.nodes:
        if node.op.leaf == "input":
            values[node.id] = inputs[node.attrs[0]]
        elif node.op is not constant:
            values[node.id] = run(_at(node, sizes), [value(i) for i in node.inputs], graph.submodules)
        for i in node.inputs:
            left[i] -= 1
            if not left[i]:
                values.pop(i, None)
    return tuple(value(i) for i in graph.outputs)


def _at(node: Node, sizes: Mapping[str, int]) -> Node:
    """The node with numbers for the symbols in its attributes."""
    if not sizes or not is_symbolic(node.attrs):
        return node
    return replace(node, attrs=sized(node.attrs, lambda symbol: evaluate(symbol.name, sizes)))


_FUNCTIONS: dict[Op, Callable[..., Any]] = {}


def _named(op: Op) -> Callable[..., Any]:
    """The op's torch function under the op's name: generated code shows it, and a lambda has none."""
    found = _FUNCTIONS.get(op)
    if found is None:
        assert op.torch is not None
        found = op.torch if (op.torch.__module__ or "").startswith("torch") else _rename(op.torch, op.name)
        _FUNCTIONS[op] = found
    return found


def _rename(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return run(*args)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "forge_eq.ops"
    return call


def _defined(op: Op) -> Callable[..., Any]:
    """The op's definition as a function of operands and attributes."""
    found = _FUNCTIONS.get(op)
    if found is None:
        found = _FUNCTIONS[op] = _rename(lambda *args: _run_definition(op, args), op.name)
    return found


def _run_definition(op: Op, args: tuple[Any, ...]) -> Any:
    """One level of the definition for operands of these very types; what it uses runs the same way."""
    count = len(args) - len(op.attrs)
    level = Builder()
    for value in args[:count]:
        weak = not isinstance(value, torch.Tensor)
        level.add(literal if weak else constant, (), (value if weak else "",), None if weak else type_of(value))
    results = expand(level, op, range(count), args[count:])
    values = list(args[:count])
    for node in level.nodes[count:]:
        values.append(run_node(node, [values[i] for i in node.inputs]))
    return tuple(values[i] for i in results) if op.multi else values[results[0]]
