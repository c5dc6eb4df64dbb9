"""The paper's tables: what stands beside what, what is told when something is missing, what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forge_eq.cli import app
from forge_eq.errors import FileError, InputError, OptionsError
from forge_eq.paper import data
from forge_eq.paper.gather import Found
from forge_eq.paper.plan import TRAINED, Unit, called, fitting, subjects
from forge_eq.paper.tables.frame import Context
from forge_eq.paper.tables.sheet import SPECS, chosen, sheet, units
from forge_eq.peers import energy
from forge_eq.peers.measure import GIB
from forge_eq.report.sheet import Table
from paper_measured import GPT2, LLAMA, PLAN, THEIRS, measured, without

# Of each table: columns and what stands in them, in the row that begins with the first value.
EXPECTED: dict[str, dict[str, Any]] = {
    "models": {"model": GPT2, "params": "125M", "paper: params": 1.0, "attn": "MHA", "precision": "float32"},
    "compile_ms": {"model": GPT2, "forge_eq ms": 1000.0, "paper: forge_eq ms": 1.0, "OpenVINO static ms": 5000.0,
                   "paper: OpenVINO static ms": 2.0, "ONNX Runtime ms": "failed"},
    "nodes": {"model": LLAMA, "captured": 100, "chosen": 80, "change %": -20.0, "paper: change %": 30.0},
    "fidelity": {"model": f"{TRAINED} (trained)", "perplexity before": "11.25", "after": "11.25", "KL": 1e-9,
                 "text": "WikiText"},
    "latency_ms_wikitext103": {"model": GPT2, "mean ms": 2.5, "paper: mean": 1.0, "p99 ms": 4.0, "paper: p99": 4.0},
    "latency_ms_glue": {"model": LLAMA, "p50 ms": 2.0, "paper: p50": 20.0, "p90 ms": 3.0, "paper: p90": 30.0},
    "energy_mj": {"model": GPT2, "forge_eq mJ": energy.ABSENT, "paper: forge_eq mJ": 1.0},
    "passes_gpt2": {"pass": "attention_fusion", "our rules": "attention", "ms": 10.0, "paper: ms": 2.0,
                    "change of calls": -4, "paper: change": 3.0},
    "phases_gpt2_ms": {"phase": "optimise", "here": 200.0, "paper": 208},
    "optimise_ms": {"model": GPT2, "layers": 2, "total ms": 200.0, "warm ms": 100.0, "attention ms": 30.0,
                    "paper: attention ms": 3.0},
    "fgr": {"model": GPT2, "Score(0) us": 300.0, "Score(1) us": 100.0, "FGR": 3.0, "paper: FGR": 3.0},
    "cei": {"model": LLAMA, "CEI, OpenVINO": 2.0, "paper: CEI, OpenVINO": 10.0, "CEI, ONNX Runtime": "failed",
            "compile s": 1.0},
    "cei_formula": {"paper": "a formula"},
    "ablation_gpt2": {"without": "attention_fusion", "score us": 110.0, "change %": 10.0, "calls": 90,
                      "paper: score": 2.0, "paper: change %": 3.0},
    "attention_fusion_latency": {"model": GPT2, "layers": 2, "with ms": 2.0, "without ms": 3.0, "lower 95 %": 1.4},
    "buffers": {"model": GPT2, "virtual": 50, "physical": 20, "reduction %": 60.0, "paper: reduction %": 3.0,
                "transitions' reduction %": 75.0},
    "alpha_gpt2": {"alpha": "1.0", "score us": 100.0, "paper: score": 2.0, "calls": 80, "fused": 24,
                   "paper: fused": 4.0},
    "autotune": {"model": GPT2, "default us": 100.0, "tuned us": 50.0, "change %": -50.0, "paper: change %": 3.0,
                 "under the given weights %": -5.0},
    "variance_gpt2": {"": "compile_ms", "mean": 1001.0, "paper: mean": 2.0, "sd": 1.0, "least": 1000.0, "most": 1002.0},
    "transitions": {"model": GPT2, "captured order": 40, "scheduled": 10, "change %": -75.0,
                    "latency %": "absent: no NPU", "paper: latency %": 4.0},
    "p99_over_p50": {"model": GPT2, "forge_eq": 2.0, "paper: forge_eq": 1.0, "OpenVINO static": 2.0},
    "raw_latency_runs": {"model": GPT2, "run 1": 2.0, "paper: run 1": 1.0, "run 2": 3.0, "run 3": "-",
                         "mean of runs": 2.5},
    "headline": {"": "node_reduction_pct", "here, least (or the figure)": 20.0, "most": 20.0, "paper: most": 21.9},
    "hardware": {"paper": "another machine"},
}  # fmt: skip


def row_of(table: Table, expected: dict[str, Any]) -> dict[str, Any]:
    """The table's row that begins as expected."""
    rows = [dict(zip(table.head, row, strict=True)) for row in table.rows]
    first = next(iter(expected))
    found = [r for r in rows if r[first] == expected[first]]
    assert found, f"no row {expected[first]!r} among {[r[first] for r in rows]}"
    return found[0]


def test_every_table_of_the_form_is_made() -> None:
    assert set(SPECS) == set(THEIRS) == set(EXPECTED)


@pytest.mark.shared
def test_every_table_of_the_paper_is_made(shared: Path) -> None:
    assert set(SPECS) == set(json.loads((shared / "data/paper_tables.json").read_text()))


@pytest.mark.parametrize("key", SPECS)
def test_a_table_has_ours_beside_theirs(key: str) -> None:
    table = SPECS[key].make(Context(PLAN, measured(), THEIRS))
    assert table.title.startswith(f"{key}:")
    assert all(len(row) == len(table.head) for row in table.rows)
    found = row_of(table, EXPECTED[key])
    assert {k: found[k] for k in EXPECTED[key]} == EXPECTED[key]


@pytest.mark.parametrize("key", SPECS)
def test_a_table_without_a_measurement_says_so_and_the_others_stand(key: str) -> None:
    """Every unit of the table failed: its figures are reasons, never numbers, and nothing is raised."""
    needed = SPECS[key].needs(PLAN)
    made = sheet([SPECS[key], SPECS["hardware"]], PLAN, without(measured(), *needed), THEIRS)
    assert len(made.tables) == 2
    assert made.tables[1].rows[0][1] == "another machine"
    if needed:
        text = json.dumps(made.tables[0].rows) + made.tables[0].note
        assert "it broke" in text or "not measured" in text


@pytest.mark.parametrize("key", SPECS)
def test_a_table_that_the_file_lacks_still_has_ours(key: str) -> None:
    table = SPECS[key].make(Context(PLAN, measured(), {}))
    assert table.rows
    paper = [v for row in table.rows for h, v in zip(table.head, row, strict=True) if h.startswith("paper")]
    assert set(paper) <= {"-", ""}


def test_a_failing_backend_is_told_in_the_note() -> None:
    table = SPECS["compile_ms"].make(Context(PLAN, measured(), THEIRS))
    assert "ONNX Runtime: ConversionError: no" in table.note


def test_one_broken_table_is_a_row() -> None:
    found = measured()
    found.data[Unit("scores", GPT2)]["found"] = {"0.0": ["no number", 1, 1], "1.0": [1.0, 1, 1]}
    made = sheet([SPECS["fgr"], SPECS["nodes"]], PLAN, found, THEIRS)
    assert made.tables[0].rows[0][0] == "failed"
    assert "TypeError" in made.tables[0].rows[0][1]
    assert len(made.tables[1].rows) == 2


def test_tables_about_gpt2_say_when_it_is_not_there() -> None:
    plan = replace(PLAN, models=(LLAMA,))
    made = sheet([SPECS["alpha_gpt2"], SPECS["variance_gpt2"]], plan, Found(), THEIRS)
    assert all("--models" in t.rows[0][1] for t in made.tables)
    assert units([SPECS["variance_gpt2"]], plan) == []


def test_the_variation_is_of_fresh_processes() -> None:
    needed = SPECS["variance_gpt2"].needs(replace(PLAN, runs=10))
    assert len(needed) == len(set(needed)) == 10
    lost = without(measured(), Unit("run", GPT2, "2"))
    table = SPECS["variance_gpt2"].make(Context(PLAN, lost, THEIRS))
    assert "2 fresh processes" in table.note
    assert "1 more failed" in table.note


def test_the_headline_is_a_range_over_the_models() -> None:
    found = measured()
    found.data[Unit("stages", LLAMA)]["found"]["chosen"] = 60
    table = SPECS["headline"].make(Context(PLAN, found, THEIRS))
    row = row_of(table, {"": "node_reduction_pct"})
    assert (row["here, least (or the figure)"], row["most"]) == (20.0, 40.0)
    largest = row_of(table, {"": "max_abs_logit"})
    assert largest["paper: least (or the figure)"] == 2.1e-05
    assert row_of(table, {"": "energy_reduction_pct"})["here, least (or the figure)"] == energy.ABSENT


# ------------------------------------------------------------------------------------------ what is asked for


def test_a_wrong_table_lists_the_names() -> None:
    with pytest.raises(OptionsError, match=r"compile_ms.*hardware"):
        chosen(["compile_ms", "nothing"])
    assert [s.key for s in chosen(["hardware", "models"])] == ["models", "hardware"]
    assert [s.key for s in chosen([])] == list(SPECS)


@pytest.mark.parametrize("spec", ["bert-base", "nothing", "gpt2-124m:x", "gpt2-124m:"])
def test_a_wrong_model_says_what_to_use(spec: str) -> None:
    with pytest.raises(InputError, match=r"use some of|for example"):
        subjects([spec])


@pytest.mark.parametrize("more", [["--tables", "nothing"], ["--models", "nothing"]])
def test_the_command_refuses_what_it_does_not_know(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/paper_tables.json").write_text(json.dumps(THEIRS))
    monkeypatch.setenv("FORGE_EQ_SHARED", str(tmp_path))
    result = CliRunner().invoke(app, ["bench", "paper", "--out", str(tmp_path / "out"), *more])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_absent_or_broken_data_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_EQ_SHARED", str(tmp_path))
    with pytest.raises(FileError, match="FORGE_EQ_SHARED"):
        data.tables()
    data.path().parent.mkdir()
    for text in ("{", "[1]"):
        data.path().write_text(text)
        with pytest.raises(FileError):
            data.tables()
    data.path().write_text('{"models": {}}')
    assert data.tables() == {"models": {}}


def test_layers_are_left_out_where_memory_does_not_hold_them() -> None:
    info = {"rest": GIB, "layers": [GIB] * 4}
    assert fitting(LLAMA, info, 400 * GIB) == LLAMA
    assert fitting(LLAMA, info, 21 * GIB) == f"{LLAMA}:2"  # 0.85 * 21 - 2 = 15.9 GiB, five times 3 GiB fit
    assert fitting(LLAMA, info, GIB) == f"{LLAMA}:1"
    assert fitting(f"{LLAMA}:3", info, GIB) == f"{LLAMA}:3"
    assert called(f"{LLAMA}:2") == "llama-3.1-8b (2 of 32 layers)"
