"""Matrix products, linear layers and lookups."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import aten, shapes
from forge_eq.ops.elementwise import add
from forge_eq.ops.spec import Cost, Kernel, Op, Traits, op


def _matmul_flops(types: Any, attrs: Any, out: Any) -> float:
    return 2.0 * (out.elements or 1) * (types[0].shape[-1] if isinstance(types[0].shape[-1], int) else 1)


MATMUL = Cost(flops=_matmul_flops, cost_class="matmul")
LINEAR = Cost(flops=_matmul_flops, cost_class="matmul", form="plain")
INEXACT = Traits(exact=False)


def _matmul(imp: aten.Importer, op: Op, a: Any, b: Any) -> aten.Ref:
    ta, tb = aten.tensor(imp, a), aten.tensor(imp, b)
    aten.need(ta.rank >= 2 and tb.rank >= 2 and ta.dtype in ("f32", "f64"), "a product of vectors or of another dtype")
    return imp.emit(op, [a, b])


matmul = op(
    "matmul(a, b) -> y",
    "The matrix product over the last two axes, leading axes broadcast.",
    shape=shapes.matmul,
    aten=dict.fromkeys(["aten.matmul.default", "aten.mm.default", "aten.bmm.default"], _matmul),
    ref=lambda xp, a, b: xp.matmul(a, b),
    torch=torch.matmul,
    traits=INEXACT,
    cost=MATMUL,
    kernel=Kernel("matmul", lambda g, a, b: g.matmul(a, b, False, False)),
)
matmul_nt = op(
    "matmul_nt(a, b) -> y",
    "a times the transpose of b, as one kernel.",
    shape=lambda types, attrs: shapes.matmul([types[0], shapes.swapped(types[1:], ())], ()),
    ref=lambda xp, a, b: xp.matmul(a, xp.swapaxes(b, -1, -2)),
    torch=lambda a, b: torch.matmul(a, b.transpose(-1, -2)),
    traits=INEXACT,
    cost=MATMUL,
    kernel=Kernel("matmul", lambda g, a, b: g.matmul(a, b, False, True)),
)


def _w(xp: Any, w: Any, transposed: bool) -> Any:
    return xp.swapaxes(w, 0, 1) if transposed else w


def _tw(w: Any, transposed: bool) -> Any:
    """The weight as torch's linear wants it: [out, in]."""
    return w if transposed else w.t()


def _mm(x: Any, w: Any, transposed: bool) -> Any:
    return F.linear(x, _tw(w, transposed))


def _linear(imp: aten.Importer, op: Op, x: Any, w: Any, b: Any = None) -> aten.Ref:
    aten.need(aten.tensor(imp, x).dtype in ("f32", "f64") and aten.tensor(imp, w).rank == 2, "this linear")
    return imp.emit(op, [x, w], [True]) if b is None else imp.emit(linear_bias, [x, w, b], [True])


def _addmm(imp: aten.Importer, op: Op, b: Any, x: Any, w: Any, *, beta: Any = 1, alpha: Any = 1) -> aten.Ref:
    aten.need(beta == 1 and alpha == 1 and aten.tensor(imp, b).rank == 1, "a scaled or full addmm")
    aten.need(aten.tensor(imp, x).dtype in ("f32", "f64"), "this dtype")
    aten.need(aten.tensor(imp, b).shape == aten.tensor(imp, w).shape[1:], "a broadcast bias")
    return imp.emit(op, [x, w, b], [False])


def left(g: Any, stored: bool, x: Any, w: Any, transposed: bool) -> Any:
    """W x' as one OpenVINO node; flags take care of how the weight and x are stored, so neither is copied."""
    tokens = g.shape(x)[-1 if stored else -2]
    return g.matmul(w, x, not transposed, not stored) if tokens > 1 else g.row_product(x, w, transposed)


linear = op(
    "linear(x, w; transposed: bool) -> y",
    "x times a weight [k, n], or [n, k] when transposed.",
    shape=shapes.linear,
    aten={"aten.linear.default": _linear},
    ref=lambda xp, x, w, t: xp.matmul(x, _w(xp, w, t)),
    torch=_mm,
    traits=INEXACT,
    cost=LINEAR,
    kernel=Kernel("matmul", lambda g, x, w, t: g.matmul(x, w, False, t), left=left),
)
linear_bias = op(
    "linear_bias(x, w, b; transposed: bool) -> y",
    "A linear layer with bias.",
    shape=shapes.linear,
    aten={"aten.addmm.default": _addmm},
    define=lambda x, w, b, t: add(linear(x, w, t), b),
    recognise=True,
    torch=lambda x, w, b, t: F.linear(x, _tw(w, t), b),
    traits=INEXACT,
    cost=LINEAR,
    kernel=Kernel(
        "matmul",
        lambda g, x, w, b, t: g.add(g.matmul(x, w, False, t), b),
        left=lambda g, stored, x, w, b, t: g.add(left(g, stored, x, w, t), b),
    ),
)


def _embedding_shape(types: Any, attrs: Any) -> TensorType:
    table, ids = types
    shapes.require(table.rank == 2 and table.dtype in FLOATS and ids.dtype in ("i64", "i32"), "a table and indices")
    return TensorType(table.dtype, (*ids.shape, table.shape[1]))


def _embedding(imp: aten.Importer, op: Op, table: Any, ids: Any, *rest: Any, **kw: Any) -> aten.Ref:
    """padding_idx and the other flags only matter to gradients."""
    return imp.emit(op, [table, ids])


embedding = op(
    "embedding(table, ids) -> y",
    "Rows of table by index; an index out of range is an error at run time.",
    shape=_embedding_shape,
    aten={"aten.embedding.default": _embedding},
    ref=lambda xp, table, ids: table[ids],
    torch=lambda table, ids: F.embedding(ids, table),
    traits=Traits(gather=True),
    cost=Cost(flops=lambda i, a, o: 0.0, bytes=lambda i, a, o: 2.0 * (o.nbytes or 1), cost_class="gather"),
    kernel=Kernel("gather", lambda g, table, ids: g.gather(table, ids, g.i64(0))),
)
