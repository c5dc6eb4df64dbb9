"""Where a flat program meets its caller: arguments in, results out, writes back.

Takes a graph's signature. Gives two functions that every executor uses: one turns a call's arguments into
the flat inputs and refuses what the program was not made for, the other turns the graph's outputs into what
the caller gets. Promises: results own their memory (they never share it with a weight, an argument or each
other) except for a result that is an argument itself; writes happen after every read. Not here: nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from forge_eq.capture.values import DTYPE_NAMES
from forge_eq.errors import InputError
from forge_eq.ir.graph import Graph, Signature
from forge_eq.ir.sizes import evaluate
from forge_eq.ir.types import ScalarType, Sym, TensorType

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_KINDS: dict[str, type] = {"int": int, "float": float, "bool": bool}


def _refusal(name: str, reason: str) -> InputError:
    return InputError("run", name, reason, "call with arguments like the example inputs, or capture with these")


# ------------------------------------------------------------------------------------ arguments


def input_checker(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    """``check(args, kwargs) -> flat inputs`` for calls of the program. It raises InputError."""
    signature, baked = graph.signature, dict(graph.signature.baked)
    types = [n.type for n in graph.inputs]
    names = signature.inputs or tuple(f"input {i}" for i in range(len(types)))
    written = [int(w.target.partition(":")[2]) for w in signature.write_backs if w.target.startswith("input:")]

    usual = _usual(graph)

    def check_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        if usual is not None and not kwargs and len(args) == len(usual) and _are(args, usual):
            _check_apart(names, args, written)
            return tuple(args)
        leaves = _leaves(signature, args, kwargs, len(types))
        inputs = []
        for position, value in enumerate(leaves):
            if position in baked:
                _check_baked(position, value, baked[position])
            else:
                inputs.append(value)
        sizes: dict[str, int] = {}
        for name, expected, value in zip(names, types, inputs, strict=True):
            _check_value(name, expected, value, sizes)
        for name, expected, value in zip(names, types, inputs, strict=True):
            _check_derived(name, expected, value, sizes)
        for symbol, low, high in signature.ranges:
            if symbol in sizes and not (low <= sizes[symbol] and (high is None or sizes[symbol] <= high)):
                raise _refusal(symbol, f"a size of {sizes[symbol]} outside {low} to {'any' if high is None else high}")
        for guard in signature.guards:
            if evaluate(guard, sizes) is False:
                raise _refusal("arguments", f"sizes {sizes} break {guard}, which the capture relied on")
        _check_apart(names, inputs, written)
        return tuple(inputs)

    return check_inputs


def _usual(graph: Graph) -> list[tuple[torch.dtype, tuple[Any, ...]]] | None:
    """Dtypes and sizes of a program that is called with so many positional tensors of fixed sizes; else None."""
    signature, spec = graph.signature, graph.signature.in_spec
    flat = spec is None or (all(s.is_leaf() for s in spec.child(0).children()) and not spec.child(1).num_children)
    types = [n.type for n in graph.inputs]
    fixed = all(isinstance(t, TensorType) and t.static for t in types)
    if signature.baked or signature.guards or not flat or not fixed:
        return None
    return [(_DTYPES[t.dtype], t.shape) for t in types if isinstance(t, TensorType)]


def _are(args: Sequence[Any], due: Sequence[tuple[torch.dtype, tuple[Any, ...]]]) -> bool:
    """Whether these are plain tensors of these dtypes and sizes; what is not so is looked at in detail."""
    for value, (dtype, shape) in zip(args, due, strict=True):
        if type(value) is not torch.Tensor or value.dtype is not dtype or value.shape != shape:
            return False
        if value.layout is not torch.strided:
            return False
    return True


def _check_apart(names: Sequence[str], inputs: Sequence[Any], written: Sequence[int]) -> None:
    """No argument that is written shares its memory with another one."""
    places: dict[int, int] = {}  # address -> the first input there
    for k, value in enumerate(inputs) if written else ():
        place = address(value) if isinstance(value, torch.Tensor) else 0
        first = places.setdefault(place, k)
        if place and first != k and (first in written or k in written):
            one, other = (first, k) if first in written else (k, first)
            raise _refusal(names[one], f"is written by the program and shares its memory with {names[other]}")


def _leaves(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], count: int) -> list[Any]:
    """The leaves of a call, in the captured order; dicts may come in any order of keys."""
    spec = signature.in_spec
    if spec is None:
        if kwargs or len(args) != count:
            got = f"{len(args)} positional and {len(kwargs)} keyword"
            raise _refusal("arguments", f"{got}, where {count} positional are due")
        return list(args)
    positional, keyword = spec.children()
    if len(args) != positional.num_children:
        raise _refusal("arguments", f"{len(args)} positional, where {positional.num_children} are due")
    due = list(keyword.context)
    if set(due) != set(kwargs):
        wrong = sorted(set(due) ^ set(kwargs))
        raise _refusal(wrong[0], f"keyword arguments {sorted(kwargs)}, where {sorted(due)} are due")
    found: list[Any] = []
    slots = [(f"argument {i}", s, a) for i, (s, a) in enumerate(zip(positional.children(), args, strict=True))]
    slots += [(name, s, kwargs[name]) for name, s in zip(due, keyword.children(), strict=True)]
    for name, part, value in slots:
        try:
            found += part.flatten_up_to(value)
        except (ValueError, TypeError, KeyError) as e:
            raise _refusal(name, f"has another structure than the captured one: {e}") from None
    return found


def _check_baked(position: int, value: Any, due: Any) -> None:
    if type(value) is not type(due) or value != due:
        raise _refusal(f"argument leaf {position}", f"is {_shown(value)}; the program was captured for {due!r} alone")


def _check_value(name: str, expected: Any, value: Any, sizes: dict[str, int]) -> None:
    """Kind, dtype, rank and sizes; a symbol is bound where it is met first."""
    if isinstance(expected, ScalarType):
        if not isinstance(value, int | float) or type(value) is not _KINDS[expected.kind]:
            raise _refusal(name, f"is {_shown(value)}, where a Python {expected.kind} is due")
        if isinstance(value, int):
            sizes[name] = value
        return
    if not isinstance(value, torch.Tensor):
        raise _refusal(name, f"is {_shown(value)}, where a tensor {expected} is due")
    if (
        DTYPE_NAMES.get(value.dtype) != expected.dtype
        or value.dim() != expected.rank
        or value.layout is not torch.strided
    ):
        raise _refusal(name, f"is {_shown(value)}, where {expected} is due")
    for size, due in zip(value.shape, expected.shape, strict=True):
        if isinstance(due, Sym):
            due = sizes.setdefault(due.name, size) if due.name.isidentifier() else size
        if size != due:
            raise _refusal(name, f"is {_shown(value)}, where {expected} is due")


def _check_derived(name: str, expected: Any, value: Any, sizes: dict[str, int]) -> None:
    """Sizes that are expressions of other sizes, such as ``2*s0``."""
    if not isinstance(expected, TensorType):
        return
    for size, due in zip(value.shape, expected.shape, strict=True):
        if isinstance(due, Sym) and not due.name.isidentifier():
            needed = evaluate(due.name, sizes)
            if needed is not None and needed != size:
                raise _refusal(name, f"is {_shown(value)}, where {expected} with {due} = {needed} is due")


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{DTYPE_NAMES.get(value.dtype, value.dtype)}[{','.join(map(str, value.shape))}]"
    return f"{value!r:.40} ({type(value).__name__})"


# ------------------------------------------------------------------------------------ results


def address(value: torch.Tensor) -> int:
    """Where the tensor's storage lies; 0 when it has no memory (empty, or on the meta device)."""
    storage = value.untyped_storage()
    try:
        return storage.data_ptr()
    except RuntimeError:  # a tensor that is being traced: its storage object stands for the memory
        return int(storage._cdata)


def own_copy(value: torch.Tensor) -> torch.Tensor:
    """The same elements in fresh memory; a broadcast view stays one, so it never grows."""
    storage = value.untyped_storage()
    if storage.nbytes() < value.numel() * value.element_size() and not value.is_conj() and not value.is_neg():
        fresh = torch.empty(0, dtype=value.dtype, device=value.device)
        copied: Any = storage.clone()  # type: ignore[no-untyped-call]
        return fresh.set_(copied, value.storage_offset(), value.shape, value.stride())
    return value.clone()


def deliverer(graph: Graph, apart: bool = False) -> Callable[..., Any]:
    """``deliver(values, sources, targets, inputs) -> result`` for the program.

    ``values`` are those of ``graph.outputs``; ``sources`` the tensors whose memory a value may share;
    ``targets`` what the write-backs write into, in their order; ``inputs`` the flat inputs.
    ``apart`` says that no value shares its memory with another one or an input, save that it is one itself.
    """
    signature = graph.signature
    count = len(graph.outputs) - len(signature.write_backs)
    written = tuple(w.output for w in signature.write_backs)
    leaves = signature.outputs or tuple(("value", k) for k in range(count))
    plain = leaves == tuple(("value", k) for k in range(count))
    pack = _packer(signature.out_spec)

    def fill(results: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        origin = {"value": results, "input": inputs}
        return [v if kind == "constant" else origin[kind][v] for kind, v in leaves]

    def deliver(
        values: Sequence[Any], sources: Sequence[Any], targets: Sequence[torch.Tensor], inputs: Sequence[Any]
    ) -> Any:
        if apart and not targets:
            return pack(values if plain else fill(values, inputs))
        taken = {address(t) for t in (*sources, *targets) if isinstance(t, torch.Tensor)} - {0}
        results = []
        for value in values[:count]:
            if isinstance(value, torch.Tensor):
                if address(value) in taken:
                    value = own_copy(value)
                taken |= {address(value)} - {0}
            results.append(value)
        goals = {address(t) for t in targets} - {0}
        due = [
            (t, values[k]) for t, k in zip(targets, written, strict=True) if values[k] is not t
        ]  # else it is written
        pending = [(t, own_copy(value) if address(value) in goals else value) for t, value in due]
        with torch.no_grad():
            for target, value in pending:
                target.copy_(value)
        return pack(fill(results, inputs))

    return deliver


def _packer(spec: Any) -> Callable[[Sequence[Any]], Any]:
    """Leaves as the structure that the caller gets."""
    if spec is None or (spec.type is tuple and all(s.is_leaf() for s in spec.children())):
        return tuple
    if spec.is_leaf():
        return lambda found: found[0]
    return lambda found: pytree.tree_unflatten(found, spec)
