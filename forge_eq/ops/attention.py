"""Scaled dot product attention: q [.., h, s, d], k [.., g, t, d], v [.., g, t, e] with h a multiple of g.

With fewer key heads than query heads (grouped-query attention) each key head serves h / g query heads in
a row, and nothing is repeated in memory. ``empty`` says what a query gets that may look at nothing:
``"nan"`` as the written-out softmax gives, or ``"zero"`` as torch's fused attention gives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import aten, shapes
from forge_eq.ops.composite import repeat_heads, softmax
from forge_eq.ops.elementwise import add, mul, where
from forge_eq.ops.linalg import INEXACT, matmul, matmul_nt
from forge_eq.ops.spec import Cost, Kernel, Op, compute, op


def _groups(q: TensorType, k: TensorType) -> int:
    """Query heads per key head."""
    if q.rank < 3 or q.shape[-3] == k.shape[-3]:
        return 1
    shapes.require(isinstance(q.shape[-3], int) and isinstance(k.shape[-3], int), "symbolic heads")
    assert isinstance(q.shape[-3], int)
    assert isinstance(k.shape[-3], int)
    shapes.require(0 < k.shape[-3] <= q.shape[-3] and q.shape[-3] % k.shape[-3] == 0, "heads that do not divide")
    return q.shape[-3] // k.shape[-3]


def _shape(types: Any, attrs: Any) -> TensorType:
    q, k, v = types[:3]
    shapes.require(q.dtype in FLOATS and q.dtype == k.dtype == v.dtype, "one float dtype is due")
    shapes.require(q.rank == k.rank == v.rank and q.rank in (3, 4), "rank 3 or 4 is due")
    shapes.require(q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1], "q, k and v do not fit")
    shapes.require(q.shape[:-3] == k.shape[:-3], "batches differ")
    _groups(q, k)
    if len(types) > 3:
        scores = (*q.shape[:-1], k.shape[-2])
        shapes.require(shapes.broadcast_shapes([types[3].shape, scores]) == scores, "the mask does not broadcast")
    return TensorType(q.dtype, (*q.shape[:-1], v.shape[-1]))


def _bias_shape(types: Any, attrs: Any) -> TensorType:
    shapes.require(types[3].dtype == types[0].dtype, "a bias of another dtype")
    return _shape(types, attrs)


def _mask_shape(types: Any, attrs: Any) -> TensorType:
    shapes.require(types[3].dtype == "bool", "a mask of bools is due")
    return _shape(types, attrs)


def _flops(types: Any, attrs: Any, out: Any) -> float:
    q, k, v = types[:3]
    scores = (q.elements or 1) / max(q.shape[-1], 1) * k.shape[-2]
    return float(scores * (2 * q.shape[-1] + 2 * v.shape[-1] + 12))


COST = Cost(flops=_flops, cost_class="attention")
_VECTOR = 16  # float32 lanes of the widest vector


def _samples(dtype: str) -> Any:
    """Calls with a mask or bias of this dtype: grouped heads and equal ones, masks that broadcast."""

    def draw(rng: Any, known: Any, attrs: Any) -> tuple[list[TensorType], tuple[Any, ...]] | None:
        if any(t is not None for t in known):
            return None
        groups, s, t, d, e = (rng.choice((1, 2, 3)) for _ in range(5))
        outer, heads = rng.choice(((), (1,), (2,))), groups * rng.choice((1, 1, 2))
        mask = rng.choice(((t,), (s, t), (1, t), (heads, s, t), (1,), (s, 1)))
        shapes_of = ((*outer, heads, s, d), (*outer, groups, t, d), (*outer, groups, t, e))
        types = [TensorType("f32", found) for found in shapes_of]
        scale = rng.choice((1.0, 0.5, 0.35, -2.0))
        return [*types, TensorType("f32" if dtype == "float" else dtype, mask)], (scale, rng.choice(("nan", "zero")))

    return draw


# ------------------------------------------------------------------------------------ definitions


def _repeated(q: Any, k: Any, x: Any) -> Any:
    """x with a key head for every query head; nothing where the types say that it has one."""
    if q.type is not None and k.type is not None and _groups(q.type, k.type) == 1:
        return x
    return repeat_heads(x, compute(_groups, q, k))


def _scores(q: Any, k: Any, scale: Any) -> Any:
    return mul(matmul_nt(q, _repeated(q, k, k)), scale)


def _weighted(q: Any, k: Any, scores: Any, v: Any) -> Any:
    return matmul(softmax(scores, compute(lambda t: (t.rank - 1,), q)), _repeated(q, k, v))


# ------------------------------------------------------------------------------------ execution


def _torch_scores(q: Any, k: Any, v: Any, scale: float) -> tuple[Any, Any]:
    n = q.shape[-3] // k.shape[-3] if q.shape[-3] else 1
    k, v = (k, v) if n == 1 else (k.repeat_interleave(n, -3), v.repeat_interleave(n, -3))
    return q @ k.transpose(-1, -2) * scale, v


def _torch_masked(q: Any, k: Any, v: Any, scores: Any, empty: str) -> Any:
    weights = torch.softmax(scores, -1)
    if empty == "zero":
        weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights)
    return weights @ v


def _run_plain(q: Any, k: Any, v: Any, scale: float) -> Any:
    """torch's own kernel, whose last bits and strides a call has; the definition for a row that it would get wrong."""
    found = _fused(q, k, v, scale, False)
    if k.shape[-2] >= _VECTOR:
        return found
    scores, v = _torch_scores(q, k, v, scale)
    sound = scores.isfinite().all(-1, keepdim=True)
    return torch.empty_like(found).copy_(torch.where(sound, found, torch.softmax(scores, -1) @ v))


def _run_bias(q: Any, k: Any, v: Any, bias: Any, scale: float, empty: str) -> Any:
    if empty == "zero" and bias.dim() >= 2:
        return _fused(q, k, v, scale, False, bias)
    scores, v = _torch_scores(q, k, v, scale)
    return _torch_masked(q, k, v, scores + bias, empty)


def _run_mask(q: Any, k: Any, v: Any, mask: Any, scale: float, empty: str) -> Any:
    if empty == "zero" and mask.dim() >= 2:
        return _fused(q, k, v, scale, False, mask)
    scores, v = _torch_scores(q, k, v, scale)
    return _torch_masked(q, k, v, torch.where(mask, scores, -math.inf), empty)


def _fused(q: Any, k: Any, v: Any, scale: float, causal: bool, mask: Any = None) -> Any:
    """torch's own kernel: it gives zeros to a query that may look at nothing, and wants masks of two axes or more.

    For fewer keys than a vector holds it loses NaN and takes infinite scores for finite ones (2.13, CPU).
    """
    grouped = q.shape[-3] != k.shape[-3]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def _import(
    imp: aten.Importer,
    op: Op,
    q: Any,
    k: Any,
    v: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> aten.Ref:
    tq = aten.tensor(imp, q)
    aten.need(dropout_p == 0.0 and tq.dtype in ("f32", "f64") and tq.rank in (3, 4), "this attention")
    aten.need(isinstance(tq.shape[-1], int) and tq.shape[-1] > 0, "a symbolic head size")
    assert isinstance(tq.shape[-1], int)
    factor = 1.0 / math.sqrt(tq.shape[-1]) if scale is None else scale
    aten.need(isinstance(factor, int | float), "a symbolic scale")
    if attn_mask is None:
        return imp.emit(attention_causal if is_causal else attention, [q, k, v], [float(factor)])
    aten.need(not is_causal, "a mask beside is_causal")
    masked = attention_mask if aten.tensor(imp, attn_mask).dtype == "bool" else attention_bias
    return imp.emit(masked, [q, k, v, attn_mask], [float(factor), "zero"])


attention = op(
    "attention(q, k, v; scale: float) -> y",
    "softmax(q k' scale) v.",
    shape=_shape,
    aten={"aten.scaled_dot_product_attention.default": _import},
    define=lambda q, k, v, scale: _weighted(q, k, _scores(q, k, scale), v),
    torch=lambda q, k, v, scale: _run_plain(q, k, v, scale),
    traits=INEXACT,
    cost=COST,
    kernel=Kernel("attention", lambda g, q, k, v, scale: g.attention(q, k, v, scale)),
)
attention_causal = op(
    "attention_causal(q, k, v; scale: float) -> y",
    "Attention where query i looks at keys 0 to i.",
    shape=_shape,
    torch=lambda q, k, v, scale: _fused(q, k, v, scale, True),
    ref=lambda xp, q, k, v, scale: _reference_causal(xp, q, k, v, scale),
    traits=INEXACT,
    cost=COST,
    kernel=Kernel("attention", lambda g, q, k, v, scale: g.attention(q, k, v, scale, causal=True)),
)
attention_bias = op(
    "attention_bias(q, k, v, bias; scale: float, empty: str) -> y",
    "softmax(q k' scale + bias) v.",
    shape=_bias_shape,
    ref=lambda xp, q, k, v, bias, scale, empty: _reference(xp, q, k, v, lambda s: s + bias, scale, empty),
    define=lambda q, k, v, bias, scale, empty: _weighted(q, k, add(_scores(q, k, scale), bias), v),
    torch=_run_bias,
    traits=INEXACT,
    cost=COST,
    kernel=Kernel(
        "attention", lambda g, q, k, v, bias, scale, empty: g.attention(q, k, v, scale, bias=bias, empty=empty)
    ),
    samples=_samples("float"),
)
attention_mask = op(
    "attention_mask(q, k, v, mask; scale: float, empty: str) -> y",
    "Attention to the keys where mask holds.",
    shape=_mask_shape,
    ref=lambda xp, q, k, v, mask, scale, empty: _reference(
        xp, q, k, v, lambda s: xp.where(mask, s, -math.inf), scale, empty
    ),
    define=lambda q, k, v, mask, scale, empty: _weighted(q, k, where(mask, _scores(q, k, scale), -math.inf), v),
    torch=_run_mask,
    traits=INEXACT,
    cost=COST,
    kernel=Kernel(
        "attention", lambda g, q, k, v, mask, scale, empty: g.attention(q, k, v, scale, mask=mask, empty=empty)
    ),
    samples=_samples("bool"),
)


def _reference(xp: Any, q: Any, k: Any, v: Any, masked: Any, scale: float, empty: str) -> Any:
    """The definition in NumPy, with ``empty`` honoured."""
    n = q.shape[-3] // k.shape[-3] if k.shape[-3] else 1
    k, v = xp.repeat(k, n, axis=-3), xp.repeat(v, n, axis=-3)
    scores = masked(xp.matmul(q, xp.swapaxes(k, -1, -2)) * scale)
    top = xp.max(scores, axis=-1, keepdims=True)
    none = xp.equal(top, -math.inf)
    weights = xp.exp(scores - (xp.where(none, 0.0, top) if empty == "zero" else top))
    total = xp.sum(weights, axis=-1, keepdims=True)
    weights = weights / (xp.where(none, 1.0, total) if empty == "zero" else total)
    return xp.matmul(weights, v)


def _reference_causal(xp: Any, q: Any, k: Any, v: Any, scale: float) -> Any:
    import numpy as np

    keep = np.tril(np.ones((q.shape[-2], k.shape[-2]), dtype=bool))
    return _reference(xp, q, k, v, lambda s: xp.where(keep, s, -math.inf), scale, "nan")
