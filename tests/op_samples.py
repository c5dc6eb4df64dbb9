"""Sample calls of every operation: ``SAMPLERS[op](rng)`` gives ``(operands, attributes)`` pairs.

Operands are float64, int64 or bool arrays, or Python numbers for literals. One sampler serves the operations that
share a shape rule. Sizes are small, distinct where a mix-up of axes would show, and include 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from forge_eq.ops import (
    REGISTRY,
    attention,
    cache,
    composite,
    convolution,
    elementwise,
    leaves,
    linalg,
    movement,
    packed,
    pooling,
    reduction,
)
from forge_eq.ops.spec import Op

Sample = tuple[list[Any], tuple[Any, ...]]
Sampler = Callable[[np.random.Generator], Iterator[Sample]]

SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -2.5, 1e-300, 3.0])
SHAPES = [(2, 3), (), (0, 3), (1,), (2, 1, 4)]


def unary(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in SHAPES:
        yield [rng.normal(size=shape)], ()
    yield [SPECIAL], ()


def finite(rng: np.random.Generator) -> Iterator[Sample]:
    """For gelu: torch's float32 kernel gives NaN at infinity."""
    for shape in SHAPES:
        yield [rng.normal(size=shape)], ()
    yield [SPECIAL[~np.isinf(SPECIAL)]], ()


def same_type(rng: np.random.Generator) -> Iterator[Sample]:
    """Operations that keep any dtype."""
    yield from unary(rng)
    yield [rng.integers(-5, 5, size=(2, 3))], ()


def numbers(rng: np.random.Generator, *, floats_only: bool = False) -> Iterator[Sample]:
    """Two operands with broadcasting, and a number on either side."""
    for a, b in [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((0, 3), (1, 3))]:
        yield [rng.normal(size=a), rng.normal(size=b)], ()
    yield [np.repeat(SPECIAL, 3), np.tile([2.0, -math.inf, math.nan], len(SPECIAL))], ()
    yield [rng.normal(size=(2, 3)), 0.5], ()
    yield [0.5, rng.normal(size=(2, 3))], ()
    if not floats_only:
        yield [rng.integers(-3, 3, size=(2, 3)), rng.integers(-3, 3, size=(3,))], ()
        yield [rng.integers(-3, 3, size=(2, 3)), 2], ()
        yield [2, rng.integers(-3, 3, size=(2, 3))], ()


def floats(rng: np.random.Generator) -> Iterator[Sample]:
    yield from numbers(rng, floats_only=True)


def same_shape_floats(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.normal(size=(2, 3)), rng.normal(size=(2, 3))], ()
    yield [rng.normal(size=(2, 3)), rng.normal(size=(3,))], ()


def powers(rng: np.random.Generator) -> Iterator[Sample]:
    for exponent in (2.0, 3.0, 0.5, -1.0, 0.0):
        yield [rng.normal(size=(2, 3)), exponent], ()
        yield [SPECIAL, exponent], ()
    yield [np.abs(rng.normal(size=(2, 3))), rng.normal(size=(3,))], ()
    yield [2.0, rng.normal(size=(2, 3))], ()


def bools(count: int) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        yield [rng.random(size=(2, 3)) < 0.5 for _ in range(count)], ()
        yield [rng.random(size=(2, 3) if k == 0 else (3,)) < 0.5 for k in range(count)], ()
        yield [np.array([False, True, False, True])] + [np.array([False, False, True, True])] * (count - 1), ()

    return sample


def where(rng: np.random.Generator) -> Iterator[Sample]:
    c = rng.random(size=(2, 3)) < 0.5
    yield [c, rng.normal(size=(2, 3)), rng.normal(size=(3,))], ()
    yield [c, -math.inf, rng.normal(size=(3,))], ()
    yield [c[:, :1], rng.normal(size=(2, 3)), 0.0], ()
    yield [c, np.full((2, 3), math.nan), rng.normal(size=())], ()
    yield [c, rng.integers(5, size=(2, 3)), 7], ()


def clamp(rng: np.random.Generator) -> Iterator[Sample]:
    for low, high in [(-0.5, 0.5), (None, 0.25), (0.0, None), (1.0, -1.0)]:
        yield [rng.normal(size=(2, 3))], (low, high)
        yield [SPECIAL], (low, high)


def cast(rng: np.random.Generator) -> Iterator[Sample]:
    """Floats that float32 holds exactly: the oracle keeps float64 where the program rounds."""
    sources = [
        np.round(rng.normal(size=(2, 3)) * 3, 0) + 0.75,
        rng.integers(-3, 3, size=(2, 3)),
        rng.random(size=(2, 3)) < 0.5,
    ]
    for source in sources:
        for dtype in ("f64", "f32", "i64", "i32", "bool"):
            yield [source], (dtype,)


def reshape(rng: np.random.Generator) -> Iterator[Sample]:
    for old, new in [((2, 6), (3, 4)), ((), (1, 1)), ((1,), ()), ((2, 0), (0, 5)), ((2, 3, 4), (24,))]:
        yield [rng.normal(size=old)], (new,)


def permute(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, perm in [((2, 3, 4), (1, 2, 0)), ((2, 3), (0, 1)), ((), ()), ((1, 2, 3, 4), (0, 2, 1, 3))]:
        yield [rng.normal(size=shape)], (perm,)


def matrices(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(2, 3), (4, 2, 3), (1, 0)]:
        yield [rng.normal(size=shape)], ()


def broadcast(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, target in [((3,), (2, 3)), ((2, 1), (2, 5)), ((), (2, 2)), ((1, 3), (4, 0, 3)), ((2,), (2,))]:
        yield [rng.normal(size=shape)], (target,)


def slices(rng: np.random.Generator) -> Iterator[Sample]:
    for axis, start, stop, step in [(0, 0, 4, 1), (1, 1, 5, 2), (1, 2, 2, 1), (0, 3, 4, 7)]:
        yield [rng.normal(size=(4, 5))], (axis, start, stop, step)


def concat(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.normal(size=(2, 3)), rng.normal(size=(2, 1)), rng.normal(size=(2, 0))], (1,)
    yield [rng.normal(size=(4,))], (0,)
    yield [rng.integers(3, size=(2, 2)), rng.integers(3, size=(3, 2))], (0,)


def split(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.normal(size=(2, 6))], ((1, 2, 3), 1)
    yield [rng.normal(size=(4,))], ((4,), 0)
    yield [rng.normal(size=(4, 2))], ((0, 4), 0)


def project(rng: np.random.Generator) -> Iterator[Sample]:
    parts = (rng.normal(size=(2, 3)), rng.integers(3, size=(4,)))
    yield [parts], (0,)
    yield [parts], (1,)


def dropout(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.normal(size=(2, 3))], (0.1,)


def reductions(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axes in [
        ((2, 3, 4), (1,)),
        ((2, 3, 4), (0, 2)),
        ((2, 3), (0, 1)),
        ((), ()),
        ((0, 3), (1,)),
        ((5,), (0,)),
    ]:
        for keepdim in (False, True):
            yield [rng.normal(size=shape)], (axes, keepdim)
    yield [SPECIAL.reshape(1, -1)], ((1,), False)


def sums(rng: np.random.Generator) -> Iterator[Sample]:
    yield from reductions(rng)
    yield [rng.normal(size=(0, 3))], ((0,), False)
    yield [rng.integers(9, size=(2, 3))], ((1,), True)


def matmul(rng: np.random.Generator) -> Iterator[Sample]:
    for a, b in [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 1, 2, 3), (5, 3, 4)), ((2, 0), (0, 3)), ((0, 3), (3, 2))]:
        yield [rng.normal(size=a), rng.normal(size=b)], ()


def matmul_nt(rng: np.random.Generator) -> Iterator[Sample]:
    for (a, b), _ in matmul(rng):
        yield [a, np.swapaxes(b, -1, -2).copy()], ()


def linear(bias: bool, *tails: str) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in [(2, 3), (3,), (2, 5, 3), (0, 3)]:
            for transposed in (False, True):
                w = rng.normal(size=(4, 3) if transposed else (3, 4))
                for tail in [(t,) for t in tails] or [()]:
                    yield [rng.normal(size=shape), w, *([rng.normal(size=4)] if bias else [])], (transposed, *tail)

    return sample


def packed_weight(offset: bool, *outer: tuple[int, ...]) -> Sampler:
    """A weight of two groups to a row, alone or behind the operands of shapes ``outer``."""

    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in outer or [None]:
            q = rng.integers(0 if offset else -128, 256 if offset else 128, size=(4, 6))
            parts = [rng.normal(size=(4, 2)) for _ in range(2 if offset else 1)]
            x = [] if shape is None else [rng.normal(size=(*shape, 6))]
            yield [*x, q.astype(np.uint8 if offset else np.int8), *parts], ()

    return sample


def embedding(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(4,), (2, 3), (), (0,)]:
        yield [rng.normal(size=(7, 5)), rng.integers(7, size=shape)], ()


def softmax(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in [((2, 3), 1), ((2, 3, 4), 0), ((5,), 0), ((2, 0, 3), 2)]:
        yield [rng.normal(size=shape) * 4], ((axis,),)
    yield [np.array([[0.0, -math.inf], [-math.inf, -math.inf], [1e3, -1e3]])], ((1,),)


def norm(extra: int, residual: bool = False) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for shape in [(2, 6), (6,), (2, 3, 6), (0, 6)]:
            x = [rng.normal(size=shape) for _ in range(1 + residual)]
            yield [*x, *(rng.normal(size=6) for _ in range(extra))], ((len(shape) - 1,), 1e-5)

    return sample


def halves(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(2, 6), (4,), (1, 2, 3, 8)]:
        yield [rng.normal(size=shape)], ()


def rope(rng: np.random.Generator) -> Iterator[Sample]:
    yield [rng.normal(size=(1, 2, 3, 8)), rng.normal(size=(1, 1, 3, 8)), rng.normal(size=(3, 8))], ()
    yield [rng.normal(size=(4,)) for _ in range(3)], ()


def repeat_heads(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, n in [((1, 2, 3, 4), 3), ((2, 3, 4), 2), ((2, 3, 4), 1)]:
        yield [rng.normal(size=shape)], (n,)


def qkv(rng: np.random.Generator) -> Iterator[list[Any]]:
    """Equal heads, grouped heads, rank 3, and more queries than keys."""
    for q, k, v in [
        ((1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 6)),
        ((2, 4, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8)),
        ((2, 3, 4), (2, 5, 4), (2, 5, 4)),
        ((1, 1, 5, 2), (1, 1, 3, 2), (1, 1, 3, 2)),
    ]:
        yield [rng.normal(size=s) for s in (q, k, v)]


def plain_attention(rng: np.random.Generator) -> Iterator[Sample]:
    for operands in qkv(rng):
        yield operands, (0.35,)


def masked_attention(boolean: bool) -> Sampler:
    """Masks that broadcast, and rows that may look at nothing."""

    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for q, k, v in qkv(rng):
            for empty in ("nan", "zero"):
                keep = rng.random(size=(q.shape[-2], k.shape[-2])) < 0.7
                for mask in (keep, keep & (np.arange(len(keep)) != 1)[:, None], keep[None, :1]):
                    yield [q, k, v, mask if boolean else np.where(mask, 0.25, -math.inf)], (0.35, empty)

    return sample


def written_rows(rng: np.random.Generator) -> Iterator[Sample]:
    places = [((2, 5, 3), 1, [4, 0]), ((4,), 0, [2]), ((1, 2, 6, 3), 2, [5]), ((3, 2), 0, []), ((3, 2), 0, [1, 1])]
    for shape, axis, index in places:
        rows = (*shape[:axis], len(index), *shape[axis + 1 :])
        yield [rng.normal(size=shape), np.array(index, dtype=np.int64), rng.normal(size=rows)], (axis,)


def taken_rows(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis, index in [((2, 5, 3), 1, [4, 0, 4]), ((4,), 0, [2]), ((3, 2), 1, [])]:
        yield [rng.normal(size=shape), np.array(index, dtype=np.int64)], (axis,)
    yield [rng.random(size=(2, 4)) < 0.5, np.array([3, 1])], (1,)


def lasts(rng: np.random.Generator) -> Iterator[Sample]:
    for index in ([2, 0], [], [1, 1, 0, 1]):
        yield [np.array(index, dtype=np.int64)], ()


def hits(rng: np.random.Generator) -> Iterator[Sample]:
    for index, size in [([2, 0], 4), ([], 3), ([7], 2), ([1], 0)]:
        yield [np.array(index, dtype=np.int64)], (size,)


def attention_in_parts(boolean: bool) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for (q, k, v, mask), attrs in masked_attention(boolean)(rng):
            if mask.shape[-1] == k.shape[-2]:
                cut = [np.split(x, [2], axis) for x, axis in ((k, -2), (v, -2), (mask, -1))]
                yield [q, cut[0][0], cut[1][0], cut[0][1], cut[1][1], cut[2][0], cut[2][1]], attrs

    return sample


WINDOWS = [  # x, cout, kernel, strides, begin, end, dilation, groups
    ((2, 3, 7), 4, (3,), (1,), (2,), (0,), (1,), 1),
    ((1, 4, 6), 4, (3,), (1,), (2,), (2,), (1,), 4),
    ((1, 4, 7), 6, (2,), (2,), (0,), (1,), (3,), 2),
    ((2, 3, 5, 6), 4, (3, 2), (2, 1), (1, 0), (1, 1), (1, 2), 1),
    ((0, 2, 4, 5), 2, (1, 1), (1, 1), (0, 0), (0, 0), (1, 1), 1),
    ((1, 2, 3, 4, 3), 2, (2, 2, 2), (1, 2, 1), (0, 1, 0), (0, 1, 1), (1, 1, 1), 2),
]


def convolution_of(bias: bool) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for x, cout, kernel, *attrs, groups in WINDOWS:
            w = rng.normal(size=(cout, x[1] // groups, *kernel))
            yield [rng.normal(size=x), w, *([rng.normal(size=cout)] if bias else [])], (*attrs, groups)

    return sample


def batch_norm(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(2, 3, 4, 5), (1, 3, 2), (4, 3), (0, 3, 2)]:
        yield [rng.normal(size=shape), *(rng.normal(size=3) for _ in range(3)), rng.random(size=3) + 0.1], (1e-5,)


def pool(dilated: bool) -> Sampler:
    def sample(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, k, s, b, e, d in [
            ((1, 2, 7, 6), (3, 2), (2, 1), (1, 0), (1, 1), (1, 1)),
            ((2, 3, 5), (2,), (2,), (0,), (1,), (1,)),
            ((1, 1, 4, 4, 4), (2, 2, 2), (2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1)),
            ((1, 2, 7), (3,), (1,), (1,), (1,), (2,)),
        ]:
            if dilated or set(d) == {1}:
                yield [rng.normal(size=shape)], ((k, s, b, e, d) if dilated else (k, s, b, e))
        if dilated:
            yield [SPECIAL.reshape(1, 1, -1)], ((2,), (1,), (1,), (1,), (1,))

    return sample


def literal(rng: np.random.Generator) -> Iterator[Sample]:
    yield [], (0.5,)


E, C, M, R, L, A, V, P = elementwise, composite, movement, reduction, linalg, attention, convolution, pooling
K = cache

SAMPLERS: dict[Op, Sampler] = {
    **dict.fromkeys(
        [E.exp, E.log, E.sqrt, E.rsqrt, E.reciprocal, E.tanh, E.sigmoid, E.sin, E.cos, E.erf, E.floor,
         C.gelu_tanh, C.silu], unary),
    C.gelu: finite,
    **dict.fromkeys([E.neg, E.abs_, E.relu, M.alias, M.clone, M.contiguous, M.device_move], same_type),
    **dict.fromkeys([E.add, E.mul, E.sub, E.maximum, E.minimum, E.eq, E.ne, E.lt, E.le, E.gt, E.ge], numbers),
    **dict.fromkeys([C.swiglu, C.geglu], same_shape_floats),
    E.div: floats, E.pow_: powers, E.where: where, E.clamp: clamp, E.cast: cast,
    E.logical_and: bools(2), E.logical_or: bools(2), E.logical_not: bools(1),
    packed.unpack: packed_weight(False), packed.unpack_offset: packed_weight(True),
    packed.linear_packed: packed_weight(False, (3,), (), (2, 5), (0,)),
    packed.linear_packed_offset: packed_weight(True, (3,), (), (2, 5), (0,)),
    M.reshape: reshape, M.permute: permute, M.swap_last: matrices, M.broadcast_to: broadcast, M.slice_: slices,
    M.concat: concat, M.split: split, M.project: project, M.dropout_eval: dropout,
    R.sum_: sums, R.mean: reductions, R.amax: reductions,
    L.matmul: matmul, L.matmul_nt: matmul_nt, L.linear: linear(False), L.linear_bias: linear(True),
    L.embedding: embedding,
    C.linear_act: linear(False, *C.ACTIVATIONS), C.linear_bias_act: linear(True, *C.ACTIVATIONS), C.softmax: softmax,
    C.layer_norm: norm(2), C.rms_norm: norm(1), C.add_layer_norm: norm(2, True), C.add_rms_norm: norm(1, True),
    C.rotate_half: halves, C.rope: rope, C.repeat_heads: repeat_heads,
    A.attention: plain_attention, A.attention_causal: plain_attention,
    A.attention_mask: masked_attention(True), A.attention_bias: masked_attention(False),
    K.write_rows: written_rows, K.take_rows: taken_rows, K.rows_hit: hits, K.rows_last: lasts,
    K.attention_parts_mask: attention_in_parts(True), K.attention_parts_bias: attention_in_parts(False),
    V.conv: convolution_of(False), V.conv_bias: convolution_of(True), V.batch_norm: batch_norm,
    P.max_pool: pool(True), P.avg_pool: pool(False),
    leaves.literal: literal,
}  # fmt: skip

# Their type and value come from outside: there is nothing to sample.
GIVEN = [REGISTRY[name] for name in ("input", "constant", "opaque", "opaque_effect")]
