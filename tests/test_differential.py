"""The check of the chosen program: what differs twice is given up, what differs once is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forge_eq.capture import capture
from forge_eq.ir.graph import Graph
from forge_eq.run import differential
from forge_eq.run.differential import check_graph, input_batches


def graph_of(scale: float) -> Graph:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * scale

    return capture(Scaled(), (torch.ones(3),))


def test_a_wrong_program_is_given_up() -> None:
    captured, wrong = graph_of(2.0), graph_of(2.001)
    kept, remark = check_graph(captured, wrong, input_batches(captured, (torch.ones(3),), None, "full"))
    assert kept is captured
    assert remark.kind == "failed"
    assert "off by 0.001" in remark.reason


def test_a_right_program_is_kept() -> None:
    captured = graph_of(2.0)
    kept, remark = check_graph(captured, captured, input_batches(captured, (torch.ones(3),), None, "full"))
    assert kept is captured
    assert remark.kind == "passed"
    assert "4 inputs" in remark.reason


def test_what_does_not_show_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    captured, chosen = graph_of(2.0), graph_of(2.0)
    real, calls = differential.run_graph, []

    def flaky(graph: Graph, inputs: Any) -> Any:
        calls.append(graph)
        return tuple(v + 0.5 for v in real(graph, inputs)) if len(calls) == 2 else real(graph, inputs)

    monkeypatch.setattr(differential, "run_graph", flaky)
    kept, remark = check_graph(captured, chosen, input_batches(captured, (torch.ones(3),), None, "quick"))
    assert kept is chosen
    assert "not repeatable on the example: output 0: off by 0.5" in remark.reason
