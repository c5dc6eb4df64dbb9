"""The report on one optimisation: what changed, because of which rules, at what cost."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from typing import Any

from forge_eq.ir.graph import Graph
from forge_eq.pipeline import Job
from forge_eq.report.beside import clip, side_by_side
from forge_eq.report.match import calls, constants_only, rows
from forge_eq.report.tables import allocation_table, duration, plural, stage_table, table
from forge_eq.report.why import Because, because


def explain(
    job: Job, width: int = 100, why: bool = False, on_step: Callable[[str, int, int], None] | None = None
) -> str:
    """The report as text of at most ``width`` columns.

    Args:
        why: also find the rules that were needed, by leaving out each rule that matched (slow: one optimisation each).
        on_step: hears (rule, number, of how many) during that.
    """
    view, captured, chosen = job["saturate"], job["capture"], job["chosen"]
    beside = side_by_side(rows(view, captured, False), rows(view, chosen.graph, True), width)
    folded = constants_only(view, captured)
    if folded:
        beside.append(clip(f" {plural(folded, 'call')} on constants alone: computed once, when compiling", width))
    found = because(job, on_step) if why else None
    parts = [
        beside,
        _cost(job, width),
        _counts(captured, job["extract"], width),
        _rules(job, found, width),
        _limits(job, width),
    ]
    parts.append([clip(f" {r}", width) for r in job.remarks])
    parts.append([line for n in captured.notes for line in _wrap(f"note: {n}", width)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def op_counts(graph: Graph) -> Counter[str]:
    """Calls per op: leaves and parts of multi-output values do not count."""
    return Counter(n.op.name for n in calls(graph))


def rule_counts(graph: Graph) -> Counter[str]:
    """For each rule the number of calls in the program that it made."""
    return Counter(n.origin.rule for n in calls(graph) if n.origin.rule)


def _cost(job: Job, width: int) -> list[str]:
    chosen = job["chosen"]
    bought = chosen.extraction
    optimal = bought.status == "optimal"
    found = "proved: this is the least" if optimal else f"the choice is within {bought.gap:.2%} of the least"
    priced = f"predicted for {job.target.name}, alpha {job.options.alpha:g}"
    return [
        *_wrap(f"cost {duration(chosen.captured_cost)} -> {duration(bought.cost)} ({priced})", width),
        *_wrap(f"least possible cost >= {duration(bought.lower_bound)} ({found})", width),
    ]


def _counts(captured: Graph, chosen: Graph, width: int) -> list[str]:
    before, after = op_counts(captured), op_counts(chosen)
    a, b = before.total(), after.total()
    change = f" ({(b - a) / a:+.1%})" if a else ""
    ops = sorted(before.keys() | after.keys(), key=lambda op: (after[op] - before[op], op))
    lines = table(
        ("op", "before", "after", "change"),
        [
            (op, f"{before[op]}", f"{after[op]}", f"{after[op] - before[op]:+d}")
            for op in ops
            if before[op] != after[op]
        ],
    )
    same = [f"{op} {after[op]}" for op in ops if before[op] == after[op]]
    head = [f" calls {a} -> {b}{change}"]
    return head + lines + (_wrap(f"unchanged: {', '.join(same)}", width) if same else [])


def _rules(job: Job, found: Because | None, width: int) -> list[str]:
    made = rule_counts(job["extract"])
    fired = {*job["saturate"].saturation.matches, *made}
    by_use = sorted(made.items(), key=lambda item: (-item[1], item[0]))
    lines = table(("rule", "calls it made"), [(name, f"{count}") for name, count in by_use])
    if found is None:
        others = len(fired - set(made))
        return lines + _wrap(f"{plural(others, 'other rule')} matched; --why finds which of them were needed", width)
    lines.append(" because (without the rule the cost would be)")
    lines += table(("rule", "cost"), [(name, duration(cost)) for name, cost in found.needed])
    for names, cost in found.either:
        lines += _wrap(f"  either of {', '.join(names)} (without them {duration(cost)})", width)
    return lines + _wrap(f"matched but not needed: {plural(len(found.idle), 'rule')}", width)


def _limits(job: Job, width: int) -> list[str]:
    view, bought = job["saturate"], job["chosen"].extraction
    hit = [] if view.saturation.stop == "saturated" else [f"saturation stopped at the {view.saturation.stop}"]
    if bought.status == "budget":
        hit.append(f"extraction used its {job.options.limits.moves} moves")
    size = f"e-graph {len(view.classes)} classes, {view.nodes} nodes"
    return _wrap(f"{size}; limits: {'; '.join(hit) or 'none hit'}", width)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=" ", subsequent_indent="   ")


def changes(job: Job, width: int) -> str:
    """Every call before and after, nothing left out but what is the same on both sides."""
    view = job["saturate"]
    pair = rows(view, job["capture"], False), rows(view, job["chosen"].graph, True)
    return "\n".join(side_by_side(*pair, width, most=None)) + "\n"


def summary(job: Job, width: int) -> str:
    """The result in a few lines: calls, cost, the rules that made the program, limits, what was missed."""
    before, after = op_counts(job["capture"]).total(), op_counts(job["extract"]).total()
    made = rule_counts(job["extract"])
    top = [f"{name} x{n}" for name, n in sorted(made.items(), key=lambda item: (-item[1], item[0]))]
    change = f" ({(after - before) / before:+.1%})" if before else ""
    lines = [f" {job['capture'].name}: calls {before} -> {after}{change}", *_cost(job, width)]
    lines += _wrap(f"made by {', '.join(top)}" if top else "no rule changed anything", width)
    lines += _limits(job, width) + [line for r in job.remarks for line in _wrap(str(r), width)]
    return "\n".join(lines) + "\n"


def program_report(program: Any) -> str:
    """Summary, stages, storage and ownership of a CompiledProgram."""
    job = program.job
    parts = [summary(job, 100), stage_table(job), allocation_table(job), f" {program.last.executable.ownership()}\n"]
    return "\n".join([*parts, *_shapes(program)])


def _shapes(program: Any) -> list[str]:
    """What a dynamic program is compiled for, a line."""
    if program.padding is not None:
        sizes = ", ".join(f"{symbol} up to {size}" for symbol, size in program.padding.largest.items())
        return [f" one static program, arguments padded: {sizes}\n"]
    if not program.dynamic:
        return []
    counts = ", ".join(f"{count} {what}" for what, count in program.counts.items())
    shown = [["x".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in key] for key in program.shapes]
    kept = "; ".join(" ".join(sizes) for sizes in shown)
    return [f" compiled per shape: {counts}; kept: {kept}\n"]
