"""The invariants of a graph.

Takes a Graph. Gives nothing, or a CheckError that names the node. Promises: a graph that passes can be
evaluated, printed and encoded. Works from the declarations of the operations alone.
Not here: whether the graph means the right thing (``ir.evaluate``, ``verify``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from forge_eq.errors import CheckError, ShapeError
from forge_eq.ir.graph import Graph, Node
from forge_eq.ir.types import DTYPES, WEAK, NoneType, ScalarType, Sym, TensorType, TupleType, Type
from forge_eq.ops import REGISTRY
from forge_eq.ops.effects import opaque, opaque_effect
from forge_eq.ops.leaves import literal
from forge_eq.ops.movement import project

GIVEN = frozenset({opaque, opaque_effect})  # their type comes from the capture


def check(graph: Graph, data: bool = True) -> None:
    """Raises CheckError at the first broken invariant, in node order.

    ``data=False`` lets constants be without data, as in text that was just read.
    """
    for position, node in enumerate(graph.nodes):
        _check_place(graph, position, node)
        _check_attrs(node)
        _check_operands(graph, node)
        _check_type(graph, node)
    _check_outputs(graph)
    _check_inputs(graph)
    _check_constants(graph, data)
    _check_effects(graph)
    _check_signature(graph)


def _fail(node: Node | str, reason: str, remedy: str = "the stage that made the graph is at fault") -> NoReturn:
    raise CheckError("graph", node if isinstance(node, str) else f"%{node.id} {node.op.name}", reason, remedy)


# ------------------------------------------------------------------------------------------------ one node


def _check_place(graph: Graph, position: int, node: Node) -> None:
    if node.id != position:
        _fail(node, f"stands at position {position}")
    if REGISTRY.get(node.op.name) is not node.op:
        _fail(node, "is an op that the vocabulary does not hold")
    late = [i for i in node.inputs if not 0 <= i < position]
    if late:
        _fail(node, f"reads %{late[0]}, which does not come before it")
    known = len(node.inputs) >= len(node.op.inputs) - 1 if node.op.variadic else len(node.inputs) == len(node.op.inputs)
    if not known:
        _fail(node, f"has {len(node.inputs)} inputs, the signature is {node.op.signature}")


def _is_int(value: Any) -> bool:
    return type(value) is int


_KINDS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": lambda v: v is None or type(v) is float,  # None: a side of clamp that is left open
    "bool": lambda v: type(v) is bool,
    "str": lambda v: type(v) is str,
    "ints": lambda v: type(v) is tuple and all(_is_int(x) or isinstance(x, Sym) for x in v),
    "dtype": lambda v: v in DTYPES,
    "any": lambda v: True,
}


def fits(kind: str, value: Any) -> bool:
    """Whether an attribute declared as ``kind`` may have this value: 2 is no float, and True is no int."""
    return _KINDS[kind](value)


def _check_attrs(node: Node) -> None:
    if len(node.attrs) != len(node.op.attrs):
        _fail(node, f"has attributes {node.attrs}, the signature is {node.op.signature}")
    for (name, kind), value in zip(node.op.attrs, node.attrs, strict=True):
        if not fits(kind, value):
            _fail(node, f"attribute {name} is {value!r}, {kind} is due")
        if not _plain(value):
            _fail(node, f"attribute {name} holds {value!r}, which is no plain value")


def _plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_plain, value))
    return value is None or type(value) in (int, float, bool, str, Sym)


def _check_operands(graph: Graph, node: Node) -> None:
    for i in node.inputs:
        source = graph.nodes[i]
        if isinstance(source.type, TupleType) and node.op is not project:
            _fail(node, f"reads the tuple %{i} whole", "read its parts through project")
        if isinstance(source.type, NoneType):
            _fail(node, f"reads %{i}, which has no value")
        if isinstance(source.type, ScalarType) and node.op not in GIVEN:
            _fail(node, f"reads the host number %{i}, which only opaque calls take")


def _check_type(graph: Graph, node: Node) -> None:
    problem = _bad_type(node.type)
    if problem:
        _fail(node, problem)
    if isinstance(node.type, TensorType) and (node.type.dtype == WEAK) != (node.op is literal):
        _fail(node, f"has type {node.type}", "only literals take the dtype of the operand beside them")
    if node.op in GIVEN or (node.op.leaf and node.op is not literal):
        return
    try:
        due = node.op.infer([graph.nodes[i].type for i in node.inputs], node.attrs)
    except ShapeError as e:
        _fail(node, f"does not fit its inputs: {e.reason}")
    if due != node.type:
        _fail(node, f"has type {node.type}, the shape rule says {due}")


def _bad_type(type: Type) -> str:
    if isinstance(type, TupleType):
        return next(filter(None, map(_bad_type, type.items)), "")
    if isinstance(type, TensorType):
        if type.dtype not in DTYPES and type.dtype != WEAK:
            return f"has the unknown dtype {type.dtype}"
        if not all(isinstance(d, Sym) or (_is_int(d) and d >= 0) for d in type.shape):
            return f"has shape {type.shape!r}"
        return ""
    return "" if isinstance(type, ScalarType | NoneType) else f"has no type: {type!r}"


# ------------------------------------------------------------------------------------------------ the whole


def _check_outputs(graph: Graph) -> None:
    for i in graph.outputs:
        if not 0 <= i < len(graph.nodes):
            _fail("outputs", f"%{i} is no node")
        node = graph.nodes[i]
        if isinstance(node.type, TupleType | NoneType) or node.op is literal:
            _fail(node, f"is an output of type {node.type}", "a result is a tensor or a host number")


def _check_inputs(graph: Graph) -> None:
    found = [n for n in graph.nodes if n.op.leaf == "input"]
    for k, node in enumerate(found):
        if node.attrs != (k,):
            _fail(node, f"is argument {node.attrs[0]} where argument {k} is due", "every argument once and in order")


def _check_constants(graph: Graph, data: bool) -> None:
    types: dict[str, Type] = {}
    for node in graph.nodes:
        if node.op.leaf != "constant":
            continue
        name = node.attrs[0]
        if not isinstance(node.type, TensorType):
            _fail(node, f"is a constant of type {node.type}")
        if types.setdefault(name, node.type) != node.type:
            _fail(node, f"{name!r} is {types[name]} elsewhere and {node.type} here")
        if name not in graph.constants:
            if data:
                _fail(node, f"has no data under {name!r}", "attach it: parse(text, constants=...)")
            continue
        tensor = graph.constants[name]
        held = TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        due = TensorType(_TORCH_NAMES.get(node.type.dtype, node.type.dtype), node.type.shape)
        if held != due:
            _fail(node, f"has data of {held.dtype} {list(tensor.shape)} and type {node.type}")


_TORCH_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool", "c64": "complex64", "c128": "complex128",
}  # fmt: skip


def _check_effects(graph: Graph) -> None:
    last = -1
    for i in graph.effects:
        node = graph.nodes[i]
        token = node.attr("token")
        if token <= last:
            _fail(node, f"has token {token} after token {last}", "effects keep their order")
        last = token


def _check_signature(graph: Graph) -> None:
    sig, inputs = graph.signature, len(graph.inputs)
    if sig.inputs and len(sig.inputs) != inputs:
        _fail("signature", f"names {len(sig.inputs)} inputs, the graph has {inputs}")
    for name, spec, leaves in (("in_spec", sig.in_spec, None), ("out_spec", sig.out_spec, len(sig.outputs))):
        if spec is not None and leaves is not None and spec.num_leaves != leaves:
            _fail("signature", f"{name} has {spec.num_leaves} leaves for {leaves} results")
    for kind, value in sig.outputs:
        if kind not in ("value", "constant", "input"):
            _fail("signature", f"a result comes from {kind!r}")
        bound = {"value": len(graph.outputs), "input": inputs}.get(kind)
        if bound is not None and not (_is_int(value) and 0 <= value < bound):
            _fail("signature", f"a result is {kind} {value} of {bound}")
    for write in sig.write_backs:
        _check_write(graph, write.output, write.target)


def _check_write(graph: Graph, output: int, target: str) -> None:
    if not 0 <= output < len(graph.outputs):
        _fail("signature", f"output {output} of {len(graph.outputs)} is written to {target}")
    kind, _, name = target.partition(":")
    type = graph.nodes[graph.outputs[output]].type
    if kind == "input" and name.isdigit() and int(name) < len(graph.inputs):
        due = graph.inputs[int(name)].type
        if due != type:
            _fail("signature", f"a value of type {type} is written to input {name} of type {due}")
    elif kind != "constant" or not name:
        _fail("signature", f"{target!r} is no target of a write", "write constant:NAME or input:INDEX")
