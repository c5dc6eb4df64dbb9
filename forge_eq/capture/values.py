"""Captured values as types, captured places as text.

Takes what ``torch.export`` recorded at a node. Gives the graph's types and origins. Promises: only what the
graph can hold gets a type; the rest is named in the refusal. Not here: calls (``capture.import_aten``).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node as FxNode

from forge_eq.capture.tape import Call
from forge_eq.errors import CaptureError
from forge_eq.ir.types import NoneType, ScalarType, Sym, TensorType, TupleType, Type
from forge_eq.ops.aten import Unsupported

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.complex64: "c64", torch.complex128: "c128",
}  # fmt: skip
_SCALARS: dict[str, tuple[type, ...]] = {
    "bool": (bool, torch.SymBool),
    "int": (int, torch.SymInt),
    "float": (float, torch.SymFloat),
}
_TORCH_HOME = torch.__file__.rpartition("/")[0]


def type_of(value: Any) -> Type:
    """The type of a captured value (a node's ``val``). Raises Unsupported on what the graph cannot hold."""
    if isinstance(value, torch.Tensor):
        dtype = DTYPE_NAMES.get(value.dtype)
        if dtype is None or value.layout is not torch.strided or value.is_quantized:
            raise Unsupported(f"a tensor of {value.dtype} in {value.layout} layout")
        shape = tuple(value.shape)
        for d in shape:
            if type(d) is not int:
                return TensorType(dtype, tuple(d if type(d) is int else Sym(str(d)) for d in shape))
        return TensorType(dtype, shape)
    if value is None:
        return NoneType()
    if isinstance(value, list | tuple):
        return TupleType(tuple(type_of(v) for v in value))
    for kind, scalars in _SCALARS.items():
        if isinstance(value, scalars):
            return ScalarType(kind)
    raise Unsupported(f"a value of type {type(value).__name__}")


def innermost(trace: str) -> str:
    """``file:line`` of the last frame of a stack trace outside torch."""
    end = len(trace)
    while (at := trace.rfind('File "', 0, end)) >= 0:
        path, _, rest = trace[at + 6 : end].partition('", line ')
        if not path.startswith(_TORCH_HOME):
            return f"{path}:{rest.partition(',')[0]}"
        end = at
    return ""


def refuse(node: FxNode | Call, reason: str) -> CaptureError:
    """The error that names a call, the user's line and why no graph can hold it."""
    where = innermost(node.meta.get("stack_trace") or "")
    return CaptureError(
        "capture",
        f"{node.name} ({node.target})" + (f" at {where}" if where else ""),
        reason,
        "keep this call out of the captured module, or rewrite it without what is named here",
    )


def parts_read(node: FxNode | Call) -> frozenset[int]:
    """Which results of a call with several are read; every one where a reader takes the whole."""
    count = len(node.meta["val"])
    found: set[int] = set()
    for user in node.users:
        index = user.args[1] if getattr(user, "target", None) is operator.getitem else None
        if not isinstance(index, int):
            return frozenset(range(count))
        found |= {index % count} if user.users else set()
    return frozenset(found)
