"""More pieces of random programs: what is read in part, what is summed, chains of layers, convolutions and windows.

Each makes what rules of one family look for, or nearly that, of the values of a :class:`random_programs.Program`.
"""

from __future__ import annotations

from typing import Any

from forge_eq.ir.graph import Graph
from forge_eq.ops import composite, convolution, elementwise, linalg, movement, pooling, reduction
from forge_eq.ops.composite import ACTIVATIONS
from forge_eq.ops.elementwise import add, div, mul, sub, where
from random_programs import PIECES as OTHERS
from random_programs import SCALES, Program, Value, grouped, random_program

UNARY = (elementwise.neg, elementwise.exp, elementwise.sigmoid, elementwise.erf, elementwise.tanh)
REDUCTIONS = (reduction.sum_, reduction.mean, reduction.amax)


def layer(p: Program, x: Value, n: int, biased: bool = False, stored: bool | None = None) -> Value:
    """A linear layer of n features, its weight stored either way."""
    k, transposed = p.shape(x)[-1], p.flip() if stored is None else stored
    weight = p.constant(*((n, k) if transposed else (k, n)))
    if biased:
        return p(linalg.linear_bias, x, weight, p.constant(n), transposed)
    return p(linalg.linear, x, weight, transposed)


def read_in_part(p: Program) -> Value:
    """Some places of a result: of elementwise work, of rows of products, norms, statistics, attention or lookups."""
    y = readable(p, p.hidden(), p.rng.randrange(12))
    axis = p.rng.randrange(len(p.shape(y)))
    size = p.shape(y)[axis]
    start = p.rng.randrange(size)
    return p(movement.slice_, y, axis, start, p.rng.randint(start + 1, size), p.rng.choice([1, 1, 1, 2]))


def readable(p: Program, x: Value, kind: int) -> Value:
    if kind == 0:
        return p(p.rng.choice([*UNARY, *(op for op, _ in ACTIVATIONS.values())]), x)
    if kind == 1:
        positive = p(add, p(elementwise.abs_, x), 0.5)
        return p(elementwise.rsqrt, positive) if p.flip() else p(elementwise.pow_, positive, p.rng.choice([0.5, 3.0]))
    if kind == 2:
        return p(elementwise.cast, p(elementwise.cast, x, "f64"), "f32") if p.flip() else p(elementwise.cast, x, "f64")
    if kind == 3:
        return p(p.rng.choice([add, sub, mul]), x, p.hidden())
    if kind == 4:
        return p(p.rng.choice([add, sub, mul, div]), x, p.constant(p.size) if p.flip() else 3.0)
    if kind == 5:
        return layer(p, x, p.rng.choice([p.size, 8 * p.size]), p.flip())
    if kind == 6:
        gains = [p.constant(p.size) for _ in range(2)]
        if p.flip():
            return p(composite.rms_norm, x, gains[0], (2,), 1e-5)
        return p(composite.layer_norm, x, *gains, (2,), 1e-5)
    if kind == 7:
        return p(composite.softmax, x, (p.rng.choice([1, 2]),))
    if kind == 8:
        return p(p.rng.choice(REDUCTIONS), x, (p.rng.choice([1, 2]),), True)
    if kind == 9:
        y = p.hidden()
        return p(linalg.matmul_nt, x, y) if p.flip() else p(linalg.matmul, x, p(movement.swap_last, y))
    if kind == 10:
        return grouped(p)
    indices = p(elementwise.cast, p.mask, "i64")
    return p(linalg.embedding, p.constant(2, p.size), indices)


def summed(p: Program) -> Value:
    """A reduction of a layer, of something scaled, of a reduction, or of an axis of size 1."""
    x, op, keep = p.hidden(), p.rng.choice(REDUCTIONS), p.flip()
    kind = p.rng.randrange(5)
    if kind <= 1:
        return p(op, layer(p, x, p.size, p.flip()), p.rng.choice([(2,), (2,), (1,), (0, 1)]), keep)
    if kind == 2:
        return p(op, p.either(mul, x, p.rng.choice(SCALES)), p.rng.choice([(2,), (0, 2)]), keep)
    if kind == 3:
        second = op if p.flip(0.8) else p.rng.choice(REDUCTIONS)
        return p(second, p(op, x, (p.rng.choice([1, 2]),), True), (p.rng.choice([0, 1, 2]),), True)
    if p.flip():
        return p(op, p(elementwise.relu, x), (2,), keep)
    return p(op, p(movement.slice_, x, 1, 0, 1, 1), (1,), keep)


def chained(p: Program) -> Value:
    """Products of products: of layers, beside each other, scaled, with a second bias, or of three matrices."""
    x, kind, stored = p.hidden(), p.rng.randrange(6), p.flip(0.7)
    if kind <= 1:
        inner = layer(p, x, p.rng.choice([1, 2, p.size]), p.flip(), stored)
        return layer(p, inner, p.size, p.flip(), stored if p.flip(0.8) else not stored)
    if kind == 2:
        other = layer(p, x if p.flip(0.8) else p.hidden(), p.size, False, stored)
        return p(add, layer(p, x, p.size, p.flip(), stored), other)
    if kind == 3:
        return p(mul, layer(p, x, p.size, p.flip()), p.rng.choice(SCALES))
    if kind == 4:
        return p(add, layer(p, x, p.size, True), p.constant(*p.rng.choice([(p.size,), (p.size,), (p.tokens, p.size)])))
    narrow = layer(p, p.hidden(), p.rng.choice([1, p.size]))
    if p.flip():
        return p(linalg.matmul, p(linalg.matmul_nt, x, p.hidden()), narrow)
    wide = p(linalg.matmul, p(movement.swap_last, p.hidden()), narrow)
    return p(linalg.matmul, x if p.flip() else p(linalg.matmul, x, p.constant(p.size, p.size)), wide)


def convolved(p: Program, x: Value, point: bool, biased: bool) -> Value:
    """A convolution along the features, with the tokens as channels."""
    size, n = 1 if point else p.rng.choice([2, 3]), p.rng.choice([p.tokens, 4])
    edge = (0, 0) if point else p.rng.choice([(0, 0), (size - 1, size - 1), (1, 1)])
    groups = p.tokens if n == p.tokens and p.flip(0.2) else 1
    weight = p.constant(n, p.tokens // groups, size)
    attrs: list[Any] = [(1,) if point or p.flip(0.8) else (2,), (edge[0],), (edge[1],), (1,), groups]
    if biased:
        return p(convolution.conv_bias, x, weight, p.constant(n), *attrs)
    return p(convolution.conv, x, weight, *attrs)


def filtered(p: Program) -> Value:
    """A convolution that is cut, scaled or normalised by channel, or a mean over its places."""
    y = convolved(p, p.hidden(), p.flip(0.4), p.flip())
    channels, places = p.shape(y)[1:]
    kind = p.rng.randrange(4)
    if kind == 0:
        return p(movement.slice_, y, 2, 0, p.rng.randint(1, places), 1)
    if kind == 1:
        return p(mul, y, p.rng.choice(SCALES))
    if kind == 2:
        gain, bias, middle = (p.constant(channels) for _ in range(3))
        spread = p(add, p(elementwise.abs_, p.constant(channels)), 0.5)
        return p(convolution.batch_norm, y, gain, bias, middle, spread, 1e-5)
    return p(reduction.mean, y, (2,), True)


def pooled(p: Program) -> Value:
    """Windows over windows, over increasing functions, or over convolutions of one place."""
    x, k = p.hidden(), p.rng.choice([1, 2])
    step = p.rng.choice([1, k])
    none, one = (0,), (1,)
    kind = p.rng.randrange(5)
    if kind == 0:
        inner = p(pooling.max_pool, x, (k,), (step,), none, none, one)
        return p(pooling.max_pool, inner, (2,), (p.rng.choice([1, 2]),), none, none, one)
    if kind == 1:
        inner = p(pooling.avg_pool, x, (k,), (step,), none, none)
        return p(pooling.avg_pool, inner, (2,), (2,), none, none)
    if kind == 2:
        op = p.rng.choice([elementwise.relu, elementwise.tanh, elementwise.sigmoid, composite.gelu])
        return p(pooling.max_pool, p(op, x), (2,), (step,), p.rng.choice([none, one]), none, one)
    if kind == 3:
        return p(reduction.amax, p(elementwise.relu, x), p.rng.choice([(1,), (2,), (1, 2)]), p.flip())
    point, edge = convolved(p, x, True, p.flip()), p.rng.choice([none, one])
    return p(pooling.avg_pool, point, (2,), (p.rng.choice([1, 2]),), edge, none)


def shares(p: Program) -> Value:
    """Shares of one value that are added, or of two; reciprocals; tests and extremes with operands in either order."""
    x, s = p.hidden(), p.rng.choice(SCALES)
    if p.flip(0.3):
        positive = p(add, p(elementwise.abs_, x), 0.5)
        return p(div, 1.0, positive) if p.flip() else p(elementwise.pow_, positive, -1.0)
    other = x if p.flip(0.8) else p.hidden()
    if p.flip(0.3):
        same = p.either(p.rng.choice([elementwise.eq, elementwise.ne]), x, p.rng.choice([0.0, 0.5]))
        extreme = p.rng.choice([elementwise.maximum, elementwise.minimum])
        return p(where, same, p.either(extreme, x, p.hidden()), other)
    return p.either(add, p(mul, x, s), p(mul, other, p.rng.choice(SCALES)) if p.flip() else other)


PIECES = [read_in_part, read_in_part, read_in_part, summed, summed, chained, chained, filtered, pooled, shares]


def random_reads(seed: int) -> Graph:
    """The program of a seed, of these pieces and some of the others."""
    return random_program(seed, kinds=[*PIECES, *OTHERS[::4]])
