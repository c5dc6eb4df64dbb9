"""One static program for every size up to a largest one: arguments are padded at their ends, results are cut.

Takes a graph with symbolic sizes and the largest of each. Gives what stands around the static program at a call.
Promises: a program whose results were seen to depend on what is padded is refused; results have the sizes that the
graph's types say. That a program does not depend on the padding is shown on values at several sizes, not proved.
Not here: the range check of a call's sizes (``run.boundary``), one program per shape (``forge_eq.program``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from forge_eq.capture.execute import run_graph
from forge_eq.errors import OptionsError
from forge_eq.ir.graph import Graph
from forge_eq.ir.sizes import bind, evaluate
from forge_eq.ir.types import Dim, Sym, TensorType, Type, parse_type
from forge_eq.run.differential import float64_outputs
from forge_eq.verify.criterion import compare

Run = Callable[[Sequence[Any]], Sequence[Any]]


def _refusal(reason: str, remedy: str = "leave max_size out: every shape is then compiled for itself") -> OptionsError:
    return OptionsError("options", "max_size", reason, remedy)


class Padding:
    """Pads inputs of ``types`` to the sizes ``largest`` (symbol -> size) and cuts outputs to ``results``."""

    def __init__(self, types: Sequence[Type], results: Sequence[Type], largest: Mapping[str, int]) -> None:
        self.types, self.results, self.largest = list(types), list(results), dict(largest)
        for type in self.results:
            if not isinstance(type, TensorType):
                raise _refusal(f"a result of type {type} is no tensor, so that it cannot be cut")
            self.shape(type, self.largest)

    def to_json(self) -> dict[str, Any]:
        return {"types": [*map(str, self.types)], "results": [*map(str, self.results)], "largest": self.largest}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Padding:
        types, results = ([parse_type(t) for t in found[k]] for k in ("types", "results"))
        return cls(types, results, found["largest"])

    def shape(self, type: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The type's shape at these sizes."""
        found = [evaluate(d.name, sizes) if isinstance(d, Sym) else d for d in type.shape]
        if any(d is None for d in found):
            raise _refusal(f"a result of type {type} has a size that the arguments do not decide")
        return tuple(int(d) for d in found if d is not None)

    def fill(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs at the largest sizes: zeros after the end of each axis."""
        return [self._filled(t, v) for t, v in zip(self.types, inputs, strict=True)]

    def _filled(self, type: Type, value: Any) -> Any:
        if not isinstance(type, TensorType) or type.static:
            return value
        whole = value.new_zeros(self.shape(type, self.largest))
        whole[tuple(slice(n) for n in value.shape)] = value
        return whole

    def cut(self, values: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The outputs at the sizes of the inputs, in memory of their own."""
        sizes = bind(self.types, [getattr(v, "shape", None) for v in inputs])
        shapes = [self.shape(t, sizes) for t in self.results if isinstance(t, TensorType)]
        return [v[tuple(slice(n) for n in s)].clone() for v, s in zip(values, shapes, strict=True)]


def largest_sizes(graph: Graph, names: Mapping[str, str], max_size: int | Mapping[str, int]) -> dict[str, int]:
    """Symbol -> largest size. ``max_size`` is one for all, or one per name: a ``Dim``'s, or the symbol's own.

    Raises OptionsError for a name that there is not, one that is missing, and a size out of the captured range.
    """
    limits = {symbol: (low, high) for symbol, low, high in graph.signature.ranges}
    symbols = sorted({d.name for t in graph.inputs for d in _dims(t.type) if d.name.isidentifier()})
    given = dict.fromkeys(symbols, max_size) if isinstance(max_size, int) else _by_symbol(symbols, names, max_size)
    for symbol, size in given.items():
        low, high = limits.get(symbol, (0, None))
        if not low <= size or (high is not None and size > high):
            reason = f"{size} for {_called(symbol, names)} is outside {low} to {'any' if high is None else high}"
            raise _refusal(reason, "give a size within the range of its Dim")
    return given


def _by_symbol(symbols: Sequence[str], names: Mapping[str, str], given: Mapping[str, int]) -> dict[str, int]:
    found = {names.get(name, name): size for name, size in given.items()}
    wrong = sorted(set(found) ^ set(symbols))
    if wrong:
        due = ", ".join(_called(s, names) for s in symbols)
        raise _refusal(f"{_called(wrong[0], names)} is missing or unknown", f"give one size for each of {due}")
    return {s: found[s] for s in symbols}


def _called(symbol: str, names: Mapping[str, str]) -> str:
    return next((name for name, known in names.items() if known == symbol), symbol)


def _dims(type: Type) -> list[Sym]:
    return [d for d in type.shape if isinstance(d, Sym)] if isinstance(type, TensorType) else []


def bounded(graph: Graph, largest: Mapping[str, int]) -> Graph:
    """The graph whose call refuses sizes beyond the largest."""
    limits = {symbol: low for symbol, low, _ in graph.signature.ranges}
    ranges = tuple((symbol, limits.get(symbol, 0), size) for symbol, size in sorted(largest.items()))
    return replace(graph, signature=replace(graph.signature, ranges=ranges))


# ------------------------------------------------------------------------------------------ names of sizes


def dim_names(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any, types: Mapping[int, Type]
) -> dict[str, str]:
    """Name of a ``Dim`` -> the symbol that the capture gave it.

    Args:
        dynamic_shapes: as ``torch.export.export`` takes it.
        types: ``id`` of an argument tensor -> its captured type.
    """
    if dynamic_shapes is None or not isinstance(module, torch.nn.Module):
        return {}
    values = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    by_name = isinstance(dynamic_shapes, Mapping)
    pairs = ((values[n], d) for n, d in dynamic_shapes.items() if n in values) if by_name else ()
    found = {}
    for value, dims in pairs if by_name else zip(values.values(), dynamic_shapes, strict=False):
        for tensor, axis, dim in _leaves(value, dims):
            type, name = types.get(id(tensor)), getattr(dim, "__name__", None)
            symbol: Dim = type.shape[axis] if isinstance(type, TensorType) else 0
            if name and isinstance(symbol, Sym):
                found[name] = symbol.name
    return found


def _leaves(value: Any, dims: Any) -> Iterator[tuple[torch.Tensor, int, Any]]:
    if dims is None:
        return
    if isinstance(value, torch.Tensor):
        pairs = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
        yield from ((value, axis, dim) for axis, dim in pairs)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, dims[key])
    elif isinstance(value, list | tuple):
        for part, spec in zip(value, dims, strict=False):
            yield from _leaves(part, spec)


# ------------------------------------------------------------------------------------------ whether it may be


def check_padding(graph: Graph, padding: Padding, run: Run, examples: Sequence[Any], seed: int = 0) -> int:
    """Compares the padded program with the graph at several sizes; gives how many. Raises OptionsError.

    Args:
        run: the static program on flat inputs of the largest sizes.
        examples: flat inputs of any size; integers are drawn from their range.
    """
    generator = torch.Generator().manual_seed(seed)
    tried = 0
    for sizes in _several(graph, padding.largest):
        pairs = zip(padding.types, examples, strict=True)
        inputs = [_drawn(padding, t, v, sizes, generator) for t, v in pairs]
        with torch.no_grad():
            due, got = run_graph(graph, inputs), padding.cut(run(padding.fill(inputs)), inputs)
        verdict = compare(got, due, lambda inputs=inputs: float64_outputs(graph, inputs))  # type: ignore[misc]
        if not verdict:
            raise _refusal(f"results depend on what lies beyond the sizes {sizes}: {verdict.reason}")
        tried += 1
    return tried


def _several(graph: Graph, largest: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The least sizes, middle ones, and each symbol alone at its least; those that the capture's conditions allow."""
    low = {symbol: max(2, least) for symbol, least, _ in graph.signature.ranges}
    least = {s: min(low.get(s, 2), n) for s, n in largest.items()}
    middle = {s: (least[s] + n) // 2 for s, n in largest.items()}
    seen: set[tuple[int, ...]] = set()
    for sizes in (least, middle, *({**largest, s: least[s]} for s in largest), dict(largest)):
        key = tuple(sizes.values())
        if key not in seen and all(evaluate(g, sizes) is not False for g in graph.signature.guards):
            seen.add(key)
            yield sizes


def _drawn(padding: Padding, type: Type, example: Any, sizes: Mapping[str, int], generator: torch.Generator) -> Any:
    if not isinstance(type, TensorType):
        return example
    shape = padding.shape(type, sizes)
    if example.is_floating_point():
        return torch.randn(shape, generator=generator).to(example.dtype)
    low, high = (0, 1) if example.dtype is torch.bool else (int(example.min()), int(example.max()))
    return torch.randint(low, high + 1, shape, generator=generator).to(example.dtype)
