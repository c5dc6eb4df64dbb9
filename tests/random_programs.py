"""Random programs made of what the rules look for: written-out composites, and their twins with one thing wrong.

Sizes are drawn from few numbers, so that a mixed-up axis is still well-typed: a rule that is wrong there shows in
the values, not in a type error.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forge_eq.errors import ShapeError
from forge_eq.ir.graph import Builder, Graph, Signature, tensor_type
from forge_eq.ir.types import TensorType
from forge_eq.ops import attention as fused
from forge_eq.ops import composite, elementwise, leaves, linalg, movement, reduction
from forge_eq.ops.elementwise import add, div, mul, sub, where
from forge_eq.ops.spec import Op, lit

NUMBERS = [1.0, 2.0, 0.5, -1.0, 0.1, 3.0, 0.125, 1e-7, 3e6, 0.0, -0.0, 1, 0, 2]
SCALES = [0.5, 0.3535533905932738, 2.0, 1.0, 1e-7]
EPSILONS = [1e-5, 1e-6, 0.1]


class Value(int):
    """The id of a node; a plain number among operands is a literal."""


class Program:
    """A graph under construction, and what pieces draw from."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = Builder(name=f"program{seed}")
        self.constants: dict[str, torch.Tensor] = {}
        self.batch, self.heads = self.rng.choice([1, 2]), self.rng.choice([2, 4])
        self.tokens, self.size = self.rng.choice([2, 4]), self.rng.choice([4, 6, 8])
        self.inputs = [self.input("f32", self.batch, self.tokens, self.size) for _ in range(2)]
        self.mask = self.input("bool", self.tokens, self.tokens)
        self.values = list(self.inputs)

    def input(self, dtype: str, *shape: int) -> Value:
        return Value(self.b.add(leaves.input_, (), (len(self.b.nodes),), TensorType(dtype, shape)))

    def constant(self, *shape: int) -> Value:
        name = f"c{len(self.constants)}"
        generator = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        self.constants[name] = torch.randn(shape, generator=generator)
        return Value(self.b.add(leaves.constant, (), (name,), TensorType("f32", shape)))

    def __call__(self, op: Op, *parts: Any) -> Value:
        """An op on operands (numbers become literals), then its attributes. Raises ShapeError."""
        count = len(parts) - len(op.attrs)
        operands = []
        for part in parts[:count]:
            literal = lit(part)
            operands.append(part if isinstance(part, Value) else self.b.add(literal.op, (), literal.attrs))
        return Value(self.b.add(op, tuple(operands), tuple(parts[count:])))

    def type(self, x: Value) -> TensorType:
        return tensor_type(self.b.nodes[x])

    def shape(self, x: Value) -> tuple[Any, ...]:
        return self.type(x).shape

    def any(self) -> Value:
        return self.rng.choice(self.values)

    def hidden(self) -> Value:
        """A value shaped like the inputs."""
        shape = (self.batch, self.tokens, self.size)
        return self.rng.choice([v for v in self.values if self.shape(v) == shape])

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def either(self, op: Op, a: Any, b: Any) -> Value:
        """A commutative op with its operands in either order."""
        return self(op, a, b) if self.flip() else self(op, b, a)

    def finish(self) -> Graph:
        outputs = list(dict.fromkeys([*self.values[-2:], *self.rng.sample(self.values, 1)]))
        names = tuple(f"x{i}" for i in range(3))
        return self.b.finish(tuple(map(int, outputs)), constants=self.constants, signature=Signature(names))


# ------------------------------------------------------------------------------------------------- movement


def regrouped(p: Program, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape with as many elements."""
    total, dims = math.prod(shape), []
    while total > 1 and len(dims) < 3:
        dims.append(p.rng.choice([d for d in range(1, total + 1) if total % d == 0]))
        total //= dims[-1]
    return (*dims, total)


def move(p: Program) -> Value:
    """A chain of views, transposes, slices and names."""
    x = p.any()
    for _ in range(p.rng.randint(1, 4)):
        shape = p.shape(x)
        axis = p.rng.randrange(len(shape))
        kind = p.rng.randrange(10)
        if kind == 0:
            x = p(movement.reshape, x, regrouped(p, shape))
        elif kind == 1:
            x = p(movement.reshape, x, shape)
        elif kind in (2, 3):
            x = p(movement.permute, x, tuple(p.rng.sample(range(len(shape)), len(shape))))
        elif kind == 4 and len(shape) > 1:
            x = p(movement.permute, x, (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        elif kind == 5:
            start = p.rng.choice([0, 0, shape[axis] // 2])
            x = p(movement.slice_, x, axis, start, shape[axis], p.rng.choice([1, 1, 2]))
        elif kind == 6:
            first = p.rng.randint(0, shape[axis])
            sizes = (first, shape[axis] - first)
            parts = p(movement.split, x, sizes, axis)
            halves = [p(movement.project, parts, i) for i in (0, 1)]
            larger = max(halves, key=lambda v: p.shape(v)[axis])
            x = p(movement.concat, *(halves if p.flip() else halves[::-1]), axis) if p.flip() else larger
        elif kind == 7:
            x = p(movement.broadcast_to, x, shape if p.flip() else (2, *shape))
        elif kind == 8:
            x = p(p.rng.choice([movement.alias, movement.clone, movement.contiguous, movement.device_move]), x)
        else:
            x = p(movement.dropout_eval, x, 0.1) if p.flip() else p(movement.concat, x, axis)
        if len(p.shape(x)) > 5 or math.prod(p.shape(x)) > 4000:
            break
    return x


def retype(p: Program) -> Value:
    """Casts to the dtype at hand and to others, with whole numbers in between."""
    x = p(elementwise.cast, p.any(), p.rng.choice(["f32", "i64", "f64"]))
    x = p(p.rng.choice([add, mul]), x, p.rng.choice([0, 1]))
    return p(elementwise.cast, x, "f32")


# ------------------------------------------------------------------------------------------------- arithmetic


def scale(p: Program) -> Value:
    """Numbers on either side of arithmetic, several in a row."""
    x = p.any()
    for _ in range(p.rng.randint(1, 3)):
        op, s = p.rng.choice([mul, mul, div, add, sub]), p.rng.choice(NUMBERS)
        if op is div and s in (0, 1e-7):
            s = 2.0
        x = p.either(op, x, s) if op in (mul, add) else p(op, s, x) if op is sub and p.flip(0.3) else p(op, x, s)
    return p(elementwise.pow_, x, p.rng.choice([1.0, 2.0])) if p.flip(0.2) else x


def twice(p: Program) -> Value:
    """Idempotent and self-inverse functions, applied twice."""
    op = p.rng.choice([elementwise.neg, elementwise.abs_, elementwise.relu, elementwise.tanh, movement.swap_last])
    return p(op, p(op, p.hidden()))


def choose(p: Program) -> Value:
    """A choice between equals, and between values that are not."""
    x, y = p.any(), p.any()
    return p(where, p(elementwise.gt, x, 0.0), x, x if p.flip() or p.shape(y) != p.shape(x) else y)


def masked(p: Program) -> Value:
    """Booleans of the mask, in two spellings, some of them the same."""
    causal = p(elementwise.gt, p.constant(p.tokens, p.tokens), 0.0)
    op = p.rng.choice([elementwise.logical_and, elementwise.logical_or])
    twice = p(elementwise.logical_not, p(elementwise.logical_not, p.mask if p.flip() else causal))
    scores = p(linalg.matmul_nt, p.hidden(), p.hidden())
    return p(where, p(op, p.mask, causal), scores, p(where, p(op, causal, twice), scores, 0.0))


def activation(p: Program, x: Value) -> Value:
    """An activation by name or written out, with its constants or others."""
    kind = p.rng.randrange(-4, 6)
    if kind <= 0:
        return p(p.rng.choice([act for act, _ in composite.ACTIVATIONS.values()]), x)
    if kind == 1:
        return p.either(mul, x, p(elementwise.sigmoid, x if p.flip(0.8) else p(elementwise.neg, x)))
    half, one = p.rng.choice([0.5, 0.5, 0.25]), p.rng.choice([1.0, 1.0, 2.0])
    if kind in (2, 3):
        inner = p(elementwise.erf, p(mul, x, p.rng.choice([0.7071067811865476, 0.7071067811865476, 0.7])))
    else:
        cubic = p(mul, p(elementwise.pow_, x, p.rng.choice([3.0, 3.0, 2.0])), p.rng.choice([0.044715, 0.044715, 0.04]))
        inner = p(elementwise.tanh, p(mul, p.either(add, x, cubic), p.rng.choice([0.7978845608028654, 0.8])))
    return p.either(mul, p.either(mul, x, half), p.either(add, inner, one))


def activate(p: Program) -> Value:
    return activation(p, p.hidden())


def gated(p: Program) -> Value:
    """The gate of Llama's feed-forward."""
    x, y = p.hidden(), p.hidden()
    return p.either(mul, p(composite.silu, x) if p.flip() else p(mul, x, p(elementwise.sigmoid, x)), y)


# ------------------------------------------------------------------------------------------------- norms, softmax


def soft(p: Program) -> Value:
    """A softmax by its definition, the axes of maximum and sum alike or not."""
    x = p.any()
    axes = [(p.rng.randrange(len(p.shape(x))),) for _ in range(2)]
    top, total = (axes[0], axes[0]) if p.flip(0.7) else axes
    e = p(elementwise.exp, p(sub, x, p(reduction.amax, x, top, True)))
    return p(div, e, p(reduction.sum_, e, total, True))


def gain(p: Program) -> Value:
    """A norm's gain or bias: of the right shape, or of one that broadcasts as well."""
    n = p.size
    return p.constant(*p.rng.choice([(n,), (n,), (n,), (1, n), (p.tokens, 1), (1,), (p.tokens, n)]))


def norm(p: Program) -> Value:
    """A layer norm or a root-mean-square norm, written out, often of a residual sum."""
    x = p.hidden()
    if p.flip():
        x = p.either(add, x, p.hidden())
        p.values.append(x)
    axes, power = p.rng.choice([(2,), (2,), (2,), (1,)]), p.rng.choice([2.0, 2.0, 2.0, 4.0])
    eps = p.rng.choice(EPSILONS)
    if p.flip(0.2):
        return p(composite.layer_norm, x, p.constant(p.size), p.constant(p.size), (2,), eps)
    centred = p(sub, x, p(reduction.mean, x, axes, True))
    root = p.flip()
    spread = p(reduction.mean, p(elementwise.pow_, x if root else centred, power), axes, True)
    inverse = p(elementwise.rsqrt, p.either(add, spread, eps))
    y = p.either(mul, p.either(mul, x if root else centred, inverse), gain(p))
    return y if root and p.flip(0.8) else p.either(add, y, gain(p))


# ------------------------------------------------------------------------------------------------- linear layers


def product(p: Program, x: Value, n: int, name: str = "") -> Value:
    """x times a weight, in one of its spellings."""
    k = p.shape(x)[-1]
    kind = name or p.rng.choice(["plain", "swapped", "nt", "linear", "transposed", "twice", "constant sum"])
    if kind == "plain":
        return p(linalg.matmul, x, p.constant(k, n))
    if kind == "swapped":
        return p(linalg.matmul, x, p(movement.permute, p.constant(n, k), (1, 0)))
    if kind == "nt":
        return p(linalg.matmul_nt, x, p.constant(n, k))
    if kind == "linear":
        return p(linalg.linear, x, p.constant(k, n), False)
    if kind == "transposed":
        return p(linalg.linear, x, p.constant(n, k), True)
    if kind == "twice":
        return p(linalg.linear, x, p(movement.swap_last, p.constant(k, n)), True)
    return p(linalg.matmul, x, p(add, p.constant(k, n), p.constant(n)))


def dense(p: Program) -> Value:
    """A layer with a bias that is one, or only broadcasts like one, and an activation."""
    n = p.size
    y = product(p, p.hidden(), n)
    if p.flip(0.6):
        y = p.either(add, y, p.constant(*p.rng.choice([(n,), (n,), (1, n), (p.tokens, n), (1,)])))
    return activation(p, y) if p.flip(0.6) else y


def rows(p: Program) -> Value:
    """Flattened to rows, through a layer, and back; or regrouped across rows."""
    x = p.hidden()
    total = p.batch * p.tokens * p.size
    k = p.rng.choice([p.size, p.size, p.size, p.tokens])
    flat = p(movement.reshape, x, (total // k, k))
    y = product(p, flat, k, p.rng.choice(["linear", "transposed", "plain"]))
    if p.flip():
        y = p.either(add, y, p.constant(k))
    return p(movement.reshape, y, p.rng.choice([p.shape(x), p.shape(x), (p.batch, p.size, p.tokens)]))


def siblings(p: Program) -> Value:
    """Two or three layers that read one value, with or without biases; one may read another value."""
    x, count = p.hidden(), p.rng.choice([2, 3])
    biased, outs = p.flip(), []
    for _ in range(count):
        n = p.rng.choice([p.size, 2 * p.size]) if p.flip(0.2) else p.size
        y = p(linalg.linear, x if p.flip(0.9) else p.hidden(), p.constant(n, p.size), p.flip(0.95) or n != p.size)
        outs.append(p(add, y, p.constant(n)) if biased else y)
    same = [y for y in outs if p.shape(y) == p.shape(x)] or [x]
    p.values += same[1:]
    return same[0] if len(same) == 1 else p(sub, same[0], p(mul, same[1], 2.0))


# ------------------------------------------------------------------------------------------------- attention


def rotated(p: Program, x: Value) -> Value:
    """Halves exchanged and one negated: the right one, the wrong one, or unequal halves."""
    axis, size = len(p.shape(x)) - 1, p.shape(x)[-1]
    axis = axis if p.flip(0.8) else axis - 1
    size = p.shape(x)[axis]
    cut = size // 2 if p.flip(0.8) else 1
    low, high = p(movement.slice_, x, axis, 0, cut, 1), p(movement.slice_, x, axis, cut, size, 1)
    kind = p.rng.choice(["right", "right", "right", "sign", "order"])
    if kind == "right":
        return p(movement.concat, p(elementwise.neg, high), low, axis)
    if kind == "sign":
        return p(movement.concat, high, p(elementwise.neg, low), axis)
    return p(movement.concat, low, p(elementwise.neg, high), axis)


def rotary(p: Program) -> Value:
    """A rotary embedding whose angles broadcast, or nearly one."""
    x = p.hidden()
    cos, sin = (p.constant(*p.rng.choice([(p.tokens, p.size), (p.tokens, p.size), (p.size,)])) for _ in range(2))
    y = rotated(p, x)
    return p.either(add, p.either(mul, x, cos), p.either(mul, y if p.flip(0.9) else x, sin))


def heads(p: Program, x: Value, count: int, size: int) -> Value:
    """[batch, heads, tokens, size] from a layer's output, split as models do, or heads taken across tokens."""
    if p.flip(0.9):
        y = p(movement.reshape, product(p, x, count * size), (p.batch, p.tokens, count, size))
        return p(movement.permute, y, (0, 2, 1, 3))
    return p(movement.reshape, product(p, x, count * size), (p.batch, count, p.tokens, size))


def repeated(p: Program, x: Value, n: int) -> Value:
    """Key heads for every query head: in runs, or tiled."""
    b, g, t, d = p.shape(x)
    if n == 1:
        return x
    if p.flip(0.8):
        y = p(movement.broadcast_to, p(movement.reshape, x, (b, g, 1, t, d)), (b, g, n, t, d))
    else:
        y = p(movement.broadcast_to, p(movement.reshape, x, (b, 1, g, t, d)), (b, n, g, t, d))
    return p(movement.reshape, y, (b, g * n, t, d))


def attend(p: Program) -> Value:
    """Attention written out, with one of its masks, and any part of it wrong now and then."""
    size = p.rng.choice([p.tokens, 4])
    groups = p.heads if p.flip() else p.heads // 2
    q = heads(p, p.hidden(), p.heads, size)
    k, v = (heads(p, p.hidden(), groups, size) for _ in range(2))
    if p.flip(0.3):
        q = p(mul, q, p.rng.choice(SCALES))
    if p.flip(0.2):
        k = p(mul, k, p.rng.choice(SCALES))
    k, v = repeated(p, k, p.heads // groups), repeated(p, v, p.heads // groups)
    flipped = p(movement.permute, k, (0, 1, 3, 2) if p.flip(0.9) else (0, 1, 2, 3))
    scores = p(linalg.matmul, q, flipped) if p.flip(0.9) else p(linalg.matmul_nt, q, k)
    if p.flip(0.7):
        op, numbers = p.rng.choice([(div, [2.0, 2.8284271247461903]), (mul, SCALES)])
        scores = p(op, scores, p.rng.choice(numbers))
    kind = p.rng.choice(["none", "none", "where", "where", "bias", "wide bias", "after"])
    if kind == "where":
        least = p.rng.choice([-math.inf, -math.inf, -1e9])
        scores = p(where, p.mask, scores, least) if p.flip(0.8) else p(where, p.mask, least, scores)
    elif kind.endswith("bias"):
        shape = (p.tokens, p.tokens) if kind == "bias" else (p.batch, 1, p.tokens, p.tokens)
        scores = p.either(add, scores, p.constant(*shape))
    weights = p(composite.softmax, scores, (p.rng.choice([3, 3, 3, 3, 2, 1]),))
    if kind == "after":
        weights = p(where, p.mask, weights, 0.0)
    y = p(linalg.matmul, p(movement.dropout_eval, weights, 0.1) if p.flip() else weights, v)
    if size * p.heads != p.size:
        return y
    return p(movement.reshape, p(movement.permute, y, (0, 2, 1, 3)), (p.batch, p.tokens, p.size))


def grouped(p: Program) -> Value:
    """Captured attention kernels on repeated heads: both repeated, or one of them tiled."""
    d = p.rng.choice([2, 4])
    q = p.constant(1, 4, p.tokens, d)
    x = p(mul, p(movement.slice_, p.hidden(), 2, 0, 4, 1), 1.0)
    q = p(add, q, p(movement.slice_, p(movement.slice_, x, 0, 0, 1, 1), 2, 0, d, 1))
    k, v = repeated(p, p.constant(1, 2, p.tokens, d), 2), repeated(p, p.constant(1, 2, p.tokens, d), 2)
    kind, s = p.rng.randrange(4), p.rng.choice(SCALES)
    if kind == 0:
        return p(fused.attention, q, k, v, s)
    if kind == 1:
        return p(fused.attention_causal, q, k, v, s)
    if kind == 2:
        return p(fused.attention_mask, q, k, v, p.mask, s, p.rng.choice(["nan", "zero"]))
    return p(fused.attention_bias, q, k, v, p.constant(p.tokens, p.tokens), s, p.rng.choice(["nan", "zero"]))


PIECES: list[Callable[[Program], Value]] = [
    move, move, retype, scale, scale, twice, choose, masked, activate, gated, soft, norm, norm, dense, dense, dense,
    rows, siblings, rotary, attend, attend, grouped,
]  # fmt: skip


def random_program(seed: int, pieces: int = 6, kinds: Sequence[Callable[[Program], Value]] = PIECES) -> Graph:
    """The program of a seed."""
    p = Program(seed)
    for piece in p.rng.choices(kinds, k=pieces):
        try:
            p.values.append(piece(p))
        except ShapeError:  # a twin that is wrong even in type; what was built of it is dead code
            continue
    return p.finish()
