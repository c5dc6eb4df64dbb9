"""Cuts: where a long segment is divided, and that two models give what one gives."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.lower.npu import Program
from forge_eq.lower.text import parse, text
from forge_eq.run import cuts
from forge_eq.run.cuts import cut
from forge_eq.run.executor import OPENVINO, Executable, divided, pin
from forge_eq.run.values import evaluate
from run_programs import TARGET, Attention, Mlp, captured, language, random_inputs, random_program

pytest.importorskip("openvino", reason="the segments are OpenVINO's")


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "HEAVY", 0)
    monkeypatch.setattr(cuts, "LONG", 3)


def passing(program: Program, start: int, position: int, stop: int) -> int:
    """Bytes made in a segment before a position and read in it from there on."""
    made = {program.root(d) for i in program.instrs[start:position] for d in i.dsts}
    made -= {program.root(r) for p, i in enumerate(program.instrs) if p < start for r in i.dsts}
    read = {program.root(r) for i in program.instrs[position:stop] for r in i.reads}
    known = {*program.inputs, *program.constant_names}
    return sum(program.vregs[r].nbytes for r in (made & read) - known)


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_is_the_narrowest_place_near_the_middle(seed: int, everything: None) -> None:
    program = pin(random_program(seed), TARGET, ())
    made = cut(program, TARGET)
    assert text(made) == text(program) == text(parse(text(made)))
    long = [s for s in program.segments if TARGET.device(s.device).kind == OPENVINO and s.stop - s.start >= 3]
    assert len(made.cuts) == len(long)
    assert len(made.segments) == len(program.segments) + len(long)
    for position, segment in zip(made.cuts, long, strict=True):
        middle, around = (segment.start + segment.stop) // 2, (segment.stop - segment.start) // cuts.MIDDLE
        near = range(middle - around, middle + around + 1)
        assert segment.start < position < segment.stop
        assert position in near
        widths = {p: passing(program, segment.start, p, segment.stop) for p in near}
        assert widths[position] == min(widths.values())


@pytest.mark.parametrize("seed", range(12))
def test_two_models_give_what_one_gives(seed: int, everything: None, monkeypatch: pytest.MonkeyPatch) -> None:
    program = random_program(seed)
    inputs = random_inputs(program, random.Random(seed))
    run = Executable(program, TARGET, threads=1)
    with monkeypatch.context() as whole:
        whole.setattr(cuts, "LONG", 1 << 30)
        one = Executable(program, TARGET, threads=1)
    assert len(run.models) >= len(one.models)
    values = evaluate(program, inputs)
    for found in (run(inputs), one(inputs)):
        for a, r in zip(found, program.outputs, strict=True):
            torch.testing.assert_close(a, values[r], rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("model", [Attention(), nn.Sequential(*(Mlp(16) for _ in range(4)))])
def test_a_compiled_program_in_two_models_is_guarded_and_saved(
    model: nn.Module, everything: None, tmp_path: object
) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 3, 16)
    program = forge_eq.compile(model.eval(), (x,), threads=1)
    assert len(program.last.executable.models) > 1
    program.save(f"{tmp_path}/m.forge")
    loaded = forge_eq.load(f"{tmp_path}/m.forge")
    assert torch.equal(loaded(x), program(x))
    torch.testing.assert_close(program(x), model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_light_or_short_program_is_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    program = captured(Mlp(), torch.randn(3, 8))
    assert divided(program, TARGET, ()).cuts == ()
    monkeypatch.setattr(cuts, "HEAVY", 0)
    assert divided(program, TARGET, ()).cuts == ()  # few instructions
    monkeypatch.setattr(cuts, "LONG", 3)
    assert len(divided(program, TARGET, ()).cuts) == 1
    monkeypatch.setattr(cuts, "HEAVY", program.constant_bytes + 1)
    assert divided(program, TARGET, ()).cuts == ()


def test_cuts_are_no_transitions(everything: None) -> None:
    model, inputs = language()
    program = captured(model, *inputs)
    made = divided(program, TARGET, ())
    assert made.cuts
    assert made.transitions == program.transitions
    assert replace(made, cuts=()) == made
