"""Random programs over the whole vocabulary: mixed dtypes, sizes 0 and 1, broadcasting, sharing, several outputs.

What ``random_programs`` makes is close to what the rules look for; this is wide instead. Values may be odd: zeros of
both signs, infinities, NaN, subnormal and huge numbers (``special``), or ordinary ones with many ties.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from forge_eq.errors import ShapeError
from forge_eq.ir.graph import Builder, Graph, Signature, tensor_type
from forge_eq.ir.types import FLOATS, TensorType, TupleType
from forge_eq.ops import composite, elementwise, leaves, linalg, movement, reduction
from forge_eq.ops.spec import Op

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "bool": torch.bool,
}  # fmt: skip
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3e38, 0.5, 3.0)
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.1, -2.5, 1, 0, 2, -1)
UNARY = (
    elementwise.neg, elementwise.abs_, elementwise.relu, elementwise.floor, elementwise.exp, elementwise.log,
    elementwise.sqrt, elementwise.rsqrt, elementwise.reciprocal, elementwise.tanh, elementwise.sigmoid,
    elementwise.sin, elementwise.cos, elementwise.erf, composite.gelu, composite.gelu_tanh, composite.silu,
)  # fmt: skip
EXACT = (elementwise.neg, elementwise.abs_, elementwise.relu, elementwise.floor, elementwise.reciprocal)
BINARY = (
    elementwise.add, elementwise.sub, elementwise.mul, elementwise.div, elementwise.maximum, elementwise.minimum,
)  # fmt: skip
COMPARE = (
    elementwise.eq, elementwise.ne, elementwise.lt, elementwise.le, elementwise.gt, elementwise.ge,
)  # fmt: skip
SAME = (movement.alias, movement.clone, movement.contiguous, movement.device_move)


def values(type_: TensorType, generator: torch.Generator, special: bool) -> torch.Tensor:
    """Data for an input or a constant; the odd values of ``SPECIAL`` in half the places where it is asked for."""
    shape: Any = type_.shape
    if type_.dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    if type_.dtype not in FLOATS:
        return torch.randint(-3, 4, shape, generator=generator).to(TORCH[type_.dtype])
    made = torch.randn(shape, generator=generator, dtype=torch.float64)
    ties = torch.rand(shape, generator=generator) < 0.15  # equal values meet where signs, maxima and tests decide
    made = torch.where(ties, torch.randint(-1, 2, shape, generator=generator).double(), made)
    if special:
        picked = torch.randint(0, len(SPECIAL), shape, generator=generator)
        odd = torch.tensor(SPECIAL, dtype=torch.float64)[picked]
        made = torch.where(torch.rand(shape, generator=generator) < 0.5, odd, made)
    return made.to(TORCH[type_.dtype])


class Wide:
    """A graph under construction. ``special`` keeps to ops whose bits are promised."""

    def __init__(self, seed: int, special: bool) -> None:
        self.rng, self.special = random.Random(f"wide {seed}"), special
        self.b, self.constants = Builder(name=f"wide{seed}"), dict[str, torch.Tensor]()
        self.generator = torch.Generator().manual_seed(seed)
        sizes = [1, 2, 3, 4, 1, 2] + [0] * (self.rng.random() < 0.15)
        self.dims = self.rng.sample(sizes, 3)
        self.pool: list[int] = []
        dtypes = ["f32", "f32", "f32", "f64", "i64", "i32", "bool", self.rng.choice(["f16", "bf16", "f32"])]
        for index in range(self.rng.randint(1, 4)):
            self.pool.append(self.b.add(leaves.input_, (), (index,), self.draw(self.rng.choice(dtypes))))
        self.count = len(self.pool)
        for index in range(self.rng.randint(0, 2)):
            type_, name = self.draw(self.rng.choice(dtypes[:6])), f"c{index}"
            self.constants[name] = values(type_, self.generator, special)
            self.pool.append(self.b.add(leaves.constant, (), (name,), type_))

    def draw(self, dtype: str) -> TensorType:
        return TensorType(dtype, tuple(self.rng.choice(self.dims) for _ in range(self.rng.randint(0, 4))))

    def type(self, x: int) -> TensorType:
        return tensor_type(self.b.nodes[x])

    def add(self, op: Op, inputs: tuple[int, ...], *attrs: Any) -> int:
        """An op; numbers far off and huge results are refused as ill-typed. Raises ShapeError."""
        made = self.b.add(op, inputs, tuple(attrs))
        type_ = self.b.nodes[made].type
        if isinstance(type_, TensorType) and (type_.rank > 5 or math.prod(type_.shape) > 2000):  # type: ignore[arg-type]
            raise ShapeError("types", op.name, "too large", "draw again")
        return made

    def any(self, *dtypes: str) -> int:
        """A value of one of the dtypes, the newest the likeliest. Raises ShapeError when there is none."""
        found = [v for v in self.pool if not dtypes or self.type(v).dtype in dtypes]
        if not found:
            raise ShapeError("types", "any", f"no {dtypes}", "draw again")
        return self.rng.choice(found[-4:] if self.rng.random() < 0.6 else found)

    def beside(self, x: int) -> int:
        """A second operand: itself, a number, or a value of the same dtype."""
        kind = self.rng.random()
        if kind < 0.15:
            return x
        if kind < 0.5:
            whole = self.type(x).dtype not in FLOATS
            return self.b.add(
                leaves.literal, (), (self.rng.choice([n for n in NUMBERS if not whole or type(n) is int]),)
            )
        return self.any(self.type(x).dtype)

    # ------------------------------------------------------------------------------------------- steps

    def unary(self) -> int:
        whole = self.rng.random() < 0.2
        ops = (elementwise.neg, elementwise.abs_) if whole else EXACT if self.special else UNARY
        return self.add(self.rng.choice(ops), (self.any(*(("i64", "i32") if whole else FLOATS)),))

    def twice(self) -> int:
        ops = (elementwise.neg, elementwise.abs_, elementwise.relu, movement.swap_last, movement.contiguous)
        op = self.rng.choice(ops)
        return self.add(op, (self.add(op, (self.any(*FLOATS),)),))

    def binary(self) -> int:
        x = self.any(*FLOATS, "i64", "i32")
        op = self.rng.choice(BINARY[:4] if self.special else BINARY)
        pair = (x, self.beside(x))
        return self.add(op, pair if self.rng.random() < 0.7 else pair[::-1])

    def power(self) -> int:
        if self.special:
            return self.binary()
        number = self.b.add(leaves.literal, (), (self.rng.choice([2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 0.0]),))
        return self.add(elementwise.pow_, (self.any("f32", "f64"), number))

    def compare(self) -> int:
        x = self.any("f32", "f64", "i64")
        return self.add(self.rng.choice(COMPARE), (x, self.beside(x)))

    def logic(self) -> int:
        x = self.any("bool")
        if self.rng.random() < 0.3:
            return self.add(elementwise.logical_not, (x,))
        op = self.rng.choice([elementwise.logical_and, elementwise.logical_or])
        return self.add(op, (x, x if self.rng.random() < 0.2 else self.any("bool")))

    def choose(self) -> int:
        x = self.any("f32", "f64", "i64")
        pair = (x, self.beside(x))
        return self.add(elementwise.where, (self.any("bool"), *(pair if self.rng.random() < 0.5 else pair[::-1])))

    def clamp(self) -> int:
        low, high = self.rng.choice([(-1.0, 1.0), (None, 0.5), (0.0, None), (1.0, -1.0), (0.0, 6.0)])
        return self.add(elementwise.clamp, (self.any("f32", "f64"),), low, high)

    def cast(self) -> int:
        x = self.any("f32", "f64", "i64", "i32", "bool")
        # What a NaN, an infinity or a number out of range becomes as a whole number, torch leaves open.
        narrow = self.special and self.type(x).dtype in FLOATS
        return self.add(
            elementwise.cast, (x,), self.rng.choice(["f32", "f64"] if narrow else ["f32", "f64", "i64", "i32", "bool"])
        )

    def move(self) -> int:
        x, rng = self.any(), self.rng
        shape: Any = self.type(x).shape
        rank, kind = len(shape), rng.randrange(9)
        axis = rng.randrange(rank) if rank else 0
        if kind == 0:
            return self.add(
                movement.reshape, (x,), rng.choice([shape, shape[::-1], (math.prod(shape),), (*shape, 1), (1, *shape)])
            )
        if kind == 1:
            return self.add(movement.permute, (x,), tuple(rng.sample(range(rank), rank)))
        if kind == 2:
            return self.add(movement.swap_last, (x,))
        if kind == 3:
            grown = tuple(rng.choice([2, 3, 1]) if d == 1 else d for d in shape)
            return self.add(movement.broadcast_to, (x,), rng.choice([grown, (2, *grown), (1, *shape), shape]))
        if kind == 4 and rank:
            size = shape[axis]
            start, stop = sorted((rng.randint(0, size), rng.randint(0, size)))
            return self.add(movement.slice_, (x,), axis, start, stop, rng.choice([1, 1, 2]))
        if kind == 5 and rank:
            first = rng.randint(0, shape[axis])
            parts = self.b.add(movement.split, (x,), ((first, shape[axis] - first), axis))
            halves = [self.b.add(movement.project, (parts,), (i,)) for i in (0, 1)]
            self.pool += halves
            return self.add(movement.concat, tuple(halves if rng.random() < 0.6 else halves[::-1]), axis)
        if kind == 6 and rank:
            return self.add(
                movement.concat, (x, *(self.any(self.type(x).dtype) for _ in range(rng.randint(0, 2)))), axis
            )
        if kind == 7 and self.type(x).dtype in FLOATS:
            return self.add(movement.dropout_eval, (x,), 0.5)
        return self.add(rng.choice(SAME), (x,))

    def reduce(self) -> int:
        op = reduction.amax if self.special else self.rng.choice([reduction.sum_, reduction.mean, reduction.amax])
        x = self.any(*FLOATS, *(["i64"] if op is reduction.sum_ else []))
        shape: Any = self.type(x).shape
        axes = tuple(sorted(self.rng.sample(range(len(shape)), self.rng.randint(0, len(shape)))))
        if op is reduction.amax and any(shape[a] == 0 for a in axes):
            raise ShapeError("types", "amax", "nothing has no largest value", "draw again")
        return self.add(op, (x,), axes, self.rng.random() < 0.5)

    def product(self) -> int:
        if self.special:
            return self.binary()
        x = self.any("f32", "f64")
        kind, y = self.rng.randrange(3), self.any(self.type(x).dtype)
        if kind == 0:
            return self.add(linalg.matmul, (x, y if self.rng.random() < 0.6 else self.add(movement.swap_last, (x,))))
        if kind == 1:
            return self.add(linalg.matmul_nt, (x, y if self.rng.random() < 0.6 else x))
        if not self.type(x).rank:
            raise ShapeError("types", "linear", "no axis", "draw again")
        name = f"w{len(self.constants)}"
        type_ = TensorType(self.type(x).dtype, (self.type(x).shape[-1], self.rng.choice([1, 2, 3])))
        self.constants[name] = values(type_, self.generator, False)
        weight = self.b.add(leaves.constant, (), (name,), type_)
        return self.add(linalg.linear, (x, weight), False)

    def whole(self) -> int:
        """A composite by name."""
        if self.special:
            return self.move()
        x = self.any("f32", "f64")
        rank = self.type(x).rank
        if not rank:
            raise ShapeError("types", "whole", "no axis", "draw again")
        if self.rng.random() < 0.5:
            return self.add(composite.softmax, (x,), (self.rng.randrange(rank),))
        n, dtype = self.type(x).shape[-1], self.type(x).dtype
        fits = [v for v in self.pool if self.type(v) == TensorType(dtype, (n,))]
        if not fits:
            name = f"g{len(self.constants)}"
            self.constants[name] = values(TensorType(dtype, (n,)), self.generator, False)
            fits = [self.b.add(leaves.constant, (), (name,), TensorType(dtype, (n,)))]
        gain = self.rng.choice(fits)
        if self.rng.random() < 0.5:
            return self.add(composite.rms_norm, (x, gain), (rank - 1,), 1e-5)
        return self.add(composite.layer_norm, (x, gain, gain), (rank - 1,), 1e-5)

    def finish(self) -> Graph:
        new = self.pool[self.count :] or self.pool
        outputs = [new[-1], *self.rng.choices(self.pool, k=self.rng.randint(0, 3))]  # also inputs, and one twice
        names = tuple(f"x{i}" for i in range(self.count))
        return self.b.finish(tuple(outputs), constants=self.constants, signature=Signature(names))


STEPS = (
    Wide.unary, Wide.twice, Wide.binary, Wide.binary, Wide.binary, Wide.power, Wide.compare, Wide.logic, Wide.choose,
    Wide.clamp, Wide.cast, Wide.move, Wide.move, Wide.move, Wide.reduce, Wide.reduce, Wide.product, Wide.whole,
)  # fmt: skip


def random_vocabulary(seed: int, special: bool = False, steps: int = 14) -> Graph:
    """The program of a seed."""
    p = Wide(seed, special)
    for step in p.rng.choices(STEPS, k=steps):
        size = len(p.b.nodes)
        try:
            made = step(p)
            if isinstance(p.b.nodes[made].type, TupleType):
                continue
            p.pool.append(made)
        except ShapeError:
            p.pool = [v for v in p.pool if v < size]
            del p.b.nodes[size:]
    return p.finish()


def inputs_of(graph: Graph, seed: int, special: bool = False) -> list[torch.Tensor]:
    """Values for the graph's inputs."""
    generator = torch.Generator().manual_seed(seed)
    return [values(tensor_type(node), generator, special) for node in graph.inputs]
