"""Graphs that the tests of lowering, scheduling and allocation share."""

from __future__ import annotations

import random

from forge_eq.ir.graph import Builder, Graph, Origin
from forge_eq.ir.types import NoneType, ScalarType, TensorType
from forge_eq.ops import attention, composite, effects, elementwise, leaves, linalg, movement

F = "f32"


class Draft:
    """A graph builder with short names for leaves and operands."""

    def __init__(self, name: str) -> None:
        self.b = Builder(Graph(name, (), ()))
        self.module = ""
        self.tokens = 0

    def input(self, dtype: str, *shape: int) -> int:
        index = sum(n.op is leaves.input_ for n in self.b.nodes)
        return self.b.add(leaves.input_, (), (index,), TensorType(dtype, shape))

    def const(self, name: str, dtype: str, *shape: int) -> int:
        return self.b.add(leaves.constant, (), (name,), TensorType(dtype, shape))

    def lit(self, value: float) -> int:
        return self.b.add(leaves.literal, (), (value,))

    def op(self, op, *inputs: int, attrs: tuple = (), rule: str = "") -> int:
        return self.b.add(op, inputs, attrs, origin=Origin("model.py:1", self.module, rule))

    def opaque(self, type, *inputs: int, effect: bool = False) -> int:
        self.tokens += effect
        op, more = (effects.opaque_effect, (self.tokens,)) if effect else (effects.opaque, ())
        return self.b.add(op, inputs, ("aten.thing.default", "(?)", *more), type)

    def done(self, *outputs: int) -> Graph:
        return self.b.finish(outputs)


def mlp() -> Graph:
    """Two linear layers and a residual, 8 tokens of 64."""
    d = Draft("mlp")
    x = d.input(F, 8, 64)
    d.module = "fc"
    h = d.op(linalg.linear_bias, x, d.const("fc.weight", F, 128, 64), d.const("fc.bias", F, 128), attrs=(True,))
    h = d.op(composite.gelu, h, rule="composite/gelu")
    y = d.op(linalg.linear, h, d.const("out.weight", F, 64, 128), attrs=(True,))
    return d.done(d.op(elementwise.add, x, d.op(elementwise.mul, y, d.lit(0.5))))


def transformer(layers: int = 4, tokens: int = 16, heads: int = 4, size: int = 32) -> Graph:
    """A decoder with learned positions: embeddings, pre-norm attention with a mask made from indices, MLP, logits."""
    d = Draft("transformer")
    width = heads * size
    ids, seen = d.input("i64", 1, tokens), d.input("i64", 1, tokens)
    x = d.op(linalg.embedding, d.const("wte", F, 1000, width), ids)
    places = d.const("places", "i64", 1, tokens)
    x = d.op(elementwise.add, x, d.op(linalg.embedding, d.const("wpe", F, tokens, width), places))
    for layer in range(layers):
        x = _block(d, x, seen, layer, tokens, heads, size)
    x = d.op(composite.layer_norm, x, d.const("ln.w", F, width), d.const("ln.b", F, width), attrs=((2,), 1e-5))
    return d.done(d.op(linalg.linear, x, d.const("head", F, 1000, width), attrs=(True,)))


def _block(d: Draft, x: int, seen: int, layer: int, tokens: int, heads: int, size: int) -> int:
    width, name = heads * size, f"h.{layer}"
    d.module = name

    def weight(kind: str, *shape: int) -> int:
        return d.const(f"{name}.{kind}", F, *shape)

    def norm(v: int, kind: str) -> int:
        return d.op(composite.layer_norm, v, weight(f"{kind}.w", width), weight(f"{kind}.b", width), attrs=((2,), 1e-5))

    # Every layer makes its own mask from the indices, as exports do: host work in the middle of the program.
    mask = d.op(movement.reshape, d.op(elementwise.ge, seen, d.lit(layer)), attrs=((1, 1, 1, tokens),))
    mask = d.op(movement.broadcast_to, mask, attrs=((1, heads, tokens, tokens),))
    qkv_w, qkv_b = weight("qkv.w", width, 3 * width), weight("qkv.b", 3 * width)
    qkv = d.op(linalg.linear_bias, norm(x, "ln1"), qkv_w, qkv_b, attrs=(False,))
    parts = d.op(movement.split, qkv, attrs=((width,) * 3, 2))

    def split_heads(index: int) -> int:
        part = d.op(movement.project, parts, attrs=(index,))
        part = d.op(movement.reshape, part, attrs=((1, tokens, heads, size),))
        return d.op(movement.permute, part, attrs=((0, 2, 1, 3),))

    q, k, v = (split_heads(i) for i in range(3))
    a = d.op(attention.attention_mask, q, k, v, mask, attrs=(0.25, "nan"))
    a = d.op(movement.reshape, d.op(movement.permute, a, attrs=((0, 2, 1, 3),)), attrs=((1, tokens, width),))
    x = d.op(elementwise.add, x, d.op(linalg.linear, a, weight("proj", width, width), attrs=(False,)))
    up_w, up_b = weight("up.w", width, 4 * width), weight("up.b", 4 * width)
    h = d.op(linalg.linear_bias, norm(x, "ln2"), up_w, up_b, attrs=(False,))
    h = d.op(linalg.linear, d.op(composite.gelu_tanh, h), weight("down", 4 * width, width), attrs=(False,))
    return d.op(elementwise.add, x, h)


def random_graph(seed: int, size: int = 40) -> Graph:
    """A random program over [4, n] tensors: views, splits, casts, opaque calls, effects, host numbers."""
    rng = random.Random(seed)
    d = Draft(f"random{seed}")
    pool = [d.input(F, 4, 16), d.input("f64", 4, 16), d.const("w", F, 4, 16), d.input(F, 4, 32)]

    def pick(**want: object) -> int:
        fit = [n for n in pool if all(getattr(d.b.nodes[n].type, k) == v for k, v in want.items())]
        return rng.choice(fit[-8:]) if fit else pool[0]

    for _ in range(size):
        x = rng.choice(pool[-10:])
        t = d.b.nodes[x].type
        kind = rng.randrange(9)
        if kind <= 1:
            pool.append(d.op(elementwise.add, x, pick(dtype=t.dtype, shape=t.shape)))
        elif kind == 2:
            pool.append(d.op(elementwise.mul, x, d.lit(rng.choice([2, 0.5, -1.25e-3]))))
        elif kind == 3:
            pool.append(d.op(elementwise.cast, x, attrs=(rng.choice(["f32", "f64"]),)))
        elif kind == 4:
            flat = d.op(movement.reshape, x, attrs=((t.elements,),))
            flat = d.op(elementwise.neg, flat) if rng.random() < 0.5 else flat
            pool.append(d.op(movement.reshape, flat, attrs=(t.shape,)))
        elif kind == 5 and t.shape[1] % 2 == 0 and t.shape[1] > 2:
            half = t.shape[1] // 2
            parts = d.op(movement.split, x, attrs=((half, half), 1))
            pool += [d.op(movement.project, parts, attrs=(i,)) for i in range(2)]
        elif kind == 6:
            pool.append(d.op(movement.concat, x, pick(dtype=t.dtype, shape=t.shape), attrs=(1,)))
        elif kind == 7:
            pool.append(d.opaque(t, x, effect=rng.random() < 0.3))
        else:
            number = d.opaque(ScalarType("int"), x)
            d.opaque(NoneType(), number, effect=True)
            pool.append(d.opaque(t, x, number))
    return d.done(*rng.sample(pool, 3))
