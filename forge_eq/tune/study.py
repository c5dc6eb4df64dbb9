"""``tune``: search for the settings of the cost model whose program is best.

Takes a module (or a job). Gives :class:`Tuned`. Promises: one saturation, and one extraction for each trial; the same
seed gives the same result (of one process: others that share the study add what they find, when they find it); with
``measure`` the program is the unoptimised one unless another is surely faster. Not here: the search (optuna's TPE).
What the objective means, and what it cannot: decision 0007.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_eq import rules
from forge_eq.api import Progress, make_job, make_options
from forge_eq.errors import OptionsError
from forge_eq.extract.program import Chosen
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.run.heap import collector_held
from forge_eq.targets import Target
from forge_eq.tune.order import agreement
from forge_eq.tune.space import Range, apply
from forge_eq.tune.store import RUN, open_study, pull, push, quiet, require
from forge_eq.tune.trial import Trials

if TYPE_CHECKING:
    from forge_eq.tune.measure import Timing

SHARE = 50  # trials between two looks at what other processes found
Measured = tuple[Mapping[str, float], float]
OnTrial = Callable[[int, int, float], None]  # (trials done, of how many, best value)


@dataclass(frozen=True)
class Tuned:
    """What tuning found.

    ``settings`` are the best ones; ``target`` and ``alpha`` carry them, for ``optimize(..., target=, alpha=)``.
    ``objective`` is "predicted" (microseconds, less is better) or "order" (Kendall's tau, more is better); ``base``
    is its value under the settings given. ``seconds``: of the search, of the extractions in it, of the storage, and
    the processor's of the ``sampling``, which is the search beyond its extractions. ``history``: (settings, value) of
    every trial, those of others included. ``importance``: share of each setting in the spread of values. ``timing``:
    the measurement, if one was asked for.
    ``agreement``: tau of the measured order under the base settings, and the highest of any trial.
    """

    objective: str
    settings: Mapping[str, float]
    value: float
    base: float
    target: Target
    alpha: float
    chosen: Chosen
    space: tuple[Range, ...]
    history: tuple[tuple[Mapping[str, float], float], ...]
    importance: Mapping[str, float]
    programs: int
    extractions: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    timing: Timing | None = None
    agreement: tuple[float, float] = (math.nan, math.nan)

    def html(self) -> str:
        """One page: history and importance as pictures, settings and times as tables."""
        from forge_eq.tune.page import page

        return page(self)


def tune(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    trials: int = 50,
    storage: str | Path | None = None,
    seed: int = 0,
    measure: bool = False,
    top: int = 4,
    rounds: int = 15,
    measured: Sequence[Measured] = (),
    options: Options | None = None,
    on_stage: Progress | None = None,
    on_trial: OnTrial | None = None,
    **changes: Any,
) -> Tuned:
    """Tunes alpha, weights and penalties of the cost model for a module.

    Args:
        module: as :func:`forge_eq.optimize`, or a Job, whose forms are kept.
        trials: to run now; a storage that has some already gets so many more.
        storage: a ``.db`` or ``.journal`` file, or the URL of a database; trials are added to it and taken from it.
        measure: time the unoptimised program and up to ``top`` distinct ones in turn, ``rounds`` times each.
        measured: settings and the seconds of the program that they give (``Timing.measured`` of an earlier run): the
            objective becomes the agreement between predicted and measured order of these programs.

    Raises:
        OptionsError: a value out of range, optuna missing, a storage that cannot be used.
    """
    for name, value in (("trials", trials), ("top", top), ("rounds", rounds)):
        if value < 1:
            raise OptionsError("tune", name, f"{value} is out of range", "use a whole number from 1 up")
    job = module if isinstance(module, Job) else None
    if job is None:
        chosen = make_options(options, changes)
        job = make_job(module, example_inputs, example_kwargs, None, chosen)
    require()
    run(job, "saturate", on_stage)
    if on_stage is not None:
        on_stage("tune")
    study = _Study(job, storage, seed, measured)
    with quiet():
        with collector_held():
            study.search(trials, on_trial)
        return study.result(measure, top, rounds, on_stage)


class _Study:
    """The search of one process: in memory, and now and then in step with the shared study."""

    def __init__(self, job: Job, storage: str | Path | None, seed: int, measured: Sequence[Measured]) -> None:
        optuna = require()
        self.optuna, self.job, self.trials, self.measured = optuna, job, Trials(job), dict[str, float]()
        self.objective = "order" if measured else "predicted"
        direction = "maximize" if measured else "minimize"
        self.sign = -1.0 if measured else 1.0
        self.shared = open_study(storage, f"{self.objective}-{self._program()}", direction)
        self.run, self.seen, self.own = secrets.token_hex(8), set[int](), list[tuple[Mapping[str, float], float]]()
        for settings, taken in measured:
            self.measured[self.trials.run({**self.trials.base, **settings}).program] = taken
        self.seconds = dict.fromkeys(("search", "extract", "storage", "sampling"), 0.0)
        log = optuna.distributions.FloatDistribution
        self.space = {r.name: log(r.low, r.high, log=r.log) for r in self.trials.space}
        start = time.perf_counter()
        known = pull(self.shared, self.run, self.seen)
        self.seconds["storage"] += time.perf_counter() - start
        with quiet():
            sampler = optuna.samplers.TPESampler(seed=seed + len(known), multivariate=True, n_ei_candidates=12)
            self.memory = optuna.create_study(direction=direction, sampler=sampler)
        self.memory.add_trials(known)
        before = next((v for s, v in self.history() if s == self.trials.base), None)
        self.base_value = self.value(self.trials.base) if before is None else before

    def _program(self) -> str:
        """Names what trials have in common; a study is only shared where this agrees."""
        from forge_eq.ir.text import text

        used = rules.chosen(self.job.options)
        parts = (text(self.job["capture"]), used.hash, repr(self.trials.target), str(self.job.options.alpha))
        more = repr(sorted(self.measured.items()))
        return blake2b("\0".join([*parts, more]).encode(), digest_size=8).hexdigest()

    def value(self, settings: Mapping[str, float]) -> float:
        """One extraction, and the objective."""
        start, used = time.perf_counter(), time.process_time()
        choice = self.trials.run(settings)
        self.seconds["extract"] += time.perf_counter() - start
        self.seconds["sampling"] -= time.process_time() - used
        if not self.measured:
            return choice.predicted
        tau = agreement(self.trials.predict(settings, list(self.measured)), list(self.measured.values()))
        return -1.0 if math.isnan(tau) else tau

    def search(self, count: int, on_trial: OnTrial | None) -> None:
        """Runs trials: the first of a study is the base settings, so that the best is never worse."""
        start, waited, used = time.perf_counter(), self.seconds["storage"], time.process_time()
        self.seconds["extract"] = self.seconds["sampling"] = 0.0  # the base settings were extracted before
        begin = len(self.memory.trials)
        try:
            for done in range(1, count + 1):
                if begin == 0 and done == 1:
                    self._told(self.trials.base, self.base_value)
                else:
                    trial = self.memory.ask(self.space)
                    settings = trial.params
                    found = self.value(settings)
                    self.memory.tell(trial, found)
                    self.own.append((settings, found))
                if on_trial is not None:
                    on_trial(done, count, self.best()[1])
                if done % SHARE == 0 and done < count:
                    self._share()
        finally:
            self.seconds["sampling"] += time.process_time() - used
            self._share()
        self.seconds["search"] = time.perf_counter() - start - (self.seconds["storage"] - waited)

    def _told(self, settings: Mapping[str, float], value: float) -> None:
        self.memory.add_trial(self._trial(settings, value))
        self.own.append((settings, value))

    def _trial(self, settings: Mapping[str, float], value: float) -> Any:
        return self.optuna.trial.create_trial(
            params=dict(settings), distributions=self.space, value=value, user_attrs={RUN: self.run}
        )

    def _share(self) -> None:
        start = time.perf_counter()
        if self.shared is not None:
            push(self.shared, [self._trial(settings, value) for settings, value in self.own])
            self.memory.add_trials(pull(self.shared, self.run, self.seen))
        self.own = []
        self.seconds["storage"] += time.perf_counter() - start

    def history(self) -> list[tuple[dict[str, float], float]]:
        return [(dict(t.params), t.value) for t in self.memory.get_trials(deepcopy=False) if t.value is not None]

    def best(self) -> tuple[dict[str, float], float]:
        """The best settings, the earliest on a tie."""
        return min(self.history(), key=lambda entry: self.sign * entry[1])

    def importance(self) -> dict[str, float]:
        """PED-ANOVA, as optuna computes it; nothing where all trials are equal or too few."""
        history = self.history()
        if len({value for _, value in history}) < 2:
            return {}
        evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
        try:
            found = self.optuna.importance.get_param_importances(self.memory, evaluator=evaluator)
        except (ValueError, RuntimeError):
            return {}
        return {name: float(value) for name, value in found.items()}

    def result(self, measure: bool, top: int, rounds: int, on_stage: Progress | None) -> Tuned:
        settings, value = self.best()
        trials, history = self.trials, self.history()
        target, alpha = apply(settings, trials.target)
        best = trials.run(settings)
        extractions, timing, tau = trials.extractions - 1 - len(self.measured), None, (math.nan, math.nan)
        if measure:
            from forge_eq.tune.measure import time_programs

            base = trials.run(trials.base)
            timing = time_programs(trials, [base.program, best.program], top, rounds, on_stage)
            tau = self._agreement(timing, history)
        return Tuned(
            self.objective, settings, value, self.base_value, target, alpha, trials.program(best.program),
            trials.space, tuple(history), self.importance(), len(trials.known), extractions,
            dict(self.seconds), timing, tau,
        )  # fmt: skip

    def _agreement(self, timing: Timing, history: list[tuple[dict[str, float], float]]) -> tuple[float, float]:
        names = list(timing.seconds)
        times = [timing.seconds[n] for n in names]
        every = [
            agreement(self.trials.predict(settings, names), times, 2 * timing.noise)
            for settings in [self.trials.base, *(s for s, _ in history)]
        ]
        return every[0], max(every)
