"""Programs of one e-graph timed against each other, and against the program as it was captured.

Takes trials and the names of programs. Gives :class:`Timing`. Promises: in turn, in an order that rotates, so that
drift of the machine falls on all alike; the unoptimised program stays unless another one's lower 95 % bound of the
ratio exceeds 1.03, in a second measurement of those two alone as well. Not here: which settings to try.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from forge_eq.api import Progress
from forge_eq.errors import OptionsError
from forge_eq.extract.fold import fold
from forge_eq.ir.types import TensorType
from forge_eq.pipeline import Job
from forge_eq.program import CompiledProgram, Specialised, finish
from forge_eq.tune.order import fastest, speedup
from forge_eq.tune.trial import Trials

CAPTURED, AGAIN = "captured", "captured again"
WARM = 3  # calls before the first that counts


@dataclass(frozen=True)
class Timing:
    """``samples``: seconds of each round by program; ``ratios``: (median, lower 95 % bound) of captured over it.

    ``noise`` is how far the captured program is from itself, timed as two. ``winner`` names the program to use, and
    ``program`` is that, compiled. ``seconds``: medians of the programs of the e-graph; ``settings`` gave them.
    """

    samples: dict[str, tuple[float, ...]]
    ratios: dict[str, tuple[float, float]]
    noise: float
    winner: str
    program: CompiledProgram
    seconds: dict[str, float]
    settings: dict[str, Mapping[str, float]]

    @property
    def measured(self) -> list[tuple[Mapping[str, float], float]]:
        """For ``tune(measured=)``."""
        return [(self.settings[name], taken) for name, taken in self.seconds.items()]


def clock_of(threads: int) -> Callable[[], float]:
    """On one thread the processor's time: it equals latency on a quiet core and suffers least on a busy one."""
    return time.process_time if threads == 1 else time.perf_counter


def interleaved(
    calls: Sequence[Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of each call in each round, the order moved on by one from round to round."""
    for call in calls:
        for _ in range(WARM):
            call()
    samples: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        for k in range(len(calls)):
            index = (turn + k) % len(calls)
            start = clock()
            calls[index]()
            samples[index].append(clock() - start)
    return samples


def time_programs(
    trials: Trials, first: Sequence[str], top: int, rounds: int, on_stage: Progress | None = None
) -> Timing:
    """Times the captured program and up to ``top`` others: ``first``, then those of the least predicted time.

    Raises OptionsError for a program with symbolic sizes, or without example inputs.
    """
    job = trials.job
    args, kwargs = _inputs(job)
    by_prediction = sorted(trials.known, key=lambda n: (trials.known[n].predicted, n))
    names = list(dict.fromkeys([*first, *by_prediction]))[:top]
    built = {CAPTURED: _build(job, args, kwargs, None, on_stage)}
    built |= {name: _build(job, args, kwargs, trials.program(name), on_stage) for name in names}
    if on_stage is not None:
        on_stage("measure")
    programs = {name: CompiledProgram(job["capture"], job.options, None, made) for name, made in built.items()}
    order = [CAPTURED, *names, AGAIN]
    calls = [_call(programs[CAPTURED if name == AGAIN else name], args, kwargs) for name in order]
    clock = clock_of(job.options.threads)
    samples = dict(zip(order, map(tuple, interleaved(calls, rounds, clock)), strict=True))
    winner = fastest([CAPTURED, *names], [samples[n] for n in (CAPTURED, *names)])
    if winner != CAPTURED:  # the best of several looks better than it is: it has to win once more, alone
        again = interleaved([calls[0], calls[order.index(winner)]], rounds, clock)
        winner = fastest([CAPTURED, winner], again)
    ratios = {name: speedup(samples[CAPTURED], samples[name]) for name in order[1:]}
    noise = abs(ratios[AGAIN][0] - 1)
    return Timing(
        samples,
        ratios,
        noise,
        winner,
        programs[winner],
        {n: median(samples[n]) for n in names},
        {n: trials.settings[n] for n in names},
    )


def _inputs(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    graph = job["capture"]
    if any(isinstance(n.type, TensorType) and not n.type.static for n in graph.inputs):
        raise OptionsError("tune", "measure", "the program has symbolic sizes", "tune it at the sizes that it will run")
    if job.source is None or (graph.inputs and not job.source[1] and not job.source[2]):
        raise OptionsError("tune", "measure", "there are no example inputs", "pass example_inputs")
    return tuple(job.source[1]), dict(job.source[2] or {})


def _build(job: Job, args: Any, kwargs: Any, chosen: Any, on_stage: Progress | None) -> Specialised:
    """The program compiled; the captured one when ``chosen`` is None. Both go through the same stages and checks."""
    graph = job["capture"] if chosen is None else chosen.graph
    forms = {"capture": job["capture"], "saturate": job["saturate"], "extract": fold(graph, job.options.limits)}
    return finish(Job(job.options, job.source, forms), args, kwargs, on_stage)


def _call(program: CompiledProgram, args: Any, kwargs: Any) -> Callable[[], Any]:
    return lambda: program(*args, **kwargs)
