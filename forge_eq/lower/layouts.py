"""Layouts: in which order the axes of a value are stored, and which instructions can work in which.

Takes instructions. Gives, for a layout of the results, the layout in which each operand is wanted. Promises: an
instruction that these rules accept computes the same values in that layout.
Not here: which layout pays (``lower.orient``), the nodes (``run.model``).

A layout is a permutation: position i of the storage holds axis ``layout[i]``. Two are in use, row-major and
feature-major: the axis that counts tokens moved to the end, [1, tokens, features] stored as [1, features, tokens]. A
product with the weight on the left wants and gives the second. Another layout is another permutation: it needs a row
in :func:`operand` for the instructions that can work in it, and a price in ``lower.orient``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from forge_eq.ir.types import TensorType, Type
from forge_eq.lower.npu import Instr, Operand, Program, operand_type
from forge_eq.ops.movement import concat, permute, reshape, split, swap_last

Layout = tuple[int, ...]


def row_major(rank: int) -> Layout:
    return tuple(range(rank))


def feature_major(rank: int, tokens: int) -> Layout:
    """The layout with axis ``tokens`` last."""
    return (*(a for a in range(rank) if a != tokens), tokens)


def shape_of(type: Type) -> tuple[int, ...]:
    """The sizes of a static tensor type; () for anything else."""
    return cast("tuple[int, ...]", type.shape) if isinstance(type, TensorType) and type.static else ()


def stored_shape(type: Type, layout: Layout) -> list[int]:
    """The sizes in the order of storage."""
    shape = shape_of(type)
    return [shape[a] for a in layout] if layout else list(shape)


def token_axis(shape: Sequence[int]) -> int | None:
    """The axis of the rows of a layer's operand: the only one but the last that is longer than 1."""
    long = [a for a, size in enumerate(shape[:-1]) if size > 1]
    if len(shape) < 2 or len(long) > 1:
        return None
    return long[0] if long else len(shape) - 2


def permutation(instr: Instr, rank: int) -> Layout | None:
    """The axis of the operand for each of the result, when that is all an instruction does."""
    if instr.op is permute:
        return tuple(instr.attrs[0])
    return (*range(rank - 2), rank - 1, rank - 2) if instr.op is swap_last else None


def aligned(instr: Instr) -> bool:
    """Whether element i of the results depends on elements i of the operands, or on rows of them."""
    assert instr.op is not None
    return instr.op.traits.elementwise or instr.unit == "norm"


def is_layer(instr: Instr) -> bool:
    """Whether the instruction can have its weight on the left."""
    return instr.op is not None and instr.op.kernel is not None and instr.op.kernel.left is not None


def result_axis(program: Program, instr: Instr, index: int, tokens: int) -> int | None:
    """The token axis of the results when that of operand ``index`` is ``tokens``; None when there is none."""
    source, out = (shape_of(program.vregs[r].type) for r in (instr.reads[index], instr.dsts[0]))
    order = permutation(instr, len(out))
    if order is not None:
        return order.index(tokens)
    if instr.op is reshape:
        return _same_axis(source, out, tokens)
    if instr.op is split or instr.op is concat:
        return tokens if instr.attr("axis") != tokens else None
    if is_layer(instr):
        return tokens if index == 0 and token_axis(source) == tokens else None
    axis = tokens + len(out) - len(source)
    if not aligned(instr) or axis < 0 or out[axis] != source[tokens]:
        return None
    return axis if instr.op is not None and (instr.unit != "norm" or axis != len(out) - 1) else None


def _same_axis(source: Sequence[int], out: Sequence[int], axis: int) -> int | None:
    """The axis of a reshaped value that counts the same thing: as long, and as many rows before it."""
    before = math.prod(source[:axis])
    found = [a for a, size in enumerate(out) if size == source[axis] and math.prod(out[:a]) == before]
    return found[-1] if found else None


def operand(program: Program, instr: Instr, source: Operand) -> Layout | None:
    """The layout in which ``instr``, with its own layout, wants an operand; None: as typed.

    An operand of lower rank than the result is broadcast: it is wanted as typed, and then given axes of size 1.
    """
    rank = len(shape_of(operand_type(program, source)))
    if not instr.layout or not isinstance(source, int):
        return None
    tokens = instr.layout[-1]
    order = permutation(instr, rank)
    if order is not None:
        return tuple(order[a] for a in instr.layout)
    if instr.op is reshape:
        out, given = (shape_of(program.vregs[r].type) for r in (instr.dsts[0], source))
        axis = _same_axis(out, given, tokens)
        return None if axis is None else feature_major(rank, axis)
    if is_layer(instr):
        return feature_major(rank, tokens) if source == instr.srcs[0] else None
    return instr.layout if rank == len(instr.layout) else None


def works_in(program: Program, instr: Instr) -> bool:
    """Whether the instruction's feature-major layout suits it: some operand in it leads to that very layout."""
    for index, source in enumerate(instr.reads):
        wanted = operand(program, instr, source)
        if wanted is not None and result_axis(program, instr, index, wanted[-1]) == instr.layout[-1]:
            return True
    return False
