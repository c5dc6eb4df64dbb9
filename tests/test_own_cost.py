"""A user's own cost and extractor: used, checked, refused by name when wrong, and no flags of the command line."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.cli.flags import flags
from forge_eq.egraph.view import EClass, ENode
from forge_eq.errors import CheckError, ExtractError
from forge_eq.extract import Default, Extraction
from forge_eq.extract.cost import COPY, FusionGain, UserCost
from forge_eq.ir.types import TensorType
from forge_eq.ops import elementwise, movement
from forge_eq.targets import load

DOC = (Path(__file__).resolve().parents[1] / "docs/extraction.md").read_text(encoding="utf-8")


def silu() -> tuple[nn.Module, tuple[torch.Tensor]]:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(x)

    return Model(), (torch.linspace(-2, 2, 8),)


def ops(result: forge_eq.Optimized) -> set[str]:
    return {n.op.name for n in result.graph.nodes if not n.op.leaf}


def test_a_copy_of_weights_costs_where_times_are_measured() -> None:
    """Joined weights are charged a share of reading them once, computed ones and estimated targets next to nothing."""
    host, npu = load("openvino-cpu"), load("intel-npu-4000")
    joined, scaled = (
        EClass(TensorType("f32", (4096, 1024)), True, (ENode(op, (0, 1), attrs),))
        for op, attrs in ((movement.concat, (0,)), (elementwise.mul, ()))
    )
    once = 4 * 4096 * 1024 / (host.bandwidth_gbps * 1e3)
    assert FusionGain(host).folded(joined) == pytest.approx(COPY * once, rel=1e-3)
    assert FusionGain(host).folded(scaled) < 0.01 * once
    assert FusionGain(npu).folded(joined) < 0.01 * once
    assert UserCost(lambda *_: 1.0, host).folded(joined) < 0.01 * once


def test_the_cost_decides_the_program() -> None:
    module, args = silu()
    fused = forge_eq.optimize(module, args, cost=lambda op, *_: 1.0)
    apart = forge_eq.optimize(module, args, cost=lambda op, *_: 50.0 if op.name == "silu" else 1.0)
    assert ops(fused) == {"silu"}
    assert "silu" not in ops(apart)
    assert fused.chosen.extraction.cost == pytest.approx(1.0, abs=0.01)
    assert apart.chosen.extraction.cost == pytest.approx(2.0, abs=0.01)
    for result in (fused, apart):
        torch.testing.assert_close(result.module(*args), module(*args))


@pytest.mark.parametrize("price", [0.0, -1.0, math.nan, math.inf, "one", None, True])
def test_a_price_that_is_none_is_refused_with_the_op(price: object) -> None:
    module, args = silu()
    with pytest.raises(ExtractError, match=r"silu|mul|sigmoid"):
        forge_eq.optimize(module, args, cost=lambda *_: price)


def test_the_examples_of_the_documentation_run() -> None:
    module, (x,) = silu()
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.S)
    assert len(blocks) == 4
    scope = {"model": module, "x": x}
    for block in blocks:
        exec(block, scope)
    assert scope["result"].chosen.extraction.extractor == "trees"  # type: ignore[attr-defined]


def test_an_extractor_that_lies_is_caught() -> None:
    class Liar(Default):
        name = "liar"

        def solve(self, problem, budget) -> Extraction:  # type: ignore[no-untyped-def]
            true = super().solve(problem, budget)
            return replace(true, cost=true.cost / 2, lower_bound=0.0, status="converged")

    module, args = silu()
    with pytest.raises(CheckError, match="liar"):
        forge_eq.optimize(module, args, extractor=Liar())


def test_objects_are_no_flags() -> None:
    assert not {"cost", "extractor", "rules"} & {f.field for f in flags()}
    assert "alpha" in {f.field for f in flags()}
