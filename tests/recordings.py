"""What tests of the recorder share: small stacks of layers, and when two captured programs are the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from forge_eq.capture import capture
from forge_eq.capture.export import captured
from forge_eq.capture.record import record
from forge_eq.capture.record_import import to_graph
from forge_eq.ir.check import check
from forge_eq.ir.graph import Graph
from forge_eq.ops.movement import alias, clone, contiguous, device_move
from forge_eq.run.torch_module import to_module

X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
UNSEEN = {alias, clone, contiguous, device_move}  # the same value


class Body(nn.Module):
    """A layer: two linear maps, a norm."""

    def __init__(self, k: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(k)
        self.a, self.b, self.act = nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.ReLU()
        self.scale = 1.0
        self.register_buffer("offset", torch.randn(4, generator=generator))
        with torch.no_grad():
            for p in self.parameters():
                if not p.is_meta:
                    p.copy_(torch.randn(p.shape, generator=generator) * 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.b(self.act(self.a(x))) * self.scale + self.offset
        return y


class Stack(nn.Module):
    """Layers in a row."""

    def __init__(self, layer: Callable[[int], nn.Module], count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(k) for k in range(count))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def bits(value: Any) -> list[Any]:
    """The leaves of a result, tensors by dtype, shape and bytes."""
    return [
        (v.dtype, tuple(v.shape), v.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
        if isinstance(v, torch.Tensor)
        else (type(v), v)
        for v in pytree.tree_leaves(value)
    ]


def program(graph: Graph, places: bool = True) -> tuple[Any, ...]:
    """The graph by operations, names and results; what only renames or restores a value is passed through."""
    ids: dict[int, Any] = {}
    lines: list[Any] = []
    lifted: list[Any] = []
    for node in graph.nodes:
        inputs = tuple(ids[i] for i in node.inputs)
        if node.op in UNSEEN:
            ids[node.id] = inputs[0]
            continue
        attrs = node.attrs
        if node.op.leaf == "constant":
            value = graph.constants[attrs[0]]
            if "lifted_tensor" in attrs[0] or "_tensor_constant" in attrs[0]:  # they bear no name of the user's
                ids[node.id] = ("lifted", len(lifted))
                lifted.append(None if value.is_meta else bits(value))
                continue
            attrs = (*attrs, value.untyped_storage()._cdata)
        ids[node.id] = len(lines)
        place = "" if node.op.leaf == "constant" or not places else node.origin.module
        lines.append((node.op.name, inputs, repr(attrs), node.type, place))
    ends = tuple(ids[i] for i in graph.outputs)
    signature = graph.signature
    return lines, lifted, ends, signature.outputs, signature.inputs, str(signature.out_spec), str(signature.in_spec)


def same_program(got: Graph, due: Graph, places: bool = True) -> None:
    """Asserts that the two capture the same program, and with ``places`` the same modules of its nodes."""
    for a, b in zip(program(got, places), program(due, places), strict=True):
        assert a == b


class Fn(nn.Module):
    """A function as a module with one weight."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def recorded(module: nn.Module, *args: Any, layers: bool = True) -> Any:
    found = record(module, args, {}, layers)
    graph = to_graph(found, type(module).__name__)
    check(graph)
    return graph, found.repeats


def agrees(module: nn.Module, *args: Any, repeats: int | None = None, places: bool = True) -> Any:
    """The recorded program is torch.export's and gives the module's bits; gives the graph."""
    graph, count = recorded(module, *args)
    same_program(graph, capture(module, args), places)
    with torch.no_grad():
        assert bits(to_module(graph)(*args)) == bits(module(*args))
    if repeats is not None:
        assert count == repeats
    return graph


def recorded_or_exported(module: nn.Module, *args: Any) -> Any:
    """How ``auto`` captures it; the graph must be torch.export's."""
    args = args or (X,)
    found = captured(module, args, None, None, "auto")
    same_program(found.graph, capture(module, args))
    told = [r.reason for r in found.remarks]
    count = next((int(r.split()[0]) for r in told if r.endswith("repeats of others")), 0)
    return SimpleNamespace(repeats=count, told=" ".join(told), recorded=found.recorded, graph=found.graph)
