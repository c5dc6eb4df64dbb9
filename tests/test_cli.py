"""The command line: what it prints, what it refuses, and that it never shows a traceback."""

from __future__ import annotations

import importlib.util
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from forge_eq import models
from forge_eq.cli import app
from forge_eq.cli.flags import choose, flags, with_options
from forge_eq.errors import InputError, OptionsError
from forge_eq.ir.text import parse
from forge_eq.options import Limits, Options

USER = """
import torch

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v

class Two(torch.nn.Module):
    def forward(self, x, *, y):
        return x * 1.0 + y

def attn():
    return Attention(), tuple(torch.randn(2, 4, 8, 16) for _ in range(3))

pair = Attention(), [torch.randn(1, 2, 8, 16) for _ in range(3)]
keyword = Two(), (torch.ones(3),), {"y": torch.ones(3)}
bare = Attention()
number = 7
loose = Attention(), torch.ones(3)

def broken():
    return 1 // 0
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "torn.py").write_text("def f(:\n")
    return tmp_path


def call(*args: str, columns: int = 80) -> Any:
    result = CliRunner().invoke(app, list(args), env={"COLUMNS": str(columns), "FORCE_COLOR": None})
    assert "Traceback" not in result.output, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert not any(c < " " and c != "\n" for c in result.output), "a control character"
    return result


# ------------------------------------------------------------------------------------------------ flags


def test_every_option_is_a_flag_and_has_its_default() -> None:
    made = {(f.limit, f.field): f for f in flags()}
    due = {(False, f.name) for f in fields(Options)} - {(False, n) for n in ("rules", "limits", "cost", "extractor")}
    assert set(made) == due | {(True, f.name) for f in fields(Limits)}
    for (limit, name), flag in made.items():
        assert flag.default == getattr(Limits() if limit else Options(), name)
        assert flag.help


def test_flags_reach_the_options() -> None:
    seen: list[Options] = []

    def command(word: str, *, options: Options) -> None:
        seen.append(options)

    small = typer.Typer()
    small.command()(with_options(command))
    args = ["w", "--alpha", "0.5", "--verify", "off", "--check", "--limit-moves", "7", "--without", "layout"]
    result = CliRunner().invoke(small, args)
    assert result.exit_code == 0, result.output
    (got,) = seen
    assert (got.alpha, got.verify, got.check, got.limits) == (0.5, "off", True, Limits(moves=7))
    assert got.target == Options().target
    assert not len(got.rules.family("layout"))


def test_choosing_rules() -> None:
    from forge_eq.rules import default

    assert choose("", "") is None
    only = choose("attention, algebra/matmul_swapped", "attention/biased")
    assert only is not None
    assert {r.family for r in only} == {"attention", "algebra"}
    assert "attention/biased" not in {r.id for r in only}
    without = choose("", "attention")
    assert without is not None
    assert len(without) == len(default) - len(default.family("attention"))
    with pytest.raises(OptionsError, match="--only attention/none"):
        choose("attention/none", "")


# ------------------------------------------------------------------------------------------------ programs


@pytest.mark.usefixtures("user")
def test_optimize_tells_the_result() -> None:
    result = call("optimize", "user.py:attn")
    assert result.exit_code == 0, result.output
    assert "calls 5 -> 1 (-80.0%)" in result.stdout
    assert "attention/scaled x1" in result.stdout
    assert "extract" in result.stderr
    assert "extract" not in result.stdout


@pytest.mark.usefixtures("user")
def test_shown_forms_are_the_forms() -> None:
    result = call("optimize", "user.py:attn", "--show=extract", "--verify=off")
    graph = parse(result.stdout)
    assert [n.op.name for n in graph.nodes if not n.op.leaf] == ["attention"]
    changed = call("optimize", "user.py:attn", "--show=changed", "--verify=off").stdout
    assert "before" in changed
    assert "attention(q, k, v; scale=0.25)" in changed


@pytest.mark.usefixtures("user")
def test_stats_and_rule_selection() -> None:
    result = call("optimize", "user.py:pair", "--stats", "--without=attention")
    assert result.exit_code == 0, result.output
    assert "attention/scaled" not in result.stdout
    assert "own stages" in result.stdout
    assert "matches" in result.stdout


@pytest.mark.usefixtures("user")
def test_keyword_inputs_and_exported_files() -> None:
    assert call("optimize", "user.py:keyword").exit_code == 0
    module, args = torch.nn.Linear(3, 4).eval(), (torch.randn(2, 3),)
    torch.export.save(torch.export.export(module, args), "linear.pt2")
    assert "linear" in call("optimize", "linear.pt2", "--show=capture").stdout


def test_written_text_reads_back(user: Path) -> None:
    result = call("optimize", "user.py:attn", "--out", "small.txt")
    assert result.exit_code == 0, result.output
    assert parse((user / "small.txt").read_text()).calls == 1
    assert sorted(p.name for p in user.iterdir() if p.is_file()) == ["small.txt", "torn.py", "user.py"]


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_explain_keeps_to_the_columns(columns: int) -> None:
    result = call("explain", "user.py:attn", columns=columns)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= columns
    assert "because" not in result.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("user")
def test_explain_why() -> None:
    result = call("explain", "user.py:attn", "--why")
    assert "because" in result.stdout
    assert "algebra/matmul_swapped" in result.stdout


def test_compile_writes_a_program_that_loads(user: Path) -> None:
    import forge_eq

    result = call("compile", "user.py:attn", "--out", "attn.forge")
    assert result.exit_code == 0, result.output
    assert "max-live bound" in result.stdout
    q = torch.randn(2, 4, 8, 16)
    loaded = forge_eq.load(user / "attn.forge")
    torch.testing.assert_close(loaded(q, q, q), torch.softmax(q @ q.transpose(-1, -2) / 4.0, -1) @ q)
    shown = call("compile", "user.py:attn", "--show=schedule,alloc").stdout
    assert "schedule @" in shown
    assert "alloc @" in shown


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (["optimize", "nothing"], "InputError", "llama-tiny"),
        (["npu", "check", "llama-tiny", "--platform", "9999"], "NpuError", "5020"),
        (["optimize", "gone.py:f"], "FileError", "no such file"),
        (["optimize", "gone.pt2"], "FileError", "torch.export.save"),
        (["optimize", "user.py"], "InputError", "FILE.py:ATTR"),
        (["optimize", "user.py:absent"], "InputError", "has no absent"),
        (["optimize", "user.py:bare"], "InputError", "(module, example_inputs)"),
        (["optimize", "user.py:number"], "InputError", "(module, example_inputs)"),
        (["optimize", "user.py:loose"], "InputError", "(module, example_inputs)"),
        (["optimize", "user.py:broken"], "InputError", "ZeroDivisionError"),
        (["optimize", "torn.py:f"], "InputError", "SyntaxError"),
        (["optimize", "user.py:attn", "--tokens=4"], "InputError", "--tokens"),
        (["optimize", "user.py:attn", "--alpha=11"], "OptionsError", "between 0 and 10"),
        (["optimize", "user.py:attn", "--verify=no"], "OptionsError", "off, quick, full"),
        (["optimize", "user.py:attn", "--target=none"], "OptionsError", "openvino-cpu"),
        (["optimize", "user.py:attn", "--only=no/such"], "OptionsError", "attention"),
        (["optimize", "user.py:attn", "--show=alloc"], "OptionsError", "capture, saturate, extract, changed"),
        (["optimize", "user.py:attn", "--out=x.bin"], "OptionsError", "x.txt"),
        (["optimize", "user.py:attn", "--out=no/x.txt"], "FileError", "is no folder"),
        (["rules", "show", "none"], "OptionsError", "attention"),
        (["ops", "show", "soft"], "OptionsError", "softmax"),
        (["ops", "check", "input"], "InputError", "no value of its own"),
        (["verify", "none"], "OptionsError", "attention"),
        (["verify", "--level=some"], "OptionsError", "quick or full"),
        (["verify", "device", "--write", "--level=quick"], "OptionsError", "full only"),
    ],
)
def test_what_is_wrong_ends_in_a_typed_error(args: list[str], error: str, words: str) -> None:
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert error in result.stderr
    assert words in result.stderr
    assert "remedy: " in result.stderr
    assert result.stdout == ""


def test_wrong_usage_and_no_command() -> None:
    assert call("optimize").exit_code == 2
    assert call("optimize", "gpt2", "--none").exit_code == 2
    assert "optimize" in call("--help").stdout


def test_control_c_ends_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "load", stop)
    result = call("optimize", "gpt2")
    assert result.exit_code == 130
    assert result.stderr.strip() == "stopped"


@pytest.mark.parametrize(
    ("name", "package"), [("smollm2", models.SMOLLM2), ("minilm", models.MINILM), ("gpt2", "transformers")]
)
def test_a_missing_package_is_named_with_its_remedy(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == package else real(n, *a))
    with pytest.raises(InputError, match=f"{package}: is not installed") as caught:
        models.load(name)
    assert caught.value.remedy.startswith("pip install ")


# ------------------------------------------------------------------------------------------------ catalogue


def test_rules_are_listed_and_shown() -> None:
    from forge_eq.rules import default

    listed = call("rules").stdout
    assert listed == call("rules", "list").stdout
    assert all(r.name in listed for r in default)
    assert f"{len(default)} rules" in listed
    assert max(map(len, listed.splitlines())) <= 80
    shown = call("rules", "show", "attention/grouped").stdout
    for part in ("equation", "->", "source", "real", "rules/attention.py:", "evidence", "proved"):
        assert part in shown


def test_ops_are_listed_shown_and_checked() -> None:
    from forge_eq.ops import REGISTRY

    listed = call("ops").stdout
    assert all(name in listed for name in REGISTRY)
    shown = call("ops", "show", "rms_norm").stdout
    assert "rsqrt" in shown
    assert "norm" in shown
    assert "60 agree with torch" in call("ops", "check", "softmax").stdout


def test_a_wrong_op_fails_its_check() -> None:
    from dataclasses import replace

    from forge_eq.ops.elementwise import add
    from forge_eq.verify.ops import check

    assert not check(add).faults
    assert check(replace(add, torch=torch.sub)).faults
    assert check(replace(add, ref=lambda xp, a, b: xp.sum(a + b))).faults


def test_verify_accepts_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    import forge_eq.verify as verify
    from forge_eq.rules import default

    result = call("verify", "device", "--level=quick")
    assert result.exit_code == 0, result.output
    assert "1 proved" in result.stdout
    one = next(iter(default.family("device")))
    refused = verify.Evidence(one.id, one.hash, one.exact, "refused", {"types": "1/0"}, reason="numeric: 1 is not 2")
    monkeypatch.setattr(verify, "verify_rules", lambda rules, level, progress, jobs: [refused])
    monkeypatch.setattr(verify.ledger, "write", lambda *_: pytest.fail("a refused rule was written"))
    result = call("verify", "device", "--write")
    assert result.exit_code == 1
    assert "1 is not 2" in result.stdout


def test_verify_takes_what_has_not_changed_from_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    import forge_eq.verify as verify

    monkeypatch.setattr(
        verify, "verify_rules", lambda rules, level, progress, jobs: [verify.verify_rule(r) for r in rules]
    )
    result = call("verify", "device", "--cached")
    assert "0 verified, 1 from the ledger" in result.stdout
    assert "device" in result.stdout
    monkeypatch.setattr(verify, "evidence", lambda rule: None)
    result = call("verify", "device", "--cached")
    assert "1 verified, 0 from the ledger" in result.stdout, "what the ledger does not know is verified"
