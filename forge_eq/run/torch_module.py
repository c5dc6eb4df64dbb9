"""A program as an ordinary torch module.

Takes a graph. Gives a ``torch.fx.GraphModule`` whose ``forward`` has the captured call signature: one call
per node, constants as buffers under their own names (storage shared, not copied). Promises: arguments are
checked (InputError), dynamic sizes work, effects run in order, results own their memory and written
buffers and arguments are updated after every read. Not here: how a node is computed (``capture.execute``).
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from forge_eq.capture.execute import OPAQUE, call_of
from forge_eq.ir.graph import Graph, Node
from forge_eq.ir.sizes import evaluate, is_symbolic, sized, symbols
from forge_eq.ir.types import Sym
from forge_eq.ops.elementwise import cast
from forge_eq.ops.leaves import constant, input_
from forge_eq.run.boundary import deliverer, input_checker


def to_module(graph: Graph) -> GraphModule:
    """The program as a module: ``module(*args, **kwargs)`` takes and gives what the captured module did.

    Raises:
        RunError: an op that torch cannot compute. Calls raise InputError for arguments that do not fit.
    """
    return _Emitter(graph).module()


_RESERVED = frozenset(dir(GraphModule(torch.nn.Module(), FxGraph())))  # names that a module needs for itself
_MOVES = ("movement", "view")


class _Emitter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.fx = FxGraph()
        self.root: dict[str, Any] = {}  # attribute path -> tensor or submodule
        self.paths: dict[str, str] = {}  # constant or submodule -> attribute path
        self.values: list[Any] = []
        self.sizes: dict[str, FxNode] = {}  # size expression -> its value at the call

    def module(self) -> GraphModule:
        graph = self.graph
        args, kwargs = self.fx.placeholder("*args"), self.fx.placeholder("**kwargs")
        flat = self.fx.create_node("call_function", input_checker(graph), (args, kwargs), name="inputs")
        inputs: dict[int, FxNode] = {}
        for node in graph.inputs:
            index = node.attrs[0]
            label = graph.signature.inputs[index] if graph.signature.inputs else f"input_{index}"
            inputs[index] = self.fx.create_node("call_function", operator.getitem, (flat, index), name=label)
        for node in graph.inputs:
            for axis, name in symbols(node.type):
                if name not in self.sizes:
                    place = (inputs[node.attrs[0]], axis)
                    self.sizes[name] = self.fx.create_node("call_function", torch.ops.aten.sym_size.int, place)
        self.symbols = dict(self.sizes)
        for node in graph.nodes:
            self.values.append(inputs[node.attrs[0]] if node.op.leaf == "input" else self.emit(node))
        outputs = [self.values[i] for i in graph.outputs]
        sources = [self.values[i] for i in sorted(shared_leaves(graph))]
        goals = [self.target(w.target, inputs) for w in graph.signature.write_backs]
        given = (outputs, sources, goals, [inputs[i] for i in sorted(inputs)])
        self.fx.output(self.fx.create_node("call_function", deliverer(graph), given, name="result"))
        return GraphModule(self.root, self.fx, class_name=_identifier(graph.name))

    def emit(self, node: Node) -> Any:
        if node.op.leaf == "constant":
            return self.attribute(node.attrs[0], self.graph.constants[node.attrs[0]])
        if node.op.leaf == "literal":
            return node.attrs[0]
        modules = _Lazily(self)
        if is_symbolic(node.attrs):
            node = replace(node, attrs=sized(node.attrs, self.size))
        function, args, kwargs = call_of(node, [self.values[i] for i in node.inputs], modules)
        made = self.fx.create_node("call_function", function, args, kwargs, name=f"{node.op.name}_{node.id}")
        made.meta["origin"] = node.origin
        return made

    def size(self, symbol: Sym) -> FxNode:
        """What a size is at the call: a symbol of the arguments, or an expression of such."""
        name = symbol.name
        if name not in self.sizes:
            self.sizes[name] = self.fx.create_node("call_function", evaluate, (name, self.symbols), name="size")
        return self.sizes[name]

    def target(self, name: str, inputs: dict[int, FxNode]) -> FxNode:
        kind, _, which = name.partition(":")
        if kind == "input":
            return inputs[int(which)]
        return self.attribute(which, self.graph.constants[which])

    def attribute(self, name: str, value: Any) -> FxNode:
        """A ``get_attr`` of the constant or submodule, under its own name unless the module needs that name."""
        path = self.paths.get(name)
        if path is None:
            path = self.paths[name] = self.free_path(name)
            self.root[path] = value
        return self.fx.create_node("get_attr", path)

    def free_path(self, name: str) -> str:
        """A path that is neither an attribute of every module nor inside or around one that is in use."""
        path = name
        while path.partition(".")[0] in _RESERVED or any(
            p == path or p.startswith(path + ".") or path.startswith(p + ".") for p in self.root
        ):
            path = f"{path.replace('.', '_')}_"
        return path


class _Lazily(dict[str, Any]):
    """Submodules by name, each becoming an attribute when a template asks for it."""

    def __init__(self, emitter: _Emitter) -> None:
        super().__init__()
        self.emitter = emitter

    def __missing__(self, name: str) -> FxNode:
        return self.emitter.attribute(name, self.emitter.graph.submodules[name])


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name) or "Program"


def shared_leaves(graph: Graph) -> set[int]:
    """Inputs and constants whose memory an output may share: reached through ops that may give a view."""
    found: set[int] = set()
    seen: set[int] = set()
    stack = list(graph.outputs)
    while stack:
        node = graph.nodes[stack.pop()]
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.op is input_ or node.op is constant:
            found.add(node.id)
        elif node.op in OPAQUE or node.op is cast or node.op.traits.view or node.op.cost.cost_class in _MOVES:
            stack += node.inputs
    return found
