"""Whole models: every layer recognised from both exports, storage near its bound, results as good as PyTorch's.

The fast tier has models of two layers with random weights; the slow one GPT-2 of 124 million parameters, SmolLM2 and
MiniLM with their trained weights.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq import models
from forge_eq.alloc.linear_scan import allocate
from forge_eq.capture import capture
from forge_eq.ir.graph import Graph
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.report.match import calls
from forge_eq.run.differential import float64_outputs
from forge_eq.run.executor import Executable
from forge_eq.run.probes import probes
from forge_eq.verify.criterion import compare
from layer_patterns import Architecture, bert, faults, gpt2, llama, patterns

pytest.importorskip("transformers", reason="the models are those of transformers")

TINY = {"gpt2-tiny": gpt2(2), "llama-tiny": llama(2), "bert-tiny": bert(2)}
LARGE = {"gpt2": gpt2(12), "smollm2": llama(30), "minilm": bert(6)}
ATTENTIONS = ("eager", "sdpa")
BENCH = Path(__file__).resolve().parents[1] / "bench"


@functools.cache
def job(name: str, attention: str) -> Job:
    """The model through all stages, once."""
    model = models.BUILT_IN[name](attention=attention)
    return run(Job(Options(check=True), (model.module, model.args, None, None)))


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=TINY)
def tiny(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ------------------------------------------------------------------------------------------ recognition


def check_layers(name: str, attention: str, due: Architecture) -> None:
    done = job(name, attention)
    assert done["saturate"].saturation.stop == "saturated"
    assert not faults(done["extract"], due)
    assert len(calls(done["extract"])) < 0.8 * len(calls(done["capture"]))


def test_every_layer_is_recognised(tiny: str, attention: str) -> None:
    check_layers(tiny, attention, TINY[tiny])


def test_both_exports_become_nearly_the_same_program(tiny: str) -> None:
    eager, sdpa = (patterns(job(tiny, a)["extract"]) for a in ATTENTIONS)
    assert eager == sdpa
    counts = [len(calls(job(tiny, a)["extract"])) for a in ATTENTIONS]
    assert abs(counts[0] - counts[1]) <= 2


def test_what_was_captured_is_not_recognised_already() -> None:
    """The counts above can fail: before the rules the layers are not as expected."""
    wrong = faults(job("llama-tiny", "eager")["capture"], TINY["llama-tiny"])
    assert any("0 attention" in w for w in wrong)
    assert any("0 norm" in w for w in wrong)
    assert any("repeat, not 0" in w for w in wrong)
    assert faults(job("gpt2-tiny", "eager")["extract"], gpt2(3)) == ["2 layers where 3 are due"]


# ------------------------------------------------------------------------------------------ capture


@contextmanager
def counted_decompositions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the classes whose run_decompositions was called."""
    made: list[str] = []
    real = torch.export.ExportedProgram.run_decompositions

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(type(self).__name__)
        return real(self, *args, **kwargs)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counting)
    yield made


class Counter(nn.Module):
    """Writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1.0)
        return x + self.count


@pytest.mark.slow
def test_nothing_is_decomposed_without_mutation(monkeypatch: pytest.MonkeyPatch, tiny: str, attention: str) -> None:
    model = models.BUILT_IN[tiny](attention=attention)
    with counted_decompositions(monkeypatch) as made:
        capture(model.module, model.args)
        assert not made
        capture(Counter(), (torch.ones(2),))
        assert made, "the count would not notice"


def test_depth_is_captured_and_folded_without_data() -> None:
    sys.path.insert(0, str(BENCH))
    from stages import OWN, capture_gpt2, own_stages

    graph = capture_gpt2(3, 16, vocab_size=97, n_embd=32, n_head=4, n_positions=64)
    assert all(t.is_meta for t in graph.constants.values())
    done = run(Job(Options(), forms={"capture": graph}))
    assert not faults(done["extract"], gpt2(3))
    assert all(t.is_meta for t in done["extract"].constants.values())
    assert set(OWN) < set(own_stages(graph))


# ------------------------------------------------------------------------------------------ storage


def check_storage(name: str, attention: str) -> None:
    done = job(name, attention)
    program = done["schedule"].program
    for granularity in ("instr", "segment"):
        made = allocate(program, done.target, granularity)
        assert 0 < made.bound <= made.peak <= 1.05 * made.bound
        assert made.physical <= made.virtual
    figures = done["schedule"].figures
    assert figures.transitions_least <= figures.transitions <= figures.transitions_before


def test_the_arena_is_near_its_bound(tiny: str, attention: str) -> None:
    check_storage(tiny, attention)
    done = job(tiny, attention)
    assert allocate(done["schedule"].program, done.target, "instr").physical < len(done["schedule"].program.instrs)


def test_what_the_executor_owns_is_what_was_allocated(tiny: str) -> None:
    pytest.importorskip("openvino", reason="segments run on OpenVINO")
    done = job(tiny, "sdpa")
    owned = Executable(done["schedule"].program, done.target).ownership()
    assert owned.arenas == {a.device: a.peak for a in done["alloc"].arenas}
    weights = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in done["extract"].constants.values()}
    assert owned.shared == sum(weights.values())


# ------------------------------------------------------------------------------------------ fidelity


def check_fidelity(program: Any, model: models.Model, captured: Graph) -> None:
    """Other inputs than the program was made with, by the criterion that judges programs everywhere."""
    for _, inputs in probes(model.args, seed=7):
        with torch.no_grad():
            want, got = model.module(*inputs), program(*inputs)
        verdict = compare([got], [want], lambda inputs=inputs: float64_outputs(captured, inputs))
        assert verdict, verdict.reason


def test_the_compiled_program_is_as_good_as_torch(tiny: str, attention: str) -> None:
    pytest.importorskip("openvino", reason="segments run on OpenVINO")
    model = models.BUILT_IN[tiny](attention=attention)
    program = forge_eq.compile(model.module, model.args, threads=1)
    assert not [r for r in program.remarks if r.kind == "failed"]
    check_fidelity(program, model, program.captured)


@pytest.mark.slow
def test_the_optimised_module_is_as_good_as_torch(tiny: str, attention: str) -> None:
    model = models.BUILT_IN[tiny](attention=attention)
    result = forge_eq.optimize(model.module, model.args)
    assert not [r for r in result.remarks if r.kind == "failed"]
    check_fidelity(result.module, model, result.captured)


# ------------------------------------------------------------------------------------------ the real ones


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_every_layer_of_a_real_model(name: str, attention: str) -> None:
    try:
        check_layers(name, attention, LARGE[name])
        check_storage(name, attention)
    finally:
        job.cache_clear()  # half a gigabyte each


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_trained_weights_keep_their_results(name: str, tmp_path: Path) -> None:
    """All criteria of the measurement, on a part of its text."""
    pytest.importorskip("openvino", reason="compared with plain OpenVINO")
    sys.path.insert(0, str(BENCH))
    import fidelity

    arguments = ["--models", name, "--windows", "2", "--sentences", "20", "--out", str(tmp_path)]
    assert fidelity.main(arguments) == 0, (tmp_path / "fidelity.md").read_text()
