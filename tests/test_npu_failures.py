"""Public kinds of failure on the NPU, in small: how OpenVINO's own graph fails, and what a user of forge_eq gets.

Each kind names the issue that it comes from. The first half of a kind needs the NPU compiler; the second, the placement
or the message, does not, except where it says that the program is accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forge_eq
from forge_eq.capture import capture
from forge_eq.errors import ForgeError, InputError, LowerError, NpuError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Program
from forge_eq.lower.select import lower, prefer
from forge_eq.npu.check import check
from forge_eq.npu.compiler import Compiler, Provider, Refused, native, provider
from forge_eq.npu.diagnose import diagnose
from forge_eq.npu.segments import npu_segments, segment_model
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Target, load

TARGET = replace(load("intel-npu-4000"), transfer_us=0.0, transfer_gbps=1e9)  # so that small programs are placed too


class Call(torch.nn.Module):
    """A function as a module, with a weight, so that something beside it belongs on the NPU."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, *args: Any) -> Any:
        return self.function(self.weight, *args)


def program(function: Callable[..., Any], *args: Any, target: Target = TARGET) -> Program:
    """The scheduled program of a function for the NPU."""
    job = Job(Options(target="intel-npu-4000"), forms={"capture": capture(Call(function).eval(), args)})
    return schedule(lower(run(job, "extract")["extract"], target), target).program


def on_host(found: Program) -> set[str]:
    return {i.op.name for i in found.instrs if i.op is not None and i.device == "cpu"}


def refused(npu: Compiler, made: Callable[[Any], Any]) -> str:
    """What the diagnosis of a graph, built with OpenVINO's opset, says."""
    import openvino as ov

    answer = npu.compile(made(ov))
    assert isinstance(answer, Refused)
    said = diagnose(answer)
    assert said.remedy
    return said.reason


def graph(ov: Any, output: Any, *inputs: Any) -> Any:
    return ov.Model([ov.opset16.result(output)], list(inputs), "m")


def parameter(ov: Any, shape: list[int], kind: str = "f32") -> Any:
    return ov.opset16.parameter(shape, getattr(ov.Type, kind))


# ------------------------------------------------------------------------------ how OpenVINO's own graphs fail


def unbounded(ov: Any) -> Any:
    x = parameter(ov, [1, -1, 64])
    return graph(ov, ov.opset16.relu(x), x)


def channels(ov: Any) -> Any:
    x = parameter(ov, [1, -1, 32, 32])
    w = ov.opset16.constant(np.ones((8, 3, 3, 3), np.float32))
    return graph(ov, ov.opset16.convolution(x, w, [1, 1], [0, 0], [0, 0], [1, 1]), x)


def bfloat16(ov: Any) -> Any:
    x = parameter(ov, [1, 64], "bf16")
    return graph(ov, ov.opset16.relu(x), x)


def six_axes(ov: Any) -> Any:
    x = parameter(ov, [1, 2, 2, 2, 2, 4])
    return graph(ov, ov.opset16.transpose(x, np.array([0, 1, 3, 2, 4, 5])), x)


def unique(ov: Any) -> Any:
    x = parameter(ov, [64], "i64")
    return graph(ov, ov.opset16.unique(x).output(0), x)


def branch(ov: Any) -> Any:
    ops, condition, x = ov.opset16, parameter(ov, [], "boolean"), parameter(ov, [4])
    inner = [parameter(ov, [4]), parameter(ov, [4])]
    bodies = [graph(ov, ops.relu(inner[0]), inner[0]), graph(ov, ops.abs(inner[1]), inner[1])]
    chosen = ops.if_op(condition)
    chosen.set_then_body(bodies[0])
    chosen.set_else_body(bodies[1])
    chosen.set_input(x.output(0), *inner)
    chosen.set_output(bodies[0].results[0], bodies[1].results[0])
    return graph(ov, chosen.output(0), condition, x)


def nothing(ov: Any) -> Any:
    x = parameter(ov, [0, 64])
    return graph(ov, ov.opset16.relu(x), x)


def from_data(ov: Any) -> Any:
    n = parameter(ov, [], "i64")
    return graph(ov, ov.opset16.eye(n, n, ov.opset16.constant(np.array(0)), ov.Type.f32), n)


def search(ov: Any) -> Any:
    a, b = parameter(ov, [1, 64]), parameter(ov, [1, 8])
    return graph(ov, ov.opset16.search_sorted(a, b), a, b)


def multinomial(ov: Any) -> Any:
    x = parameter(ov, [1, 64])
    return graph(ov, ov.opset16.multinomial(x, ov.opset16.constant(np.array([3])), "i64", True, False), x)


def grouped(ov: Any) -> Any:
    """Fourteen query heads on two, causal by a boolean mask: Qwen2-0.5B's attention as it is converted."""
    ops, (h, g, t, d) = ov.opset16, (14, 2, 128, 64)
    q, k, v = parameter(ov, [1, h, t, d]), parameter(ov, [1, g, t, d]), parameter(ov, [1, g, t, d])

    def wide(x: Any) -> Any:
        spread = ops.broadcast(ops.unsqueeze(x, np.array([2])), np.array([1, g, h // g, t, d]))
        return ops.reshape(spread, np.array([1, h, t, d]), False)

    mask = ops.constant(np.tril(np.ones((1, 1, t, t), bool)))
    return graph(ov, ops.scaled_dot_product_attention(q, wide(k), wide(v), mask, causal=False), q, k, v)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (unbounded, "size is not known"),  # openvino#32466, #34617, #24619, #26357
        (channels, "size is not known"),  # openvino#28171, #35820: an abort of the process
        (bfloat16, "no bfloat16"),
        (six_axes, "more than five axes"),  # the window partition of openvino#37265
        (unique, "does not support"),
        (branch, "no f16 form"),
        (nothing, "crashed"),  # openvino#29003: the process is gone without a word
        (from_data, "crashed"),
        (search, "does not support"),
        (multinomial, "does not support"),
        (grouped, "attention kernel"),  # found here; no public issue
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_openvinos_graph_fails_and_the_diagnosis_says_why(npu: Compiler, made: Any, reason: str) -> None:
    assert reason in refused(npu, made)
    import openvino as ov

    x = parameter(ov, [1, 64])
    assert npu.compile(graph(ov, ov.opset16.relu(x), x))  # the next request is served


# ------------------------------------------------------------------------------ what a user of forge_eq gets


def product_then(function: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    return lambda w, x: function(x @ w)


PLACED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "six axes": (
        product_then(lambda y: y.reshape(2, 2, 4, 2, 4, 32).permute(5, 4, 3, 2, 1, 0)),
        (torch.randn(64, 64),),
        "permute",
    ),
    "bfloat16": (lambda w, x: (x @ w, x.bfloat16() * 2), (torch.randn(64, 64),), "opaque"),
    "multinomial": (product_then(lambda y: torch.multinomial(y.abs() + 1, 3)), (torch.randn(64, 64),), "opaque_effect"),
    "search": (
        lambda w, x: (x @ w, torch.searchsorted(torch.arange(64.0).expand(64, 64).contiguous(), x)),
        (torch.randn(64, 64),),
        "opaque",
    ),
    "no elements": (product_then(lambda y: (y, y[:0] * 2)), (torch.randn(64, 64),), "mul"),
}


@pytest.mark.parametrize("kind", PLACED)
def test_placement_keeps_it_on_the_host(kind: str) -> None:
    function, args, name = PLACED[kind]
    found = program(function, *args)
    assert any(o.startswith(name) for o in on_host(found)), on_host(found)
    devices = {i.device for i in found.instrs if i.op is not None and i.unit == "matmul"}
    assert devices == {"npu"}


@pytest.mark.parametrize("kind", PLACED)
def test_and_what_is_left_for_the_npu_is_accepted(npu: Compiler, kind: str) -> None:
    function, args, _ = PLACED[kind]
    found = program(function, *args)
    report = check(found, TARGET, npu)
    assert report.segments
    assert report.accepted, report.text()


@pytest.mark.parametrize(
    ("entry", "function", "name"),
    [
        ("exp", lambda w, x: torch.exp(x @ w) @ w, "exp"),
        ("slice/strided", lambda w, x: (x @ w)[::2] @ w, "slice"),
        ("matmul/broadcast", lambda w, x: (x @ w).view(2, 1, 32, 64) @ (x @ w).view(1, 2, 64, 32), "matmul"),
    ],
)
def test_placement_respects_what_the_target_refuses(entry: str, function: Any, name: str) -> None:
    npu = replace(TARGET.devices[0], refuses=(entry,))
    strict = replace(TARGET, devices=(npu, *TARGET.devices[1:]))
    assert name not in on_host(program(function, torch.randn(64, 64)))
    found = program(function, torch.randn(64, 64), target=strict)
    assert name in on_host(found)
    assert "matmul" in {i.unit for i in found.instrs if i.device == "npu"}


def windows(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Swin's partition into windows, between two products."""
    y = (x @ w).reshape(1, 2, 4, 2, 4, 64).permute(0, 1, 3, 2, 4, 5)
    return y.reshape(64, 64) @ w


def test_axes_that_stay_neighbours_are_joined() -> None:
    """openvino#37265: of six axes two are one, and one has size 1."""
    found = program(windows, torch.randn(64, 64))
    assert not on_host(found)
    assert max(r.type.rank for r in found.vregs if isinstance(r.type, TensorType)) == 4


def test_windows_are_accepted(npu: Compiler) -> None:
    assert check(program(windows, torch.randn(64, 64)), TARGET, npu).accepted


def test_grouped_attention_is_accepted(npu: Compiler) -> None:
    shapes = [(1, 14, 128, 64), (1, 2, 128, 64), (1, 2, 128, 64)]

    def attend(w: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()
        k, v = k.repeat_interleave(7, 1), v.repeat_interleave(7, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask) @ w

    found = program(attend, *(torch.randn(s) for s in shapes))
    assert not on_host(found)
    assert check(found, TARGET, npu).accepted


def test_the_placement_says_why() -> None:
    found = program(*PLACED["six axes"][:1], *PLACED["six axes"][1])
    instr = next(i for i in found.instrs if i.op is not None and i.op.name == "permute")
    types = [found.vregs[r].type for r in instr.reads]
    _, _, reason = prefer(instr.op, TARGET, types, [found.vregs[d].type for d in instr.dsts])  # type: ignore[arg-type]
    assert reason == "npu has at most 5 axes, not 6"


def test_a_size_that_is_not_known() -> None:
    """openvino#34617 and its like: no hint which input is meant. Here: op, size, and what to do."""
    dim = torch.export.Dim("tokens", min=2, max=64)
    module = Call(lambda w, x: x @ w).eval()
    made = capture(module, (torch.randn(8, 64),), None, {"args": ({0: dim},)})
    with pytest.raises(LowerError, match="unknown size") as caught:
        lower(made, TARGET)
    assert "max_size" in caught.value.remedy


def test_a_prompt_above_the_limit() -> None:
    """openvino.genai#3255: garbled text in place of an error."""
    compiled = forge_eq.compile(Call(lambda w, x: x @ w).eval(), (torch.randn(8, 64),), target="torch")
    with pytest.raises(InputError, match="64"):
        compiled(torch.randn(9, 64))


def test_names_are_unique_however_often_a_module_is_called() -> None:
    """cascadia#37, NoLlama#20: StopLocationVerifier finds duplicated names."""

    def often(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.nn.functional.gelu(x @ w)
        return x

    found = program(often, torch.randn(16, 64))
    for segment in npu_segments(found, TARGET):
        built = segment_model(found, segment)
        assert built is not None
        names = [n.get_friendly_name() for n in built.model.get_ordered_ops()]
        assert len(set(names)) == len(names)


def test_a_compile_without_end_is_given_up(tmp_path: Path) -> None:
    """npu_compiler#143, openvino#35810, onnxruntime#26643: minutes to hours without a word."""
    import openvino as ov

    script = tmp_path / "server.py"
    script.write_text("import sys, time\nprint('@ready', flush=True)\nsys.stdin.readline()\ntime.sleep(600)\n")
    with Compiler(Provider("native", (sys.executable, str(script))), device="CPU", limit=0.2) as compiler:
        x = parameter(ov, [1, 64])
        answer = compiler.compile(graph(ov, ov.opset16.relu(x), x))
    assert isinstance(answer, Refused)
    assert answer.stage == "limit"
    assert "too long" in diagnose(answer).reason


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """openvino#36374: a raw dlopen error."""
    monkeypatch.setenv("FORGE_EQ_NPU", str(tmp_path))
    if native() is not None:
        pytest.skip("this openvino has the compiler")
    with pytest.raises(NpuError) as caught:
        provider()
    assert isinstance(caught.value, ForgeError)
    assert caught.value.remedy == "run: forge-eq npu setup"
