"""``compile`` compares while OpenVINO compiles: what the checks find, and what becomes of it, is as without."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq import api
from forge_eq import program as program_module
from forge_eq.errors import CheckError
from forge_eq.ops.elementwise import add, exp
from forge_eq.ops.spec import Var
from forge_eq.rules import default
from forge_eq.rules.dsl import build
from forge_eq.run import executor
from forge_eq.run.differential import Answers
from forge_eq.verify import criterion
from recordings import Body, Stack, X
from test_record_layers import late

pytest.importorskip("openvino")
torch.set_num_threads(1)


@pytest.fixture(params=[1e9, 0.0], ids=["brief", "long"], autouse=True)
def long(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call is long what was compiled is compared with the module itself, and the recording is not run."""
    monkeypatch.setattr(program_module, "LONG", request.param)


def kinds(program: Any, stage: str) -> list[str]:
    return [r.kind for r in program.remarks if r.stage == stage]


def agree(program: Any, module: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(x), module(x))


def test_a_wrong_recording_is_dropped_with_all_that_was_made_of_it() -> None:
    module = late(3)
    program = forge_eq.compile(module, (X,), cache=False)
    assert any(r.kind == "failed" and "torch.export is used" in r.reason for r in program.remarks)
    assert kinds(program, "guard") == ["passed"]
    assert program.captured is program.job["capture"]
    agree(program, module, X)


def test_a_failure_of_what_a_wrong_recording_became_is_not_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    built = executor.Executable.__init__
    calls: list[Any] = []

    def refuses_once(self: Any, *args: Any, **options: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise CheckError("run", "it", "does not build", "nothing")
        built(self, *args, **options)

    monkeypatch.setattr(executor.Executable, "__init__", refuses_once)
    module = late(3)
    agree(forge_eq.compile(module, (X,), cache=False), module, X)
    assert len(calls) > 1
    calls.clear()
    with pytest.raises(CheckError, match="does not build"):  # a right one does not hide it
        forge_eq.compile(Stack(Body, 6), (X,), cache=False)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + torch.exp(x))


@pytest.mark.parametrize("verify", ["quick", "full"])
@pytest.mark.parametrize("capture", ["export", "auto"])
def test_a_wrong_rule_costs_the_chosen_program_not_the_result(
    verify: str, capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Var("x")
    rules = default + build(
        "mine", "wrong", forge_eq.to(add(x, exp(x)), x), doc="No.", source="-", exact="real", where=""
    )
    monkeypatch.setattr(api, "_ADMITTED", {rules.hash})  # it has no evidence, and would not be let in
    module, given = Sum(), torch.linspace(-2, 2, 64).reshape(8, 8)
    chosen = forge_eq.optimize(module, (given,), rules=rules, verify="off", capture="export").graph
    assert exp not in {n.op for n in chosen.nodes}
    program = forge_eq.compile(module, (given,), rules=rules, verify=verify, capture=capture, cache=False)
    assert kinds(program, "verify") == ["failed"]
    assert kinds(program, "guard")[-1] == "passed"
    agree(program, module, given)


def test_nothing_is_told_apart_where_all_agrees() -> None:
    program = forge_eq.compile(Stack(Body, 6), (X,), cache=False)
    assert kinds(program, "verify") == []
    assert kinds(program, "guard") == ["passed"]
    assert "gives the module's own values" in " ".join(r.reason for r in program.remarks if r.stage == "capture")


def told(program: Any) -> str:
    return " ".join(r.reason for r in program.remarks if r.stage == "capture")


def test_of_a_long_call_the_recording_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Answers, "__call__", lambda self, inputs: asked.append(inputs))
    monkeypatch.setattr(program_module, "LONG", 0.0)
    module = Stack(Body, 6)
    program = forge_eq.compile(module, (X,), cache=False)
    assert not asked
    assert "what was made of it gives the module's own values" in told(program)
    agree(program, module, X)


def test_of_a_long_call_the_recording_is_run_before_float64_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "LONG", 0.0)
    monkeypatch.setattr(criterion, "_finite", lambda g, w: (1.0, False))
    monkeypatch.setattr(criterion, "_near", lambda g, w: False)
    module = Stack(Body, 6)
    program = forge_eq.compile(module, (X,), cache=False)
    assert "recorded; gives the module's own values" in told(program)
    module = late(3)
    agree(forge_eq.compile(module, (X,), cache=False), module, X)


def test_results_that_are_not_the_graph_s_outputs_are_compared_with_the_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch.export gives them: what the flag for a trace says is no value that a run computes."""
    monkeypatch.setattr(program_module, "LONG", 0.0)
    program = forge_eq.compile(Told(), (X,), cache=False)
    assert "recorded; gives the module's own values" in told(program)
    assert program(X)[1] is torch.export.export(Told(), (X,)).module()(X)[1]


class Told(nn.Module):
    """Gives what torch's flag for a trace tells, beside a value."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        return torch.relu(x), torch.compiler.is_exporting()
