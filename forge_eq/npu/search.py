"""The forms of a program that the NPU compiler may schedule better, tried one after the other.

Takes a chosen graph and its target. Gives the report of the fastest form and what the others take. Promises: the forms
are equal programs (``lower.blocks``); the compiler's simulated time decides, so the result is no slower than any form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from forge_eq.ir.graph import Graph
from forge_eq.lower.orient import orient
from forge_eq.lower.select import lower
from forge_eq.npu.check import Report, check
from forge_eq.npu.compiler import Compiler
from forge_eq.schedule.plan import Schedule, schedule
from forge_eq.targets import Blocks, Target


@dataclass(frozen=True)
class Found:
    """The fastest accepted form (or the first, if none is), its schedule, and the times of all in microseconds."""

    report: Report
    plan: Schedule
    form: str
    times: dict[str, float]


def forms(target: Target) -> Iterator[tuple[str, Target]]:
    """The target's own form first; then products whole, inner ones in two parts, all in four, and all weights on the
    left in halves."""
    yield "target", target
    yield "whole", replace(target, blocks=None)
    yield "inner 2", replace(target, blocks=Blocks(2048, 16, 2, outer=False, left="returned"))
    yield "inner 4", replace(target, blocks=Blocks(2048, 16, 4, outer=True, left="returned"))
    yield "left 2", replace(target, blocks=Blocks(2048, 16, 2, outer=True, left="all"))


def planned(graph: Graph, target: Target) -> Schedule:
    """The schedule of a chosen graph in the form that a target asks for."""
    return schedule(orient(lower(graph, target), target), target)


def search(
    graph: Graph,
    target: Target,
    compiler: Compiler,
    platform: str = "4000",
    on_form: Callable[[str], None] | None = None,
    names: Collection[str] | None = None,
) -> Found:
    """Compiles every form that differs from those before it; with ``names`` only those.

    Raises: as :func:`forge_eq.npu.check.check`.
    """
    best: Found | None = None
    times: dict[str, float] = {}
    seen: set[object] = set()
    for name, variant in forms(target):
        if names is not None and name not in names:
            continue
        plan = planned(graph, variant)
        if plan.program.instrs in seen:
            continue
        seen.add(plan.program.instrs)
        if on_form is not None:
            on_form(name)
        report = check(plan.program, variant, compiler, platform)
        times[name] = report.total if report.accepted else float("inf")
        if best is None or times[name] < times[best.form]:
            best = Found(report, plan, name, times)
    assert best is not None
    return best
