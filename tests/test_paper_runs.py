"""Measurements for the paper's tables: what is run, kept and told, and the page. No figure of time is asserted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forge_eq.cli import app
from forge_eq.errors import RunError
from forge_eq.paper import gather, picture
from forge_eq.paper.gather import Found
from forge_eq.paper.plan import TRAINED, Plan, Unit
from forge_eq.paper.tables.frame import Context
from forge_eq.paper.tables.sheet import SPECS, sheet
from forge_eq.peers import energy
from forge_eq.peers.measure import GIB
from forge_eq.report import page
from forge_eq.report.kept import Kept, sources
from forge_eq.report.sheet import Table
from paper_measured import GPT2, LLAMA, PLAN, THEIRS, measured


def recorder(calls: list[tuple[Unit, str]], fails: str = "") -> Callable[[Unit, str], Any]:
    def measure(unit: Unit, spec: str) -> Any:
        calls.append((unit, spec))
        if unit.kind == fails:
            raise RunError("bench", unit.key, "it broke", "mend it")
        return {"rest": GIB, "layers": [GIB] * 4} if unit.kind == "model" else {"value": unit.key}

    return measure


def test_measurements_are_kept_and_a_failure_stops_nothing(tmp_path: Path) -> None:
    asked = [Unit("stages", GPT2), Unit("fusion", LLAMA), Unit("fidelity", TRAINED)]
    calls: list[tuple[Unit, str]] = []
    told: list[str] = []
    found = gather.gather(asked, Kept(tmp_path, {"a": 1}), recorder(calls, "stages"), 21 * GIB, told.append)
    assert [(u.kind, spec) for u, spec in calls] == [
        ("model", LLAMA), ("stages", GPT2), ("fusion", f"{LLAMA}:2"), ("fidelity", TRAINED),
    ]  # fmt: skip
    assert found("fusion", LLAMA) == {"value": Unit("fusion", LLAMA).key}
    assert found.name("fusion", LLAMA) == "llama-3.1-8b (2 of 32 layers)"
    with pytest.raises(RunError, match="it broke"):
        found("stages", GPT2)
    assert any("it broke" in t for t in told)
    again: list[tuple[Unit, str]] = []
    gather.gather(asked, Kept(tmp_path, {"a": 1}), recorder(again), 21 * GIB, told.append)
    assert [u.kind for u, _ in again] == ["stages"], "only what failed is measured again"
    gather.gather(asked, Kept(tmp_path, {"a": 2}), recorder(again), 21 * GIB, told.append)
    assert len(again) == 5, "other settings measure all again"


def test_a_model_that_cannot_be_sized_fails_what_needs_it() -> None:
    found = gather.gather([Unit("run", GPT2, "1")], Kept(None, {}), recorder([], "model"), GIB, lambda text: None)
    assert found.failed == {Unit("model", GPT2): "it broke", Unit("run", GPT2, "1"): "it broke"}


def test_a_child_that_fails_gives_its_reason(tmp_path: Path) -> None:
    measure = gather.measurer(Plan(threads=1, tokens=8), tmp_path, lambda text: None)
    with pytest.raises(RunError, match="cannot have 99 of its 2 layers"):
        measure(Unit("model", "gpt2-124m-tiny"), "gpt2-124m-tiny:99")


def test_a_reason_is_the_errors_own_line() -> None:
    lines = ["Traceback (most recent call last):", '  File "x"', "RunError: [bench] x: it broke", "  remedy: mend it"]
    assert gather._reason(1, lines) == "RunError: [bench] x: it broke"
    assert "signal 9 (out of memory?)" in gather._reason(-9, ["a warning of no matter"])
    assert gather._reason(3, []) == "its process ended with status 3"


def test_what_is_kept_is_whole_and_of_the_same_settings(tmp_path: Path) -> None:
    kept = Kept(tmp_path, {"pair": (1, 2)})
    assert kept.get("one") is None
    kept.put("one", {"x": float("inf")})
    assert Kept(tmp_path, {"pair": [1, 2]}).get("one") == {"x": float("inf")}
    assert Kept(tmp_path, {"pair": (1, 3)}).get("one") is None
    (tmp_path / "one.json").write_text('{"depends"')
    assert kept.get("one") is None
    Kept(None, {}).put("one", 1)
    assert Kept(None, {}).get("one") is None


def test_sources_are_one_number_without_what_only_shows(tmp_path: Path) -> None:
    (tmp_path / "show").mkdir()
    for name in ("a.py", "show/b.py", "c.txt"):
        (tmp_path / name).write_text("1")
    before = sources(tmp_path, ("show",)), sources(tmp_path)
    (tmp_path / "show/b.py").write_text("2")
    (tmp_path / "c.txt").write_text("2")
    assert sources(tmp_path, ("show",)) == before[0]
    assert sources(tmp_path) != before[1]


def test_energy_is_read_where_it_can_be(tmp_path: Path) -> None:
    assert energy.counters(tmp_path) == {}
    assert energy.used({}, {}) is None
    for zone, value in (("intel-rapl:0", 900), ("intel-rapl:0:0", 5), ("intel-rapl:1", 10)):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(f"{value}\n")
        (tmp_path / zone / "max_energy_range_uj").write_text("1000\n")
    before = energy.counters(tmp_path)
    assert [z.name for z in before] == ["intel-rapl:0", "intel-rapl:1"]
    (tmp_path / "intel-rapl:0/energy_uj").write_text("100\n")  # it wrapped around
    (tmp_path / "intel-rapl:1/energy_uj").write_text("30\n")
    assert energy.used(before, energy.counters(tmp_path)) == 200 + 20
    (tmp_path / "intel-rapl:1/energy_uj").write_text("secret")
    assert energy.used(before, energy.counters(tmp_path)) is None


# ------------------------------------------------------------------------------------------ pages


def test_the_page_holds_every_table_and_its_pictures() -> None:
    pytest.importorskip("plotly", reason="it draws")
    context = Context(PLAN, measured(), THEIRS)
    drawn = picture.figures(context)
    assert len(drawn) == 3
    assert [tuple(t.y) for t in drawn[1].data[:2]] == [(2.0, 2.0), (5.0, 5.0)]  # ours, and 5 / 1 and 50 / 10 of theirs
    text = page.page(sheet(list(SPECS.values()), PLAN, context.found, THEIRS), drawn)
    assert all(f"<h2 id='{key.replace('_', '_')}-" in text for key in SPECS)
    assert text.count('class="plotly-graph-div"') == 3
    assert picture.figures(Context(PLAN, Found(), THEIRS)) == []


def test_the_page_escapes_and_marks() -> None:
    found = page.table(Table("a < b", ("x", "paper: y"), (("<i>", 1.0), ("failed: no", 2.0), ("FAIL", 3.0)), "n & m"))
    assert "&lt;i&gt;" in found
    assert "<i>" not in found
    assert "<td class='number failed'>failed: no</td>" in found
    assert "<td class='number paper'>2</td>" in found
    assert "n &amp; m" in found


# ------------------------------------------------------------------------------------------ the measurements


def test_graphs_of_a_tiny_model_give_what_the_tables_read() -> None:
    pytest.importorskip("transformers", reason="the models are those of transformers")
    from forge_eq.paper import graphs

    spec = "gpt2-124m-tiny"
    found = Found()
    for kind, value in {
        "model": graphs.model(spec, 8), "stages": graphs.stages(spec, 8), "scores": graphs.scores(spec, 8),
    }.items():  # fmt: skip
        found.data[Unit(kind, spec)] = {"name": spec, "found": json.loads(json.dumps(value))}
    sizes = found("model", spec)
    assert len(sizes["layers"]) == 2
    assert sum(sizes["layers"]) + sizes["rest"] == 4 * sizes["parameters"]
    scores = [v[0] for v in found("scores", spec).values()]
    assert scores == sorted(scores, reverse=True)
    assert found("scores", spec)["0.0"][2] == 0
    context = Context(replace(PLAN, models=(spec,)), found, THEIRS)
    tables = {k: SPECS[k].make(context).rows[0] for k in ("models", "nodes", "buffers", "transitions", "fgr")}
    assert all(not str(v).startswith("failed") for row in tables.values() for v in row)
    assert tables["nodes"][5] < 0
    assert SPECS["alpha_gpt2"].make(context).rows[-1][0] == "1.0"


@pytest.mark.slow
@pytest.mark.shared
def test_the_whole_command_on_a_tiny_model(tmp_path: Path) -> None:
    given = ["--models", "gpt2-124m-tiny", "--tokens", "16", "--rounds", "1", "--blocks", "1", "--seconds", "0.01"]
    more = ["--runs", "2", "--threads", "1", "--trials", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", "paper", *given, *more])
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "paper.json").read_text())
    assert [t["title"].partition(":")[0] for t in found["tables"]] == list(SPECS)
    failed = {k: r for k, r in found["figures"]["failed"].items() if TRAINED not in k}
    assert failed == {}
    assert (tmp_path / "paper.html").stat().st_size > 1_000_000
