"""The comparison with peers: what it counts, how it fails, what it keeps. No figure of time is asserted."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from forge_eq.cli import app
from forge_eq.errors import InputError, RunError
from forge_eq.peers import measure, sheets
from forge_eq.peers.backends import AGAIN, BACKENDS, OURS
from forge_eq.peers.cases import DECODE, PAST, Cell, build, cell, flat, prepare, read
from forge_eq.peers.measure import GIB, Plan, Turn, grouped
from forge_eq.peers.statistics import Interval, interval, ratios, tail
from forge_eq.peers.table import data, from_data, rows
from forge_eq.peers.worker import difference
from forge_eq.report.kept import Kept

TINY = Cell("llama-tiny", "16")


def turn(milliseconds: list[list[float]], **setup: float) -> Turn:
    wall = {"import": 1.0, "capture": 0.0, "convert": 0.0, "build": 1.0, **setup}
    described = {
        "wall": wall,
        "processor": wall,
        "peak": {"import": 100},
        "end to end": {"wall": sum(wall.values()) - wall["import"], "processor": 1.0},
        "difference": 1e-6,
    }
    samples = [[round(v * 1e6) for v in block] for block in milliseconds]
    return Turn(described, samples, samples, peak=1000)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cell") / "tiny.pt"
    assert prepare(TINY, path)["weights"] > 0
    return path


# ------------------------------------------------------------------------------------------ statistics


def test_an_interval_holds_its_median_and_narrows_with_agreement() -> None:
    wide = interval([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    assert wide.low <= wide.middle <= wide.high
    assert wide.low < wide.high
    same = interval([[2.0, 2.0], [2.0]])
    assert same == Interval(2.0, 2.0, 2.0)


def test_that_one_process_is_slower_than_another_is_no_tail() -> None:
    apart = tail([[[1.0] * 50] * 3, [[1.2] * 50] * 3])
    assert (apart.low, apart.middle, apart.high) == (1.0, 1.0, 1.0)
    slow = tail([[[1.0] * 48 + [3.0] * 2] * 3, [[1.2] * 48 + [3.6] * 2] * 3])
    assert slow.middle == pytest.approx(3.0)


def test_a_tail_holds_its_middle_and_is_wide_where_one_block_decides_it() -> None:
    even = tail([[[1.0] * 50 + [2.0]] * 6] * 2)
    one = tail([[[1.0] * 51] * 5 + [[1.0] * 40 + [2.0] * 11]] * 2)
    assert even == Interval(2.0, 2.0, 2.0)
    assert one.low == 1.0
    assert one.middle == one.high == 2.0


def test_rounds_that_disagree_widen_the_interval_more_than_blocks_do() -> None:
    """Six values either way: what differs between processes must not be averaged away."""
    between = interval([[1.0] * 20, [2.0] * 20, [3.0] * 20])
    within = interval([[1.0, 2.0, 3.0] * 7] * 3)
    assert between.high - between.low > within.high - within.low


def test_ratios_pair_the_blocks_of_one_sitting() -> None:
    assert ratios([[4.0, 9.0], [2.0]], [[2.0, 3.0], [1.0]]) == [[2.0, 3.0], [2.0]]


def test_rows_say_how_much_faster_and_what_failed() -> None:
    sitting = {
        OURS: turn([[1.0, 1.0], [2.0, 2.0]], build=1.0),
        "eager": turn([[3.0, 3.0], [6.0, 6.0]]),
        "ONNX Runtime": Turn(failed="ConversionError: no"),
    }
    found = {r.backend: r for r in rows([sitting, sitting], weights=300)}
    assert found["eager"].latency == Interval(3.0, 3.0, 3.0)
    assert found[OURS].latency is None
    assert found[OURS].p50 == pytest.approx(1.5)
    assert found[OURS].memory == 600
    assert found["ONNX Runtime"].failed == "ConversionError: no"


def test_a_ratio_never_spans_sittings() -> None:
    """Ours was slow in one sitting; a peer that only sat in the other is compared with what ran beside it."""
    found = rows([{OURS: turn([[10.0]])}, {OURS: turn([[1.0]]), "eager": turn([[2.0]])}], weights=0)
    assert next(r for r in found if r.backend == "eager").latency == Interval(2.0, 2.0, 2.0)


# ------------------------------------------------------------------------------------------ groups


@pytest.mark.parametrize("memory", [4, 10, 24, 400])
def test_groups_hold_every_backend_once_and_ours_in_each(memory: int) -> None:
    groups = grouped(list(BACKENDS), 2 * GIB, memory * GIB)
    assert all(OURS in g for g in groups)
    peers = [n for g in groups for n in g if n != OURS]
    assert sorted(peers) == sorted(set(BACKENDS) - {OURS})
    assert AGAIN in groups[0]


def test_enough_memory_makes_one_group() -> None:
    assert grouped(list(BACKENDS), GIB, 400 * GIB) == [list(BACKENDS)]


# ------------------------------------------------------------------------------------------ cells


@pytest.mark.parametrize(("model", "case"), [("nothing", "1"), ("gpt2:2", "1"), ("gpt2-124m:x", "1"), ("gpt2", "0")])
def test_a_wrong_cell_says_what_to_use(model: str, case: str) -> None:
    with pytest.raises(InputError, match=r"use|for example"):
        cell(model, case)


def test_a_model_without_a_cache_has_no_decode_step() -> None:
    with pytest.raises(InputError, match="cache"):
        build(Cell("bert-tiny", DECODE))


def test_a_tiny_family_is_a_model_too() -> None:
    one = cell("llama-3.2-1b-tiny:1", "4")
    assert one == Cell("llama-3.2-1b-tiny", "4", 1)
    module, args = build(one)
    assert module.model.config.num_hidden_layers == 1
    assert args[0].shape == (1, 4)


def test_a_decode_step_equals_the_last_position_of_a_prefill() -> None:
    """The step is honest work: the same logits as a whole pass over the past and the new token."""
    step, args = build(Cell("gpt2-tiny", DECODE))
    inner = step.model
    config = inner.config
    tokens = torch.arange(9)[None] % config.vocab_size
    with torch.no_grad():
        past = inner(input_ids=tokens[:, :8], use_cache=True).past_key_values
        given = [t for layer in past.layers for t in (layer.keys, layer.values)]
        found = step(tokens[:, 8:], *given)
        wanted = inner(input_ids=tokens, use_cache=False).logits[:, -1:]
    torch.testing.assert_close(found[0], wanted, rtol=1e-5, atol=1e-6)
    assert found[1].shape[2] == 1
    assert args[1].shape[2] == PAST


def test_what_is_written_is_read_back_with_its_ties(prepared: Path) -> None:
    module, args = read(prepared)
    wanted, ours = build(TINY)
    with torch.no_grad():
        assert torch.equal(module(*args), wanted(*ours))


def test_differences_count_shapes_and_values() -> None:
    a = [torch.zeros(2), torch.ones(2)]
    assert difference(a, a) == 0
    assert difference([torch.zeros(2), torch.full((2,), 1.5)], a) == 0.5
    assert difference(a[:1], a) == float("inf")
    assert difference([torch.zeros(3), torch.ones(2)], a) == float("inf")
    assert flat((a, a[0])) == [a[0], a[1], a[0]]


# ------------------------------------------------------------------------------------------ processes


@pytest.mark.slow
def test_a_sitting_runs_the_backends_and_a_failure_is_a_row(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(threads=1, rounds=1, blocks=2, seconds=0.0, backends=("forge_eq", "eager", "no such backend"))
    told: list[str] = []
    sittings = measure.measure(TINY, plan, 0, prepared, tmp_path, told.append)
    found = {r.backend: r for r in rows(sittings, 0)}
    assert not found["eager"].failed
    assert found["eager"].difference == 0
    assert found[OURS].difference < 1e-4
    assert found[OURS].phases["own"] > 0
    assert "KeyError" in sittings[0]["no such backend"].failed
    assert any("failed" in t for t in told)


def test_a_process_that_dies_is_an_error_with_its_log(tmp_path: Path) -> None:
    worker = measure.Worker("eager", tmp_path / "absent.pt", 1, tmp_path / "log")
    try:
        assert "FileNotFoundError" in worker.answer()["failed"]
        with pytest.raises(RunError, match="its process ended"):
            worker.ask("run 1")
    finally:
        worker.close()


def test_a_kept_cell_reads_back_as_it_was(tmp_path: Path) -> None:
    kept = Kept(tmp_path, {"plan": asdict(Plan(threads=1)), "stamp": {"torch": "1"}})
    made = rows([{OURS: turn([[1.0]]), "eager": turn([[2.0]])}], 0)
    kept.put("cell", [data(r) for r in made])
    again = [from_data(r) for r in kept.get("cell")]
    assert [(r.backend, r.latency, r.runs) for r in again] == [(r.backend, r.latency, r.runs) for r in made]
    assert Kept(tmp_path, {"plan": asdict(Plan(threads=2)), "stamp": {"torch": "1"}}).get("cell") is None


def test_the_sheet_fails_where_we_are_slower_than_agreed() -> None:
    cells = {
        Cell("gpt2-124m", DECODE): rows([{OURS: turn([[1.0]]), AGAIN: turn([[1.0]]), "ONNX Runtime": turn([[1.0]])}], 0)
    }
    assert not sheets.sheet(cells, Plan(threads=1)).passed
    cells = {
        Cell("gpt2-124m", DECODE): rows([{OURS: turn([[1.0]]), AGAIN: turn([[1.0]]), "ONNX Runtime": turn([[1.2]])}], 0)
    }
    made = sheets.sheet(cells, Plan(threads=1))
    assert made.passed
    json.dumps(made.data(), default=str)


@pytest.mark.parametrize("more", [["--backends", "nobody"], ["--models", "nothing"], ["--cases", "x"]])
def test_the_command_refuses_what_it_does_not_know(more: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "peers", "--out", str(tmp_path), *more])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
