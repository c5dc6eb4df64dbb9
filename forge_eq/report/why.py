"""Which rules were needed: the program is optimised again without each of them.

Takes a Job that reached extraction. Gives a :class:`Because`. Promises: a rule is credited when, and only when, the
cost without it is higher; rules that stand in for each other are credited as a group. One saturation and
extraction per rule that matched, hence only on demand. Not here: text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_eq.pipeline import Job
from forge_eq.rules.dsl import RuleSet

STEP = 1e-6  # relative: costs closer than this are equal


@dataclass(frozen=True)
class Because:
    """``needed``: (rule, cost without it). ``either``: (rules, cost without all of them) where any one suffices.

    ``idle``: the rules that matched and can be left out together at no loss.
    """

    cost: float
    needed: tuple[tuple[str, float], ...]
    either: tuple[tuple[tuple[str, ...], float], ...]
    idle: tuple[str, ...]


def because(job: Job, on_step: Callable[[str, int, int], None] | None = None) -> Because:
    """Drop-one ablation over the rules that matched; then groups that stand in for each other.

    Args:
        on_step: hears (rule, number of it, number of all) before each trial of the first part.
    """
    base = job["chosen"].extraction.cost
    fired = sorted(job["saturate"].saturation.matches)
    needed: list[tuple[str, float]] = []
    idle: list[str] = []
    for step, name in enumerate(fired):
        if on_step is not None:
            on_step(name, step + 1, len(fired))
        cost = _without(job, name)
        if cost > base * (1 + STEP):
            needed.append((name, cost))
        else:
            idle.append(name)
    needed.sort(key=lambda item: (-item[1], item[0]))
    either, spared = _stand_ins(job, base, idle)
    return Because(base, tuple(needed), tuple(either), tuple(spared))


def _stand_ins(job: Job, base: float, idle: list[str]) -> tuple[list[tuple[tuple[str, ...], float]], list[str]]:
    """(groups of rules of which one suffices, the other idle rules).

    All are dropped at once; only if that costs something are they dropped one after the other: a rule that cannot
    go after the ones before it stands in for some of them, which are narrowed down to the fewest.
    """

    def costly(*names: str) -> bool:
        return _without(job, *names) > base * (1 + STEP)

    if not idle or not costly(*idle):
        return [], idle
    dropped: list[str] = []
    groups: list[tuple[tuple[str, ...], float]] = []
    for name in idle:
        if not costly(*dropped, name):
            dropped.append(name)
            continue
        fewest = list(dropped)
        for other in dropped:
            rest = [n for n in fewest if n != other]
            if costly(*rest, name):
                fewest = rest
        groups.append(((*fewest, name), _without(job, *fewest, name)))
    grouped = {name for names, _ in groups for name in names}
    return groups, [name for name in idle if name not in grouped]


def _rules(job: Job) -> RuleSet:
    if job.options.rules is not None:
        return RuleSet(job.options.rules)
    from forge_eq.rules import default

    return default


def _without(job: Job, *names: str) -> float:
    """The least cost found when ``names`` are left out."""
    from forge_eq.egraph.engine import Engine
    from forge_eq.extract.cost import FusionGain
    from forge_eq.extract.program import choose

    graph, limits = job["capture"], job.options.limits
    rules = RuleSet(r for r in _rules(job) if r.id not in names)
    view = Engine(rules).saturate(graph, limits)
    return choose(view, graph, FusionGain.of(graph, job.target, job.options.alpha), limits).extraction.cost
