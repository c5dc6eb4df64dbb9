"""Permutations with fewer axes: the same elements in the same places."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph
from forge_eq.ir.check import check
from forge_eq.lower.axes import joined, with_fewer_axes
from forge_eq.lower.select import expand, lower
from forge_eq.targets import load


@pytest.mark.parametrize("seed", range(200))
def test_joined_axes_move_the_same_elements(seed: int) -> None:
    draw = random.Random(seed)
    shape = [draw.choice([1, 1, 2, 3]) for _ in range(draw.randint(0, 7))]
    perm = draw.sample(range(len(shape)), len(shape))
    x = torch.randn(shape)
    sizes, order = joined(shape, perm)
    assert torch.equal(x.reshape(sizes).permute(order).reshape(x.permute(perm).shape), x.permute(perm))
    assert order != sorted(order) or len(order) <= 1  # what moves nothing has at most one axis
    assert all(b != a + 1 for a, b in itertools.pairwise(order))  # nothing is left to join


class Windows(nn.Module):
    """A partition into windows; ``seen``: its six axes are an output too."""

    def __init__(self, seen: bool) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x).reshape(1, 2, 4, 2, 4, 8).permute(0, 1, 3, 2, 4, 5)
        found = torch.tanh(y.reshape(4, 16, 8))
        return (found, y) if self.seen else (found,)


@pytest.mark.parametrize("seen", [False, True])
def test_a_graph_keeps_its_values(seen: bool) -> None:
    x = torch.randn(64, 8)
    graph = expand(capture(Windows(seen).eval(), (x,)).live())
    made = with_fewer_axes(graph, 5)
    check(made)
    for got, want in zip(run_graph(made, [x]), run_graph(graph, [x]), strict=True):
        assert torch.equal(got, want)
    ranks = [n.type.rank for n in made.nodes]  # type: ignore[union-attr]
    assert (max(ranks) > 4) == seen
    assert with_fewer_axes(made, 5) is made


def test_only_for_a_device_with_such_a_limit() -> None:
    graph = capture(Windows(False).eval(), (torch.randn(64, 8),))
    target = load("intel-npu-4000")
    limited, free = lower(graph, target), lower(graph, replace(target, devices=target.devices[1:]))
    shapes = [[r.type.rank for r in p.vregs] for p in (limited, free)]  # type: ignore[union-attr]
    assert max(shapes[0]) == 4
    assert max(shapes[1]) == 6
