"""The forms of a program that the NPU compiler may schedule better, tried one after the other.

Takes a chosen graph and its target. Gives the report of the fastest form and what the others take. Promises: the forms
are equal programs (``lower.blocks``, ``lower.left``, ``lower.scaled``); the compiler's simulated time decides, so the
result is no slower than any form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from forge_eq.ir.graph import Graph
from forge_eq.lower.orient import orient
from forge_eq.lower.select import lower
from forge_eq.npu.check import Report, check
from forge_eq.npu.compiler import Compiler
from forge_eq.run.openvino_npu import builder_of
from forge_eq.schedule.plan import Schedule, schedule
from forge_eq.targets import Blocks, Target

WHOLE = 1 << 30  # no product has as many features
FAST = 2048  # features over which the arithmetic of 4000 is fastest
ONTO = Blocks(FAST + 1, 1, 1, outer=True, scaled=True, onto=True, most=FAST)


@dataclass(frozen=True)
class Found:
    """The fastest accepted form (or the first, if none is), its schedule, and the times of all in microseconds."""

    report: Report
    plan: Schedule
    form: str
    times: dict[str, float]


@dataclass(frozen=True)
class Form:
    """A target that asks for a form; with ``fused`` attention is one node, as in OpenVINO's own conversion."""

    name: str
    target: Target
    fused: bool = False


def forms(target: Target) -> Iterator[Form]:
    """The target's own form first, that with the scale of attention in the weights, that with the parts of a product
    added onto what it is added to; products whole, and attention one node besides; inner products in two parts, all in
    four; parts added onto what the product is added to with all weights on the right, smaller ones, or with attention
    as one node; what products read in two and joined; all weights on the left in halves, the
    same with the scale of attention in the weights, and all there whole."""
    yield Form("target", target)
    if target.blocks is not None:
        yield Form("scaled", replace(target, blocks=replace(target.blocks, scaled=True)))
        yield Form("onto", replace(target, blocks=replace(ONTO, left=target.blocks.left)))
    yield Form("whole", replace(target, blocks=None))
    yield Form("plain", replace(target, blocks=None), fused=True)
    yield Form("inner 2", replace(target, blocks=Blocks(2048, 1, 2, outer=False, left="returned")))
    yield Form("inner 4", replace(target, blocks=Blocks(2048, 1, 4, outer=True, left="returned")))
    yield Form("onto right", replace(target, blocks=ONTO))
    yield Form("onto 1792", replace(target, blocks=replace(ONTO, most=1792)))
    yield Form("onto plain", replace(target, blocks=ONTO), fused=True)
    yield Form("joined 2", replace(target, blocks=Blocks(2048, 16, 2, outer=True, left="wide", joined=True)))
    halves = Blocks(2048, 16, 2, outer=True, left="all")
    yield Form("left 2", replace(target, blocks=halves))
    yield Form("left 2, scaled", replace(target, blocks=replace(halves, scaled=True)))
    yield Form("left", replace(target, blocks=Blocks(WHOLE, 16, 1, outer=False, left="all")))


def with_lookups(target: Target) -> tuple[Target, Target]:
    """The target with lookups of words on the NPU: of integers only these, and all work on integers as well."""
    npu, *others = target.devices
    reading = replace(npu, gathers=True, operand_dtypes=(*npu.operand_dtypes, "i64"))
    working = replace(npu, gathers=True, dtypes=(*npu.dtypes, "i64"))
    return replace(target, devices=(reading, *others)), replace(target, devices=(working, *others))


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
    lookups: bool = False,
) -> Found:
    """Compiles every form that differs from those before it; with ``names`` only those.

    With ``lookups`` words are looked up on the NPU, and each form is tried in both ways of :func:`with_lookups`.

    Raises: as :func:`forge_eq.npu.check.check`.
    """
    best: Found | None = None
    times: dict[str, float] = {}
    seen: set[object] = set()
    bases = with_lookups(target) if lookups else (target,)
    for form in (found for base in bases for found in forms(base)):
        name = form.name
        if names is not None and name not in names:
            continue
        plan = planned(graph, form.target)
        fused = form.fused and any(i.unit == "attention" for i in plan.program.instrs)
        if (plan.program.instrs, fused) in seen:
            continue
        seen.add((plan.program.instrs, fused))
        if on_form is not None:
            on_form(name)
        report = check(plan.program, form.target, compiler, platform, builder=partial(builder_of(platform), fused))
        taken = report.total if report.accepted else math.inf
        if best is None or taken < min(times.values()):
            best = Found(report, plan, name, times)
        times[name] = min(taken, times.get(name, math.inf))
    assert best is not None
    return best
