"""Weights of cost classes against measured order, judged on models that the weights were not chosen for.

Takes a JSON file of measured variants. Gives concordances before and after. Promises: only variants of one model at one
size are compared, and only pairs that noise cannot order; a model's own figures never enter the weights it is judged
by; the same seed gives the same result. Not here: the measuring (``bench/order.py``), alpha (a variant has its own).

The file is what ``bench/order.py`` keeps: ``{"model, tokens": {"spread", "variants": {name: {"measured", "classes",
"shipped"}}}}``. ``measured`` is the median time, in any one unit; ``spread`` the A/A spread as a share; ``classes`` are
predicted microseconds by part of the prediction (``schedule.plan.parts``), whose sum it is, under the target as it was
where they were measured; ``shipped`` the same under the target's file, without what a calibration found.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_eq.errors import OptionsError
from forge_eq.tune.store import quiet, require

Weights = Mapping[str, float]  # factor on the time of a cost class; 1 where absent
RANGE = 4.0  # weights from 1 / RANGE to RANGE
MODEST = 0.01  # concordance that a factor e on every weight must bring: weights that change nothing stay at 1


@dataclass(frozen=True, slots=True)
class Variant:
    """One program of a model: predicted microseconds by cost class, its measured time and the spread of that."""

    model: str
    tokens: int
    name: str
    classes: Mapping[str, float]
    measured: float
    noise: float = 0.0

    def predicted(self, weights: Weights) -> float:
        """Predicted microseconds with a factor on each class."""
        return math.fsum(weights.get(c, 1.0) * us for c, us in sorted(self.classes.items()))


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
    return Variant(model, int(tokens), name, classes, taken, spread)


def pairs(variants: Sequence[Variant]) -> list[tuple[Variant, Variant]]:
    """(faster, slower) of one model at one size, apart by more than twice the larger of their spreads."""
    groups: dict[tuple[str, int], list[Variant]] = {}
    for v in variants:
        groups.setdefault((v.model, v.tokens), []).append(v)
    found = []
    for group in groups.values():
        for a, b in itertools.combinations(group, 2):
            fast, slow = sorted((a, b), key=lambda v: v.measured)
            if slow.measured - fast.measured > 2 * max(a.noise, b.noise) * fast.measured:
                found.append((fast, slow))
    return found


def concordance(variants: Sequence[Variant], weights: Weights | None = None) -> float:
    """Share of the pairs whose predicted order is the measured one; a predicted tie counts half. NaN without pairs."""
    return _share(pairs(variants), weights or {})


def _share(found: Sequence[tuple[Variant, Variant]], weights: Weights) -> float:
    score = 0.0
    for fast, slow in found:
        a, b = fast.predicted(weights), slow.predicted(weights)
        score += 0.5 if math.isclose(a, b, rel_tol=1e-9) else float(a < b)
    return score / len(found) if found else math.nan


def fit(variants: Sequence[Variant], trials: int = 200, seed: int = 0) -> dict[str, float]:
    """Weights whose predicted order agrees best with the measured one. The first trial is all ones.

    One class of the most predicted time keeps weight 1: only ratios order anything. Raises OptionsError without optuna,
    or when no pair differs by more than its noise.
    """
    known = pairs(variants)
    if not known:
        raise OptionsError("tune", "measured", "no pair differs by more than its noise", "measure more variants")
    optuna, total = require(), dict[str, float]()
    for v in variants:
        for c, us in v.classes.items():
            total[c] = total.get(c, 0.0) + us
    free = sorted(set(total) - {max(sorted(total), key=total.__getitem__)})
    if not free:
        return dict.fromkeys(total, 1.0)

    def value(trial: Any) -> float:
        weights = {c: trial.suggest_float(c, 1 / RANGE, RANGE, log=True) for c in free}
        far = sum(abs(math.log(w)) for w in weights.values()) / len(free)
        return _share(known, weights) - MODEST * far

    with quiet():
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, n_ei_candidates=12)
        )
        study.enqueue_trial(dict.fromkeys(free, 1.0))
        study.optimize(value, n_trials=trials)
    return {**dict.fromkeys(total, 1.0), **study.best_params}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A model judged by weights that the other models chose: concordance before and after, over ``pairs``."""

    model: str
    pairs: int
    before: float
    after: float
    weights: Weights


def leave_one_out(variants: Sequence[Variant], trials: int = 200, seed: int = 0) -> list[LeftOut]:
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
