"""Random torch modules: what users write between composites, with writes, views of what is written, and aliases.

A module is a list of steps on a list of values. A step is drawn by doing it eagerly on the example, and left out when
torch refuses it; the module repeats the steps. Nothing here knows the compiler.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = tuple[Callable[..., Any], tuple[int, ...]]  # a function of the values at these places
LIMIT = 4000


def _unary(r: random.Random) -> Callable[..., Any]:
    return r.choice(
        [
            torch.relu, torch.tanh, torch.sigmoid, torch.neg, torch.abs, torch.exp, torch.square, F.gelu, F.silu,
            torch.sign, torch.round, torch.floor, torch.trunc, torch.erf, torch.logical_not, torch.isfinite,
            lambda x: x.cumsum(-1), lambda x: x.flip(0), lambda x: x.roll(1, -1), lambda x: x.argmax(-1),
            lambda x: x.sort(-1).values, lambda x: x.double(), lambda x: x.float(), lambda x: x.long(),
            lambda x: x > 0, lambda x: x == x.amax(-1, keepdim=True), lambda x: x.clone(), lambda x: x.diff(dim=-1),
        ]
    )  # fmt: skip


def _view(r: random.Random) -> Callable[..., Any]:
    at, more = r.randrange(3), r.randrange(1, 3)
    return r.choice(
        [
            lambda x: x.transpose(0, -1), lambda x: x.unsqueeze(at), lambda x: x.squeeze(0), lambda x: x[..., ::more],
            lambda x: x[at:], lambda x: x[..., -1], lambda x: x.flatten(), lambda x: x.reshape(-1, x.shape[0]),
            lambda x: x.view(*x.shape[::-1]), lambda x: x.expand(2, *x.shape), lambda x: x.t(), lambda x: x.mT,
            lambda x: x.narrow(0, 0, 1), lambda x: x.unbind(0)[0], lambda x: x.chunk(2, -1)[at % 2],
            lambda x: x.diagonal(), lambda x: x.unflatten(0, (-1, more)), lambda x: x.detach(), lambda x: x[None, 0],
        ]
    )  # fmt: skip


def _binary(r: random.Random) -> Callable[..., Any]:
    s = r.choice([0.5, 2, -1.0, 3.0])
    return r.choice(
        [
            torch.add, torch.sub, torch.mul, torch.matmul, torch.maximum, torch.minimum, torch.div,
            lambda a, b: torch.where(a > b, a, b), lambda a, b: a + s * b, lambda a, b: torch.cat([a, b], -1),
            lambda a, b: torch.stack([a, b]), lambda a, b: a @ b.mT, lambda a, b: a.masked_fill(b > 0, s),
            lambda a, b: torch.add(a, b, alpha=2), lambda a, b: a.addcmul(a, b, value=s), lambda a, b: a & b,
            lambda a, b: (a > 0) | (b > 0), lambda a, b: a // b.abs().add(1), lambda a, b: a.lerp(b, 0.25),
            lambda a, b: torch.einsum("...i,...i->...", a, b), lambda a, b: torch.softmax(a, -1) * b,
        ]
    )  # fmt: skip


def _number(r: random.Random) -> Callable[..., Any]:
    s = r.choice([0, 1, 2, -1, 0.5, 3.0, -0.0, 1e-3])
    return r.choice(
        [
            lambda x: x + s, lambda x: s - x, lambda x: x * s, lambda x: x / (s or 1), lambda x: x**2, lambda x: x - s,
            lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=s), lambda x: x.pow(3), lambda x: x * 1, lambda x: x + 0,
            lambda x: x % 2, lambda x: torch.full_like(x, s), lambda x: F.dropout(x, 0.5, False), lambda x: x >= s,
        ]
    )  # fmt: skip


def _reduce(r: random.Random) -> Callable[..., Any]:
    keep, axis = r.random() < 0.5, r.choice([0, -1])
    return r.choice(
        [
            lambda x: x.sum(axis, keepdim=keep), lambda x: x.mean(axis, keepdim=keep),
            lambda x: x.amax(axis, keepdim=keep),
            lambda x: x.sum(), lambda x: x.var(axis, correction=0), lambda x: x.std(axis), lambda x: x.prod(axis),
            lambda x: x.softmax(axis), lambda x: x.log_softmax(axis), lambda x: x.any(axis),
            lambda x: x.max(axis).values,
            lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x.norm(dim=axis), lambda x: x.logsumexp(axis),
        ]
    )  # fmt: skip


def _write(r: random.Random) -> Callable[..., Any]:
    """In place on the first operand; the value is the operand itself."""
    s = r.choice([1, 2, -1, 0.5])

    def put(x: Tensor, y: Tensor, where: Any) -> Tensor:
        x[where] = y
        return x

    return r.choice(
        [
            lambda x, y: x.add_(y), lambda x, y: x.mul_(y), lambda x, y: x.sub_(y, alpha=2), lambda x, y: x.copy_(y),
            lambda x, y: x.zero_(), lambda x, y: x.add_(s), lambda x, y: x.clamp_(-1, 1), lambda x, y: x.neg_(),
            lambda x, y: x.masked_fill_(y > 0, s), lambda x, y: put(x, s, 0), lambda x, y: put(x, s, (..., 0)),
            lambda x, y: put(x, y, slice(None)), lambda x, y: put(x, y[0], 0), lambda x, y: x.relu_(),
            lambda x, y: x.fill_(s),
            lambda x, y: put(x, y[1:], slice(0, -1)), lambda x, y: x.div_(2), lambda x, y: x.exp_(),
        ]
    )  # fmt: skip


MAKERS = [_unary, _unary, _view, _view, _binary, _binary, _binary, _number, _number, _reduce, _write, _write]


class RandomModule(nn.Module):
    """The module of a seed. ``args`` are its example inputs, ``more(k)`` others of the same types."""

    def __init__(self, seed: int, steps: int = 9) -> None:
        super().__init__()
        self.seed, self.rng = seed, random.Random(f"module {seed}")
        r = self.rng
        dims = [r.choice([1, 2, 3, 4, 4]) for _ in range(2)] + [0] * (r.random() < 0.05)
        kinds = [torch.float32] * 4 + [torch.float64, torch.int64, torch.bool]
        self.kinds = [
            (r.choice(kinds), [r.choice(dims) for _ in range(r.randint(1, 3))]) for _ in range(r.randint(1, 3))
        ]
        generator = torch.Generator().manual_seed(seed)
        shape = self.kinds[0][1] if r.random() < 0.6 else [r.choice(dims) for _ in range(2)]
        self.register_buffer("state", torch.randn(shape, generator=generator))
        self.layer = nn.Linear(max(dims), r.choice([1, 2, 4]))
        for p in self.layer.parameters():
            p.requires_grad_(False).copy_(torch.randn(p.shape, generator=generator))
        self.steps: list[Step] = []
        self.draw(steps)
        size = len(self.args) + 1 + len(self.steps)
        late = [i for i in range(size) if i >= size - 4]
        self.results = [
            size - 1,
            *(r.choice(late if r.random() < 0.7 else range(size)) for _ in range(r.randint(0, 3))),
        ]
        self.shape_of_result = r.choice([tuple, list, dict])

    @property
    def args(self) -> tuple[Tensor, ...]:
        return self.more(0)

    def more(self, k: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(1000 * self.seed + k)
        return tuple(_data(dtype, shape, generator) for dtype, shape in self.kinds)

    def draw(self, count: int) -> None:
        """Draws steps; what torch refuses here, or what gives no dense tensor, is left out."""
        kept, values = self.state.clone(), [*self.args, self.state]
        tries = 0
        while len(self.steps) < count and tries < 6 * count:
            tries += 1
            make = self.rng.choice([*MAKERS, lambda r: self.layer])
            function, places = make(self.rng), tuple(self.rng.choices(range(len(values)), k=2))
            places = places if make in (_binary, _write) else places[:1]
            saved = [v.clone() for v in values]
            try:
                made = function(*(values[i] for i in places))
                fits = isinstance(made, Tensor) and made.numel() <= LIMIT and made.dim() <= 5
                tame = fits and all(not v.is_floating_point() or _tame(v) for v in [made, *values])
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                tame = False
            if tame:
                values.append(made)
                self.steps.append((function, places))
            else:  # views share storage with what they show, so writing back what was there restores all
                for v, old in zip(values, saved, strict=True):
                    if not (v.numel() != 0 and 0 in v.stride() and math.prod(v.shape) > 1):
                        v.copy_(old)
        self.state.copy_(kept)

    def forward(self, *args: Tensor) -> Any:
        values: list[Tensor] = [*args, self.state]
        for function, places in self.steps:
            values.append(function(*(values[i] for i in places)))
        found = [values[i] for i in self.results]
        if self.shape_of_result is dict:
            return {f"r{i}": v for i, v in enumerate(found)}
        return self.shape_of_result(found)


def _tame(value: Tensor) -> bool:
    return bool(value.isfinite().all()) and (not value.numel() or float(value.abs().max()) < 1e4)


def _data(dtype: torch.dtype, shape: list[int], generator: torch.Generator) -> Tensor:
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype is torch.int64:
        return torch.randint(-3, 4, shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
