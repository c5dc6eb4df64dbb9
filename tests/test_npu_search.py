"""The search for the fastest form: what is compiled, what is chosen, and that the forms are equal programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.npu.compiler import Answer, Compiled, Refused
from forge_eq.npu.search import Found, forms, planned, search
from forge_eq.npu.trace import Simulation
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.executor import Executable
from forge_eq.targets import Target, load

pytest.importorskip("openvino", reason="the kernels are OpenVINO's")


class Words(nn.Module):
    """A table and a gated layer over more features than a form asks for to cut it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 16)
        self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in ((16, 4096), (16, 4096), (4096, 16)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words)
        y: torch.Tensor = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
        return y


class Timer:
    """In place of the compiler: ``us`` for each node, by kind; refuses models with a ``taboo``."""

    def __init__(self, us: dict[str, float], taboo: str = "") -> None:
        self.us, self.taboo, self.asked = us, taboo, 0

    def compile(self, model: Any, platform: str) -> Answer:
        self.asked += 1
        kinds = [n.get_type_name() for n in model.get_ordered_ops()]
        if self.taboo in kinds:
            return Refused("compile", "no")
        total = sum(self.us.get(kind, 0.0) for kind in kinds)
        return Compiled(0.0, 1, "", Simulation(total, total, 0.0, 0.0, 0.0, 1.0, (), ()))


def chosen() -> tuple[Any, Target, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    module, words = Words().eval(), torch.randint(9, (1, 20))
    target = replace(load("intel-npu-4000"), transfer_us=0.0, transfer_gbps=1e9)
    graph = run(Job(Options(target=target.name), forms={"capture": capture(module, (words,))}), "extract")["extract"]
    return graph, target, module, words


def found(us: dict[str, float], taboo: str = "", **more: Any) -> tuple[Found, Timer]:
    graph, target, _, _ = chosen()
    timer = Timer(us, taboo)
    return search(graph, target, timer, **more), timer  # type: ignore[arg-type]


def test_the_fastest_form_is_chosen_and_equal_ones_are_compiled_once() -> None:
    whole, timer = found({"MatMul": 10.0, "Add": 1.0})
    assert whole.report.total == min(whole.times.values())
    assert whole.times["inner 4"] > whole.times["target"]  # nine products more
    assert timer.asked == len(whole.times) < len(list(forms(load("intel-npu-4000"))))  # "whole" is the target's own
    apart, _ = found({"MatMul": -10.0})
    assert apart.form == "inner 4"
    some, _ = found({"MatMul": -10.0}, names={"target", "inner 4"})
    assert (some.form, set(some.times)) == ("inner 4", {"target", "inner 4"})


def test_a_refused_form_is_never_chosen() -> None:
    left, _ = found({"Transpose": -5.0})
    assert left.form.startswith("left")
    rows, _ = found({"Transpose": -5.0}, "Transpose")
    assert rows.report.accepted
    assert rows.times[left.form] == float("inf")


def test_lookups_on_the_npu_are_searched_by_themselves() -> None:
    host, _ = found({"Gather": 1000.0, "MatMul": 1.0})
    npu, timer = found({"Gather": 1000.0, "MatMul": 1.0}, lookups=True)
    assert host.report.total < 1000.0 <= npu.report.total
    assert npu.plan.program != host.plan.program
    assert timer.asked >= len(npu.times)


def test_forms_are_equal_programs() -> None:
    graph, target, module, words = chosen()
    torch.set_num_threads(1)
    wanted = module(words)
    for form in forms(target):
        (made,) = Executable(planned(graph, form.target).program, form.target, threads=1)([words])
        torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5, msg=lambda text, f=form: f"{f.name}: {text}")
