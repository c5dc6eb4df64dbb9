"""Calibration: the table of kernels, what is kept of a machine, and what stands in for shipped figures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from forge_eq import targets
from forge_eq.cli import app
from forge_eq.errors import OptionsError
from forge_eq.run import calibrate
from forge_eq.targets import host
from forge_eq.targets.kernels import FORMS, Kernels, from_table, to_table

NAME = "openvino-cpu"
SOURCE = (Path(targets.__file__).parent / f"{NAME}.toml").read_text(encoding="utf-8")
FOUND = {
    "peak_gflops": 77.0,
    "bandwidth_gbps": 11.0,
    "launch_us": 2.0,
    "transfer_us": 30.0,
    "weights": {"movement": 3.0},
    "kernels": {"tokens": [1, 16], "plain": [[8, 8, 1.0, 2.0]], "act": [[8, 8, 1.5, 2.0]], "left": [[8, 8, 0.5, 3.0]]},
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(host.SWITCH, str(tmp_path))
    where = host.path(NAME)
    assert where is not None
    return where


def keep(where: Path, **changes: object) -> None:
    where.write_text(json.dumps({"identity": host.identity(), **FOUND, **changes}), encoding="utf-8")


# --------------------------------------------------------------------------------------------- the table


def test_a_point_is_met_exactly_and_all_sizes_have_a_time() -> None:
    table = targets.shipped(NAME).kernels
    for p in table.points:
        assert table.time(p.form, p.tokens, p.k, p.n) == pytest.approx(p.us, rel=1e-6)
    assert from_table(to_table(table)).points == tuple(sorted(table.points, key=table.points.index))
    assert Kernels().time("plain", 1, 8, 8) is None


SHIPPED = tuple(form for form in FORMS if targets.shipped(NAME).kernels.has(form))


@given(st.sampled_from(SHIPPED), st.integers(1, 4096), st.integers(1, 20000), st.integers(1, 130000))
def test_times_are_positive_and_grow_with_the_weight(form: str, tokens: int, k: int, n: int) -> None:
    table = targets.shipped(NAME).kernels
    us = table.time(form, tokens, k, n)
    assert us is not None
    assert 0 < us < math.inf
    lowest = min(p.us / (p.tokens * p.k * p.n) for p in table.points if p.form == form)
    assert us >= 0.99 * lowest * tokens * k * n


@given(st.sampled_from(SHIPPED), st.integers(1, 511))
def test_more_tokens_never_take_less_time(form: str, tokens: int) -> None:
    table = targets.shipped(NAME).kernels
    less, more = (table.time(form, t, 2048, 8192) for t in (tokens, tokens + 1))
    assert less is not None
    assert more is not None
    assert more >= 0.999 * less


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tokens = [1, 16, 128, 512]", "tokens = [1, 16, 128]", "a row must be"),
        ("tokens = [1, 16, 128, 512]", "tokens = [0, 16, 128, 512]", "positive integers"),
        ("tokens = [1, 16, 128, 512]", "tokens = 1", "positive integers"),
        ("left = [", "right = [", "not one of"),
        ("[2048, 8192, 2950, 6950", "[2048, 8192, -2950, 6950", "positive times"),
        ("[2048, 8192, 2950, 6950", '[2048, 8192, "x", 6950', "positive times"),
    ],
)
def test_a_malformed_table_is_refused(old: str, new: str, why: str) -> None:
    assert old in SOURCE
    with pytest.raises(OptionsError, match=why):
        targets.parse(SOURCE.replace(old, new), "mine")


# ------------------------------------------------------------------------------------------- this machine


def test_measured_figures_take_the_place_of_shipped_ones(cache: Path) -> None:
    assert targets.load(NAME) == targets.shipped(NAME)
    keep(cache)
    target = targets.load(NAME)
    assert (target.peak_gflops, target.launch_us, target.weight("movement")) == (77.0, 2.0, 3.0)
    assert target.transfer_gbps == targets.shipped(NAME).transfer_gbps
    assert target.kernels.time("left", 16, 8, 8) == pytest.approx(3.0)
    assert set(target.measured) == {*(k for k in FOUND if k != "weights"), "weights.movement"}
    assert targets.load("torch") == targets.shipped("torch")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", json.dumps(FOUND), json.dumps({"identity": {"processor": "another"}, **FOUND})]
)
def test_what_is_damaged_or_of_another_machine_is_ignored(cache: Path, text: str) -> None:
    cache.write_text(text, encoding="utf-8")
    assert targets.load(NAME) == targets.shipped(NAME)


def test_a_damaged_table_makes_the_whole_file_worthless(cache: Path) -> None:
    keep(cache, kernels={"tokens": [1], "plain": [[8, 8]]})
    assert targets.load(NAME) == targets.shipped(NAME)


def test_another_calibration_counts_at_once(cache: Path) -> None:
    keep(cache)
    first = targets.load(NAME)
    assert targets.load(NAME) is first, "read once"
    keep(cache, launch_us=first.launch_us + 1.0)
    assert targets.load(NAME).launch_us == first.launch_us + 1.0
    cache.unlink()
    assert targets.load(NAME) == targets.shipped(NAME)


def test_off_is_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(cache)
    monkeypatch.setenv(host.SWITCH, "off")
    assert targets.load(NAME) == targets.shipped(NAME)
    assert CliRunner().invoke(app, ["calibrate"]).exit_code == 2


def test_another_processor_or_openvino_is_another_file(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(host, "processor", lambda: "another")
    assert host.path(NAME) != cache


def test_the_command_measures_keeps_and_tells_which_figures_are_measured(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "_in_fresh_process", lambda threads: FOUND)
    result = CliRunner().invoke(app, ["calibrate", "--processes", "2"])
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line for line in result.output.splitlines() if line.strip()}
    assert "measured here" in rows["peak_gflops"]
    assert "shipped estimate" in rows["transfer_gbps"]
    assert "matrix kernels: measured here" in result.output
    assert targets.load(NAME).peak_gflops == 77.0


def test_the_median_over_processes_counts() -> None:
    found = [
        {"a": 1.0, "b": {"c": [1, [3.0, 5.0]]}},
        {"a": 9.0, "b": {"c": [1, [4.0, 1.0]]}},
        {"a": 2.0, "b": {"c": [1, [9.0, 2.0]]}},
    ]
    assert calibrate.merge(found) == {"a": 2.0, "b": {"c": [1, [4.0, 2.0]]}}


def test_one_process_measures_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="its kernels are what is measured")
    monkeypatch.setattr(calibrate, "SHAPES", ((32, 64), (64, 32)))
    monkeypatch.setattr(calibrate, "TOKENS", (1, 4))
    monkeypatch.setattr(calibrate, "REPEATS", {1: 2, 4: 2})
    monkeypatch.setattr(calibrate, "COLD", 2048)
    monkeypatch.setattr(calibrate, "SHORT", 1024)
    found = calibrate.measure(1)
    target = host.apply(targets.shipped(NAME), json.loads(json.dumps(found)))
    assert {p.form for p in target.kernels.points} == set(FORMS)
    assert len(target.kernels.points) == 2 * 2 * len(FORMS)
    assert {"peak_gflops", "bandwidth_gbps", "launch_us", "transfer_us", "weights.movement"} <= set(target.measured)
