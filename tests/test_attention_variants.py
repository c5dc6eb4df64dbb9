"""Variants of attention, each by hand, through ``optimize`` and ``compile``: values against float64, fused where legal.

Rows that see nothing, and queries, keys and scores that are not finite, are NaN exactly where torch has NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import forge_eq
from forge_eq.ops import attention as ops
from forge_eq.verify.criterion import difference
from torch_programs import Fn, values

Program = Callable[..., Tensor]
FUSED = {ops.attention, ops.attention_bias, ops.attention_mask, ops.attention_causal}
S = 6  # queries; keys too unless a variant says otherwise


def at(queries: int = S, keys: int = S, offset: int = 0) -> Tensor:
    """How far key j lies before query i."""
    return torch.arange(queries)[:, None] + offset - torch.arange(keys)[None]


def plain(q: Tensor, k: Tensor, v: Tensor, change: Program = lambda s: s) -> Tensor:
    return change(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def filled(mask: Tensor) -> Program:
    return lambda s: s.masked_fill(~mask, -math.inf)


SLOPES = -(0.5 ** torch.arange(1.0, 5.0))[:, None, None] * at().abs()
GAIN = torch.linspace(0.5, 1.5, 8)


def split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def heads(*counts: tuple[int, int], size: int = 8) -> tuple[Tensor, ...]:
    """Queries, keys, values as [2, heads, tokens, size]."""
    return tuple(values(seed, 2, n, tokens, size) for seed, (n, tokens) in enumerate(counts))


SQUARE = heads((4, S), (4, S), (4, S))
# name -> (program, inputs, whether it is one attention)
VARIANTS: dict[str, tuple[Program, tuple[Tensor, ...], bool]] = {
    "plain": (plain, SQUARE, True),
    "causal": (lambda q, k, v: plain(q, k, v, filled(at() >= 0)), SQUARE, True),
    "causal made inside": (
        lambda q, k, v: plain(q, k, v, lambda s: s.masked_fill(torch.ones(S, S).triu(1).bool(), -math.inf)),
        SQUARE, True,
    ),
    "causal bias": (
        lambda q, k, v: plain(q, k, v, lambda s: s + torch.full((S, S), -math.inf, dtype=s.dtype).triu(1)),
        SQUARE, True,
    ),
    "sliding window": (lambda q, k, v: plain(q, k, v, filled((at() >= 0) & (at() < 3))), SQUARE, True),
    "slope for each head": (lambda q, k, v: plain(q, k, v, lambda s: s + SLOPES.to(s.dtype)), SQUARE, True),
    "slopes and causal": (
        lambda q, k, v: plain(q, k, v, lambda s: filled(at() >= 0)(s + SLOPES.to(s.dtype))), SQUARE, False,
    ),
    "bias as an input": (lambda q, k, v, b: plain(q, k, v, lambda s: s + b), (*SQUARE, values(9, 2, 1, S, S)), True),
    "softcap": (lambda q, k, v: plain(q, k, v, lambda s: torch.tanh(s / 5.0) * 5.0), SQUARE, False),
    "normed queries and keys": (
        lambda q, k, v: plain(*(F.rms_norm(t, (8,), GAIN.to(t.dtype), 1e-6) for t in (q, k)), v), SQUARE, True,
    ),
    "cross": (plain, heads((4, 3), (4, 9), (4, 9)), True),
    "cached, one query": (plain, heads((4, 1), (4, 9), (4, 9)), True),
    "cached, offset": (
        lambda q, k, v: plain(q, k, v, filled(at(3, 9, 6) >= 0)), heads((4, 3), (4, 9), (4, 9)), True,
    ),
    "one key head": (
        lambda q, k, v: plain(q, k.expand(2, 4, S, 8), v.expand(2, 4, S, 8)), heads((4, S), (1, S), (1, S)), True,
    ),
    "grouped heads": (
        lambda q, k, v: plain(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)),
        heads((4, S), (2, S), (2, S)), True,
    ),
    "grouped, causal, library": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        heads((4, S), (2, S), (2, S)), True,
    ),
    "values of another size": (plain, (*heads((4, S), (4, S)), values(7, 2, 4, S, 5)), True),
    "from layers, heads = tokens": (
        lambda x, w: plain(*(split(x @ w[i], S) for i in range(3))),
        (values(1, 2, S, 24), values(2, 3, 24, 24) / 5), True,
    ),
    "long": (lambda q, k, v: plain(q, k, v, filled(at(40, 40) >= 0)), heads((2, 40), (2, 40), (2, 40)), True),
}  # fmt: skip


def agree(program: Program, args: tuple[Tensor, ...]) -> tuple[list[Any], Any]:
    """Both ways agree with torch by the program criterion, float64 as the truth; gives the ops chosen."""
    module = Fn(lambda self, *a: program(*a)).eval()
    want = [module(*args)]

    def exact() -> list[Tensor]:
        return [program(*(a.double() if a.is_floating_point() else a for a in args))]

    optimised = forge_eq.optimize(module, args, verify="off")
    assert difference([optimised.module(*args)], want, exact) is None
    compiled = forge_eq.compile(module, args, verify="off")  # nothing is repaired
    assert difference([compiled(*args)], want, exact) is None
    return [n.op for n in optimised.graph.nodes], want[0]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_right_and_fused_where_it_may_be(name: str) -> None:
    program, args, one = VARIANTS[name]
    found, _ = agree(program, args)
    assert sum(op in FUSED for op in found) == int(one)


@pytest.mark.parametrize("spelling", ["fill", "where", "bias"])
@pytest.mark.parametrize("keys", [S, 20])
def test_rows_that_see_nothing_are_nan(spelling: str, keys: int) -> None:
    q, k, v = heads((4, S), (4, keys), (4, keys))
    keep = (torch.arange(S) != 2)[:, None].expand(S, keys)
    change: dict[str, Program] = {
        "fill": filled(keep),
        "where": lambda s: torch.where(keep, s, -math.inf),
        "bias": lambda s: s + torch.zeros(S, keys, dtype=s.dtype).masked_fill(~keep, -math.inf),
    }
    _, out = agree(lambda q, k, v: plain(q, k, v, change[spelling]), (q, k, v))
    assert out.isnan().all(-1).all(1).all(0).tolist() == [i == 2 for i in range(S)]


def test_rows_that_see_nothing_are_zero_in_the_library() -> None:
    keep = torch.ones(S, S, dtype=torch.bool)
    keep[2] = False
    _, out = agree(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, keep), SQUARE)
    assert not out[:, :, 2].any()


def test_rows_that_see_nothing_may_be_repaired_by_hand() -> None:
    keep = (torch.arange(S) != 2)[:, None].expand(S, S)
    _, out = agree(lambda q, k, v: plain(q, k, v, filled(keep)).nan_to_num(0.0), SQUARE)
    assert not out[:, :, 2].any()
    found, _ = agree(lambda q, k, v: plain(q, k, v, lambda s: s.masked_fill(~keep, -1e9)), SQUARE)
    assert not {ops.attention_mask} & set(found)  # a finite number leaves the row its mean


def test_a_mask_that_arrives_with_rows_of_nothing() -> None:
    """The mask is an argument: nobody knows beforehand which rows it empties."""
    keep = torch.rand(2, 1, S, S, generator=torch.Generator().manual_seed(1)) < 0.4
    keep[0, 0, 1] = keep[1, 0, 4] = False
    _, out = agree(lambda q, k, v, m: plain(q, k, v, lambda s: s.masked_fill(~m, -math.inf)), (*SQUARE, keep))
    assert int(out.isnan().all(-1).sum()) == 2 * 4


@pytest.mark.parametrize("keys", [1, 2, 5, 15, 16, 20])
@pytest.mark.parametrize("odd", ["query", "query inf", "key", "value", "overflow"])
def test_what_is_not_finite_stays_so(odd: str, keys: int) -> None:
    """torch's own fused kernel gives numbers for a NaN query over fewer keys than a vector holds."""
    q, k, v = (t.clone() for t in heads((4, S), (4, keys), (4, keys)))
    if odd == "query":
        q[:, :, 1] = math.nan
    elif odd == "query inf":
        q[:, :, 1, 0] = math.inf
    elif odd == "key":
        k[:, 1, 0] = math.nan
    elif odd == "value":
        v[:, 1, 0] = math.nan
    else:
        q, k = q * 1e20, k * 1e20
    module = Fn(lambda self, *a: plain(*a)).eval()
    want = module(q, k, v)
    assert want.isnan().any() or odd == "overflow"
    made = forge_eq.optimize(module, SQUARE[:1] + heads((4, keys), (4, keys)), verify="off")
    assert ops.attention in {n.op for n in made.graph.nodes}
    assert torch.equal(made.module(q, k, v).isnan(), want.isnan())
