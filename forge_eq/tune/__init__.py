"""Tuning: the settings of the cost model, by optuna, over one saturation.

Reading order: ``space`` (what may vary), ``trial`` (one extraction), ``study`` (the search), ``store`` (where trials
are kept and shared), ``order`` (agreement and certainty), ``measure`` (programs timed in turn), ``page`` (a picture),
``measured`` (weights against measured order, judged on models left out).
"""

from __future__ import annotations

from forge_eq.tune.study import Tuned, tune

__all__ = ["Tuned", "tune"]
