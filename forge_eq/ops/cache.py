"""Rows of a cache: written at places that are known only at run time, and looked at before they are written.

``attention_parts_*`` is attention over keys that lie in two places, a cache and the rows about to enter it, so that
nothing is joined in memory and the cache may be written afterwards, in place. Which keys count is said by one mask
for each place. See docs/decisions/0008-kv-cache.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forge_eq.ir.types import TensorType
from forge_eq.ops import aten, attention, shapes
from forge_eq.ops.linalg import INEXACT
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, op

# ------------------------------------------------------------------------------------ rows by number


def _valid(index: Any, size: int) -> list[int]:
    """The numbers of rows. Raises IndexError for one out of range, as torch does."""
    found = [int(i) for i in index]
    if any(not 0 <= i < size for i in found):
        raise IndexError(f"rows {found} of {size}")
    return found


def _written_shape(types: Any, attrs: Any) -> TensorType:
    x, index, rows = types
    (axis,) = attrs
    shapes.require(0 <= axis < x.rank and index.rank == 1 and index.dtype == "i64", "an axis and a list of rows")
    shapes.require(rows.dtype == x.dtype, "rows of another dtype")
    shapes.require(rows.shape == (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), "rows that do not fit")
    return TensorType(x.dtype, x.shape)


def _written(xp: Any, x: Any, index: Any, rows: Any, axis: int) -> Any:
    made = np.array(x, copy=True)
    for k, row in enumerate(_valid(index, x.shape[axis])):  # a later row wins
        made[(slice(None),) * axis + (row,)] = rows[(slice(None),) * axis + (k,)]
    return made


def _copied(x: Any, index: Any, rows: Any, axis: int) -> Any:
    if x.numel() == 0:
        _valid(index, x.shape[axis])  # torch looks at no number where there is nothing to write
    return x.index_copy(axis, index, rows)


def _index_copy(imp: aten.Importer, op: Op, x: Any, dim: int, index: Any, rows: Any) -> aten.Ref:
    rank = aten.tensor(imp, x).rank
    aten.need(rank > 0 and aten.tensor(imp, index).rank == 1, "a scalar")
    return imp.emit(op, [x, index, rows], [dim % rank])


def _samples(rng: Any, known: Any, attrs: Any) -> tuple[list[TensorType], tuple[Any, ...]] | None:
    """Rows for a tensor that is there, along the axis that caches have, or another."""
    x, index, _ = known
    if x is None or x.rank == 0 or not x.static:
        return None
    axis = attrs[0] if attrs[0] is not None else rng.choice((max(x.rank - 2, 0), rng.randrange(x.rank)))
    count = index.shape[0] if index is not None and index.rank == 1 else rng.choice((1, 1, 2))
    rows = TensorType(x.dtype, (*x.shape[:axis], count, *x.shape[axis + 1 :]))
    return [x, index or TensorType("i64", (count,)), rows], (axis,)


write_rows = op(
    "write_rows(x, index, rows; axis: int) -> y",
    "x with rows in place of those that index names along axis; of two for one place the later.",
    shape=_written_shape,
    aten={"aten.index_copy.default": _index_copy},
    ref=_written,
    torch=_copied,
    update=lambda x, index, rows, axis: x.index_copy_(axis, index, rows),
    samples=_samples,
    traits=Traits(gather=True),
    # What it costs where the cache is written in place; a copy is a reader's fault, and priced there.
    cost=Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: 2.0 * (i[2].nbytes or 1), cost_class="movement"),
)


def _taken_shape(types: Any, attrs: Any) -> TensorType:
    x, index = types
    (axis,) = attrs
    shapes.require(0 <= axis < x.rank and index.rank == 1 and index.dtype == "i64", "an axis and a list of rows")
    return TensorType(x.dtype, (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]))


def _index_select(imp: aten.Importer, op: Op, x: Any, dim: int, index: Any) -> aten.Ref:
    rank = aten.tensor(imp, x).rank
    aten.need(rank > 0 and aten.tensor(imp, index).rank == 1, "a scalar")
    return imp.emit(op, [x, index], [dim % rank])


take_rows = op(
    "take_rows(x, index; axis: int) -> y",
    "The rows of x that index names, along axis; one out of range is an error at run time.",
    shape=_taken_shape,
    aten={"aten.index_select.default": _index_select},
    ref=lambda xp, x, index, axis: x[(slice(None),) * axis + (_valid(index, x.shape[axis]),)],
    torch=lambda x, index, axis: x.index_select(axis, index),
    traits=Traits(gather=True),
    cost=Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: 2.0 * (o.nbytes or 1), cost_class="gather"),
)


def _hit_shape(types: Any, attrs: Any) -> TensorType:
    shapes.require(types[0].rank == 1 and types[0].dtype == "i64" and attrs[0] >= 0, "a list of rows and a size")
    return TensorType("bool", (attrs[0],))


rows_hit = op(
    "rows_hit(index; size: int) -> y",
    "For each number below size, whether index names it.",
    shape=_hit_shape,
    ref=lambda xp, index, size: np.isin(np.arange(size), index),
    torch=lambda index, size: torch.isin(torch.arange(size), index),
    traits=Traits(gather=True),
    cost=Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: float(o.nbytes or 1), cost_class="gather"),
)


def _last_shape(types: Any, attrs: Any) -> TensorType:
    shapes.require(types[0].rank == 1 and types[0].dtype == "i64", "a list of rows")
    return TensorType("bool", types[0].shape)


rows_last = op(
    "rows_last(index) -> y",
    "For each number of index, whether it does not come again later: then its row is the one that stays.",
    shape=_last_shape,
    ref=lambda xp, index: ~np.triu(np.equal.outer(index, index), 1).any(1),
    torch=lambda index: ~(index[:, None] == index).triu(1).any(1),
    traits=Traits(gather=True),
    cost=Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: float(o.nbytes or 1), cost_class="gather"),
)

# ------------------------------------------------------------------------------------ attention in two parts


def _joined_types(types: Any) -> list[TensorType]:
    """The operands as attention over one list of keys has them."""
    q, k, v, k_new, v_new, mask, new_mask = types
    shapes.require(all(t.rank == q.rank and t.rank in (3, 4) for t in (k, v, k_new, v_new)), "rank 3 or 4 is due")
    shapes.require(mask.rank == new_mask.rank and mask.rank >= 1, "masks of one rank are due")

    def join(a: TensorType, b: TensorType, axis: int) -> TensorType:
        cut = [(*t.shape[:axis], *t.shape[axis:][1:]) for t in (a, b)]
        shapes.require(a.dtype == b.dtype and cut[0] == cut[1], "the two parts do not fit")
        sizes = [s for s in (a.shape[axis], b.shape[axis]) if isinstance(s, int)]
        shapes.require(len(sizes) == 2, "a symbolic number of keys")
        return TensorType(a.dtype, (*a.shape[:axis], sum(sizes), *a.shape[axis:][1:]))

    rows, last = q.rank - 2, mask.rank - 1
    shapes.require(mask.shape[last] == k.shape[rows] and new_mask.shape[last] == k_new.shape[rows], "a key, a place")
    return [q, join(k, k_new, rows), join(v, v_new, rows), join(mask, new_mask, last)]


def _mask_shape(types: Any, attrs: Any) -> TensorType:
    return attention.attention_mask.infer(_joined_types(types), attrs)  # type: ignore[return-value]


def _bias_shape(types: Any, attrs: Any) -> TensorType:
    return attention.attention_bias.infer(_joined_types(types), attrs)  # type: ignore[return-value]


def _flops(types: Any, attrs: Any, out: Any) -> float:
    assert attention.COST.flops is not None
    return attention.COST.flops(_joined_types(types), attrs, out)


def _joined(operands: Any, cat: Any) -> tuple[Any, ...]:
    q, k, v, k_new, v_new, mask, new_mask = operands
    return q, cat(k, k_new, -2), cat(v, v_new, -2), cat(mask, new_mask, -1)


def _by_numpy(one: Op) -> Any:
    def ref(xp: Any, *args: Any) -> Any:
        assert one.ref is not None
        return one.ref(xp, *_joined(args[:-2], lambda a, b, axis: xp.concatenate((a, b), axis=axis)), *args[-2:])

    return ref


def _by_torch(one: Op) -> Any:
    def run(*args: Any) -> Any:
        assert one.torch is not None
        return one.torch(*_joined(args[:-2], lambda a, b, axis: torch.cat((a, b), axis)), *args[-2:])

    return run


def _kernel(name: str) -> Kernel:
    def build(g: Any, q: Any, k: Any, v: Any, k_new: Any, v_new: Any, mask: Any, new_mask: Any, *attrs: Any) -> Any:
        scale, empty = attrs
        return g.attention_parts(q, [(k, v, mask), (k_new, v_new, new_mask)], scale, name, empty)

    return Kernel("attention", build)


attention_parts_mask = op(
    "attention_parts_mask(q, k, v, k_new, v_new, mask, new_mask; scale: float, empty: str) -> y",
    "Attention to those keys of a cache and of new rows where their masks hold.",
    shape=_mask_shape,
    ref=_by_numpy(attention.attention_mask),
    torch=_by_torch(attention.attention_mask),
    traits=INEXACT,
    cost=Cost(flops=_flops, cost_class="attention"),
    kernel=_kernel("mask"),
)
attention_parts_bias = op(
    "attention_parts_bias(q, k, v, k_new, v_new, bias, new_bias; scale: float, empty: str) -> y",
    "Attention to the keys of a cache and to new rows, with a bias on the scores of each.",
    shape=_bias_shape,
    ref=_by_numpy(attention.attention_bias),
    torch=_by_torch(attention.attention_bias),
    traits=INEXACT,
    cost=Cost(flops=_flops, cost_class="attention"),
    kernel=_kernel("bias"),
)
