"""The meaning of a graph: its values in float64 NumPy.

Takes a Graph (or a term) and inputs. Gives arrays. Promises: every float is float64, integers keep their
width, and each value has the shape that its node's type states. This is the oracle that the e-graph,
lowering and devices are measured against, so it uses references and definitions only.
Not here: speed, calls outside the vocabulary (the caller passes a function for them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from forge_eq.errors import CheckError, InputError
from forge_eq.ir.expand import definition, resolve
from forge_eq.ir.graph import Attr, Graph, Node
from forge_eq.ir.sizes import bind, sized
from forge_eq.ir.sizes import evaluate as evaluate_size
from forge_eq.ir.types import FLOATS, NoneType, ScalarType, Sym, TensorType, TupleType, Type
from forge_eq.ops.effects import opaque, opaque_effect
from forge_eq.ops.spec import Op, Term, Var

OpaqueCall = Callable[[Node, list[Any]], Any]  # (node, operands as float64 torch values) -> torch values

_EXACT = {"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}
_NUMPY = {**dict.fromkeys(FLOATS, "float64"), **_EXACT, "c64": "complex128", "c128": "complex128"}


def oracle_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that stands for a dtype of the graph: float64 for every float."""
    return np.dtype(_NUMPY[dtype])


def oracle_array(value: Any, type: TensorType) -> np.ndarray[Any, Any]:
    """A torch tensor, array or number as the oracle holds a value of ``type``."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.double() if value.is_floating_point() else value.resolve_conj()).numpy()
    return np.asarray(value, dtype=oracle_dtype(type.dtype))


# ------------------------------------------------------------------------------------------------ terms


class Typed(NamedTuple):
    """A value and its type: what a tensor variable is bound to."""

    value: Any
    type: Type


def apply(op: Op, values: Sequence[Any], types: Sequence[Type], attrs: tuple[Attr, ...], xp: Any = np) -> Any:
    """One operation by its reference, else by its definition; a tuple for a multi-output op.

    Raises CheckError when the op has neither.
    """
    if op.ref is not None:
        return op.ref(xp, *values, *attrs)
    terms, names = definition(op, types, attrs)
    env: dict[str, Any] = {name: value for (name, _), value in zip(op.attrs, attrs, strict=True)}
    env |= {name: Typed(v, t) for name, v, t in zip(names, values, types, strict=True)}
    results = tuple(evaluate_term(term, env, xp) for term in terms)
    return results if op.multi else results[0]


def evaluate_term(term: Term, env: Mapping[str, Any], xp: Any = np) -> Any:
    """The value of a term.

    Args:
        env: tensor variable -> ``(value, type)``; attribute variable -> value.
        xp: the namespace of array functions: NumPy, or a shim of it with symbolic values.

    Raises:
        CheckError: an unbound variable, or a computed attribute without an answer.
        ShapeError: the types do not fit.
    """
    tensors = {n: v for n, v in env.items() if isinstance(v, tuple) and len(v) == 2 and _is_type(v[1])}
    types = {n: v[1] for n, v in tensors.items()}
    attrs = {n: v for n, v in env.items() if n not in tensors}

    def walk(t: Term) -> Typed:
        if isinstance(t, Var):
            if t.name not in tensors:
                raise CheckError("evaluate", t.name, "is an unbound tensor variable", "bind it to (value, type)")
            return Typed(*tensors[t.name])
        operands = [walk(a) for a in t.args]
        values = resolve(t.attrs, types, attrs)
        given = [o.type for o in operands]
        due = t.op.infer(given, values)
        return Typed(apply(t.op, [o.value for o in operands], given, values, xp), due)

    return walk(term).value


def _is_type(value: Any) -> bool:
    return isinstance(value, TensorType | ScalarType | NoneType | TupleType)


# ------------------------------------------------------------------------------------------------ graphs


def evaluate(graph: Graph, inputs: Sequence[Any], call: OpaqueCall | None = None) -> list[np.ndarray[Any, Any]]:
    """The graph's outputs in float64.

    Args:
        inputs: arrays, tensors or numbers, one per graph input.
        call: what runs an opaque node on torch operands (floats as float64).

    Raises:
        InputError: the inputs do not match the graph's.
        CheckError: an opaque node without ``call``, a constant without data, or a value that is not of its node's type.
    """
    sizes = _bind_sizes(graph, inputs)
    values: list[Any] = []
    left = [len(users) for users in graph.users()]
    for i in graph.outputs:
        left[i] += 1
    with np.errstate(all="ignore"):
        for node in graph.nodes:
            # Weights are widened where they are read: all of them in float64 at once would be twice the model.
            values.append(None if node.op.leaf == "constant" else _value(graph, node, values, inputs, sizes, call))
            for i in node.inputs:
                left[i] -= 1
                if not left[i]:
                    values[i] = None
    return [np.asarray(_operand(graph, i, values)) for i in graph.outputs]


def _operand(graph: Graph, i: int, values: Sequence[Any]) -> Any:
    """The value of node ``i``."""
    node = graph.nodes[i]
    if node.op.leaf != "constant":
        return values[i]
    if node.attrs[0] not in graph.constants:
        raise CheckError("evaluate", f"%{node.id}", f"no data for {node.attrs[0]!r}", "attach it to the graph")
    assert isinstance(node.type, TensorType)
    return oracle_array(graph.constants[node.attrs[0]], node.type)


def _bind_sizes(graph: Graph, inputs: Sequence[Any]) -> dict[str, int]:
    """What the symbols in the inputs' types stand for."""
    if len(inputs) != len(graph.inputs):
        raise InputError("evaluate", graph.name, f"{len(inputs)} inputs for {len(graph.inputs)}", "pass one per input")
    tensors = [isinstance(n.type, TensorType) for n in graph.inputs]
    shapes = [tuple(np.shape(v)) if t else None for v, t in zip(inputs, tensors, strict=True)]
    sizes = bind([n.type for n in graph.inputs], shapes)
    for k, (node, shape) in enumerate(zip(graph.inputs, shapes, strict=True)):
        if isinstance(node.type, TensorType) and _sized_attr(node.type.shape, sizes) != shape:
            raise InputError("evaluate", f"input {k}", f"has shape {shape}, {node.type} is due", "pass that shape")
    return sizes


def _value(
    graph: Graph,
    node: Node,
    values: list[Any],
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    call: OpaqueCall | None,
) -> Any:
    if node.op.leaf == "input":
        given = inputs[node.attrs[0]]
        return oracle_array(given, node.type) if isinstance(node.type, TensorType) else given
    operands = [_operand(graph, i, values) for i in node.inputs]
    if node.op in (opaque, opaque_effect):
        if call is None:
            raise CheckError("evaluate", f"%{node.id}", f"{node.attrs[0]} is outside the vocabulary", "pass call=")
        return _from_torch(call(node, [_to_torch(v) for v in operands]), node.type)
    types = [_sized(graph.nodes[i].type, sizes) for i in node.inputs]
    found = apply(node.op, operands, types, _sized_attr(node.attrs, sizes))
    return found if node.op.leaf else _checked(node, found, node.type, sizes)


def _sized_attr(value: Any, sizes: Mapping[str, int]) -> Any:
    """Symbols replaced by the sizes that are known."""

    def size(symbol: Sym) -> Any:
        found = evaluate_size(symbol.name, sizes)
        return symbol if found is None else found

    return sized(value, size)


def _sized(type: Type, sizes: Mapping[str, int]) -> Type:
    if isinstance(type, TupleType):
        return TupleType(tuple(_sized(t, sizes) for t in type.items))
    return TensorType(type.dtype, _sized_attr(type.shape, sizes)) if isinstance(type, TensorType) else type


def _checked(node: Node, value: Any, type: Type, sizes: Mapping[str, int]) -> Any:
    """The value, which must be of the type its node states."""
    if isinstance(type, TupleType):
        return tuple(_checked(node, v, t, sizes) for v, t in zip(value, type.items, strict=True))
    if not isinstance(type, TensorType):
        return value
    array, due = np.asarray(value), _sized_attr(type.shape, sizes)
    fits = len(due) == array.ndim and all(isinstance(d, Sym) or d == n for d, n in zip(due, array.shape, strict=True))
    if not fits or array.dtype != oracle_dtype(type.dtype):
        got = f"{array.dtype}{list(array.shape)}"
        raise CheckError("evaluate", f"%{node.id} {node.op.name}", f"gives {got}, {type} is due", "fix the declaration")
    return array


def _to_torch(value: Any) -> Any:
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _from_torch(value: Any, type: Type) -> Any:
    if isinstance(type, TupleType):
        return tuple(_from_torch(v, t) for v, t in zip(value, type.items, strict=True))
    return oracle_array(value, type) if isinstance(type, TensorType) else value
