"""docs/performance.md is what its kept measurements say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import performance
from forge_eq.errors import FileError
from forge_eq.peers.backends import AGAIN, OURS, STRONG
from forge_eq.peers.cases import DECODE
from forge_eq.peers.statistics import Interval
from forge_eq.peers.table import Row, data


def test_the_page_is_what_was_kept() -> None:
    page = performance.PAGE.read_text(encoding="utf-8")
    assert performance.filled(page, performance.blocks(performance.DATA)) == page, "run `python bench/performance.py`"


def test_the_page_has_every_block_once() -> None:
    names = [m[1] for m in performance.BLOCK.finditer(performance.PAGE.read_text(encoding="utf-8"))]
    assert sorted(names) == sorted(performance.blocks(performance.DATA))


def measured(tmp_path: Path) -> Path:
    """A made-up run: one cell that is won, one that is lost, one backend that failed."""

    def row(name: str, ms: float, **more: Any) -> Row:
        ratio = None if name == OURS else Interval(ms, ms - 0.01, ms + 0.01)
        phases = {"capture": 1.0, "own": 0.1, "build": 0.5, "guard": 0.2}
        made = {"end_to_end": 2.0, "p50": ms, "p99": 1.5 * ms, "memory": 100.0, "difference": 1e-6, **more}
        tail = made["p99"] / ms
        made["tail"] = Interval(tail, tail - 0.1, tail + 0.1)
        return Row(name, phases=phases, latency=ratio, total=ratio, compile=ratio, **made)

    won = [row(OURS, 1.0), row(AGAIN, 1.01), row(STRONG[0], 3.0, memory=400.0), row(STRONG[1], 2.0)]
    lost = [row(OURS, 1.0), row(AGAIN, 1.01), row(STRONG[0], 0.5, p99=0.51), Row(STRONG[1], failed="it broke")]
    cells = [
        {"cell": {"model": "gpt2-124m", "case": DECODE, "layers": 0}, "rows": [data(r) for r in won]},
        {"cell": {"model": "llama-3.2-1b", "case": "128", "layers": 4}, "rows": [data(r) for r in lost]},
    ]
    calls = [["llama-3.1-8b (2 of 32 layers)", 1.23456]]
    table = {"title": "nodes: calls", "head": ["model", "n"], "rows": calls, "note": "n"}
    left = {"model": "m", "tokens": 1, "ms": 1.0, "same": False}
    gains = [
        {**left, "without": "fusion", "ratio": 1.2, "low": 1.1},
        {**left, "without": "slices", "ratio": 1.3, "low": 0.9},
        {**left, "without": "traits", "ratio": 0.9, "low": 0.8},
    ]
    found = {
        "peers": {"where": {"machine": "a"}, "figures": {"cells": cells}},
        "paper": {"where": {"machine": "a", "threads": 2}, "tables": [table]},
        "gains": {"where": {"machine": "b"}, "figures": {"gains": gains}},
    }
    for kind, content in found.items():
        (tmp_path / f"{kind}.json").write_text(json.dumps(content))
        performance.keep(kind, [tmp_path / f"{kind}.json"], tmp_path / "data")
    return tmp_path / "data"


def test_blocks_say_what_was_measured_and_are_repeatable(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    found = performance.blocks(folder)
    assert found == performance.blocks(folder)
    assert "| gpt2-124m, one token, 128 past | 1 | 3.00 [2.99, 3.01] | 2.00 [1.99, 2.01] |" in found["latency"]
    assert "| slower |" in found["latency"]
    assert (
        "gpt2-124m, one token, 128 past: p99/p50 over the best peer's, OpenVINO static | 1 | <= 1 | met |"
        in found["criteria"]
    )
    assert "p99/p50 over the best peer's, OpenVINO static | 1.471 | <= 1 | missed |" in found["criteria"]
    assert "| machine | a | a | b |" in found["machine"]
    assert "decode, geometric mean | 2 | >= 1.08 | met" in found["criteria"]
    assert "128 tokens, geometric mean | 0.5 | >= 0.98 | missed" in found["criteria"]
    assert "llama-3.2-1b (4 layers): peers" in found["truncations"]
    assert "llama-3.1-8b (2 of 32 layers): paper" in found["truncations"]
    assert "| m | 1 | fusion 1.20 (>= 1.10) | traits 0.90 (>= 0.80) |" in found["gains"]
    assert "### nodes: calls" in found["paper"]
    assert "1.235" in found["paper"]


def test_cells_of_several_runs_make_one_page(tmp_path: Path) -> None:
    folder = measured(tmp_path)
    once = performance.read("peers", folder)
    performance.keep("peers", [tmp_path / "peers.json"] * 2, folder)
    twice = performance.read("peers", folder)
    assert once is not None
    assert twice == {"where": once["where"], "cells": once["cells"] * 2}


def test_losses_are_told(tmp_path: Path) -> None:
    lines = performance.blocks(measured(tmp_path))["losses"].splitlines()
    lost = [line for line in lines if "llama-3.2-1b" in line and STRONG[0] in line]
    assert any("faster a call" in line for line in lost)
    assert any("narrower tail" in line for line in lost)
    assert any("ready no later" in line for line in lost)
    assert any(f"{STRONG[1]} failed" in line for line in lines)
    assert not any("gpt2" in line for line in lines), "what is won is no loss"


def test_without_measurements_the_page_says_so(tmp_path: Path) -> None:
    found = performance.blocks(tmp_path)
    assert set(found.values()) == {performance.NOT_YET, "No model is cut.\n"}
    with pytest.raises(FileError, match="peers"):
        performance.keep("peers", [tmp_path / "peers.json"], tmp_path)


@pytest.mark.slow
def test_gains_times_only_what_differs(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="the models are those of transformers")
    import gains

    given = ["--families", "gpt2-124m", "--tokens", "1", "--layers", "1", "--rounds", "3", "--out", str(tmp_path)]
    assert gains.main(given) == 0
    found = json.loads((tmp_path / "gains.json").read_text())["figures"]["gains"]
    by = {f["without"]: f for f in found}
    assert not by[gains.NO_RULE]["same"]
    assert by[gains.ALL]["ratio"] == 1.0
    assert all(f["ratio"] == f["low"] == 1.0 for f in found if f["same"])
    assert (tmp_path / "gains/gpt2-124m-1.json").is_file()


def test_a_block_that_nobody_writes_is_an_error() -> None:
    with pytest.raises(KeyError):
        performance.filled("<!-- new -->\n<!-- /new -->", {})
