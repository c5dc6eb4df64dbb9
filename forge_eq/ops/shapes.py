"""Shape rules that op declarations share. Each takes (input types, attrs) and gives the output type.

Raises ShapeError when the operands do not fit, or when a symbolic size hides whether they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from forge_eq.errors import ShapeError
from forge_eq.ir.types import FLOATS, WEAK, Dim, Sym, TensorType, TupleType, Type

Types = Sequence[Any]
Attrs = tuple[Any, ...]
Shape = tuple[Dim, ...]


def fail(reason: str) -> ShapeError:
    return ShapeError("types", "-", reason, "check the operands' shapes and dtypes")


def require(condition: bool, reason: str) -> None:
    if not condition:
        raise fail(reason)


def same_as(index: int = 0) -> Callable[[Types, Attrs], Type]:
    """The output has the type of one input, which must be a proper tensor."""

    def rule(types: Types, attrs: Attrs) -> Type:
        require(types[index].dtype != WEAK, "a literal alone has no type")
        return TensorType(types[index].dtype, types[index].shape)

    return rule


def floating(index: int = 0) -> Callable[[Types, Attrs], Type]:
    """Like :func:`same_as`, for ops that exist on floats only."""

    def rule(types: Types, attrs: Attrs) -> Type:
        require(types[index].dtype in FLOATS, f"{types[index].dtype} where a float is due")
        return TensorType(types[index].dtype, types[index].shape)

    return rule


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The common shape by NumPy's rule."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = []
    for axis in range(rank):
        dims = [s[axis - rank + len(s)] for s in shapes if axis - rank + len(s) >= 0]
        wide = {d for d in dims if d != 1}
        require(len(wide) <= 1, f"{[list(map(str, s)) for s in shapes]} do not broadcast")
        out.append(wide.pop() if wide else 1)
    return tuple(out)


def common_dtype(types: Types) -> str:
    """The one dtype of the operands, literals aside."""
    dtypes = {t.dtype for t in types if t.dtype != WEAK}
    require(len(dtypes) == 1, f"operands of dtypes {sorted(dtypes)}")
    return str(dtypes.pop())


def broadcast(types: Types, attrs: Attrs) -> Type:
    return TensorType(common_dtype(types), broadcast_shapes([t.shape for t in types]))


def broadcast_float(types: Types, attrs: Attrs) -> Type:
    dtype = common_dtype(types)
    require(dtype in FLOATS, f"{dtype} where a float is due")
    return TensorType(dtype, broadcast_shapes([t.shape for t in types]))


def comparison(types: Types, attrs: Attrs) -> Type:
    common_dtype(types)
    return TensorType("bool", broadcast_shapes([t.shape for t in types]))


def norm_axis(axis: int, rank: int) -> int:
    require(-rank <= axis < rank, f"axis {axis} of rank {rank}")
    return axis % rank


def reduced(types: Types, attrs: Attrs) -> Type:
    """``attrs`` begin with the axes (non-negative, ascending) and keepdim."""
    x, (axes, keepdim) = types[0], attrs[:2]
    require(x.dtype != WEAK and all(0 <= a < x.rank for a in axes), f"axes {axes} of rank {x.rank}")
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keepdim or i not in axes)
    return TensorType(x.dtype, shape)


def matmul(types: Types, attrs: Attrs) -> Type:
    """``[..., m, k] @ [..., k, n]`` with broadcast leading dimensions."""
    a, b = types[0], types[1]
    require(a.dtype == b.dtype and a.dtype != WEAK, f"{a.dtype} @ {b.dtype}")
    require(a.rank >= 2 and b.rank >= 2, "both operands need two axes")
    require(a.shape[-1] == b.shape[-2], f"inner sizes {a.shape[-1]} and {b.shape[-2]}")
    return TensorType(a.dtype, (*broadcast_shapes([a.shape[:-2], b.shape[:-2]]), a.shape[-2], b.shape[-1]))


def linear(types: Types, attrs: Attrs) -> Type:
    """``x[..., k]`` with ``w[n, k]`` (``attrs[0]``: transposed) or ``w[k, n]``, and an optional ``b[n]``."""
    x, w, transposed = types[0], types[1], attrs[0]
    require(x.dtype in FLOATS and all(t.dtype == x.dtype for t in types), "one float dtype is due")
    require(w.rank == 2 and x.rank >= 1, "a weight has two axes")
    n, k = w.shape if transposed else (w.shape[1], w.shape[0])
    require(x.shape[-1] == k, f"inner sizes {x.shape[-1]} and {k}")
    if len(types) > 2:
        require(types[2].shape == (n,), f"a bias of shape {types[2].shape} where [{n}] is due")
    return TensorType(x.dtype, (*x.shape[:-1], n))


def reshaped(types: Types, attrs: Attrs) -> Type:
    x, shape = types[0], tuple(attrs[0])
    require(x.dtype != WEAK, "a literal has no shape")
    fixed, free = _known(x.shape), _known(shape)
    require(fixed == free, f"{x} cannot become {list(map(str, shape))}")
    return TensorType(x.dtype, shape)


def _known(shape: Shape) -> tuple[int, tuple[str, ...]]:
    """Element count as (known factor, sorted symbols): equal counts have equal pairs."""
    parts = [p for d in shape for p in (_factors(d.name) if isinstance(d, Sym) else [d])]
    return prod(p for p in parts if isinstance(p, int)), tuple(sorted(p for p in parts if isinstance(p, str)))


def _factors(name: str) -> list[int | str]:
    """``2*s0*s1`` in parts; any other expression is one."""
    if not re.fullmatch(r"\w+(\*\w+)*", name):
        return [name]
    return [int(p) if p.isdecimal() else p for p in name.split("*")]


def permuted(types: Types, attrs: Attrs) -> Type:
    x, perm = types[0], attrs[0]
    require(x.dtype != WEAK and sorted(perm) == list(range(x.rank)), f"{perm} does not permute rank {x.rank}")
    return TensorType(x.dtype, tuple(x.shape[p] for p in perm))


def swapped(types: Types, attrs: Attrs) -> Type:
    x = types[0]
    require(x.rank >= 2 and x.dtype != WEAK, "two axes are due")
    return TensorType(x.dtype, (*x.shape[:-2], x.shape[-1], x.shape[-2]))


def expanded(types: Types, attrs: Attrs) -> Type:
    x, shape = types[0], tuple(attrs[0])
    require(x.dtype != WEAK and broadcast_shapes([x.shape, shape]) == shape, f"{x} does not expand to {shape}")
    return TensorType(x.dtype, shape)


def sliced(types: Types, attrs: Attrs) -> Type:
    """``attrs``: axis, start, stop, step; start and stop lie within the axis, step > 0."""
    x, (axis, start, stop, step) = types[0], attrs
    require(0 <= axis < x.rank and x.dtype != WEAK, f"axis {axis} of rank {x.rank}")
    size = x.shape[axis]
    require(isinstance(size, int) and 0 <= start <= stop <= size and step > 0, f"[{start}:{stop}:{step}] of {size}")
    shape = list(x.shape)
    shape[axis] = -(-(stop - start) // step)
    return TensorType(x.dtype, tuple(shape))


def concatenated(types: Types, attrs: Attrs) -> Type:
    axis, first = attrs[0], types[0]
    require(all(t.dtype == first.dtype and t.rank == first.rank for t in types), "one dtype and rank is due")
    require(0 <= axis < first.rank, f"axis {axis} of rank {first.rank}")
    sizes = [t.shape[axis] for t in types]
    require(all(isinstance(s, int) for s in sizes), "a symbolic size along the axis")
    for t in types:
        require(t.shape[:axis] + t.shape[axis + 1 :] == first.shape[:axis] + first.shape[axis + 1 :], "shapes differ")
    shape = list(first.shape)
    shape[axis] = sum(sizes)
    return TensorType(first.dtype, tuple(shape))


def splitted(types: Types, attrs: Attrs) -> Type:
    x, (sizes, axis) = types[0], attrs
    require(0 <= axis < x.rank and sum(sizes) == x.shape[axis], f"{sizes} of {x} along {axis}")
    parts = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
    return TupleType(tuple(TensorType(x.dtype, p) for p in parts))


def projected(types: Types, attrs: Attrs) -> Type:
    require(isinstance(types[0], TupleType) and 0 <= attrs[0] < len(types[0].items), "no such part")
    part: Type = types[0].items[attrs[0]]
    return part


def given(types: Types, attrs: Attrs) -> Type:
    """For leaves and opaque nodes: the type comes from the capture and cannot be inferred."""
    raise fail("this type is given by the capture")
