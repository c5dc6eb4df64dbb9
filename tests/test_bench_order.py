"""bench/order.py: which pairs count, what the share is, what is kept. No figure of time is asserted."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

import order
from scatter import scatter
from sheet import Sheet


def made(predicted: list[float], measured: list[float], spread: float = 0.0) -> dict[str, Any]:
    both = zip(predicted, measured, strict=True)
    variants = {f"v{i}": {"predicted": p, "measured": m} for i, (p, m) in enumerate(both)}
    return {"variants": variants, "spread": spread, "measured figures": []}


def test_pairs_that_noise_orders_do_not_count_and_ties_are_wrong() -> None:
    assert [agrees for *_, agrees in order.pairs(made([1, 2, 3], [1, 2, 3]))] == [True] * 3
    assert [agrees for *_, agrees in order.pairs(made([3, 2, 1], [1, 2, 3]))] == [False] * 3
    assert [agrees for *_, agrees in order.pairs(made([1, 1], [1, 2]))] == [False]
    near = made([1, 2, 3], [1.0, 1.05, 2.0], spread=0.03)
    assert [(a, b) for a, b, _ in order.pairs(near)] == [("v0", "v2"), ("v1", "v2")]


def test_the_sheet_fails_on_a_wrong_order_few_variants_or_nothing(tmp_path: Path) -> None:
    good = {f"m, {t}": made(list(range(1, 9)), list(range(1, 9))) for t in (1, 16)}
    few = {"m, 1": made([1, 2], [1, 2])}
    wrong = {"m, 1": made(list(range(8, 0, -1)), list(range(1, 9)))}
    for chunks, passed in ((good, True), (few, False), (wrong, False), ({}, False)):
        sheet = Sheet("order", {})
        order.fill(sheet, chunks)
        assert sheet.passed is passed, chunks
    page = scatter(good)
    assert page.count("<circle") == 16
    assert "m, 16" in page


def test_finished_chunks_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def chunk(name: str, tokens: int, threads: int, rounds: int) -> dict[str, Any]:
        asked.append((name, tokens))
        return made(list(range(1, 9)), list(range(1, 9)))

    monkeypatch.setattr(order, "chunk", chunk)
    call = ["--models", "gpt2", "--tokens", "1,16", "--out", str(tmp_path)]
    assert order.main([*call, "--seconds", "-1"]) == 1, "nothing was measured"
    assert order.main(call) == 0
    assert order.main(call) == 0
    assert asked == [("gpt2", 1), ("gpt2", 16)]
    assert json.loads((tmp_path / "order.json").read_text())["figures"]["concordance"] == 1.0
    assert (tmp_path / "order.html").is_file()


@pytest.mark.slow
def test_the_variants_are_different_programs_of_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the models are its")
    monkeypatch.setitem(order.LAYERS, "smollm2", 1)
    found = order.chunk("smollm2", 4, 1, 1)
    assert len(found["variants"]) >= order.LEAST
    assert all(v["measured"] > 0 and math.isfinite(v["predicted"]) for v in found["variants"].values())
