"""The paper's tables about GPT-2 alone: passes, phases, ablation, alpha, variation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any

from forge_eq.errors import ForgeError
from forge_eq.paper.data import PAPER
from forge_eq.paper.plan import GPT2, Plan, Unit
from forge_eq.paper.tables.frame import NONE, Context, change, fewer
from forge_eq.report.sheet import Table

# The paper's passes -> our families of rules, or why there is none. All rules work in one e-graph, in no order.
PASSES = {
    "dce": "none: what no output needs is never extracted",
    "cse": "none: equal terms are one e-node",
    "constant_folding": "constants",
    "device_constant": "device",
    "attention_fusion": "attention",
    "operator_fusion": "fusion",
}


def needs(kind: str) -> Callable[[Plan], list[Unit]]:
    """One measurement of GPT-2; nothing where it was not asked for, which the table then says."""

    def found(plan: Plan) -> list[Unit]:
        try:
            return [Unit(kind, plan.gpt2)]
        except ForgeError:
            return []

    return found


def runs(plan: Plan) -> list[Unit]:
    """The fresh processes of the table of variation."""
    return [Unit(u.kind, u.spec, str(n + 1)) for u in needs("run")(plan) for n in range(plan.runs)]


def _done(context: Context) -> list[Mapping[str, Any]]:
    """The runs that did not fail. Raises the first one's error where all did."""
    units = runs(context.plan)
    done = [context.found(u.kind, u.spec, u.more) for u in units if u in context.found.data]
    return done or [context.found("run", context.plan.gpt2, "1")]


def _name(context: Context, kind: str, more: str = "") -> str:
    return context.found.name(kind, context.plan.gpt2, more)


def passes(context: Context) -> Table:
    """What every rule does and takes over all but a family."""
    f = context.found("rules", context.plan.gpt2)
    full = f[""]
    added = {n: (full[0] - f[n][0], full[1] - f[n][1]) for n in f if n not in ("", "captured")}
    head = ("pass", "our rules", "ms", "paper: ms", "change of calls", "paper: change")
    body = []
    for name, family in PASSES.items():
        paper = [context.paper("passes_gpt2", name, c) for c in ("time_ms", "delta_nodes")]
        ours = added.get(family, (NONE, NONE))
        body.append((name, family, ours[0], paper[0], ours[1], paper[1]))
    others = [n for n in added if n not in PASSES.values()]
    body += [("not in the paper", n, added[n][0], NONE, added[n][1], NONE) for n in others]
    total = context.theirs.get("passes_gpt2", {}).get("total_ms", NONE)
    body.append(("total", "every rule", full[0], total, full[1] - f["captured"][1], NONE))
    note = (
        f"{_name(context, 'rules')}, attention spelled out. Of a family: all rules less all but it, so that parts do "
        "not add up; processor time of saturation and extraction, warm, the least of a few rounds: noise may be "
        "larger than it."
    )
    return Table("passes_gpt2: time and effect of each pass", head, tuple(body), f"{note} Paper: {PAPER}.")


def phases(context: Context) -> Table:
    done, theirs = _done(context), context.theirs.get("phases_gpt2_ms", {})
    groups = {
        "capture": ("capture",),
        "optimise": ("saturate", "extract"),
        "lower_alloc_schedule": ("lower", "schedule", "alloc"),
        "build (OpenVINO)": ("build",),
        "guard": ("guard", "verify", "confirm"),
    }
    body = [(name, _middle(done, stages), theirs.get(name, NONE)) for name, stages in groups.items()]
    body.append(("total", median(d["compile"] for d in done), theirs.get("total", NONE)))
    note = (
        f"{_name(context, 'run', '1')}: medians of {len(done)} fresh processes, from the module to the first output; "
        f"the paper's total has no build and no guard. Paper: {PAPER}."
    )
    return Table("phases_gpt2_ms: phases of a compilation, ms", ("phase", "here", "paper"), tuple(body), note)


def _middle(done: Sequence[Mapping[str, Any]], stages: Sequence[str]) -> float:
    return 1000.0 * float(median(sum(d["stages"].get(s, 0.0) for s in stages) for d in done))


def ablation(context: Context) -> Table:
    f = context.found("rules", context.plan.gpt2)
    full = f[""][2]
    head = ("without", "our rules", "score us", "change %", "calls", "paper: score", "paper: change %")
    paper = {n: [context.paper("ablation_gpt2", n, c) for c in ("score", "delta_pct")] for n in
             ("all", *(f"no_{p}" for p in PASSES))}  # fmt: skip
    body: list[tuple[Any, ...]] = [("nothing", "every rule", full, 0.0, f[""][1], *paper["all"])]
    for name, family in PASSES.items():
        ours = (f[family][2], change(full, f[family][2]), f[family][1]) if family in f else (NONE, NONE, NONE)
        body.append((name, family, *ours, *paper[f"no_{name}"]))
    others = [n for n in f if n not in ("", "captured", *PASSES.values())]
    body += [("not in the paper", n, f[n][2], change(full, f[n][2]), f[n][1], NONE, NONE) for n in others]
    note = f"{_name(context, 'rules')}, attention spelled out. Score: predicted microseconds. Paper: {PAPER}."
    return Table("ablation_gpt2: each family left out", head, tuple(body), note)


def alpha(context: Context) -> Table:
    f = context.found("scores", context.plan.gpt2)
    kinds = ("score", "nodes", "fused_ops")
    names = ("score us", "calls", "fused")
    head = ("alpha", *(h for n in names for h in (n, f"paper: {n.removesuffix(' us')}")))
    body = []
    for key, values in f.items():
        paper = [context.paper("alpha_gpt2", key, k) for k in kinds]
        body.append((key, *(v for pair in zip(values, paper, strict=True) for v in pair)))
    note = f"{_name(context, 'scores')}. Score: predicted microseconds; the paper's unit is not stated. Paper: {PAPER}."
    return Table("alpha_gpt2: the Fusion-Gain knob", head, tuple(body), note)


def variance(context: Context) -> Table:
    from forge_eq.peers.statistics import percentile

    done = _done(context)
    samples = {
        "compile_ms": [d["compile"] for d in done],
        "latency_ms": [mean(d["ms"]) for d in done],
        "p99_ms": [percentile(d["ms"], 99) for d in done],
        "node_reduction_pct": [fewer(*d["calls"]) for d in done],
        "fgr": [d["fgr"] for d in done],
    }
    kinds = ("mean", "std", "cv_pct")
    head = ("", *(h for k in ("mean", "sd", "CV %") for h in (k, f"paper: {k}")), "least", "most")
    body = []
    for key, values in samples.items():
        middle, spread = mean(values), stdev(values) if len(values) > 1 else 0.0
        ours = (middle, spread, 100 * spread / middle if middle else 0.0)
        paper = [context.paper("variance_gpt2", key, k) for k in kinds]
        pairs = (v for pair in zip(ours, paper, strict=True) for v in pair)
        body.append((key, *pairs, min(values), max(values)))
    note = f"{_name(context, 'run', '1')}: {len(done)} fresh processes, {context.plan.calls} calls each; {GPT2} there."
    lost = context.plan.runs - len(done)
    note += f" {lost} more failed." if lost else ""
    return Table("variance_gpt2: variation from run to run", head, tuple(body), f"{note} Paper: {PAPER}.")
