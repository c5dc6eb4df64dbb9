"""What the CPU plugin merges into the node before it: arithmetic with a constant after reductions, products and norms.

A kernel that is right alone may be wrong there. Found by random programs: 1 / sqrt(mean) came out as sqrt(mean).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from forge_eq.capture import capture
from forge_eq.ir.evaluate import evaluate
from forge_eq.lower.select import lower
from forge_eq.run.executor import Executable
from forge_eq.schedule.plan import schedule
from run_programs import TARGET
from torch_programs import Fn

pytest.importorskip("openvino", reason="the plugin is OpenVINO's")

WEIGHT = torch.arange(36.0).reshape(6, 6) / 36 + 0.1
RAMPS = {n: torch.arange(1.0, 1.0 + n) for n in (1, 4, 6)}
Unary = Callable[[torch.Tensor], torch.Tensor]

BEFORE: dict[str, Unary] = {
    "mean": lambda x: x.pow(2).mean(-1, keepdim=True),
    "mean of rows": lambda x: x.pow(2).mean(1, keepdim=True),
    "mean, axis dropped": lambda x: x.pow(2).mean(2),
    "sum of all": lambda x: x.abs().sum((0, 1, 2), keepdim=True),
    "amax": lambda x: x.abs().amax(1, keepdim=True),
    "product": lambda x: x @ WEIGHT,
    "scores": lambda x: x @ x.mT,
    "norm": lambda x: torch.nn.functional.layer_norm(x, (6,), RAMPS[6], RAMPS[6]).abs() + 0.5,
    "softmax": lambda x: x.softmax(-1),
}
BETWEEN: dict[str, Unary] = {
    "": lambda x: x,
    "add, sqrt": lambda x: (x + 1e-3).sqrt(),
    "mul, tanh": lambda x: (x * 0.1).tanh(),
}


def vector(x: torch.Tensor) -> torch.Tensor:
    return RAMPS[x.shape[-1]]


AFTER: dict[str, Unary] = {
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "c / y": lambda x: 2.0 / x,
    "y / c": lambda x: x / 3.0,
    "y / huge": lambda x: x / 3e38,
    "c - y": lambda x: 2.0 - x,
    "v / y": lambda x: vector(x) / x,
    "y / v": lambda x: x / vector(x),
    "v - y": lambda x: vector(x) - x,
    "y + v": lambda x: x + vector(x),
    "v y": lambda x: x * vector(x),
}


def chain(*parts: Unary) -> Unary:
    def run(x: torch.Tensor) -> torch.Tensor:
        for part in parts:
            x = part(x)
        return x

    return run


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("before", BEFORE)
def test_arithmetic_after_what_takes_it_in(before: str, between: str) -> None:
    x = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0)) + 0.2
    for name, after in AFTER.items():  # each alone: a value with two readers is not merged
        f = chain(BEFORE[before], BETWEEN[between], after)
        graph = capture(Fn(lambda self, x, f=f: f(x)), (x,))
        program = schedule(lower(graph, TARGET), TARGET).program
        assert {i.device for i in program.instrs if i.op} == {TARGET.accelerators[0].name}
        got = Executable(program, TARGET)([x.clone()])
        np.testing.assert_allclose(np.asarray(got[0]), evaluate(graph, [x])[0], rtol=2e-5, atol=1e-6, err_msg=name)
