"""Weights against measured order, judged on models that the weights were not chosen for.

Takes a JSON file of measured variants. Gives weights, the target with them, and concordances before and after.
Promises: only variants of one model at one size are compared, and only pairs that noise cannot order; a model's own
figures never enter the weights it is judged by; the same seed gives the same result. Not here: the measuring
(``bench/order.py``).

The file is what ``bench/order.py`` keeps: ``{"model, tokens": {"spread", "variants": {name: {"measured", "classes",
"shipped", "gains"}}}}``. ``measured`` is the median time, in any one unit; ``spread`` the A/A spread as a share;
``classes`` are predicted microseconds by part of the prediction (``schedule.plan.parts``), whose sum it is, under the
target as it was where they were measured; ``shipped`` the same under the target's file, without what a calibration
found; ``gains`` what fusion saves of it under either, which alpha below 1 takes back.

Weights are factors by name: of a cost class (``norm``), of a part of one (``matmul.left``), of a part at a number of
tokens (``matmul.left@16``: between such numbers the logarithm is interpolated, as in the table of kernels). A part is
multiplied by the weights of all its beginnings. ``alpha`` among them is alpha itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forge_eq.errors import OptionsError
from forge_eq.extract.cost import FusionGain
from forge_eq.ir.graph import Graph
from forge_eq.ir.types import TupleType
from forge_eq.lower.npu import Program, operand_type
from forge_eq.targets import Target
from forge_eq.targets.kernels import Kernels
from forge_eq.tune.descent import Sample, Settings
from forge_eq.tune.store import quiet, require
from forge_eq.tune.variants import ALPHA, Variant, Weights, pairs

TRIALS, TOP = 24, 5  # of the search for a fit's settings; the best so many of which give the weights together
PRIOR, SOFTNESS = (0.005, 0.1), (0.015, 0.06)  # where the settings of a fit are looked for
SOFT = 0.02  # share by which two predicted times differ where half of a step between right and wrong is made


def read_variants(source: str | Path | Mapping[str, Any], base: str = "classes") -> list[Variant]:
    """The variants of a file, or of its content, with the predictions called ``base`` (``"classes"``, ``"shipped"``).

    Raises OptionsError that names the variant and what is wrong.
    """
    try:
        chunks = source if isinstance(source, Mapping) else json.loads(Path(source).read_text(encoding="utf-8"))
        return [
            _variant(key, float(chunk["spread"]), name, row, base)
            for key, chunk in chunks.items()
            for name, row in chunk["variants"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise OptionsError("tune", "measurements", f"cannot be read ({e!r})", "write them by bench/order.py") from e


def _variant(key: str, spread: float, name: str, row: Mapping[str, Any], base: str) -> Variant:
    model, _, tokens = key.rpartition(", ")
    if base not in row:
        raise OptionsError("tune", f"{key}, {name}", "has no times by cost class", "predict again: order.py --again")
    classes = {str(c): float(us) for c, us in row[base].items()}
    taken, values = float(row["measured"]), [*classes.values(), spread]
    if not (0.0 < taken < math.inf and classes and all(0.0 <= v < math.inf for v in values)):
        raise OptionsError("tune", f"{key}, {name}", "has a time that is not finite and positive", "measure it again")
    return Variant(model, int(tokens), name, classes, taken, spread, float(row.get("gains", {}).get(base, 0.0)))


def concordance(variants: Sequence[Variant], weights: Weights | None = None) -> float:
    """Share of the pairs whose predicted order is the measured one; a predicted tie counts half. NaN without pairs."""
    found, score = pairs(variants), 0.0
    for fast, slow in found:
        a, b = fast.predicted(weights or {}), slow.predicted(weights or {})
        score += 0.5 if math.isclose(a, b, rel_tol=1e-9) else float(a < b)
    return score / len(found) if found else math.nan


def gain(program: Program, captured: Graph, target: Target) -> float:
    """Predicted microseconds that the fused ops of a scheduled program save over their parts, as extraction counts."""
    cost, total = FusionGain.of(captured, target), 0.0
    for instr in program.instrs:
        if instr.op is None or not instr.origin.rule or instr.op in cost.captured:
            continue
        results = [program.vregs[d].type for d in instr.dsts]
        out = results[0] if len(results) == 1 else TupleType(tuple(results))
        types = [operand_type(program, s) for s in instr.srcs]
        whole = cost.parts(instr.op, types, instr.attrs, out)
        total += 0.0 if whole is None else max(0.0, whole - cost.time(instr.op, types, instr.attrs, out))
    return total


def weighed(target: Target, weights: Weights) -> tuple[Target, float]:
    """The target with weights applied, and alpha: what ``optimize(..., target=, alpha=)`` takes."""
    known = dict(target.weights)
    columns: dict[str, dict[int, float]] = {}
    for name, factor in weights.items():
        part, _, tokens = name.partition("@")
        if tokens:
            columns.setdefault(part.rpartition(".")[2], {})[int(tokens)] = factor
        elif name != ALPHA:
            known[name] = known.get(name, 1.0) * factor
    points = (replace(p, us=p.us * _between(columns.get(p.form, {}), p.tokens)) for p in target.kernels.points)
    return replace(target, weights=known, kernels=Kernels(tuple(points))), weights.get(ALPHA, 1.0)


def _between(column: Mapping[int, float], tokens: int) -> float:
    """The factor at a number of tokens: its logarithm is linear in that of the tokens, constant outside."""
    import numpy as np

    if not column:
        return 1.0
    at = sorted(column)
    return float(np.exp(np.interp(np.log(tokens), np.log(at), [math.log(column[t]) for t in at])))


def fit(variants: Sequence[Variant], trials: int = TRIALS, seed: int = 0) -> dict[str, float]:
    """Weights whose predicted order agrees best with the measured one; all ones where no fit is better than those.

    The weights come from a descent; its settings and alpha from optuna, which asks how well each of these models is
    ordered by what the others give. Raises OptionsError without optuna, or when no pair differs by more than its noise.
    """
    known = pairs(variants)
    if not known:
        raise OptionsError("tune", "measured", "no pair differs by more than its noise", "measure more variants")
    optuna, samples = require(), {each: Sample(variants, each) for each in (False, True)}
    models = sorted({fast.model for fast, _ in known})
    own = {m: [v for v in variants if v.model == m] for m in models}

    def left_out(settings: Settings) -> dict[str, dict[str, float]]:
        sample = samples[settings.each]
        return {m: sample.fit(settings, without=m if len(models) > 1 else None) for m in models}

    def smooth(weights: Mapping[str, Weights]) -> float:
        """Concordance, the step between right and wrong rounded off: few pairs would make it jump."""
        told = (math.log(b.predicted(weights[b.model]) / a.predicted(weights[a.model])) for a, b in known)
        return math.fsum(0.5 + 0.5 * math.tanh(t / SOFT) for t in told) / len(known)

    def share(weights: Mapping[str, Weights]) -> float:
        return math.fsum(len(pairs(own[m])) * concordance(own[m], weights[m]) for m in models)

    fused = any(v.gain for v in variants)  # else nothing tells one alpha from another

    def value(trial: Any) -> float:
        settings = Settings(
            trial.suggest_float("prior", *PRIOR, log=True), trial.suggest_float("soft", *SOFTNESS, log=True),
            trial.suggest_categorical("each", [False, True]),
            trial.suggest_float(ALPHA, 0.5, 1.0) if fused else 1.0,
        )  # fmt: skip
        return smooth(left_out(settings))

    with quiet():
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        for each in (False, True):
            study.enqueue_trial({"prior": 0.01, "soft": 0.03, "each": each, **({ALPHA: 1.0} if fused else {})})
        study.optimize(value, n_trials=trials)
    ranked = sorted(study.trials, key=lambda t: (-t.value, t.number))[:TOP]
    best = [Settings(**t.params) for t in ranked]
    judged = [left_out(settings) for settings in best]
    if share({m: _mean([j[m] for j in judged]) for m in models}) <= share({m: {} for m in models}):
        return {**dict.fromkeys(samples[False].names, 1.0), ALPHA: 1.0}
    return _mean([samples[settings.each].fit(settings) for settings in best])


def _mean(weights: Sequence[Weights]) -> dict[str, float]:
    """The geometric mean of several fits: it varies less than the best of them."""
    names = sorted({n for w in weights for n in w})
    return {n: math.exp(math.fsum(math.log(w.get(n, 1.0)) for w in weights) / len(weights)) for n in names}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A model judged by weights that the other models chose: concordance before and after, over ``pairs``."""

    model: str
    pairs: int
    before: float
    after: float
    weights: Weights


def leave_one_out(variants: Sequence[Variant], trials: int = TRIALS, seed: int = 0) -> list[LeftOut]:
    """For each model: weights fitted to all others, judged on it. Raises OptionsError with fewer than two models."""
    models = sorted({v.model for v in variants})
    if len(models) < 2:
        raise OptionsError("tune", "measured", f"only {models} were measured", "leave-one-out takes two models or more")
    found = []
    for model in models:
        rest, own = [v for v in variants if v.model != model], [v for v in variants if v.model == model]
        weights = fit(rest, trials, seed)
        found.append(LeftOut(model, len(pairs(own)), concordance(own), concordance(own, weights), weights))
    return found


def overall(found: Sequence[LeftOut]) -> tuple[float, float]:
    """Concordance before and after over the pairs of all left-out models."""
    judged = [f for f in found if f.pairs]
    total = sum(f.pairs for f in judged)
    if not total:
        return math.nan, math.nan
    before, after = (math.fsum(v * f.pairs for v, f in zip(values, judged, strict=True)) / total
                     for values in ([f.before for f in judged], [f.after for f in judged]))  # fmt: skip
    return before, after
