"""Weights against measured order: what counts as a pair, and that a left-out model judges weights it did not choose."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from forge_eq.errors import OptionsError
from forge_eq.tune.measured import (
    Variant,
    concordance,
    fit,
    gain,
    leave_one_out,
    overall,
    pairs,
    read_variants,
    weighed,
)

pytest.importorskip("optuna", reason="the tuner is an extra: pip install 'forge_eq[tune]'")

TRUE = {"matmul": 1.0, "movement": 3.0, "elementwise": 0.4}  # what the machine of these tests really weighs


def measured(models: int = 4, seed: int = 0, truth: dict[str, float] | None = None) -> list[Variant]:
    rng, found = random.Random(seed), []
    for model in range(models):
        for tokens in (8, 32):
            for variant in range(8):
                classes = {"matmul": 100.0, "movement": rng.uniform(1, 40), "elementwise": rng.uniform(1, 60)}
                us = sum((truth or TRUE)[c] * t for c, t in classes.items())
                found.append(Variant(f"m{model}", tokens, f"v{variant}", classes, us * 1e-6, 0.005))
    return found


def test_pairs_are_of_one_model_and_size_and_beyond_the_noise() -> None:
    a = Variant("m", 8, "a", {"matmul": 1.0}, 1.00, 0.02)
    near = Variant("m", 8, "near", {"matmul": 1.0}, 1.03, 0.001)
    far = Variant("m", 8, "far", {"matmul": 2.0}, 1.10, 0.01)
    other = Variant("n", 8, "other", {"matmul": 2.0}, 9.0)
    larger = Variant("m", 16, "larger", {"matmul": 2.0}, 9.0)
    assert [(f.name, s.name) for f, s in pairs([a, near, far, other, larger])] == [("a", "far"), ("near", "far")]
    assert concordance([a, far]) == 1.0
    assert concordance([a, far], {"matmul": 2.0}) == 1.0
    assert concordance([a, Variant("m", 8, "tie", {"norm": 1.0}, 2.0)]) == 0.5
    assert math.isnan(concordance([a, other]))


def test_weights_of_other_models_raise_the_concordance_of_one_left_out() -> None:
    found = leave_one_out(measured(), trials=3)
    before, after = overall(found)
    assert after >= before + 0.05
    assert after >= 0.9
    assert [f.model for f in found] == ["m0", "m1", "m2", "m3"]
    assert all(f.weights["movement"] > f.weights["elementwise"] for f in found)
    assert found == leave_one_out(measured(), trials=3)


def test_the_left_out_model_does_not_choose_its_weights() -> None:
    rows = measured()
    turned = [Variant(v.model, v.tokens, v.name, v.classes, 1 / v.measured) if v.model == "m0" else v for v in rows]
    ours, others = leave_one_out(rows, trials=3)[0], leave_one_out(turned, trials=3)[0]
    assert ours.weights == others.weights
    assert others.after == pytest.approx(1 - ours.after, abs=0.05)


def test_weights_stay_at_one_where_nothing_is_wrong() -> None:
    rows = measured(truth=dict.fromkeys(TRUE, 1.0))
    assert concordance(rows) == 1.0
    assert set(fit(rows, trials=4).values()) == {1.0}


def test_a_file_is_read_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    good = {"measured": 3.0, "classes": {"matmul": 3.0, "norm": 0.5}, "predicted": 3.5}
    file = tmp_path / "order-chunks.json"
    file.write_text(json.dumps({"gpt2, 16": {"spread": 0.1, "variants": {"a": good}}}))
    assert read_variants(file) == [Variant("gpt2", 16, "a", {"matmul": 3.0, "norm": 0.5}, 3.0, 0.1)]
    for wrong in ({"measured": 0}, {"measured": math.nan}, {"classes": {}}, {"classes": {"matmul": -1}}):
        with pytest.raises(OptionsError, match="gpt2, 16, b"):
            read_variants({"gpt2, 16": {"spread": 0.1, "variants": {"a": good, "b": {**good, **wrong}}}})
    with pytest.raises(OptionsError, match="--again"):
        read_variants({"gpt2, 16": {"spread": 0.1, "variants": {"a": {"measured": 1.0, "predicted": 1.0}}}})
    for broken in (
        {"gpt2, x": {"spread": 0.1, "variants": {"a": good}}},
        {"gpt2, 16": {"variants": {"a": good}}},
        {"a": 1},
    ):
        with pytest.raises(OptionsError, match="cannot be read"):
            read_variants(broken)
    with pytest.raises(OptionsError, match="cannot be read"):
        read_variants(tmp_path / "missing.json")


def test_too_little_is_refused() -> None:
    one = Variant("m", 8, "a", {"matmul": 1.0}, 1.0)
    with pytest.raises(OptionsError, match="two models"):
        leave_one_out([one])
    with pytest.raises(OptionsError, match="no pair"):
        fit([one])


@pytest.mark.parametrize("left", [False, True])
def test_the_parts_of_a_prediction_sum_to_it_and_follow_their_weights(left: bool) -> None:
    from torch import nn

    from forge_eq.lower.orient import orient_all
    from forge_eq.lower.select import lower
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.schedule.plan import parts, schedule

    torch.set_num_threads(1)
    module = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024)).eval()
    job = run(Job(Options(verify="off"), (module, (torch.randn(64, 256),), None, None)), "extract")
    program = orient_all(lower(job["extract"], job.target), job.target) if left else lower(job["extract"], job.target)
    plan = schedule(program, job.target)
    times = parts(plan.program, job.target)
    assert ("matmul.left" in times) is left
    assert "norm" in times
    assert math.fsum(times.values()) == plan.predicted_us
    assert all(us > 0 for us in times.values())
    for name, us in times.items():
        heavier = replace(job.target, weights={**job.target.weights, name: 3.0 * job.target.weights.get(name, 1.0)})
        again = parts(plan.program, heavier)
        for other, then in times.items():
            inside = other == name or other.startswith(f"{name}.")
            assert again[other] == pytest.approx(3.0 * then if inside else then), (name, other)
        assert again[name] == pytest.approx(3.0 * us)


@pytest.mark.parametrize("left", [False, True])
def test_the_target_with_weights_predicts_what_the_weights_do(left: bool) -> None:
    from torch import nn

    from forge_eq.lower.orient import orient_all
    from forge_eq.lower.select import lower
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.schedule.plan import parts, schedule

    torch.set_num_threads(1)
    module = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024)).eval()
    job = run(Job(Options(verify="off"), (module, (torch.randn(16, 256),), None, None)), "extract")
    program = lower(job["extract"], job.target)
    program = schedule(orient_all(program, job.target) if left else program, job.target).program
    weights = {"norm": 2.0, "matmul": 1.5, "matmul.left": 1.2, "matmul.left@16": 0.5, "matmul.left.rows": 3.0,
               "matmul.plain@1": 9.0, "matmul.plain@256": 1.0, "matmul.act@16": 3.0, "movement.reorder": 4.0,
               "alpha": 0.5}  # fmt: skip
    target, alpha = weighed(job.target, weights)
    variant = Variant("m", 16, "v", parts(program, job.target), 1.0)
    told = math.fsum(parts(program, target).values())
    if left:
        assert variant.predicted(weights) == pytest.approx(told)
    else:  # between 1 and 256 tokens the logarithm of the weight is interpolated
        weights |= {"matmul.plain@16": 3.0}
        assert variant.predicted(weights) == pytest.approx(told)
    assert alpha == 0.5
    assert weighed(job.target, {})[0] == job.target


def test_alpha_takes_back_what_fusion_saves() -> None:
    from torch import nn

    from forge_eq.lower.select import lower
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    class Silu(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.sigmoid(x)

    job = run(Job(Options(verify="off"), (Silu(), (torch.randn(64, 256),), None, None)), "extract")
    saved = gain(lower(job["extract"], job.target), job["capture"], job.target)
    chosen = job["chosen"].extraction
    apart = run(Job(Options(verify="off", alpha=0.0), job.source), "extract")["chosen"].extraction
    assert saved == pytest.approx(apart.cost - chosen.cost, rel=0.05), "less the penalty of the fused op"
    assert gain(lower(job["capture"], job.target), job["capture"], job.target) == 0.0
    variant = Variant("m", 8, "v", {"elementwise": 10.0}, 1.0, gain=4.0)
    assert [variant.predicted({"alpha": a}) for a in (1.0, 0.5, 0.0)] == [10.0, 12.0, 14.0]
    assert variant.predicted({}) == 10.0
