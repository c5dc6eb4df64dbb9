"""The scale of attention in the weights of its queries: where it goes, where it stays, and the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph
from forge_eq.ir.check import check
from forge_eq.ir.graph import Graph
from forge_eq.lower.scaled import with_scaled_queries
from forge_eq.lower.select import expand
from forge_eq.options import Options
from forge_eq.pipeline import Job, run


class Attend(nn.Module):
    """Two heads; with ``tied`` the keys are the queries, with ``turned`` halves of queries and keys are rotated."""

    def __init__(self, size: int, bias: bool, tied: bool = False, turned: bool = False) -> None:
        super().__init__()
        self.size, self.tied, self.turned = size, tied, turned
        self.q, self.k, self.v = (nn.Linear(8, 2 * size, bias=bias) for _ in range(3))
        angles = torch.outer(torch.arange(5.0), 0.5 ** torch.arange(size // 2))
        self.register_buffer("angles", torch.cat([angles, angles], -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = (self.q, self.q if self.tied else self.k, self.v)
        q, k, v = (f(x).view(1, 5, 2, self.size).transpose(1, 2) for f in layers)
        if self.turned:
            q, k = (self.rotated(q), self.rotated(k))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        y: torch.Tensor = x * self.angles.cos() + torch.cat([-b, a], -1) * self.angles.sin()
        return y


def scales(graph: Graph) -> list[float]:
    named = [dict(zip((name for name, _ in n.op.attrs), n.attrs, strict=True)) for n in graph.nodes]
    return [float(a["scale"]) for a in named if "scale" in a]


def both(module: nn.Module) -> tuple[Graph, Graph]:
    job = Job(Options(), forms={"capture": capture(module.eval(), (torch.randn(1, 5, 8),))})
    graph = expand(run(job, "extract")["extract"].live())
    found = with_scaled_queries(graph)
    check(found)
    return graph, found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_a_power_of_two_goes_into_the_weights(bias: bool, turned: bool) -> None:
    torch.manual_seed(0)
    graph, found = both(Attend(16, bias, turned=turned))
    assert (scales(graph), scales(found)) == ([0.25], [1.0])
    x = torch.randn(1, 5, 8)
    (want,), (got,) = run_graph(graph, [x]), run_graph(found, [x])
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    changed = set(found.constants) - set(graph.constants)
    assert len(changed) == 1 + bias
    for name in changed:
        assert torch.equal(found.constants[name] * 4, graph.constants[name.removesuffix(" * 0.25")])


@pytest.mark.parametrize("module", [Attend(8, True), Attend(16, True, tied=True)], ids=["no power", "read elsewhere"])
def test_another_scale_stays(module: nn.Module) -> None:
    graph, found = both(module)
    assert found is graph
