"""Which rules were needed: the program is optimised again without each of them.

Takes a Job that reached extraction. Gives a :class:`Because`. Promises: a rule is credited when, and only when, the
cost without it is higher; when two rules stand in for each other, the pair is. One saturation and extraction
per rule that matched, hence only on demand. Not here: text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from forge_eq.pipeline import Job
from forge_eq.rules.dsl import RuleSet

STEP = 1e-6  # relative: costs closer than this are equal


@dataclass(frozen=True)
class Because:
    """``needed``: (rule, cost without it). ``either``: (rule, rule, cost without both) where one suffices.

    ``idle``: rules that matched and could be left out, one at a time, at no loss.
    """

    cost: float
    needed: tuple[tuple[str, float], ...]
    either: tuple[tuple[str, str, float], ...]
    idle: tuple[str, ...]


def because(job: Job, on_step: Callable[[str, int, int], None] | None = None) -> Because:
    """Drop-one ablation over the rules that matched, then pairs (rule, what took its place).

    Args:
        on_step: hears (rule, number of it, number of all) before each trial.
    """
    rules = _rules(job)
    made = {n.origin.rule for n in job["chosen"].graph.nodes if n.origin.rule}
    base = job["chosen"].extraction.cost
    fired = [name for name in sorted(job["saturate"].saturation.matches)]
    needed, idle, pairs = [], [], set()
    for step, name in enumerate(fired):
        if on_step is not None:
            on_step(name, step + 1, len(fired))
        cost, instead = _without(job, rules, name)
        if cost > base * (1 + STEP):
            needed.append((name, cost))
            continue
        idle.append(name)
        if name in made:  # another way was as cheap: which rules does it use?
            pairs.update(tuple(sorted((name, other))) for other in instead - made)
    credited = {name for name, _ in needed}
    either = []
    for first, second in sorted(pairs):
        if second not in credited and first not in credited:
            cost, _ = _without(job, rules, first, second)
            if cost > base * (1 + STEP):
                either.append((first, second, cost))
    needed.sort(key=lambda item: (-item[1], item[0]))
    spared = {name for first, second, _ in either for name in (first, second)}
    return Because(base, tuple(needed), tuple(either), tuple(n for n in idle if n not in spared))


def _rules(job: Job) -> RuleSet:
    if job.options.rules is not None:
        return RuleSet(job.options.rules)
    from forge_eq.rules import default

    return default


def _without(job: Job, rules: RuleSet, *names: str) -> tuple[float, set[str]]:
    """(cost, rules that made a chosen node) when ``names`` are left out."""
    from forge_eq.egraph.engine import Engine
    from forge_eq.extract.cost import FusionGain
    from forge_eq.extract.program import choose

    graph, limits = job["capture"], job.options.limits
    view = Engine(RuleSet(r for r in rules if r.id not in names)).saturate(graph, limits)
    chosen = choose(view, graph, FusionGain.of(graph, job.target, job.options.alpha), limits)
    return chosen.extraction.cost, {n.origin.rule for n in chosen.graph.nodes if n.origin.rule}
