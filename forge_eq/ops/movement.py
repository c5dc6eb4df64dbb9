"""Movement: which element goes where. No arithmetic, so every rule here is exact."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from forge_eq.ir.types import TupleType
from forge_eq.ops import aten
from forge_eq.ops.shapes import (
    concatenated,
    expanded,
    permuted,
    projected,
    reshaped,
    same_as,
    sliced,
    splitted,
    swapped,
)
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, op

MOVE = Cost(flops=lambda i, a, o: 0.0, cost_class="movement")
VIEW = Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: 0.0, cost_class="view")

reshape = op(
    "reshape(x; shape: ints) -> y",
    "The same elements in row-major order under another shape.",
    shape=reshaped,
    aten=dict.fromkeys(
        [
            "aten.view.default",
            "aten.reshape.default",
            "aten.unsqueeze.default",
            "aten.squeeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.flatten.using_ints",
            "aten.unflatten.int",
            "aten._unsafe_view.default",
        ],
        aten.to_shape,
    ),
    ref=lambda xp, x, shape: xp.reshape(x, shape),
    torch=lambda x, shape: x.reshape(shape),
    traits=Traits(view=True),
    cost=VIEW,
    kernel=Kernel("move", lambda g, x, shape: g.reshape(x, g.i64(shape), False)),
)


def _axis(imp: aten.Importer, x: Any, dim: int) -> int:
    rank = aten.tensor(imp, x).rank
    aten.need(rank > 0, "an axis of a scalar")
    return dim % rank


def _permute(imp: aten.Importer, op: Op, x: Any, perm: Any) -> aten.Ref:
    return imp.emit(op, [x], [tuple(_axis(imp, x, p) for p in perm)])


def _transpose(imp: aten.Importer, op: Op, x: Any, a: int, b: int) -> aten.Ref:
    perm = list(range(aten.tensor(imp, x).rank))
    a, b = _axis(imp, x, a), _axis(imp, x, b)
    perm[a], perm[b] = perm[b], perm[a]
    return imp.emit(op, [x], [tuple(perm)])


def _reverse(imp: aten.Importer, op: Op, x: Any) -> aten.Ref:
    rank = aten.tensor(imp, x).rank
    return imp.emit(op, [x], [(1, 0) if rank == 2 else tuple(range(rank))])


permute = op(
    "permute(x; perm: ints) -> y",
    "Axes reordered: axis i of y is axis perm[i] of x.",
    shape=permuted,
    aten={
        "aten.permute.default": _permute,
        "aten.transpose.int": _transpose,
        "aten.swapaxes.default": _transpose,
        "aten.swapdims.default": _transpose,
        "aten.t.default": _reverse,
        "aten.numpy_T.default": _reverse,
        "aten.mT.default": lambda imp, op, x: _transpose(imp, op, x, -2, -1),
    },
    ref=lambda xp, x, perm: xp.transpose(x, perm),
    torch=lambda x, perm: x.permute(perm),
    cost=MOVE,
    kernel=Kernel("move", lambda g, x, perm: g.transpose(x, g.i64(perm))),
)
swap_last = op(
    "swap_last(x) -> y",
    "The matrix transpose: the last two axes exchanged.",
    shape=swapped,
    ref=lambda xp, x: xp.swapaxes(x, -1, -2),
    torch=lambda x: x.transpose(-1, -2),
    traits=Traits(involution=True),
    cost=MOVE,
    kernel=Kernel("move", lambda g, x: g.transpose(x, g.i64((*range(g.rank(x) - 2), g.rank(x) - 1, g.rank(x) - 2)))),
)


def _repeat(imp: aten.Importer, op: Op, x: Any, counts: Any) -> aten.Ref:
    """A repeat of axes of size 1 is an expansion; any other one copies in an order that no expansion has."""
    t = aten.tensor(imp, x)
    aten.need(all(isinstance(n, int) for n in counts) and len(counts) == t.rank, "this repeat")
    aten.need(all(n == 1 or d == 1 for n, d in zip(counts, t.shape, strict=True)), "a repeat that tiles")
    return imp.emit(contiguous, [imp.emit(op, [x], [aten.dims(imp, None)])])


broadcast_to = op(
    "broadcast_to(x; shape: ints) -> y",
    "x repeated along new or size-1 axes up to shape.",
    shape=expanded,
    aten={
        **dict.fromkeys(["aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default"], aten.to_shape),
        "aten.repeat.default": _repeat,
    },
    ref=lambda xp, x, shape: xp.broadcast_to(x, shape),
    torch=lambda x, shape: x.expand(shape),
    cost=MOVE,
    kernel=Kernel("move", lambda g, x, shape: g.broadcast(x, g.i64(shape))),
)


def _slice(
    imp: aten.Importer, op: Op, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> aten.Ref:
    axis = _axis(imp, x, dim)
    size = aten.tensor(imp, x).shape[axis]
    aten.need(
        all(isinstance(v, int | type(None)) for v in (start, end, step)) and isinstance(size, int), "symbolic slice"
    )
    assert isinstance(size, int)
    start, stop, step = slice(start, min(end if end is not None else sys.maxsize, sys.maxsize), step).indices(size)
    return imp.emit(op, [x], [axis, start, max(start, stop), step])


def _select(imp: aten.Importer, op: Op, x: Any, dim: int, index: Any) -> aten.Ref:
    axis = _axis(imp, x, dim)
    size = aten.tensor(imp, x).shape[axis]
    aten.need(isinstance(index, int) and isinstance(size, int), "symbolic select")
    index %= size
    row = imp.emit(op, [x], [axis, index, index + 1, 1])
    return imp.emit(reshape, [row], [aten.dims(imp, None)])


def _narrow(imp: aten.Importer, op: Op, x: Any, dim: int, start: Any, length: Any) -> aten.Ref:
    aten.need(isinstance(start, int) and isinstance(length, int) and start >= 0, "symbolic narrow")
    return _slice(imp, op, x, dim, start, start + length)


def _unbind(imp: aten.Importer, op: Op, x: Any, dim: int = 0) -> Any:
    """Every index along an axis, as slices."""
    axis = _axis(imp, x, dim)
    aten.need(isinstance(imp.out, TupleType), "parts are due")
    parts = []
    for i, part in enumerate(imp.out.items):
        aten.need(part.static, "symbolic parts")
        parts.append(imp.emit(reshape, [imp.emit(op, [x], [axis, i, i + 1, 1])], [part.shape]))
    return tuple(parts)


slice_ = op(
    "slice(x; axis: int, start: int, stop: int, step: int) -> y",
    "Elements start, start + step, ... before stop along axis.",
    shape=sliced,
    aten={
        "aten.slice.Tensor": _slice,
        "aten.select.int": _select,
        "aten.narrow.default": _narrow,
        "aten.unbind.int": _unbind,
    },
    ref=lambda xp, x, axis, start, stop, step: x[(slice(None),) * axis + (slice(start, stop, step),)],
    torch=lambda x, axis, start, stop, step: x[(slice(None),) * axis + (slice(start, stop, step),)],
    cost=MOVE,
    kernel=Kernel(
        "move",
        lambda g, x, axis, start, stop, step: g.slice(x, g.i64([start]), g.i64([stop]), g.i64([step]), g.i64([axis])),
    ),
)


def _cat(imp: aten.Importer, op: Op, parts: Any, dim: int = 0) -> aten.Ref:
    """Empty one-dimensional operands, which torch allows beside anything, are left out."""
    aten.need(isinstance(parts, list | tuple) and all(isinstance(p, aten.Ref) for p in parts), "this cat")
    kept = [p for p in parts if aten.tensor(imp, p).shape != (0,)] if len(imp.out.shape) > 1 else list(parts)
    aten.need(bool(kept) and all(aten.tensor(imp, p).dtype == imp.out.dtype for p in kept), "a cat of several dtypes")
    return imp.emit(op, kept, [_axis(imp, kept[0], dim)])


concat = op(
    "concat(*xs; axis: int) -> y",
    "The operands one after the other along axis.",
    shape=concatenated,
    aten={"aten.cat.default": _cat},
    ref=lambda xp, *a: xp.concatenate(a[:-1], axis=a[-1]),
    torch=lambda *a: torch.cat(a[:-1], a[-1]),
    cost=MOVE,
    kernel=Kernel("move", lambda g, *a: g.concat(list(a[:-1]), a[-1])),
)


def _sizes(imp: aten.Importer, op: Op, x: Any, dim: int) -> aten.Ref:
    axis = _axis(imp, x, dim)
    aten.need(isinstance(imp.out, TupleType), "parts are due")
    sizes = tuple(t.shape[axis] for t in imp.out.items)
    aten.need(all(isinstance(s, int) for s in sizes), "symbolic parts")
    return imp.emit(op, [x], [sizes, axis])


def _split(imp: aten.Importer, op: Op, x: Any, size: Any, dim: int = 0) -> aten.Ref:
    return _sizes(imp, op, x, dim)


split = op(
    "split(x; sizes: ints, axis: int) -> *ys",
    "Consecutive parts of the given sizes along axis.",
    shape=splitted,
    aten=dict.fromkeys(
        [
            "aten.split.Tensor",
            "aten.split_with_sizes.default",
            "aten.chunk.default",
            "aten.split.sizes",
            "aten.tensor_split.sections",
        ],
        _split,
    ),
    ref=lambda xp, x, sizes, axis: xp.split(x, [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)], axis=axis),
    torch=lambda x, sizes, axis: torch.split(x, list(sizes), axis),
    cost=MOVE,
    kernel=Kernel("move", lambda g, x, sizes, axis: g.variadic_split(x, g.i64(axis), g.i64(sizes))),
)
project = op(
    "project(t; index: int) -> y",
    "Part number index of a multi-output value.",
    shape=projected,
    ref=lambda xp, t, index: t[index],
    torch=lambda t, index: t[index],
    cost=VIEW,
)

# -------------------------------------------------------------------------- identities that exports carry


def _identity(
    name: str,
    doc: str,
    overloads: list[str],
    run: Callable[..., Any] = lambda x: x,
    adapter: Callable[..., aten.Ref] | None = None,
) -> Op:
    """A call that only names or stores a value again; a rule of family ``simplify`` or ``device`` removes it.

    ``run`` leaves the strides that the call leaves: the last bits of torch's kernels depend on those of the operands.
    """
    return op(
        f"{name}(x) -> y",
        doc,
        shape=same_as(),
        aten=dict.fromkeys(overloads, adapter or _pass),
        ref=lambda xp, x: x,
        torch=run,
        traits=Traits(elementwise=True, view=True, idempotent=True),
        cost=VIEW,
        kernel=Kernel("move", lambda g, x: x),
    )


def _pass(imp: aten.Importer, op: Op, x: Any, *rest: Any, **kw: Any) -> aten.Ref:
    t = aten.tensor(imp, x)
    if t.dtype != imp.out.dtype and t.shape == imp.out.shape:  # ``to`` with a device and a dtype
        return aten.operand(imp, x, imp.out.dtype)
    aten.need(t == imp.out, "a copy that changes the type")
    return imp.emit(op, [x])


alias = _identity("alias", "The same value under another name.", ["aten.alias.default", "aten.detach.default"])
contiguous = _identity(
    "contiguous",
    "The same value stored densely; storage is not part of a type.",
    ["aten.contiguous.default"],
    lambda x: x.contiguous(),
)


def _clone(imp: aten.Importer, op: Op, x: Any, *, memory_format: Any = None) -> aten.Ref:
    return _pass(imp, contiguous if memory_format is torch.contiguous_format else op, x)


clone = _identity(
    "clone",
    "The same value in memory without gaps, its axes there in the order that they had.",
    ["aten.clone.default"],
    lambda x: x.clone(),
    _clone,
)
device_move = _identity(
    "device_move",
    "The same value on the one device that the program's host memory is.",
    ["aten.to.device", "aten.lift_fresh_copy.default", "aten.lift_fresh.default"],
)


def _dropout(imp: aten.Importer, op: Op, x: Any, p: float, train: bool) -> aten.Ref:
    aten.need(train is False, "dropout that draws")
    aten.tensor(imp, x)
    return imp.emit(op, [x], [float(p)])


dropout_eval = op(
    "dropout_eval(x; p: float) -> y",
    "Dropout in evaluation mode: x itself.",
    shape=same_as(),
    aten={"aten.dropout.default": _dropout},
    ref=lambda xp, x, p: x,
    torch=lambda x, p: x,
    traits=Traits(elementwise=True, view=True),
    cost=VIEW,
    kernel=Kernel("move", lambda g, x, p: x),
)
