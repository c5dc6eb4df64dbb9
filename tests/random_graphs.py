"""Random well-typed graphs for property tests: everything is drawn from one ``random.Random``."""

from __future__ import annotations

import random

import torch

from forge_eq.ir.graph import NOWHERE, Builder, Graph, Origin, Signature, tensor_type
from forge_eq.ir.types import TensorType
from forge_eq.ops import composite, elementwise, leaves, linalg, movement, reduction

UNARY = [elementwise.neg, elementwise.tanh, elementwise.sigmoid, elementwise.relu, elementwise.abs_, elementwise.cos]
BINARY = [elementwise.add, elementwise.mul, elementwise.sub, elementwise.maximum]
NUMBERS = [0.5, 2.0, -0.0, 1.0, -1.25, 1e-5]
ORIGINS = [NOWHERE, Origin("model.py:3", "model.h.0", ""), Origin("", "", "algebra/x"), Origin("a b.py:1", "m", "f/r")]


def random_graph(rng: random.Random, steps: int = 14) -> Graph:
    """A graph of about ``steps`` operations over f32 tensors with rank 1 to 3 and axes of size 2 to 4."""
    b = Builder(name="random")
    shape = tuple(rng.randint(2, 4) for _ in range(rng.randint(1, 3)))
    count = rng.randint(1, 3)
    values = [b.add(leaves.input_, (), (i,), TensorType("f32", shape)) for i in range(count)]
    constants = {}
    if rng.random() < 0.7:
        constants["w"] = torch.randn(shape, generator=torch.Generator().manual_seed(rng.randrange(99)))
        values.append(b.add(leaves.constant, (), ("w",), TensorType("f32", shape)))
    shared = b.add(leaves.literal, (), (0.25,)) if rng.random() < 0.5 else None
    for _ in range(steps):
        values.append(_step(b, rng, values, shared))
    outputs = tuple(rng.sample(values[-4:], rng.randint(1, 3)))
    names = tuple(f"x{i}" for i in range(count))
    return b.finish(outputs, constants=constants, signature=Signature(names))


def _step(b: Builder, rng: random.Random, values: list[int], shared: int | None) -> int:
    x = rng.choice(values)
    t, origin = tensor_type(b.nodes[x]), rng.choice(ORIGINS)
    last, kind = t.rank - 1, rng.randrange(9)
    if kind == 0 and last >= 0:
        return b.add(composite.softmax, (x,), ((last,),), origin=origin)
    if kind == 1 and last >= 0:
        return b.add(reduction.mean, (x,), ((rng.randint(0, last),), rng.random() < 0.5), origin=origin)
    if kind == 2:
        perm = rng.sample(range(t.rank), t.rank)
        return b.add(movement.permute, (x,), (tuple(perm),), origin=origin)
    if kind == 3 and t.rank >= 2:
        return b.add(linalg.matmul_nt, (x, x), origin=origin)
    if kind == 4 and last >= 0 and t.shape[last] >= 2:
        size = t.shape[last]
        parts = b.add(movement.split, (x,), ((1, size - 1), last), origin=origin)
        return b.add(movement.project, (parts,), (rng.randint(0, 1),), origin=origin)
    if kind <= 6:
        other = rng.choice([v for v in values if b.nodes[v].type == t])
        if rng.random() < 0.5:
            fresh = shared is None or rng.random() < 0.7
            other = b.add(leaves.literal, (), (rng.choice(NUMBERS),)) if fresh else shared
        pair = (x, other) if rng.random() < 0.5 else (other, x)
        return b.add(rng.choice(BINARY), pair, origin=origin)
    return b.add(rng.choice(UNARY), (x,), origin=origin)
