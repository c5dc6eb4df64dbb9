"""Kinds of traps, each with siblings of our own: small programs that a graph optimiser is tempted to get wrong.

A program goes through ``optimize`` and through ``compile`` with nothing repaired; results, their dtypes, what the
arguments and buffers hold afterwards, and a second call must be torch's. ``exact`` demands bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import forge_eq
from forge_eq.errors import ForgeError
from forge_eq.verify.criterion import difference
from torch_programs import Fn, seeded, values

# ruff: noqa: E501  (a kind is a line)

INF, NAN = math.inf, math.nan
NORMAL = values(1, 3, 4)
ODD = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, -1e-40, 3e38, 0.5, -2.5])


def leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def complaint(module: nn.Module, calls: list[tuple[Any, ...]], exact: bool) -> str | None:
    """What is wrong after the calls in turn, or None."""
    eager = copy.deepcopy(module)
    optimised = forge_eq.optimize(copy.deepcopy(module), calls[0], verify="off")
    compiled = forge_eq.compile(copy.deepcopy(module), calls[0], verify="off")
    for args in calls:
        due_args = copy.deepcopy(args)
        due = leaves((eager(*due_args), due_args))
        for name, run in (("optimize", optimised.module), ("compile", compiled)):
            mine = copy.deepcopy(args)
            got = leaves((run(*mine), mine))
            why = _bits(got, due) if exact else difference(got, due, None)
            if why:
                return f"{name}: {why}"
    return None


def _bits(got: list[Any], due: list[Any]) -> str | None:
    for k, (g, d) in enumerate(zip(got, due, strict=True)):
        same = g.dtype == d.dtype and torch.equal(g.nan_to_num(7.0), d.nan_to_num(7.0)) and g.shape == d.shape
        if not same or (d.is_floating_point() and not torch.equal(g[~d.isnan()].signbit(), d[~d.isnan()].signbit())):
            return f"leaf {k}: {g} where {d} is due"
    return None


Kind = tuple[Callable[..., Any], tuple[Any, ...]]

EXACT: dict[str, Kind] = {
    # A zero is not nothing: signs, NaN and infinities survive.
    "zero times": (lambda self, x: (x * 0.0, 0.0 * x, x * -0.0), (ODD,)),
    "minus itself": (lambda self, x: (x - x, x + -x, (x + 1) - (x + 1)), (ODD,)),
    "over itself": (lambda self, x: (x / x, (2 * x) / (2 * x)), (ODD,)),
    "plus zero, minus zero": (lambda self, x: (x + 0.0, x - 0.0, x + -0.0, 0.0 - x, -0.0 - x), (ODD,)),
    "twice negated": (lambda self, x: (x.neg().neg(), 0 - (0 - x), x * -1 * -1), (ODD,)),
    "abs of a square": (lambda self, x: (x.abs().abs(), (-x).abs(), x.abs().relu(), x.relu().relu()), (ODD,)),
    "equal to itself": (lambda self, x: (x == x, x != x, x >= x, x < x), (ODD,)),
    "not of less is not greater": (lambda self, x, y: (~(x < y), x >= y, ~(x >= y)), (ODD, ODD.flip(0))),
    "choice of equals": (lambda self, x: (torch.where(x > 0, x, x), torch.where(x == x, x, 0.0)), (ODD,)),
    "clamps in a row": (lambda self, x: (x.clamp(-1, 1).clamp(0, 2), x.clamp(0, 2).clamp(-1, 1), x.clamp(1, -1)), (ODD,)),
    "largest of two": (lambda self, x: (x.amax(0), x[:6].amax(0), torch.where(x > 0, x, 0.0).amax()), (ODD,)),
    # Subnormal numbers are numbers.
    "subnormal scale": (lambda self, x: (x * 1e-40, x * 1e-20 * 1e-20, x / 2, x * 0.5), (torch.tensor([1e-39, 1.0, -3e-40]),)),
    "subnormal compare": (lambda self, x: (x > 0, x != 0, (x * 0.5) > 0), (torch.tensor([1e-40, -1e-40, 0.0, 1e-45]),)),
    # Dtypes: what is narrow stays narrow on the way.
    "through whole numbers": (lambda self, x: (x.long().float(), x.int().long().float(), x.bool().long()), (NORMAL * 3,)),
    "through half": (lambda self, x: (x.half().float(), x.bfloat16().float(), x.double().float()), (NORMAL * 3,)),
    "whole division": (lambda self, n: (n // 2, -n // 2, n / 2, (n * 2) // 2, n % 3, -(n % -3)), (torch.arange(-4, 5),)),
    "bytes wrap": (lambda self, n: (n + 200, n * 3, (n + 200) - 200, n // 2 * 2), (torch.arange(0, 250, 25, dtype=torch.uint8),)),
    "a bool adds as a number": (lambda self, b: (b.sum(), b + 1, b * 2.5, b.long() + b.long(), b | b), (NORMAL > 0,)),
    "true, 1 and 1.0": (lambda self, n: (n * True, n * 1, n * 1.0, n + 0, n + 0.0, n + False), (torch.arange(3),)),
    # Views: what is moved is not what is copied, and the order of axes tells.
    "three turns": (lambda self, x: (x.permute(2, 0, 1).permute(2, 0, 1), x.permute(1, 2, 0).permute(1, 2, 0)), (values(2, 3, 3, 3),)),
    "reshape after a turn": (lambda self, x: (x.t().reshape(4, 4), x.reshape(4, 4).t(), x.t().flatten().view(4, 4)), (values(2, 4, 4),)),
    "joined in another order": (lambda self, x: (torch.cat(x.chunk(2, 0)[::-1]), torch.cat(x.chunk(2, 1), 0)), (values(3, 4, 4),)),
    "a step and its rest": (lambda self, x: (torch.stack([x[::2], x[1::2]], 1).flatten(0, 1), torch.cat([x[::2], x[1::2]])), (values(3, 6, 2),)),
    "overlapping slices": (lambda self, x: (torch.cat([x[:3], x[2:]]), torch.cat([x[1:], x[:1]]), torch.cat([x[:2], x[2:]])), (values(3, 5, 2),)),
    "nothing and one": (lambda self, x: (x[:0].sum(0), x[2:2].flatten(), torch.cat([x[:0], x]), x[:1].expand(3, 4), x[:0] @ x.t()), (NORMAL,)),
    # What is returned: an argument, a view, one value twice, in another order.
    "aliases": (lambda self, x: (x, x.view(-1), x, x.t(), self.c, self.c[0]), (NORMAL,)),
    "an intermediate too": (lambda self, x: [(y := x * 2), y + 0.0, y.t(), y.neg().neg()], (NORMAL,)),
    "swapped": (lambda self, x: ((x.relu(), x.abs())[::-1], {"b": x + 1, "a": x - 1}), (NORMAL,)),
    "unused argument": (lambda self, x, y: x * 1, (NORMAL, ODD)),
    # Writes: order, aliasing, and arguments that change.
    "write after read": (lambda self, x: (x * 2, x.add_(1), x * 2), (NORMAL,)),
    "write through a view": (lambda self, x: (x[1].mul_(0), x.t()[0].add_(5), x.clone()), (NORMAL,)),
    "write seen by an older view": (lambda self, x: [(v := x.view(-1)), x.zero_(), v + 1], (NORMAL,)),
    "write what was read before": (lambda self, x: (x.copy_(x.flip(0)), x[0] - x[2]), (NORMAL,)),
    "shift in place": (lambda self, x: x[1:].copy_(x[:-1].clone()).sum() * 0 + x, (torch.arange(12.0).view(4, 3),)),
    "a clone is not written": (lambda self, x: [(y := x.clone()), x.fill_(3.0), y * 2], (NORMAL,)),
    "contiguous may be the same": (lambda self, x: [(y := x.contiguous()), y.add_(1), x * 2], (NORMAL,)),
    "a cast of the same dtype too": (lambda self, x: [(y := x.to(torch.float32)), y.add_(1), x * 2], (NORMAL,)),
    "counter": (lambda self, x: (self.n.add_(1), x + self.n), (NORMAL,)),
    "cache row": (lambda self, x: (self.rows.roll(1, 0), self.rows.copy_(self.rows.roll(1, 0) + x[0])), (NORMAL,)),
}  # fmt: skip

CLOSE: dict[str, Kind] = {
    "attention that is returned whole and in part": (
        lambda self, q: ((w := (q @ q.mT).softmax(-1)) @ q, w, w.amax(-1), q @ q.mT), (values(1, 2, 2, 5, 4),),
    ),
    "norm and its parts": (
        lambda self, x: ((m := x.mean(-1, keepdim=True)), (c := x - m), c * (c.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()), (NORMAL,),
    ),
    "sum that is used beside its norm": (
        lambda self, x: ((s := x + x.flip(0)), F.layer_norm(s, (4,), self.g, self.g), s * 2), (NORMAL,),
    ),
    "gain along the other axis of a square": (
        lambda self, x: (F.layer_norm(x, (4,)) * self.g[:, None], F.rms_norm(x, (4,)) * self.g[:, None]), (values(1, 4, 4),),
    ),
    "eps outside": (lambda self, x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 0.1) * self.g, (NORMAL,)),
    "two gates": (lambda self, x, y: (torch.sigmoid(x) * y, torch.sigmoid(y) * x, x * torch.sigmoid(x)), (NORMAL, NORMAL.flip(0))),
    "softmax of a negative scale": (lambda self, x: ((x * -30).softmax(-1), (x / -0.01).softmax(0)), (NORMAL,)),
    "softmax beside its shift": (lambda self, x: ((e := (x - x.amax(-1, keepdim=True)).exp()) / e.sum(0, keepdim=True), e), (NORMAL,)),
    "logsumexp of large": (lambda self, x: ((x * 200).logsumexp(-1), (x * 200).exp().sum(-1).log().isinf()), (NORMAL,)),
    "scales far apart": (lambda self, x: ((x * 1e-30) * 1e30, (x * 1e25) / 1e25, x / 1e-20 / 1e20), (NORMAL,)),
    "shared layer": (lambda self, x: (self.lin(x) * 3 + 1, self.lin(x), self.lin(x.flip(0)) * 3), (NORMAL,)),
    "layers on one input": (lambda self, x: (self.lin(x), x @ self.lin.weight, self.lin(x) + x @ self.lin.weight.t()), (NORMAL,)),
    "batch of squares, turned or not": (lambda self, x: (x @ self.sq, x @ self.sq.mT, x @ self.sq[0], x @ self.sq[0].t() + 1), (values(1, 2, 3, 4),)),
    "one memory, two names": (lambda self, x: (x @ self.sq[1], x @ self.sq_turned, F.linear(x, self.sq_turned)), (NORMAL,)),
    "weight as an input": (lambda self, x: (x @ self.lin.weight, self.lin.weight @ self.lin.weight.t() + x.sum()), (NORMAL,)),
    "square turned or not": (lambda self, x: (x @ x, x.t() @ x, x @ x.t(), (x.t() @ x.t()).t()), (values(4, 4, 4),)),
    "vectors": (lambda self, v: (v @ v, self.lin.weight @ v, v @ self.lin.weight, torch.outer(v, v)), (values(4, 4),)),
    "sum before or after a product": (lambda self, x: ((x @ x.t()).sum(0), x.sum(0) @ x.t(), x @ x.sum(0)), (NORMAL,)),
    "mean of what broadcasts": (lambda self, x: ((x + self.g).mean(0), (x * 2.0).sum(), x[:1].expand(5, 4).sum(0)), (NORMAL,)),
    "strided arguments": (lambda self, x: (x @ x.mT, x.reshape(-1), x.softmax(-1), x + self.g), (values(1, 4, 6).t()[::2],)),
    "expanded argument": (lambda self, x: (x @ x.mT, x.sum(0), x.reshape(-1) * 2), (values(1, 1, 4).expand(3, 4),)),
    "training batch norm": (lambda self, x: (F.batch_norm(x, self.m, self.s, training=True), self.m * 1), (values(1, 6, 4),)),
}  # fmt: skip


def module_of(function: Callable[..., Any]) -> nn.Module:
    named = {"c": values(9, 2, 3), "g": torch.linspace(0.5, 2, 4), "n": torch.zeros(()), "rows": torch.zeros(3, 4)}
    norm = {"m": torch.zeros(4), "s": torch.ones(4)}
    squares = values(5, 2, 4, 4)
    named |= {"sq": squares, "sq_turned": squares[1].t()}
    return Fn(function, lin=seeded(3, nn.Linear(4, 4)), **named, **norm).eval()


@pytest.mark.parametrize("name", EXACT)
def test_kinds_that_have_one_result(name: str) -> None:
    function, args = EXACT[name]
    assert complaint(module_of(function), [args, args], exact=True) is None


@pytest.mark.parametrize("name", CLOSE)
def test_kinds_that_round(name: str) -> None:
    function, args = CLOSE[name]
    assert complaint(module_of(function), [args, args], exact=False) is None


@pytest.mark.parametrize("more", [(), ("y",), ("y", "s"), ("s", "y", "z")])
def test_more_results_do_not_change_one(more: tuple[str, ...]) -> None:
    """A result is the same whatever else is returned, and in whatever order."""

    def forward(self: Any, x: Tensor) -> list[Tensor]:
        s = x @ x.mT * 0.5
        y = s.softmax(-1)
        z = F.gelu(y @ x)
        found = {"s": s, "y": y, "z": z}
        return [*(found[n] for n in more), z]

    alone = Fn(lambda self, x: forward(self, x)[-1]).eval()
    both = Fn(forward).eval()
    x = values(1, 2, 5, 4)
    for build in (
        lambda m: forge_eq.optimize(m, (x,), verify="off").module,
        lambda m: forge_eq.compile(m, (x,), verify="off"),
    ):
        assert difference([build(both)(x)[-1]], [alone(x)], lambda: [alone(x.double())]) is None


def test_denormals_are_not_flushed_for_the_rest_of_the_process() -> None:
    tiny = torch.tensor([1e-40])
    forge_eq.compile(Fn(lambda self, x: x.exp() * 0.5).eval(), (NORMAL,))(NORMAL)
    assert float((tiny * 0.5)[0]) > 0


def test_results_are_the_callers_own() -> None:
    program = forge_eq.compile(
        Fn(lambda self, x: (self.c * 1, self.c, x, torch.zeros(3) + 1), c=values(1, 3)).eval(), (NORMAL,)
    )
    first = [t.clone() for t in program(NORMAL)]
    for t in program(NORMAL.clone()):
        t.fill_(NAN)
    assert all(torch.equal(a, b) for a, b in zip(program(NORMAL), first, strict=True))


def test_random_draws_are_not_merged() -> None:
    made = forge_eq.optimize(
        Fn(lambda self, x: (torch.rand_like(x), torch.rand_like(x))).eval(), (NORMAL,), verify="off"
    )
    a, b = made.module(NORMAL)
    c, _ = made.module(NORMAL)
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize("bad", ["shape", "dtype", "count"])
def test_wrong_arguments_are_refused(bad: str) -> None:
    program = forge_eq.compile(Fn(lambda self, x: x * 2).eval(), (NORMAL,))
    args = {"shape": (NORMAL[:2],), "dtype": (NORMAL.double(),), "count": (NORMAL, NORMAL)}[bad]
    with pytest.raises(ForgeError, match="input"):
        program(*args)
