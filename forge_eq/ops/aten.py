"""Adapters from ATen calls to the vocabulary: what an op's ``aten=`` table may hold.

An adapter is ``adapter(imp, op, *args, **kwargs) -> Ref``, or a tuple of them
(None for a part that nobody reads). ``imp`` is the importer (see
:class:`Importer`); ``args`` are the call's arguments, graph values as :class:`Ref`. An adapter raises
:class:`Unsupported` when the call means something that the op does not: the call then stays opaque.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forge_eq.ir.types import FLOATS, INTEGERS, Sym, TensorType
from forge_eq.ops.spec import REGISTRY, Op

CASTABLE = frozenset({"f64", "f32", "i64", "i32", "bool"})  # dtypes that the op cast converts between


_RANGES = {"u8": (0, 255), **{f"i{b}": (-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (8, 16, 32, 64)}}


class Unsupported(Exception):
    """The call stays opaque; the text says why."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph under construction."""

    id: int


class Importer(Protocol):
    """What an adapter may use."""

    out: Any  # the captured type of the call's result
    parts: frozenset[int]  # of a call with several results: which of them are read

    def emit(self, op: Op, inputs: Sequence[Ref], attrs: Sequence[Any] = ()) -> Ref: ...

    def type(self, ref: Ref) -> Any: ...

    def dtype(self, torch_dtype: Any) -> str:
        """The name of a torch dtype."""
        ...

    def sized(self, symbol: Sym) -> bool:
        """Whether the sizes of the program's arguments decide what the symbol stands for."""
        ...

    def number(self, ref: Ref) -> float | None:
        """The value of a tensor without axes that the program itself writes down, as ``torch.tensor(2.0)``."""
        ...


Adapter = Callable[..., Ref]


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise Unsupported(reason)


def tensor(imp: Importer, value: Any) -> TensorType:
    """The tensor type of an argument that must be a tensor value."""
    need(isinstance(value, Ref) and isinstance(imp.type(value), TensorType), "a tensor is due")
    found: TensorType = imp.type(value)
    return found


def unary(imp: Importer, op: Op, x: Ref) -> Ref:
    """Same dtype in and out; torch's int -> float promotion is written as a cast."""
    t = tensor(imp, x)
    need(t.dtype in FLOATS | INTEGERS | {"bool"}, f"{t.dtype} arithmetic")
    return imp.emit(op, [operand(imp, x, imp.out.dtype) if imp.out.dtype in FLOATS else x])


def operand(imp: Importer, value: Any, dtype: str) -> Ref:
    """A tensor operand cast to ``dtype``, or a number as a literal of the kind that ``dtype`` has."""
    if isinstance(value, Ref):
        t = tensor(imp, value)
        if t.dtype == dtype:
            return value
        # Beside f16 and bf16, torch computes with a 0-dim operand at a higher precision than a cast leaves.
        need(t.dtype in CASTABLE and dtype in CASTABLE, f"{t.dtype} promoted to {dtype}")
        return imp.emit(REGISTRY["cast"], [value], [dtype])
    need(isinstance(value, int | float | bool), "a symbolic or complex number")
    if dtype in FLOATS:
        need(dtype in ("f32", "f64"), f"a number beside {dtype} is used at a higher precision than it is stored")
        need(isinstance(value, float) or abs(value) < 2**53, "a number beyond exact range")
        value = float(value)
    elif dtype == "bool":
        need(isinstance(value, bool), "a number beside a bool")
    else:
        need(isinstance(value, int), "a float beside an integer")
        value = int(value)
        need(_RANGES[dtype][0] <= value <= _RANGES[dtype][1], f"{value} does not fit {dtype}")
    return imp.emit(REGISTRY["literal"], [], [value])


def computed_dtype(imp: Importer, *values: Any) -> str:
    """The dtype torch computes in, where that is the result's dtype: checked against torch's own rule."""
    dtype: str = imp.out.dtype
    need(dtype in FLOATS | INTEGERS, f"{dtype} arithmetic")
    return dtype


def binary(imp: Importer, op: Op, a: Any, b: Any, *, alpha: Any = 1) -> Ref:
    """Arithmetic: both operands are cast to the result's dtype, as torch promotes them."""
    need(isinstance(alpha, int | float) and alpha == 1, "alpha")
    need(isinstance(a, Ref) or isinstance(b, Ref), "two numbers")
    dtype = computed_dtype(imp)
    if isinstance(a, Ref) and isinstance(b, Ref) and dtype in ("f32", "f64") and tensor(imp, a).rank > 0:
        number = imp.number(b)
        b = b if number is None else number
    return imp.emit(op, [operand(imp, a, dtype), operand(imp, b, dtype)])


def binary_float(imp: Importer, op: Op, a: Any, b: Any) -> Ref:
    """True division: exists on floats only."""
    need(imp.out.dtype in FLOATS, "integer division")
    return binary(imp, op, a, b)


def reversed_binary(imp: Importer, op: Op, a: Any, b: Any, alpha: Any = 1) -> Ref:
    return binary(imp, op, b, a, alpha=alpha)


def compare(imp: Importer, op: Op, a: Any, b: Any) -> Ref:
    """Comparison of equal dtypes; mixed ones stay opaque (torch compares them promoted)."""
    ta = tensor(imp, a)
    if isinstance(b, Ref):
        need(tensor(imp, b).dtype == ta.dtype, "mixed dtypes")
    elif ta.dtype == "bool" and type(b) is int and b in (0, 1):
        b = bool(b)  # torch compares a bool with a number as 0 or 1
    return imp.emit(op, [a, operand(imp, b, ta.dtype)])


def boolean(imp: Importer, op: Op, *args: Any) -> Ref:
    """Bitwise ops, which are the logical ones on bools only."""
    need(all(tensor(imp, a).dtype == "bool" for a in args), "bitwise on integers")
    return imp.emit(op, args)


def dims(imp: Importer, shape: Any) -> tuple[Any, ...]:
    """The result's shape as an attribute. A size that only the call knows must follow from those of the arguments."""
    out = tuple(imp.out.shape)
    need(all(isinstance(d, int) or imp.sized(d) for d in out), "a size that is computed from values")
    return out


def to_shape(imp: Importer, op: Op, x: Ref, *rest: Any, **kw: Any) -> Ref:
    """view, reshape, (un)squeeze, flatten, expand: the captured result shape is the attribute."""
    tensor(imp, x)
    return imp.emit(op, [x], [dims(imp, None)])


def axes_of(imp: Importer, x: Ref, dim: Any) -> tuple[int, ...]:
    """Reduction axes, non-negative and ascending; None or empty means all."""
    rank = tensor(imp, x).rank
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(rank))
    chosen = [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted(d % rank for d in chosen)) if rank else ()


def reduction(imp: Importer, op: Op, x: Ref, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Ref:
    need(dtype is None or imp.dtype(dtype) == tensor(imp, x).dtype, "a reduction in another dtype")
    need(tensor(imp, x).dtype == imp.out.dtype, "a reduction that changes dtype")
    return imp.emit(op, [x], [axes_of(imp, x, dim), bool(keepdim)])
