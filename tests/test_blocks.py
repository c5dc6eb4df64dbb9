"""Products in blocks: the same values, the weights as views, and only where the target asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph
from forge_eq.ir.check import check
from forge_eq.lower.blocks import in_blocks
from forge_eq.lower.select import expand
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.targets import Blocks


class Feed(nn.Module):
    """x + w2 act(w1 x), or gated when ``gate``."""

    def __init__(self, gate: bool, bias: bool) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24, bias=bias), nn.Linear(24, 8, bias=bias)
        self.gate = nn.Linear(8, 24, bias=False) if gate else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.silu(self.gate(x)) * self.up(x) if self.gate is not None else nn.functional.gelu(self.up(x))
        y: torch.Tensor = x + self.down(h)
        return y


class Heads(nn.Module):
    """One product, split into three that are used apart."""

    def __init__(self, read_whole: bool) -> None:
        super().__init__()
        self.qkv, self.read_whole = nn.Linear(8, 24), read_whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.qkv(x)
        q, k, v = y.split(8, -1)
        found = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return torch.cat([found, y], -1) if self.read_whole else found


def chosen(module: nn.Module, x: torch.Tensor) -> Any:
    job = Job(Options(), forms={"capture": capture(module.eval(), (x,))})
    return expand(run(job, "extract")["extract"].live())


def products(graph: Any) -> list[str]:
    return [n.op.name for n in graph.nodes if n.op.name.startswith("linear")]


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_product_over_many_features(gate: bool, bias: bool, parts: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8, dtype=torch.float32)
    graph = chosen(Feed(gate, bias), x)
    found = in_blocks(graph, Blocks(24, 2, parts, outer=False))
    check(found)
    assert len(products(found)) == parts * len(products(graph))
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    old = {t.untyped_storage().data_ptr() for t in graph.constants.values()}
    assert {t.untyped_storage().data_ptr() for t in found.constants.values()} <= old  # nothing is copied


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_parts_are_added_onto_what_the_product_is_added_to(bias: bool, flip: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Feed(True, bias), x)
    if flip:
        (last,) = graph.outputs
        turned = replace(graph.nodes[last], inputs=graph.nodes[last].inputs[::-1])
        graph = replace(graph, nodes=(*graph.nodes[:last], turned, *graph.nodes[last + 1 :]))
    found = in_blocks(graph, Blocks(24, 2, 1, outer=False, onto=True, most=9))
    check(found)
    at, sums = found.nodes[found.outputs[0]], 0
    while at.op.name == "add":  # x + w1 h1 + w2 h2 + w3 h3
        assert found.nodes[at.inputs[1]].op.name == ("linear_bias" if bias and sums == 2 else "linear")
        at, sums = found.nodes[at.inputs[0]], sums + 1
    assert (at.op.name, sums) == ("input", 3)
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


class Twice(Feed):
    """The product is read once more than by the sum, or the sum is of the product with itself."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(nn.functional.gelu(self.up(x)))
        again: torch.Tensor = x + y + torch.sin(y) if self.gate is not None else y + y
        return again


@pytest.mark.parametrize("gate", [False, True])
def test_a_product_that_is_read_twice_is_a_sum_of_its_own(gate: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Twice(gate, False), x)
    apart, onto = (in_blocks(graph, Blocks(24, 2, 3, outer=False, onto=o)) for o in (False, True))
    assert [n.op.name for n in onto.nodes] == [n.op.name for n in apart.nodes]
    (want,), (got,) = run_graph(graph, [x]), run_graph(onto, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


class Both(nn.Module):
    """A sum of two products over many features."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Feed(False, True), Feed(False, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.gelu(self.two.up(x))
        y: torch.Tensor = self.one.down(torch.sin(self.one.up(x))) + self.two.down(h)
        return y


def test_a_sum_of_two_products_has_the_parts_of_both() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Both(), x)
    found = in_blocks(graph, Blocks(24, 2, 3, outer=False, onto=True))
    check(found)
    assert len(products(found)) == 3 * len(products(graph))
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("features", "most", "count"), [(14336, 2048, 7), (8192, 2048, 4), (10752, 2048, 6), (24, 24, 1), (7, 3, 7)]
)
def test_the_fewest_equal_parts_of_at_most_so_many_features(features: int, most: int, count: int) -> None:
    assert Blocks(1, 1, 1, outer=False, most=most).count(features) == count


@pytest.mark.parametrize("gate", [False, True])
def test_what_a_product_reads_is_made_in_parts(gate: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Feed(gate, True), x)
    found = in_blocks(graph, Blocks(24, 2, 2, outer=False, joined=True))
    check(found)
    assert len(products(found)) == 2 * len(products(graph)) - 1  # the last is whole
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("blocks", [Blocks(25, 1, 2, False), Blocks(24, 11, 2, False), Blocks(24, 1, 7, False)])
def test_what_is_not_asked_for_stays(blocks: Blocks) -> None:
    graph = chosen(Feed(True, True), torch.randn(2, 5, 8))
    assert products(in_blocks(graph, blocks)) == products(graph)


def test_a_split_product_is_read_apart() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Heads(False), x)
    found = in_blocks(graph, Blocks(99, 1, 2, outer=True))
    check(found)
    assert (len(products(graph)), len(products(found))) == (1, 3)
    assert not any(n.op.name == "split" for n in found.nodes)
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_product_that_is_also_read_whole_stays() -> None:
    graph = chosen(Heads(True), torch.randn(2, 5, 8))
    assert products(in_blocks(graph, Blocks(99, 1, 2, outer=True))) == products(graph)


class Merged(nn.Module):
    """Gate and up as one product."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.down = nn.Linear(8, 48, bias=False), nn.Linear(24, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        y: torch.Tensor = self.down(nn.functional.silu(gate) * up)
        return y


@pytest.mark.parametrize("outer", [False, True])
def test_a_merged_product_is_cut_twice(outer: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    graph = chosen(Merged(), x)
    found = in_blocks(graph, Blocks(24, 2, 2, outer))
    check(found)
    assert len(products(found)) == (6 if outer else 2)  # two of each of gate, up and down; or nothing to gain
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
