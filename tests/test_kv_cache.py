"""Caches of keys and values: recognised, written in place, checked, and never read where nothing is in use."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from cached_models import growing_step
from forge_eq import models, targets
from forge_eq.alloc import checker as alloc_checker
from forge_eq.alloc.linear_scan import allocate
from forge_eq.cached import CachedLogits
from forge_eq.capture.execute import run_graph
from forge_eq.errors import CheckError, RunError
from forge_eq.lower.check import check
from forge_eq.lower.npu import Program
from forge_eq.lower.select import lower
from forge_eq.lower.text import parse, text
from forge_eq.ops.cache import attention_parts_bias, attention_parts_mask, write_rows
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.differential import float64_outputs
from forge_eq.run.executor import Executable, torch_executable
from forge_eq.run.guard import guard
from forge_eq.schedule.plan import schedule
from forge_eq.verify.criterion import compare
from layer_patterns import faults, gpt2, llama

pytest.importorskip("transformers", reason="the models are those of transformers")

ROWS = 12
TINY = {"gpt2-tiny": gpt2(2), "llama-tiny": llama(2)}
# No price on crossing to the host, so that models this small run on OpenVINO at all.
TARGET = replace(targets.load("openvino-cpu"), transfer_us=1e-3, transfer_gbps=1e6)


@functools.cache
def module_of(name: str, attention: str = "sdpa") -> CachedLogits:
    return CachedLogits(models.BUILT_IN[name](attention=attention).module.model, ROWS).eval()


@functools.cache
def job(name: str, attention: str = "sdpa", tokens: int = 1) -> Job:
    module = module_of(name, attention)
    return run(Job(Options(check=True), (module, module.example(tokens), None, None)))


def program_of(name: str = "llama-tiny", tokens: int = 1) -> Program:
    return schedule(lower(job(name, tokens=tokens)["extract"], TARGET), TARGET).program


def inputs_at(name: str, past: int, tokens: int = 1, seed: int = 0) -> list[torch.Tensor]:
    ids, _, row, *cache = module_of(name).example(tokens)
    generator = torch.Generator().manual_seed(seed)
    return [ids, torch.tensor(past), row, *(torch.randn(c.shape, generator=generator) for c in cache)]


# ------------------------------------------------------------------------------------------ recognition


def check_layers(name: str, attention: str, tokens: int) -> None:
    """Attention reads the old cache and the new rows apart, so that only the caller needs the written cache."""
    graph, due = job(name, attention, tokens)["extract"], TINY[name]
    assert not faults(graph, due)
    parts = [n for n in graph.nodes if n.op in (attention_parts_mask, attention_parts_bias)]
    writes = [n.id for n in graph.nodes if n.op is write_rows]
    assert len(parts) == due.layers
    assert len(writes) == 2 * due.layers
    assert not any(set(n.inputs) & set(writes) for n in graph.nodes)
    assert all(graph.nodes[n.inputs[1]].op.leaf == "input" for n in parts)  # grouped heads are not repeated


@pytest.mark.parametrize(("name", "attention", "tokens"), [("llama-tiny", "sdpa", 1)])
def test_attention_is_recognised_in_every_layer(name: str, attention: str, tokens: int) -> None:
    check_layers(name, attention, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", TINY)
def test_attention_is_recognised_in_every_spelling(name: str, attention: str, tokens: int) -> None:
    check_layers(name, attention, tokens)


# ------------------------------------------------------------------------------------------ the program


def test_the_cache_is_written_in_place() -> None:
    program = program_of()
    check(program, TARGET, scheduled=True)
    assert sorted(program.state) == sorted(program.inputs[3:])
    assert sum(program.in_place(i) for i in program.instrs) == len(program.state)
    assert not any(i.is_copy and program.root(i.reads[0]) in program.state for i in program.instrs)
    allocation = allocate(program, TARGET, "segment")
    alloc_checker.check(program, TARGET, allocation)
    assert not any(allocation.slot(program, v) for v in program.state)


def test_the_text_says_what_is_written_where() -> None:
    program = program_of()
    shown = text(program)
    assert parse(shown) == program
    assert text(parse(shown)) == shown
    state = program.inputs[3]
    assert f"~v{state} = cpu.torch.write_rows v{state}, " in shown
    assert f" -> v{state}" in shown.splitlines()[-1]


def hurried(program: Program) -> Program:
    """The same program with its first write before all who read the old rows."""
    at = next(p for p, i in enumerate(program.instrs) if program.in_place(i))
    readers = [p for p, i in enumerate(program.instrs[:at]) if program.instrs[at].reads[0] in i.reads]
    order = [*range(readers[0]), at, *(p for p in range(readers[0], len(program.instrs)) if p != at)]
    return replace(program, instrs=tuple(program.instrs[p] for p in order))


def test_checkers_refuse_a_write_before_a_read() -> None:
    program = hurried(program_of())
    with pytest.raises(CheckError, match=r"after it was written over|before its definition"):
        check(program, TARGET, scheduled=True)
    plain = replace(TARGET, devices=tuple(d for d in TARGET.devices if d.name == TARGET.host))
    alone = hurried(schedule(lower(job("llama-tiny")["extract"], plain), plain).program)
    with pytest.raises(CheckError, match=r"was overwritten by"):
        alloc_checker.check(alone, plain, allocate(alone, plain, "instr"))


def test_checkers_refuse_a_write_that_nobody_asked_for() -> None:
    program = program_of()
    with pytest.raises(CheckError, match="no argument that the program writes back"):
        check(replace(program, writes=program.writes[1:]), TARGET, scheduled=True)
    crossed = (program.writes[0][0], program.writes[1][1])
    with pytest.raises(CheckError, match="no argument that the program writes back"):
        check(replace(program, writes=(crossed, *program.writes[2:])), TARGET, scheduled=True)


# ------------------------------------------------------------------------------------------ execution


@pytest.fixture(scope="module", params=["openvino", "torch"])
def executable(request: pytest.FixtureRequest) -> Executable:
    program = program_of()
    made = Executable(program, TARGET, (), 1) if request.param == "openvino" else torch_executable(program, TARGET)
    assert bool(made.models) == (request.param == "openvino")
    return made


@pytest.mark.parametrize("past", [0, 5, ROWS - 1])
def test_a_step_writes_its_row_and_nothing_else(executable: Executable, past: int) -> None:
    given = inputs_at("llama-tiny", past)
    before, places = [v.clone() for v in given], [v.data_ptr() for v in given]
    want = run_graph(job("llama-tiny")["capture"], [v.clone() for v in given])
    found = executable(given)
    assert compare(found, want)
    assert [v.data_ptr() for v in given] == places
    assert all(f is g for f, g in zip(found[1:], given[3:], strict=True))  # no copy stands between
    others = [r for r in range(ROWS) if r != past]
    for now, then in zip(given[3:], before[3:], strict=True):
        assert torch.equal(now[:, :, others], then[:, :, others])
        assert not torch.equal(now[:, :, past], then[:, :, past])


def test_rows_that_are_not_in_use_are_never_looked_at(executable: Executable) -> None:
    clean, poisoned = inputs_at("llama-tiny", 4), inputs_at("llama-tiny", 4)
    for cache in poisoned[3:]:
        cache[:, :, 4:] = 1e4
    assert torch.equal(executable(clean)[0], executable(poisoned)[0])
    poisoned[3][:, :, 3] = 1e4  # a row in use does matter
    assert not torch.equal(executable(clean)[0], executable(poisoned)[0])


def test_a_row_outside_the_cache_is_an_error(executable: Executable) -> None:
    with pytest.raises(RunError, match="torch refuses it"):
        executable(inputs_at("llama-tiny", ROWS))


def test_another_cache_may_come_with_each_call(executable: Executable) -> None:
    """Also one that is not dense, which is written through a copy."""
    for seed in range(3):
        given = inputs_at("llama-tiny", 6, seed=seed)
        want = run_graph(job("llama-tiny")["capture"], [v.clone() for v in given])
        given = [v.transpose(-1, -2).contiguous().transpose(-1, -2) if v.dim() == 4 and seed == 2 else v for v in given]
        assert compare(executable(given), want)
        assert compare(given[3:], want[1:])


def test_the_guard_looks_at_the_cache() -> None:
    """A program that writes keys where values are due gives the right logits, this time."""
    program, captured = program_of(), job("llama-tiny")["capture"]
    keys, values = [i for i in program.instrs if program.in_place(i)][:2]
    wrong = replace(values, srcs=(values.srcs[0], values.srcs[1], keys.srcs[2]))
    broken = replace(program, instrs=tuple(wrong if i is values else i for i in program.instrs))
    given = inputs_at("llama-tiny", 5)
    with pytest.raises(RunError, match="output 2"):
        guard(broken, TARGET, lambda inputs: run_graph(captured, inputs), given, threads=1)
    asked = [v.clone() for v in given]
    assert not guard(program, TARGET, lambda inputs: run_graph(captured, inputs), asked, threads=1).pins
    assert all(torch.equal(a, b) for a, b in zip(asked, given, strict=True))  # examples are not written


# ------------------------------------------------------------------------------------------ other programs


class Counter(nn.Module):
    """A buffer as the cache, and how much of it is in use as another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 6, 4))
        self.register_buffer("used", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows.index_copy_(1, self.used, x)
        self.used.add_(1)
        return self.rows * 2.0


class LooksBack(nn.Module):
    """What is read of the old rows depends on the new ones: no order writes in place."""

    def forward(self, rows: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        new = rows.index_copy(0, at, x)
        found = rows * new.sum()
        rows.copy_(new)
        return found


class KeepsOld(nn.Module):
    """The old rows are a result, too."""

    def forward(self, rows: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        old = rows.clone()
        rows.index_copy_(0, at, x)
        return old, rows.exp()


@pytest.mark.parametrize(("kind", "in_place"), [(LooksBack, 0), (KeepsOld, 0)])
def test_what_cannot_be_in_place_is_right(kind: Any, in_place: int) -> None:
    given = [torch.randn(5, 3), torch.tensor([1, 4]), torch.randn(2, 3)]
    program = forge_eq.compile(kind(), tuple(v.clone() for v in given), verify="full", check=True)
    assert len(program.npuir.state) == in_place
    ours, theirs = [v.clone() for v in given], [v.clone() for v in given]
    assert compare(_flat(program(*ours)), _flat(kind()(*theirs)))
    assert compare(ours, theirs)


def _flat(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


def test_buffers_are_written_in_place() -> None:
    ours, theirs = Counter(), Counter()
    program = forge_eq.compile(ours, (torch.randn(1, 1, 4),), check=True)
    assert len(program.npuir.state) == 1
    place = ours.rows.data_ptr()
    for step in range(4):
        x = torch.randn(1, 1, 4, generator=torch.Generator().manual_seed(step))
        assert torch.equal(program(x), theirs(x))
    assert ours.rows.data_ptr() == place
    assert torch.equal(ours.rows, theirs.rows)
    assert int(ours.used) == 4


def test_a_saved_step_goes_on(tmp_path: Any) -> None:
    module = module_of("llama-tiny")
    program = forge_eq.compile(module, module.example(1))
    program.save(tmp_path / "step.forge")
    again = forge_eq.load(tmp_path / "step.forge")
    ours, theirs = inputs_at("llama-tiny", 3), inputs_at("llama-tiny", 3)
    assert torch.equal(again(*ours), program(*theirs))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert len(again.npuir.state) == 4


# ------------------------------------------------------------------------------------------ growing caches

GROWING = ("gpt2-124m", "llama-3.2-1b", "qwen2-0.5b", "qwen3-0.6b", "gemma3-1b", "phi3-mini", "lfm2-2.6b")


def check_growing(family: str) -> None:
    """OpenVINO's converter (2026.4) refuses the empty tensors that a DynamicCache starts from; we do not."""
    openvino = pytest.importorskip("openvino")
    module, given = growing_step(family, past=5)
    with torch.no_grad():
        want = module(*(v.clone() for v in given))
    program = forge_eq.compile(module, given, verify="full")
    assert not [r for r in program.remarks if r.kind == "failed"]
    made = Executable(schedule(lower(program.job["extract"], TARGET), TARGET).program, TARGET, (), 1)
    assert made.models, "nothing ran on OpenVINO"
    captured = program.captured
    for found in (program(*given), made(given)):
        assert compare(found, want, lambda: float64_outputs(captured, list(given)))
    exported = torch.export.export(module, given, strict=False)
    with pytest.raises(Exception, match=r"aten\.cat\.default"):
        openvino.convert_model(exported)


@pytest.mark.slow
@pytest.mark.parametrize("family", GROWING)
def test_growing_caches_that_openvino_cannot_convert(family: str) -> None:
    check_growing(family)
