"""The list of all tables, and the sheet of those that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_eq.errors import OptionsError
from forge_eq.paper.gather import Found
from forge_eq.paper.plan import GLUE, TRAINED, Plan, Unit
from forge_eq.paper.tables import gpt2, models, timed, whole
from forge_eq.paper.tables.frame import Context, Spec, each
from forge_eq.report.sheet import Sheet, where

_cell, _glue = each("cell", lambda p: str(p.tokens)), each("cell", lambda p: str(GLUE))
_stages, _model, _scores, _tuning = each("stages"), each("model"), each("scores"), each("tuning")


def _fidelity(plan: Plan) -> list[Unit]:
    return [*each("fidelity")(plan), Unit("fidelity", TRAINED)]


def _headline(plan: Plan) -> list[Unit]:
    return [u for needs in (_stages, _cell, each("fidelity"), _tuning) for u in needs(plan)]


def _nothing(plan: Plan) -> list[Unit]:
    return []


SPECS = {
    s.key: s
    for s in (
        Spec("models", _model, models.sizes),
        Spec("compile_ms", _cell, timed.compile_ms),
        Spec("nodes", _stages, models.nodes),
        Spec("fidelity", _fidelity, models.fidelity),
        Spec("latency_ms_wikitext103", _cell, timed.wikitext),
        Spec("latency_ms_glue", _glue, timed.glue),
        Spec("energy_mj", _cell, timed.energy),
        Spec("passes_gpt2", gpt2.needs("rules"), gpt2.passes),
        Spec("phases_gpt2_ms", gpt2.runs, gpt2.phases),
        Spec("optimise_ms", lambda p: [*_model(p), *each("optimise")(p)], models.optimise),
        Spec("fgr", _scores, models.fgr),
        Spec("cei", _cell, timed.cei),
        Spec("cei_formula", _nothing, timed.cei_formula),
        Spec("ablation_gpt2", gpt2.needs("rules"), gpt2.ablation),
        Spec("attention_fusion_latency", lambda p: [*_model(p), *each("fusion")(p)], timed.attention),
        Spec("buffers", _stages, models.buffers),
        Spec("alpha_gpt2", gpt2.needs("scores"), gpt2.alpha),
        Spec("autotune", _tuning, models.autotune),
        Spec("variance_gpt2", gpt2.runs, gpt2.variance),
        Spec("transitions", _stages, models.transitions),
        Spec("p99_over_p50", _cell, timed.p99_over_p50),
        Spec("raw_latency_runs", _cell, timed.raw_runs),
        Spec("headline", _headline, whole.headline),
        Spec("hardware", _nothing, whole.hardware),
    )
}


def chosen(names: Sequence[str]) -> list[Spec]:
    """The tables of these keys, all for none. Raises OptionsError that lists the keys for an unknown one."""
    wrong = [n for n in names if n not in SPECS]
    if wrong:
        raise OptionsError("bench", f"--tables {wrong[0]}", "is no table", f"use some of {', '.join(SPECS)}")
    return [s for key, s in SPECS.items() if not names or key in names]


def units(specs: Sequence[Spec], plan: Plan) -> list[Unit]:
    """What these tables need, each once."""
    return list(dict.fromkeys(u for s in specs for u in s.needs(plan)))


def sheet(specs: Sequence[Spec], plan: Plan, found: Found, theirs: Mapping[str, Any]) -> Sheet:
    """All tables. One that cannot be made is a row with the reason."""
    setting = f"{plan.rounds} rounds of fresh processes, {plan.blocks} turns of {plan.seconds:g} s each"
    made = Sheet("forge_eq beside the paper's tables", where(plan.threads, measured=setting))
    context = Context(plan, found, theirs)
    for spec in specs:
        try:
            table = spec.make(context)
        except Exception as e:  # whatever is wrong with one table, the others are worth having
            reason = getattr(e, "reason", f"{type(e).__name__}: {e}")
            made.table(spec.key, ("", "reason"), [("failed", reason)])
            continue
        made.tables.append(table)
    made.figures["found"] = {u.key: found.data[u] for u in units(specs, plan) if u in found.data}
    made.figures["failed"] = {u.key: reason for u, reason in found.failed.items()}
    return made
