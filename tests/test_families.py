"""The families: every layer of every architecture recognised, nothing opaque, tied weights one leaf, results right.

The fast tier has every architecture at small sizes; the slow one the published sizes without weights.
"""

from __future__ import annotations

import functools
import resource
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import torch

import forge_eq
from forge_eq import models
from forge_eq.alloc.linear_scan import allocate
from forge_eq.capture import capture
from forge_eq.errors import InputError
from forge_eq.families import FAMILIES, PAPER, build, layers_of
from forge_eq.ops.convolution import conv, conv_bias
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.report.match import calls
from forge_eq.run.differential import float64_outputs
from forge_eq.run.probes import probes
from forge_eq.targets import load
from forge_eq.verify.criterion import compare
from layer_patterns import family, faults

pytest.importorskip("transformers", reason="the models are those of transformers")

EXPORTS = [(n, a) for n in FAMILIES for a in ("sdpa", "eager") if (n, a) != ("resnet-50", "eager")]

# One of each kind in the fast tier: grouped queries, short convolutions, convolutions. The slow tier has the others.
QUICK = {("llama-3.2-1b", "sdpa"), ("lfm2-2.6b", "eager"), ("resnet-50", "sdpa")}


def exports(chosen: Iterable[tuple[str, str]]) -> list[Any]:
    return [pytest.param(*e, marks=() if e in QUICK else pytest.mark.slow) for e in chosen]


def names() -> list[Any]:
    quick = {name for name, _ in QUICK}
    return [pytest.param(n, marks=() if n in quick else pytest.mark.slow) for n in FAMILIES]


@functools.cache
def job(name: str, attention: str, target: str = "openvino-cpu") -> Job:
    model = build(name, 16, attention, tiny=True)
    return run(Job(Options(check=True, target=target), (model.module, model.args, None, None)))


def opaque_calls(done: Job) -> list[str]:
    return [str(n.attrs[0]) for n in done["extract"].live().nodes if n.op.name.startswith("opaque")]


@pytest.mark.parametrize(("name", "attention"), exports(EXPORTS))
def test_every_layer_is_recognised_and_nothing_is_opaque(name: str, attention: str) -> None:
    done = job(name, attention)
    assert done["saturate"].saturation.stop == "saturated"
    assert not faults(done["extract"], family(name, tiny=True))
    assert not opaque_calls(done)
    assert len(calls(done["extract"])) < len(calls(done["capture"]))


@pytest.mark.parametrize("name", names())
def test_the_captured_layers_are_not_as_expected_already(name: str) -> None:
    attention = "sdpa" if name == "resnet-50" else "eager"  # a captured sdpa call is attention already
    assert faults(job(name, attention)["capture"], family(name, tiny=True))


@pytest.mark.parametrize(("name", "attention"), exports([*((n, "sdpa") for n in FAMILIES), ("gemma3-1b", "eager")]))
def test_the_compiled_program_is_as_good_as_torch(name: str, attention: str) -> None:
    pytest.importorskip("openvino", reason="segments run on OpenVINO")
    model = build(name, 16, attention, tiny=True)
    program = forge_eq.compile(model.module, model.args, threads=1)
    assert {r.kind for r in program.remarks} == {"passed"}
    for _, inputs in probes(model.args, seed=7):
        with torch.no_grad():
            want, got = model.module(*inputs), program(*inputs)
        verdict = compare([got], [want], lambda inputs=inputs: float64_outputs(program.captured, inputs))
        assert verdict, verdict.reason


@pytest.mark.parametrize("name", names())
def test_tied_weights_are_one_leaf(name: str) -> None:
    model = build(name, 16, tiny=True)
    weights = {p.data_ptr() for p in model.module.parameters()}
    held = [t.untyped_storage().data_ptr() for t in capture(model.module, model.args).constants.values()]
    assert len(set(held)) == len(held)
    assert len(weights & set(held)) == len(weights)


def test_some_families_tie_and_some_do_not() -> None:
    """The test above sees both."""
    tied = {n: len(dict(build(n, 16, tiny=True).module.named_parameters(remove_duplicate=False))) for n in PAPER}
    once = {n: len(list(build(n, 16, tiny=True).module.parameters())) for n in PAPER}
    assert {n for n in PAPER if tied[n] > once[n]} == set(PAPER) - {"llama-3.1-8b"}


def test_short_convolutions_are_causal_and_norms_are_in_the_weights() -> None:
    found = [n for n in job("lfm2-2.6b", "sdpa")["extract"].live().nodes if n.op is conv]
    assert [n.attrs[1:3] for n in found] == [((2,), (0,))]
    made = [n.op for n in job("resnet-50", "sdpa")["extract"].live().nodes if n.op in (conv, conv_bias)]
    assert made == [conv_bias] * 9


@pytest.mark.parametrize("name", names())
def test_the_restricted_npu_needs_no_more_transitions_than_any_order(name: str) -> None:
    done = job(name, "sdpa", "restricted-npu")
    figures = done["schedule"].figures
    assert figures.transitions_least <= figures.transitions <= figures.transitions_before
    assert figures.transitions == figures.transitions_least or figures.transitions <= 0.58 * figures.transitions_before


def test_the_restricted_npu_lacks_units() -> None:
    npu = load("restricted-npu").device("npu")
    assert {"attention", "norm", "vector", "gather"}.isdisjoint(npu.units)
    assert not npu.gathers


@pytest.mark.parametrize("name", names())
def test_storage_is_near_its_bound(name: str) -> None:
    done = job(name, "sdpa")
    made = allocate(done["schedule"].program, done.target, "instr")
    assert 0 < made.bound <= made.peak <= 1.05 * made.bound
    assert made.physical < made.virtual


def test_truncation_is_named() -> None:
    model = build("llama-3.1-8b", layers=1, vocabulary=50, tiny=True)
    assert model.name == "llama-3.1-8b-tiny (1 of 2 layers, 50 of 97 tokens)"
    assert model.module(*model.args).shape == (1, 128, 50)
    assert build("gpt2-124m", tiny=True).name == "gpt2-124m-tiny"


@pytest.mark.parametrize(("name", "layers"), [("llama-3.2-1b", 3), ("llama-3.2-1b", 0), ("resnet-50", 1)])
def test_more_layers_than_there_are_is_refused(name: str, layers: int) -> None:
    with pytest.raises(InputError, match="cannot have"):
        build(name, tiny=True, layers=layers)


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(InputError, match="gpt2-124m"):
        build("gpt5")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("gpt2-124m-tiny", "gpt2-124m-tiny"),
        ("gemma3-1b-tiny:1", "gemma3-1b-tiny (1 of 2 layers)"),
        ("resnet-50-tiny", "resnet-50-tiny"),
    ],
)
def test_families_are_models_by_name(spec: str, name: str) -> None:
    model = models.load(spec)
    assert model.name == name
    assert torch.equal(model.module(*model.args), models.load(spec).module(*model.args))


def test_a_family_has_a_length_and_a_depth() -> None:
    assert models.load("llama-3.2-1b-tiny", tokens=5).args[0].shape == (1, 5)
    for wrong, words in (("llama-3.2-1b-tiny:x", "no number of layers"), ("llama-3.2-1b-tiny:3", "cannot have 3")):
        with pytest.raises(InputError, match=words):
            models.load(wrong)
    with pytest.raises(InputError, match="gemma3-1b"):
        models.load("llama-9")


# ------------------------------------------------------------------------------------------ the published sizes

MILLIONS = {  # parameters of the published models, tied weights once
    "gpt2-124m": 124.4,
    "granite-350m": 352,
    "qwen2-0.5b": 494,
    "llama-3.2-1b": 1236,
    "lfm2-2.6b": 2570,
    "llama-3.1-8b": 8030,
    "bert-base": 108.9,  # without the pooler
    "qwen3-0.6b": 596,
    "gemma3-1b": 1000,
    "phi3-mini": 3821,
    "vit-small": 21.7,
    "whisper-base": 20.6,  # the encoder with its fixed positions
    "resnet-50": 25.56,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_published_size_without_weights(name: str) -> None:
    with torch.device("meta"):
        model = build(name, meta=True)
        millions = sum(p.numel() for p in model.module.parameters()) / 1e6
        graph = capture(model.module, model.args)
    assert millions == pytest.approx(MILLIONS[name], rel=0.01)
    done = run(Job(Options(check=True), forms={"capture": graph}))
    assert done["saturate"].saturation.stop == "saturated"
    assert not faults(done["extract"], family(name))
    assert not opaque_calls(done)
    assert all(t.is_meta for t in done["extract"].constants.values())
    if sys.platform == "linux":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2 << 20  # KiB
    assert layers_of(name) == family(name).layers
