"""``torch.compile(model, backend="forge_eq")``: graphs that Dynamo found, compiled for inference.

Takes a graph and its example inputs, as Dynamo hands them over. Gives a callable. Promises: weights are constants of
the program, shared and not copied, and a weight that was replaced or written to since is noticed at the call (not one
written behind autograd's back, through ``.data``); each set of sizes is compiled once, the last few are kept; where
gradients are due, or the compiler refuses, the graph runs as it is and a warning says why. Not here: compiling.

    compiled = torch.compile(model, backend="forge_eq", options={"alpha": 0.5})
    with torch.no_grad():
        compiled(tokens)
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from forge_eq.api import make_options
from forge_eq.errors import ForgeError
from forge_eq.options import Options
from forge_eq.program import KEPT_SHAPES, CompiledProgram, compile


def backend(
    graph: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What ``torch.compile`` calls once a graph; compilation itself waits for the first call's real inputs.

    Args:
        graph: in Dynamo's form: weights are placeholders, sizes may be ``SymInt`` placeholders.
        example_inputs: not looked at: they may be fake.
        options: fields of :class:`forge_eq.Options`.

    Raises:
        OptionsError: an option is unknown or out of range.
    """
    return DynamoProgram(graph, make_options(None, dict(options or {})))


class _Bound(torch.nn.Module):
    """The graph with weights and sizes filled in: a module of the tensors that change from call to call."""

    def __init__(self, graph: fx.GraphModule, args: Sequence[Any], given: Sequence[int]) -> None:
        super().__init__()
        self.graph = graph
        self.given = tuple(given)
        self.rest = [None if isinstance(v, torch.Tensor) else v for v in args]
        for index, value in enumerate(args):
            if isinstance(value, torch.Tensor) and index not in given:
                self.register_buffer(f"weight_{index}", value.detach())

    def forward(self, *inputs: torch.Tensor) -> Any:
        args = [getattr(self, f"weight_{i}", v) for i, v in enumerate(self.rest)]
        for index, value in zip(self.given, inputs, strict=True):
            args[index] = value
        return self.graph(*args)


class DynamoProgram:
    """A graph of Dynamo's with the programs that were compiled for it."""

    def __init__(self, graph: fx.GraphModule, options: Options) -> None:
        self.graph, self.options = graph, options
        places = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._static = [i for i, n in enumerate(places) if _STATIC in (n.meta.get("tensor_dict") or {})]
        self._ready: OrderedDict[tuple[Any, ...], CompiledProgram | None] = OrderedDict()
        self._weights: tuple[tuple[Any, int, int], ...] = ()  # tensor, version, address

    def __call__(self, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            _warn("gradients are due and forge_eq compiles inference only", "call it under torch.no_grad()")
            return self.graph(*args)
        if not self._unchanged(args):
            self._ready.clear()  # constants were folded from what is no longer there
            self._note(args)
        given = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in self._static]
        key = tuple((a.shape, a.dtype) if isinstance(a, torch.Tensor) else a for a in args)
        if key not in self._ready:
            self._ready[key] = self._compile(args, given)
            if len(self._ready) > KEPT_SHAPES:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        program = self._ready[key]
        return self.graph(*args) if program is None else self._run(program, args, given)

    def _compile(self, args: Sequence[Any], given: Sequence[int]) -> CompiledProgram | None:
        bound = _Bound(self.graph, args, given).eval()
        example = tuple(args[i].clone() for i in given)  # a program that writes its inputs must not write the caller's
        try:
            return compile(bound, example, options=self.options)
        except ForgeError as e:
            _warn(f"{e}", "the graph runs as it is")
            return None

    def _run(self, program: CompiledProgram, args: Sequence[Any], given: Sequence[int]) -> Any:
        found = program(*(args[i] for i in given))
        self._note(args)  # a program that writes a buffer has moved its version itself; what was compiled still holds
        return found

    def _unchanged(self, args: Sequence[Any]) -> bool:
        now = [args[i] for i in self._static]
        return len(now) == len(self._weights) and all(
            t is kept and t._version == version and t.data_ptr() == place
            for t, (kept, version, place) in zip(now, self._weights, strict=True)
        )

    def _note(self, args: Sequence[Any]) -> None:
        self._weights = tuple((args[i], args[i]._version, args[i].data_ptr()) for i in self._static)


_STATIC = "_dynamo_static_input_type"


def _warn(reason: str, remedy: str) -> None:
    warnings.warn(f"forge_eq: {reason}; {remedy}", stacklevel=3)
