"""Intel's NPU compiler: the trace, the report, diagnoses, providers; with the compiler itself where it is set up."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_eq.errors import NpuError
from forge_eq.npu import parts, setup
from forge_eq.npu.check import Report, check, judge
from forge_eq.npu.compiler import Compiled, Compiler, Provider, Refused, native, provider
from forge_eq.npu.diagnose import diagnose
from forge_eq.npu.kept import as_json, simulation_of
from forge_eq.npu.picture import chrome_trace, lane_name, ticks, timeline
from forge_eq.npu.segments import instruction, npu_segments, segment_model
from forge_eq.npu.trace import parse
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.openvino_npu import NpuBuilder
from forge_eq.targets import load

SERVER = Provider("native", (sys.executable, "-m", "forge_eq.npu.server"))


def _event(name: str, kind: str, lane: int, start: float, length: float) -> dict[str, Any]:
    return {"name": name, "cat": kind, "ph": "X", "ts": start, "dur": length, "pid": 0, "tid": lane, "args": {}}


def trace(status: str = "SIM") -> str:
    """10 us: a copy, a product under it, a kernel without a price, and a gap of 1 us."""
    names = {0: "DMA 0", 1: "DPU", 2: "Shave", 3: "DPU Variants"}
    events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "NPU"}}]
    events += [{"name": "thread_name", "ph": "M", "pid": 0, "tid": n, "args": {"name": x}} for n, x in names.items()]
    events += [
        _event("npu.matmul.linear v4.0?t_MatMul/a", "DMA", 0, 0.0, 4.0),
        _event("npu.matmul.linear v4.0?t_MatMul/b", "DPU", 1, 2.0, 4.0),
        _event("npu.matmul.linear v4.0?t_MatMul/b", "DPU", 3, 2.0, 4.0),
        _event("npu.norm.rms_norm v5.2?t_RMS/a", "DMA", 0, 5.0, 4.0),
        _event("npu.norm.rms_norm v5.2?t_RMS/b", "Shave", 2, 9.0, 0.0),
    ]
    events.append({**_event("npu.matmul.linear v4.0", "Layer", 0, 0.0, 6.0), "args": {"Layer type": "MatMul"}})
    totals = {"total duration": 10.0, "DMA duration": 8.0, "DPU duration": 4.0, "SW duration": 0.0, "total idle": 1.0}
    return json.dumps(
        {"traceEvents": events, "taskStatistics": totals, "workpoint": {"freq": 1850.0, "status": status}}
    )


def test_trace_is_divided_among_layers() -> None:
    s = parse(trace())
    assert (s.total, s.dma, s.dpu, s.shave, s.idle, s.mhz) == (10.0, 8.0, 4.0, 0.0, 1.0, 1850.0)
    product, norm = s.layers
    assert (product.name, product.kind) == ("npu.matmul.linear v4.0", "MatMul")
    assert (product.share, norm.share) == (5.5, 3.5)  # from 5 to 6 both are at work
    assert product.share + norm.share + s.idle == s.total
    assert (product.dma, product.dpu) == (4.0, 4.0)  # the lane of variants shows the same work again
    assert [x.name for x in s.unknown] == ["npu.norm.rms_norm v5.2"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": []}', trace("MEASURED")])
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(NpuError):
        parse(text)


def test_pictures() -> None:
    s = parse(trace())
    drawn = timeline(s, "a <b>")
    assert drawn == timeline(s, "a <b>")
    assert "a &lt;b&gt;" in drawn
    assert drawn.count("<title>") == 3  # what has no length is not drawn
    events = json.loads(chrome_trace(s, "x"))["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(s.tasks)


@pytest.mark.parametrize(
    ("total", "last", "count"),
    [(1216.9, 1200.0, 7), (21.2, 20.0, 5), (0.5, 0.5, 11), (99.0, 90.0, 10), (100.0, 100.0, 11)],
)
def test_the_axis_has_round_numbers(total: float, last: float, count: int) -> None:
    found = ticks(total)
    assert found[0] == 0.0
    assert found[-1] == pytest.approx(last)
    assert len(found) == count


def test_lanes_are_named_once() -> None:
    assert lane_name("DMA DMA 0 CMX 2") == "DMA 0 CMX"
    assert lane_name("Cluster (1) DPU 8") == "Cluster 1 DPU"
    assert lane_name("Cluster (1) Shave 10") == "Cluster 1 SHAVE 10"


def test_answers_are_kept_and_read_back() -> None:
    answer = Compiled(1.5, 10, "abc", parse(trace()), "log")
    table = json.loads(json.dumps(as_json(answer)))
    back = Compiled(**{**table, "simulation": simulation_of(table["simulation"])})
    assert back == replace(answer, simulation=replace(answer.simulation, tasks=()))


# ------------------------------------------------------------------------------------------ programs


class Mlp(torch.nn.Module):
    """Wide enough that it pays on the NPU."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.nn.functional.gelu(self.up(x)))
        return y


def program(module: torch.nn.Module | None = None, *args: torch.Tensor) -> Any:
    torch.manual_seed(0)
    target = replace(load("intel-npu-4000"), transfer_us=0.0, transfer_gbps=1e9)
    job = Job(Options(target="intel-npu-4000"), source=((module or Mlp()).eval(), args or (torch.randn(1, 128, 256),)))
    from forge_eq.capture import capture
    from forge_eq.lower.select import lower
    from forge_eq.schedule.plan import schedule

    job.forms["capture"] = capture(*job.source)
    run(job, "extract")
    return schedule(lower(job["extract"], target), target).program, target


def test_names_lead_back_to_instructions() -> None:
    made, target = program()
    (segment,) = npu_segments(made, target)
    built = segment_model(made, segment)
    assert built is not None
    names = [n.get_friendly_name() for n in built.model.get_ordered_ops()]
    assert len(set(names)) == len(names)
    found = {instruction(made, n) for n in names} - {None}
    assert found == {i for i in made.instrs if not i.is_copy}
    assert instruction(made, "elsewhere") is None


def test_a_refusal_names_op_and_line() -> None:
    made, _ = program()
    dst = next(i.dsts[0] for i in made.instrs if i.op is not None and i.op.name == "linear_bias_act")
    log = f"""[WARNING] 21:00:00.000 [x] harmless
[ERROR] 21:00:00.001 [vpux-compiler] Got Diagnostic at loc(fused<{{name = "npu.matmul.linear_bias_act v{dst}.2"}}>) :
error: failed to legalize operation 'IE.Gelu'"""
    found = diagnose(Refused("compile", "Compilation failed", log), made)
    assert found.op == "linear_bias_act"
    assert "test_npu_compiler.py" in found.where
    assert "no instruction" in found.reason
    assert "legalize" in found.first
    report = Report(made, "4000", (judge(made, made.segments[0], Refused("compile", "x", log)),), ())
    assert not report.accepted
    assert "linear_bias_act" in report.text()


# ------------------------------------------------------------------------------------------ providers


def test_without_a_compiler_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FORGE_EQ_NPU", str(tmp_path))
    if native() is None:
        with pytest.raises(NpuError, match="forge-eq npu setup"):
            provider()
    assert "nothing is installed" in setup.faults(tmp_path)[0]


def test_removal_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "npu"
    (folder / "bin").mkdir(parents=True)
    manifest = {"wheel": parts.WHEEL_SHA256, "files": {}, "bridge_source": "", "packages": ["wine64"]}
    (folder / parts.MANIFEST).write_text(json.dumps(manifest))
    monkeypatch.setenv("FORGE_EQ_NPU", str(folder))
    told: list[str] = []
    setup.remove(told.append)
    assert not folder.exists()
    assert any("wine64" in line and "--system" in line for line in told)
    setup.remove(told.append)
    assert "nothing to remove" in told[-1]


def test_a_wheel_with_another_hash_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / parts.WHEEL).write_bytes(b"something else")
    with pytest.raises(NpuError, match="its hash is"):
        setup._libraries(tmp_path, print)
    assert not any(tmp_path.iterdir())


def small_model() -> Any:
    made, target = program()
    built = segment_model(made, next(npu_segments(made, target)))
    assert built is not None
    return built


def test_the_protocol_over_openvinos_own_cpu_plugin() -> None:
    """The same client and protocol as for the NPU, on a device that every openvino has."""
    built = small_model()
    with Compiler(SERVER, device="CPU") as compiler:
        first = compiler.compile(built.model)
        assert isinstance(first, Compiled)
        assert first.blob > 0
        refused = compiler.compile(built.model, FOO="1")
        assert isinstance(refused, Refused)
        assert "FOO" in refused.message
        assert "\n" in refused.message  # a message of several lines arrives whole
        assert compiler.describe("FULL_DEVICE_NAME")
        with pytest.raises(NpuError):
            compiler.describe("NO_SUCH_PROPERTY")
        assert isinstance(compiler.compile(built.model), Compiled)
    with pytest.raises(NpuError, match="platform"):
        compiler.compile(built.model, "1234")


def test_a_crash_ends_neither_us_nor_the_next_request(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text("import sys\nprint('@ready', flush=True)\nsys.stdin.readline()\nprint('LLVM ERROR: no')\n")
    with Compiler(Provider("native", (sys.executable, str(script))), device="CPU") as compiler:
        for _ in range(2):
            answer = compiler.compile(small_model().model)
            assert isinstance(answer, Refused)
            assert answer.stage == "crash"
            assert "crashed" in diagnose(answer).reason


# ------------------------------------------------------------------------------------------ the compiler itself


def test_a_program_is_accepted_and_timed(npu: Compiler) -> None:
    made, target = program()
    report = check(made, target, npu)
    assert report.accepted
    (checked,) = report.segments
    answer = checked.answer
    assert isinstance(answer, Compiled)
    assert answer.simulation is not None
    assert sum(s.share for s in checked.spent) + answer.simulation.idle == pytest.approx(report.total, abs=0.05)
    ops = {s.instr.op.name for s in checked.spent if s.instr is not None and s.instr.op is not None}
    assert {"linear_bias", "linear_bias_act"} <= ops
    again = npu.compile(small_model().model)
    assert isinstance(again, Compiled)
    assert (again.sha256, again.simulation) == (answer.sha256, answer.simulation)  # deterministic
    assert "simulated by Intel" in report.text()


# ------------------------------------------------------------------------------------------ forms for the NPU


TRIL = torch.ones(6, 6, dtype=torch.bool).tril()
MASKS = {
    "rows": TRIL,
    "bias": torch.zeros(1, 1, 6, 6).masked_fill(~TRIL, float("-inf")),
    "keys": torch.tensor([[[[True, True, False, True, True, False]]]]),
    "bias of each head": torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(7)),
    "keys of each head": torch.randn(1, 4, 1, 6, generator=torch.Generator().manual_seed(8)) > -1,
}


class Attend(torch.nn.Module):
    """Four query heads on two, or on four."""

    def __init__(self, mask: torch.Tensor | None = None, causal: bool = False) -> None:
        super().__init__()
        self.mask, self.causal = mask, causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        function = torch.nn.functional.scaled_dot_product_attention
        return function(q, k, v, mask[0] if mask else self.mask, is_causal=self.causal, enable_gqa=True)


def as_the_npu_gets_it(made: Any, target: Any, inputs: list[torch.Tensor], fused: bool = False) -> None:
    """The models for the NPU, run by OpenVINO's CPU plugin in f32, against the program by torch."""
    import openvino as ov

    from forge_eq.run.openvino_builder import PRECISION
    from forge_eq.run.values import evaluate

    values = evaluate(made, [x.clone() for x in inputs])
    segments = list(npu_segments(made, target))
    assert segments
    for segment in segments:
        built = segment_model(made, segment, partial(NpuBuilder, fused))
        assert built is not None
        kinds = [n.get_type_name() for n in built.model.get_ordered_ops()]
        assert ("ScaledDotProductAttention" in kinds) == fused
        found = ov.Core().compile_model(built.model, "CPU", PRECISION)([values[r].numpy() for r in built.reads])
        for port, register in enumerate(built.writes):
            torch.testing.assert_close(torch.from_numpy(found[port]), values[register], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize(("mask", "given"), [("none", False), ("causal", False), *itertools.product(MASKS, (0, 1))])
def test_the_npus_attention_computes_the_same(mask: str, given: bool, heads: int, fused: bool) -> None:
    """The mask a constant, or an argument."""
    table = MASKS.get(mask)
    shapes = [(1, 4, 6, 8), (1, heads, 6, 8), (1, heads, 6, 8)]
    inputs = [torch.randn(s, generator=torch.Generator().manual_seed(n)) for n, s in enumerate(shapes)]
    inputs += [table] if given and table is not None else []
    made, target = program(Attend(None if given else table, causal=mask == "causal"), *inputs)
    as_the_npu_gets_it(made, target, inputs, fused)


def test_the_npus_step_over_a_cache_computes_the_same() -> None:
    from forge_eq.cached import CachedLogits, causal
    from forge_eq.families import build

    module = CachedLogits(causal(build("llama-3.2-1b", 1, tiny=True)), 8).eval()
    inputs = list(module.example(1))
    made, target = program(module, *inputs)
    assert any(i.op is not None and i.op.name.startswith("attention_parts") for i in made.instrs if i.device == "npu")
    as_the_npu_gets_it(made, target, inputs)


@pytest.mark.parametrize("heads", [2, 4])
def test_3720_rotates_the_same(heads: int) -> None:
    """Two heads before the permutation, more behind it."""
    import openvino as ov

    from forge_eq.run.openvino_npu import Npu3720Builder, builder_of

    shapes = [(1, 5, heads, 8), (1, 1, 5, 8), (5, 8)]
    given = [torch.randn(s, generator=torch.Generator().manual_seed(n)).numpy() for n, s in enumerate(shapes)]
    found, order = [], []
    for platform in ("3720", "4000"):
        g = builder_of(platform)()
        inputs = [g.opset.parameter(list(x.shape), ov.Type.f32) for x in given]
        with g.instruction("a"):
            made = g.rope(g.transpose(inputs[0], g.i64([0, 2, 1, 3])), *inputs[1:])
        model = ov.Model([g.opset.result(made)], inputs, "m")
        kinds = [n.get_type_name() for n in model.get_ordered_ops()]
        order.append(kinds.index("Transpose") > kinds.index("Multiply"))
        found.append(ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0])
    assert (found[0] == found[1]).all()
    assert order == [heads == 2, False]
    assert builder_of("3720") is Npu3720Builder
