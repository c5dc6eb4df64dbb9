"""Operands and attributes on which every op with a kernel is tried."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from forge_eq.ops import (
    attention,
    cache,
    composite,
    convolution,
    elementwise,
    linalg,
    movement,
    packed,
    pooling,
    reduction,
)
from forge_eq.ops.spec import Op

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool"}
NAMES |= {torch.int8: "i8", torch.uint8: "u8"}
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 2.5, -2.5, 1e-40, 3.4e38, -3.4e38])
Sample = tuple[list[Any], tuple[Any, ...]]  # operands (tensors and numbers), attributes


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def bools(*shape: int) -> torch.Tensor:
    return rand(*shape) > 0


# Shapes of elementwise operands: scalars, size 1, broadcasting over rank, more than one vector register.
UNARY = [(), (1,), (7,), (3, 1), (2, 3, 5), (1, 4, 33, 2)]
BINARY = [
    ((), ()),
    ((1,), (1,)),
    ((5,), ()),
    ((3, 1), (4,)),
    ((2, 3, 4), (2, 3, 4)),
    ((1, 17), (2, 5, 1)),
    ((2, 1, 3, 9), (4, 1, 9)),
]


def packed_layers(dtype: torch.dtype) -> list[Sample]:
    """Several rows and groups, one group only, one row only, a vector as operand."""
    found: list[Sample] = []
    for x, rows, groups, size in (((2, 3), 5, 2, 8), ((1, 1), 7, 1, 16), ((4,), 1, 3, 32), ((), 6, 2, 4)):
        q = (rand(rows, groups * size) * 20).clamp(-100, 100).round()
        parts = [(q + 100 * (dtype is torch.uint8)).to(dtype), rand(rows, groups).abs() * 0.01 + 0.001]
        parts += [rand(rows, groups, seed=1) * 9 + 100] * (dtype is torch.uint8)
        found.append(([rand(*x, groups * size), *parts], ()))
    return found


def elementwise_samples(op: Op) -> Iterator[Sample]:
    """Samples for an op of tensors only."""
    make = bools if op in (elementwise.logical_and, elementwise.logical_or, elementwise.logical_not) else rand
    if len(op.inputs) == 1:
        for shape in UNARY:
            x = make(*shape)
            yield [x.abs() + 0.1 if op in POSITIVE else x], ()
        return
    for left, right in BINARY:
        a, b = make(*left), make(*right)
        yield [a.abs() + 0.1 if op in POSITIVE else a, b], ()
        if make is rand and op not in (composite.swiglu, composite.geglu):
            yield [a.abs() + 0.1 if op in POSITIVE else a, 2.0], ()
            if op in ARITHMETIC:  # torch compares a tensor with a number, in this order only
                yield [0.75, b], ()


POSITIVE = {elementwise.log, elementwise.sqrt, elementwise.rsqrt, elementwise.pow_}
ARITHMETIC = {
    elementwise.add,
    elementwise.sub,
    elementwise.mul,
    elementwise.div,
    elementwise.pow_,
    elementwise.maximum,
    elementwise.minimum,
}
NORMED = [(8,), (3, 16), (1, 1, 1), (2, 5, 33), (2, 1, 4, 64)]
HEADS = [  # batch, heads, key heads, queries, keys, size, value size
    (1, 1, 1, 1, 1, 1, 1),
    (2, 4, 4, 4, 4, 8, 8),
    (1, 8, 8, 8, 8, 8, 8),
    (1, 8, 2, 8, 8, 16, 16),
    (2, 6, 3, 5, 7, 4, 9),
    (1, 4, 1, 1, 9, 8, 8),
    (0, 4, 4, 3, 3, 8, 8),
    (0, 6, 2, 5, 5, 4, 4),
    (1, 2, 2, 33, 33, 16, 16),
]


def qkv() -> Iterator[tuple[list[torch.Tensor], tuple[int, ...], float]]:
    """(q, k, v), the shape of the scores, scale; batch 0 stands for rank 3."""
    for batch, heads, groups, queries, keys, size, width in HEADS:
        outer = (batch,) if batch else ()
        q, k = rand(*outer, heads, queries, size), rand(*outer, groups, keys, size, seed=1)
        yield [q, k, rand(*outer, groups, keys, width, seed=2)], (*outer, heads, queries, keys), size**-0.5


def masks(scores: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Masks that broadcast, some with queries that may look at nothing."""
    yield bools(*scores)
    yield bools(*scores[-2:])
    yield bools(scores[-1])
    yield bools(*scores[-2:-1], 1)
    yield torch.zeros(scores[-2:], dtype=torch.bool)


def masked(bias: bool) -> Iterator[Sample]:
    for parts, scores, scale in qkv():
        for mask in masks(scores):
            extra = torch.where(mask, rand(*mask.shape, seed=3), -math.inf) if bias else mask
            for empty in ("nan", "zero"):
                yield [*parts, extra], (scale, empty)


def linears(*extra: Any, bias: bool = False) -> Iterator[Sample]:
    for x, n in [((4,), 3), ((1, 1), 1), ((5, 8), 16), ((2, 3, 16), 7), ((1, 2, 4, 6), 5)]:
        for transposed in (True, False):
            w = rand(n, x[-1]) if transposed else rand(x[-1], n)
            yield [rand(*x), w, *([rand(n)] if bias else [])], (transposed, *extra)


def norms(gains: int, residual: bool = False) -> Iterator[Sample]:
    for shape in NORMED:
        x = [rand(*shape), *([rand(*shape, seed=1)] if residual else [])]
        yield [*x, *(rand(shape[-1], seed=i) for i in range(gains))], ((len(shape) - 1,), 1e-5)


def reductions() -> Iterator[Sample]:
    for shape, axes in [((), ()), ((1,), (0,)), ((7,), ()), ((3, 5), (1,)), ((3, 5), (0, 1)), ((2, 3, 4, 17), (1, 3))]:
        for keepdim in (True, False):
            yield [rand(*shape)], (axes, keepdim)


def matmuls(transposed: bool) -> Iterator[Sample]:
    pairs = [((1, 1), (1, 1)), ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 8), (1, 5, 8, 8))]
    for a, b in pairs:
        right = rand(*b)
        yield [rand(*a), right.transpose(-1, -2).contiguous() if transposed else right], ()


WINDOWS = [  # x, cout, kernel, strides, begin, end, dilation, groups
    ((2, 3, 33), 5, (3,), (1,), (2,), (0,), (1,), 1),
    ((1, 16, 9), 16, (3,), (1,), (2,), (0,), (1,), 16),
    ((1, 16, 9), 16, (3,), (1,), (2,), (2,), (1,), 16),
    ((1, 8, 20), 8, (3,), (2,), (1,), (1,), (1,), 1),
    ((1, 4, 7), 6, (2,), (2,), (0,), (1,), (3,), 2),
    ((1, 3, 16, 16), 8, (4, 4), (4, 4), (0, 0), (0, 0), (1, 1), 1),
    ((2, 3, 15, 17), 8, (7, 7), (2, 2), (3, 3), (3, 3), (1, 1), 1),
    ((2, 3, 5, 6), 4, (3, 2), (2, 1), (1, 0), (1, 1), (1, 2), 1),
    ((1, 1, 1, 1), 1, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    ((1, 2, 3, 4, 3), 2, (2, 2, 2), (1, 2, 1), (0, 1, 0), (0, 1, 1), (1, 1, 1), 2),
]


def convolutions(bias: bool = False) -> Iterator[Sample]:
    for x, cout, kernel, *attrs, groups in WINDOWS:
        w = rand(cout, x[1] // groups, *kernel, seed=1)
        yield [rand(*x), w, *([rand(cout)] if bias else [])], (*attrs, groups)


def pools(dilated: bool) -> Iterator[Sample]:
    for shape, k, s, b, e in [
        ((1, 8, 15, 17), (3, 3), (2, 2), (1, 1), (1, 1)),
        ((1, 2, 7, 6), (3, 2), (2, 1), (1, 0), (1, 1)),
        ((2, 3, 5), (2,), (2,), (0,), (1,)),
        ((1, 1, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0)),
        ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
    ]:
        for d in (1, 2) if dilated and max(k) > 1 and min(shape[2:]) > 4 else (1,):
            yield [rand(*shape)], (k, s, b, e, (d,) * len(k)) if dilated else (k, s, b, e)


def batch_norms() -> Iterator[Sample]:
    for shape in [(2, 3, 4, 5), (1, 16, 9), (4, 3), (1, 1, 1, 1)]:
        c = shape[1]
        yield [rand(*shape), *(rand(c, seed=k) for k in range(3)), rand(c, seed=4).abs() + 0.1], (1e-5,)


def in_parts(bias: bool) -> Iterator[Sample]:
    """A mask for each key, cut where a cache ends and the new rows begin."""
    for (q, k, v, mask), attrs in masked(bias):
        if mask.dim() and mask.shape[-1] == k.shape[-2] > 1:
            at = k.shape[-2] - max(1, k.shape[-2] // 8)
            (k, x), (v, y) = ((t[..., :at, :], t[..., at:, :]) for t in (k, v))
            yield [t.contiguous() for t in (q, k, v, x, y, mask[..., :at], mask[..., at:])], attrs


def each(*samples: Sample) -> Any:
    return lambda: iter(samples)


X = rand(2, 3, 4)
SAMPLES: dict[Op, Any] = {
    elementwise.where: lambda: iter(
        [
            ([bools(3, 4), rand(3, 4), rand(3, 4, seed=1)], ()),
            ([bools(4), rand(3, 1), 0.0], ()),
            ([bools(2, 1, 1), -math.inf, rand(5)], ()),
            ([bools(), rand(), 1.0], ()),
            ([bools(3), rand(3) > 1, bools(3)], ()),
        ]
    ),
    elementwise.clamp: lambda: (
        ([rand(*s)], b) for s in UNARY for b in [(-0.5, 0.5), (None, 0.1), (0.1, None), (1.0, -1.0)]
    ),
    elementwise.cast: lambda: (
        ([x], (t,)) for t in ("f32", "i64", "i32", "bool") for x in [rand(3, 4) * 9, bools(5), torch.arange(-3, 3)]
    ),
    linalg.matmul: lambda: matmuls(False),
    linalg.matmul_nt: lambda: matmuls(True),
    linalg.linear: linears,
    linalg.linear_bias: lambda: linears(bias=True),
    packed.linear_packed: lambda: packed_layers(torch.int8),
    packed.linear_packed_offset: lambda: packed_layers(torch.uint8),
    linalg.embedding: each(([rand(9, 4), torch.tensor([[0, 8], [3, 3]])], ()), ([rand(1, 1), torch.tensor(0)], ())),
    movement.reshape: each(([X], ((6, 4),)), ([X], ((1, 24, 1),)), ([rand(1)], ((),)), ([rand()], ((1, 1),))),
    movement.permute: each(
        ([X], ((2, 0, 1),)), ([rand()], ((),)), ([rand(5)], ((0,),)), ([rand(1, 4, 4, 8)], ((0, 2, 1, 3),))
    ),
    movement.swap_last: each(([X], ()), ([rand(1, 5)], ()), ([rand(2, 2, 3, 3)], ())),
    movement.broadcast_to: each(
        ([rand(3, 1)], ((2, 3, 4),)), ([rand()], ((2,),)), ([rand(1)], ((1, 1),)), ([bools(1, 3)], ((2, 3),))
    ),
    movement.slice_: each(
        ([X], (2, 1, 4, 1)), ([X], (1, 0, 3, 2)), ([rand(1)], (0, 0, 1, 1)), ([rand(7, 2)], (0, 1, 7, 3))
    ),
    movement.concat: each(([X, X, rand(2, 1, 4)], (1,)), ([rand(1)], (0,)), ([bools(2), bools(3)], (0,))),
    movement.split: each(([X], ((1, 3), 2)), ([X], ((3,), 1)), ([rand(6)], ((1, 2, 3), 0))),
    **dict.fromkeys(
        [movement.alias, movement.clone, movement.contiguous, movement.device_move],
        each(([X], ()), ([rand()], ()), ([bools(3)], ())),
    ),
    movement.dropout_eval: each(([X], (0.1,))),
    **dict.fromkeys([reduction.sum_, reduction.mean, reduction.amax], reductions),
    composite.softmax: lambda: (
        ([rand(*s)], ((a,),)) for s, a in [((1,), 0), ((5,), 0), ((2, 33), 1), ((2, 33), 0), ((2, 3, 4, 4), 1)]
    ),
    composite.layer_norm: lambda: norms(2),
    composite.rms_norm: lambda: norms(1),
    composite.add_layer_norm: lambda: norms(2, residual=True),
    composite.add_rms_norm: lambda: norms(1, residual=True),
    composite.linear_act: lambda: (s for act in composite.ACTIVATIONS for s in linears(act)),
    composite.linear_bias_act: lambda: (s for act in composite.ACTIVATIONS for s in linears(act, bias=True)),
    composite.rotate_half: each(([rand(2)], ()), ([rand(2, 3, 16)], ()), ([rand(1, 4, 4, 8)], ())),
    composite.rope: each(
        ([rand(1, 4, 4, 8), rand(1, 1, 4, 8), rand(1, 1, 4, 8, seed=1)], ()),
        ([rand(3, 2), rand(3, 2), rand(3, 2)], ()),
        ([rand(2, 3, 5, 16), rand(5, 16), rand(5, 16, seed=1)], ()),
    ),
    composite.repeat_heads: each(([rand(2, 3, 4)], (2,)), ([rand(1, 1, 1)], (1,)), ([rand(2, 2, 5, 3)], (3,))),
    convolution.conv: convolutions,
    convolution.conv_bias: lambda: convolutions(bias=True),
    convolution.batch_norm: batch_norms,
    pooling.max_pool: lambda: pools(True),
    pooling.avg_pool: lambda: pools(False),
    attention.attention: lambda: ((parts, (scale,)) for parts, _, scale in qkv()),
    attention.attention_causal: lambda: ((parts, (scale,)) for parts, _, scale in qkv()),
    attention.attention_bias: lambda: masked(bias=True),
    attention.attention_mask: lambda: masked(bias=False),
    cache.attention_parts_bias: lambda: in_parts(bias=True),
    cache.attention_parts_mask: lambda: in_parts(bias=False),
}


def samples(op: Op) -> list[Sample]:
    if op in SAMPLES:
        return [(list(operands), tuple(attrs)) for operands, attrs in SAMPLES[op]()]
    if op.attrs or not op.traits.elementwise:
        raise AssertionError(f"{op.name} has a kernel and no samples: add some to SAMPLES")
    return list(elementwise_samples(op))


def special_cases(op: Op) -> list[Sample]:
    """Operands with NaN, infinities, signed zeros, denormals, at lengths with and without a vector tail."""
    column, row = SPECIAL[:, None].repeat(1, len(SPECIAL)), SPECIAL[None].repeat(len(SPECIAL), 1)
    if op is elementwise.where:
        return [([row > 0, column, row], ()), ([row > 0, column, 0.0], ())]
    if op is elementwise.clamp:
        return [([SPECIAL], bounds) for bounds in [(-1.0, 1.0), (None, 0.0), (0.0, None), (0.0, 1.0), (2.0, -2.0)]]
    if op is elementwise.cast:
        return [([SPECIAL], ("bool",)), ([SPECIAL], ("f32",))]
    if op is reduction.amax:
        return [([column], ((1,), True)), ([row], ((1,), False)), ([SPECIAL], ((0,), False))]
    if op is composite.softmax:
        rows = [torch.where(torch.arange(n) == n // 2, s, torch.arange(n) * 0.1) for s in SPECIAL for n in (4, 17)]
        return [([x], ((0,),)) for x in [*rows, torch.full((5,), -math.inf), torch.full((17,), -math.inf)]]
    if op is pooling.max_pool:
        rows = [torch.where(torch.arange(n) == n // 2, s, torch.arange(n) * 0.1) for s in SPECIAL for n in (4, 17)]
        rows += [torch.full((5,), -math.inf), SPECIAL]
        return [([x[None, None]], ((2,), (1,), (1,), (1,), (1,))) for x in rows]
    if len(op.inputs) == 1:
        return [([SPECIAL], ()), ([SPECIAL.repeat(5)[:-3].reshape(3, 19)], ())]
    if op in (composite.swiglu, composite.geglu):
        return [([column, row], ())]
    numbers = [0.0, 1.0, -math.inf] if op is not elementwise.pow_ else [2.0, 3.0, 0.5, -0.5, -1.0]
    return [([column, row], ()), *([([SPECIAL, n], ()) for n in numbers])]
