"""Tuning: trials over one saturation, seeds, shared storages, agreement of orders, and when a program may win."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq.pipeline as pipeline
import forge_eq.tune.measure as measuring
from forge_eq.errors import OptionsError
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.tune import tune
from forge_eq.tune.order import agreement, fastest, speedup
from forge_eq.tune.page import history
from forge_eq.tune.space import ALPHA, PENALTY, apply, base_of, space_of
from forge_eq.tune.trial import Trials

optuna = pytest.importorskip("optuna", reason="the tuner is an extra: pip install 'forge_eq[tune]'")

ROOT = Path(__file__).resolve().parents[1]


class Block(nn.Module):
    """Attention-free layer with several fusions to choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))
        return torch.softmax(y, -1)


def block() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Block().eval(), (torch.randn(4, 16),)


@pytest.fixture(scope="module")
def job() -> Job:
    module, args = block()
    return run(Job(Options(verify="off"), (module, args, None, None)), "saturate")


def fresh(job: Job) -> Job:
    return Job(job.options, job.source, dict(job.forms))


# ---- the search ---------------------------------------------------------------------------------------------------


def test_a_trial_is_one_extraction_and_no_rule_runs(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_saturate", lambda _job: pytest.fail("it saturated again"))
    seen: list[tuple[int, int]] = []
    found = tune(fresh(job), trials=12, on_trial=lambda done, of, _best: seen.append((done, of)))
    assert found.extractions == 12
    assert len(found.history) == 12
    assert seen == [(n, 12) for n in range(1, 13)]
    assert found.programs > 1, "no setting changed the program: the space is dead"


def test_the_same_seed_gives_the_same_result_and_another_another(job: Job) -> None:
    one, same, other = (tune(fresh(job), trials=15, seed=seed) for seed in (3, 3, 4))
    assert one.history == same.history
    assert one.settings == same.settings
    assert one.history != other.history


def test_the_first_trial_is_the_settings_given_so_the_best_is_never_worse(job: Job) -> None:
    found = tune(fresh(job), trials=8)
    base = base_of(found.space, job.target, job.options.alpha)
    assert found.history[0] == (base, found.base)
    assert found.value <= found.base
    assert found.value == min(v for _, v in found.history)


def test_the_space_has_a_setting_for_what_the_egraph_holds_and_applies(job: Job) -> None:
    space = space_of(job["saturate"])
    names = [r.name for r in space]
    assert names[0] == ALPHA
    assert len(set(names)) == len(names)
    assert "weight.attention" not in names
    assert any(n.startswith(PENALTY) for n in names)
    settings = {**base_of(space, job.target, 1.0), "weight.elementwise": 2.0, "penalty.matmul": 0.25, ALPHA: 0.5}
    target, alpha = apply(settings, job.target)
    assert (target.weight("elementwise"), target.penalty("matmul"), alpha) == (2.0, 0.25, 0.5)
    assert target.weight("matmul") == job.target.weight("matmul")


def test_tuned_settings_can_be_used(job: Job) -> None:
    from forge_eq.ir.text import text

    found = tune(fresh(job), trials=6)
    again = Job(Options(alpha=found.alpha, target=found.target), job.source, dict(job.forms))
    assert text(run(again, "extract")["chosen"].graph) == text(found.chosen.graph)


@pytest.mark.parametrize("changes", [{"trials": 0}, {"top": 0}, {"rounds": 0}, {"storage": "study.txt"}])
def test_values_out_of_range_are_refused(job: Job, changes: dict[str, object]) -> None:
    with pytest.raises(OptionsError):
        tune(fresh(job), **changes)  # type: ignore[arg-type]


def test_a_storage_that_cannot_be_used_is_named(job: Job, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="cannot be opened"):
        tune(fresh(job), trials=1, storage=tmp_path / "missing" / "study.db")


def test_a_cost_of_ones_own_has_no_settings(job: Job) -> None:
    own = Job(Options(cost=lambda *_: 1.0), job.source, dict(job.forms))
    with pytest.raises(OptionsError, match="no settings"):
        tune(own, trials=1)


# ---- storages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["study.db", "study.journal"])
def test_a_study_is_kept_and_resumed(job: Job, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    first = tune(fresh(job), trials=4, storage=place)
    more = tune(fresh(job), trials=3, storage=place)
    assert len(first.history) == 4
    assert len(more.history) == 7
    assert more.history[:4] == first.history
    assert more.extractions == 3
    assert more.value <= first.value


WORKER = """
import sys
from test_tune import block
from forge_eq.tune import tune
module, args = block()
found = tune(module, args, trials=6, storage=sys.argv[1], seed=int(sys.argv[2]), verify="off")
print(len(found.history))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study.db", "study.journal"])
def test_two_processes_share_one_study(job: Job, tmp_path: Path, name: str) -> None:
    place = str(tmp_path / name)
    path = f"{ROOT}:{ROOT / 'tests'}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, place, str(seed)],
            env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors[-2000:]
    found = tune(fresh(job), trials=1, storage=place)
    assert len(found.history) == 13, "six of each worker and one here: this process found the same study"
    values = dict.fromkeys(v for _, v in found.history)
    assert all(found.value <= v for v in values)


# ---- order and certainty ------------------------------------------------------------------------------------------


def test_agreement_is_kendalls_tau_over_pairs_that_noise_cannot_order() -> None:
    assert agreement([1, 2, 3], [10, 20, 30]) == 1.0
    assert agreement([3, 2, 1], [10, 20, 30]) == -1.0
    assert agreement([1, 3, 2], [10, 20, 30]) == pytest.approx(1 / 3)
    assert agreement([1, 1, 2], [10, 20, 30]) == pytest.approx(2 / 3)  # a predicted tie agrees with nothing
    assert agreement([2, 1, 3], [10.0, 10.1, 30], noise=0.02) == 1.0  # the one wrong pair is within the noise
    assert math.isnan(agreement([1, 2], [10.0, 10.1], noise=0.02))


def test_only_a_sure_gain_replaces_the_unoptimised_program() -> None:
    base = [10.0 + 0.1 * (i % 3) for i in range(15)]
    sure = [b / 1.2 for b in base]
    small = [b / 1.02 for b in base]
    wild = [b / (1.9 if i % 2 else 0.6) for i, b in enumerate(base)]
    names = ["captured", "other"]
    assert fastest(names, [base, sure]) == "other"
    assert fastest(names, [base, small]) == "captured", "2 % is below the margin"
    assert fastest(names, [base, wild]) == "captured", "the bound is low although some rounds are fast"
    assert fastest(["captured", "small", "sure"], [base, small, sure]) == "sure"
    middle, low = speedup(base, sure)
    assert low <= middle == pytest.approx(1.2)
    assert speedup(base, wild) == speedup(base, wild)


def clock(monkeypatch: pytest.MonkeyPatch, captured: float, others: float) -> None:
    """Replaces the measurement by given seconds per program, so that no test depends on the machine."""

    def interleaved(calls: list[Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> list[list[float]]:
        for call in calls:
            call()  # they do run
        return [[captured] * rounds, *([others] * rounds for _ in calls[1:])]

    monkeypatch.setattr(measuring, "interleaved", interleaved)


@pytest.mark.parametrize(("others", "wins"), [(1.0, True), (1.99, False), (3.0, False)])
def test_measure_keeps_the_unoptimised_program_unless_another_is_faster(
    job: Job, monkeypatch: pytest.MonkeyPatch, others: float, wins: bool
) -> None:
    pytest.importorskip("openvino", reason="programs are timed on OpenVINO")
    clock(monkeypatch, 2.0, others)
    module, args = block()
    found = tune(module, args, trials=5, measure=True, top=2, rounds=5, threads=1)
    timing = found.timing
    assert timing is not None
    assert (timing.winner != "captured") is wins
    assert len(timing.seconds) == 2
    torch.testing.assert_close(timing.program(*args), module(*args), rtol=1e-4, atol=1e-5)


def test_measured_times_make_the_order_the_objective(job: Job) -> None:
    trials = Trials(fresh(job))
    settings = [{**trials.base, ALPHA: a} for a in (0.0, 1.0)]
    names = [trials.run(s).program for s in settings]
    assert names[0] != names[1], "alpha has to change the program for this test to mean something"
    # Measured: what alpha = 1 calls dear is fast. The settings given order the pair wrongly, others do not.
    found = tune(fresh(job), trials=25, measured=[(settings[0], 1.0), (settings[1], 2.0)])
    assert found.objective == "order"
    assert found.base == -1.0
    assert found.value >= 0.0
    tuned = trials.predict(found.settings, names)
    assert agreement(tuned, [1.0, 2.0]) == found.value


# ---- the page and the command -------------------------------------------------------------------------------------


def test_the_page_draws_every_trial(job: Job) -> None:
    found = tune(fresh(job), trials=9)
    text = found.html()
    assert text.count("<circle") == 9
    assert text.count("<polyline") == 1
    assert all(r.name in text for r in found.space)
    assert history([1.0, 1.0], "u", False).count("<circle") == 2  # equal values do not divide by zero


def test_the_command(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from forge_eq.cli import app

    page, place = tmp_path / "page.html", tmp_path / "s.journal"
    run_ = CliRunner().invoke(
        app, ["tune", "gpt2-tiny", "--trials", "3", "--report", str(page), "--storage", str(place), "--verify", "off"]
    )
    assert run_.exit_code == 0, run_.output
    assert "3 trials over one saturation" in run_.output
    assert "Nothing was timed" in run_.output
    assert page.read_text().count("<circle") == 3
    assert place.exists()
    wrong = CliRunner().invoke(app, ["tune", "gpt2-tiny", "--out", "x.forge"])
    assert wrong.exit_code == 2
    assert "--measure" in wrong.output
