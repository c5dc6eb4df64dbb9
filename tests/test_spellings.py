"""Composites are recognised however people spell them, near misses are not, and every chosen program is right.

The fast tier draws 20 spellings of each composite, the slow one 1,000. What is not fused is in ``MISSING``.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import forge_eq
import spellings_heads  # noqa: F401  (enters all composites)
from forge_eq.ops import attention, composite, linalg
from forge_eq.verify.criterion import difference
from spelling import COMPOSITES, spell
from spelling_check import Verdict, judge

FAST, SLOW, BATCH, GOAL = 6, 1000, 20, 0.98
TWINS = [(name, twin) for name, one in COMPOSITES.items() for twin in one.twins]

# What is not fused, and the algebra that it lacks: (composite, axis) -> (choice, why).
MISSING = {
    ("attention", "scale"): ("after mask", "a scale that distributes over an additive mask: it would scale every bias"),
}


def draw(name: str, count: int, twin: str = "") -> list[Verdict]:
    """Verdicts on the first ``count`` spellings."""
    seeds = range(count)
    batches = [seeds[i : i + BATCH] for i in range(0, count, BATCH)]
    return [v for batch in batches for v in judge([spell(name, seed, twin) for seed in batch])]


def lacking(one: Verdict) -> str:
    """The algebra that a spelling lacks, or nothing where that is not known."""
    made, name = one.spelling.choices, one.spelling.composite
    return next((why for (c, axis), (at, why) in MISSING.items() if c == name and made.of(axis) == at), "")


@pytest.mark.parametrize("count", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", COMPOSITES)
def test_spellings_are_recognised(name: str, count: int):
    found = draw(name, count)
    assert not [f"{v.spelling}: {v.wrong}" for v in found if v.wrong]
    missed = [v for v in found if not v.fused]
    print(f"{name}: {len(found) - len(missed)} of {len(found)} fused; left {Counter(v.left for v in missed)}")
    assert not [f"{v.spelling}: {v.left}" for v in missed if not lacking(v)]
    assert len(found) - len(missed) >= GOAL * len(found) - (count < 100)


@pytest.mark.parametrize("count", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "twin"), TWINS, ids=[f"{n}-{t}".replace(" ", "_") for n, t in TWINS])
def test_near_misses_are_not_fused_and_are_right(name: str, twin: str, count: int):
    found = draw(name, count, twin)
    assert not [str(v.spelling) for v in found if v.fused]
    assert not [f"{v.spelling}: {v.wrong}" for v in found if v.wrong]


@pytest.mark.parametrize("name", COMPOSITES)
def test_many_spellings_are_distinct(name: str):
    """The grammar has room: what 20 seeds choose differs."""
    made = []
    for seed in range(20):
        one = spell(name, seed)
        one(one.inputs, one.weights)
        made.append(str(sorted(one.choices.made.items(), key=lambda i: i[0])))
    assert len(set(made)) >= 17


# ------------------------------------------------------------------------------------------ variants of attention


class Function(nn.Module):
    def __init__(self, fn) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Tensor) -> Tensor:
        return self.fn(*args)


def run(fn, *args: Tensor) -> list:
    """The ops chosen; the values must be right."""
    module = Function(fn).eval()
    made = forge_eq.optimize(module, args, verify="off")
    exact = [fn(*(a.double() if a.is_floating_point() else a for a in args))]
    assert difference([made.module(*args)], [module(*args)], lambda: exact) is None
    return [n.op for n in made.graph.nodes if not n.op.leaf]


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def heads() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(rand(2, 3, 6, 8, seed=i) for i in range(3))  # type: ignore[return-value]


def below(offset: int = 0, window: int = 99) -> Tensor:
    at = torch.arange(6)[:, None] + offset - torch.arange(6)[None]
    return (at >= 0) & (at < window)


@pytest.mark.parametrize("mask", [below(), below(2), below(0, 3)], ids=["causal", "cached", "window"])
def test_masks_by_position_are_fused(mask: Tensor):
    ops = run(lambda q, k, v: (q @ k.mT / 8**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v, *heads())
    assert attention.attention_mask in ops


def test_a_slope_for_each_head_is_a_bias():
    slopes = -(0.5 ** torch.arange(1, 4))[:, None, None] * (torch.arange(6)[:, None] - torch.arange(6)).abs()
    ops = run(lambda q, k, v: (q @ k.mT * 8**-0.5 + slopes.to(q.dtype)).softmax(-1) @ v, *heads())
    assert attention.attention_bias in ops


def test_a_row_that_sees_nothing_stays_nan():
    mask = below()
    mask[0] = False
    q, k, v = heads()
    made = forge_eq.optimize(
        Function(lambda q, k, v: (q @ k.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ v), (q, k, v), verify="off"
    )
    out = made.module(q, k, v)
    assert out[:, :, 0].isnan().all()
    assert not out[:, :, 1:].isnan().any()


def test_softcap_keeps_its_tanh():
    ops = run(lambda q, k, v: (torch.tanh(q @ k.mT / 20.0) * 20.0).softmax(-1) @ v, *heads())
    assert not {attention.attention, attention.attention_bias, attention.attention_mask} & set(ops)


def test_normed_queries_are_fused():
    w = rand(8)
    ops = run(
        lambda q, k, v: (
            (F.rms_norm(q, (8,), w.to(q.dtype), 1e-6) @ F.rms_norm(k, (8,), w.to(q.dtype), 1e-6).mT * 8**-0.5).softmax(
                -1
            )
            @ v
        ),
        *heads(),
    )
    assert attention.attention in ops
    assert composite.rms_norm in ops


# ------------------------------------------------------------------------------------------ kept as written


def test_rotary_by_pairs_is_another_function():
    def pairs(x: Tensor, angle: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
        return torch.view_as_real(turned).flatten(-2)

    assert composite.rope not in run(pairs, rand(2, 3, 4, 8), rand(4, 4))


@pytest.mark.parametrize("root", [0.70710678, 0.7071, 0.70710678118], ids=str)
def test_a_short_root_is_another_number(root: float):
    """Ten places are the same float32; fewer may be, and the class of exactness does not show it."""
    ops = run(lambda x: x * 0.5 * (1 + torch.erf(x * root)), rand(3, 4))
    assert (composite.gelu in ops) == (root == 0.70710678118)


def test_einsum_that_sums_one_operand_stays():
    ops = run(lambda a, b: torch.einsum("bij,bk->bik", a, b), rand(2, 3, 4), rand(2, 5))
    assert linalg.matmul not in ops


@pytest.mark.parametrize(
    "equation", ["bij,bjk->bik", "bij,bkj->kbi", "ij,jk->ki", "bi,bi->b", "bij,bij->b", "i,j->ij", "bijc,bjcd->bid"]
)
def test_einsum_is_right(equation: str):
    sizes = {"b": 2, "i": 3, "j": 4, "k": 5, "c": 2, "d": 3}
    left = equation.partition("->")[0].split(",")
    run(lambda *t: torch.einsum(equation, *t), *(rand(*(sizes[c] for c in labels)) for labels in left))


@pytest.mark.parametrize("positions", [False, True])
def test_largest_values_with_and_without_their_positions(positions: bool):
    def fn(x: Tensor) -> Tensor:
        values, at = x.max(-1)
        return values + at.to(x.dtype) if positions else values

    run(fn, rand(3, 4))
