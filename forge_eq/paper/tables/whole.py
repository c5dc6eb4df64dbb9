"""The headline figures over all models, and the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from typing import Any

from forge_eq.errors import ForgeError
from forge_eq.paper.data import PAPER
from forge_eq.paper.tables.frame import NONE, Context, fewer
from forge_eq.paper.tables.timed import row
from forge_eq.peers.backends import OURS, STRONG
from forge_eq.peers.energy import ABSENT
from forge_eq.report.sheet import Table, where


def headline(context: Context) -> Table:
    """The range over all models of what the paper's abstract says; single figures are the largest."""
    found, theirs = context.found, context.theirs.get("headline", {})

    def stages(value: Callable[[dict[str, Any]], float]) -> list[float]:
        return list(_each(context, lambda spec: value(found("stages", spec))))

    def peers(value: Callable[[Any], float | None]) -> list[float]:
        pairs = (_each(context, lambda spec, b=b: value(row(context, spec, b))) for b in STRONG)  # type: ignore[misc]
        return [v for values in pairs for v in values]

    ours: dict[str, list[float]] = {
        "node_reduction_pct": stages(lambda f: fewer(f["captured"], f["chosen"])),
        "buffer_reduction_pct": stages(lambda f: fewer(f["storage"]["virtual"], f["storage"]["physical"])),
        "transition_reduction_pct": stages(lambda f: fewer(*f["restricted"][:2])),
        "compile_speedup": peers(lambda r: r.total.middle if r.total else None),
        "latency_reduction_pct": peers(lambda r: 100 * (1 - 1 / r.latency.middle) if r.latency else None),
        "energy_reduction_pct": _energy(context),
        "max_abs_logit": list(_each(context, lambda spec: found("fidelity", spec)["largest"])),
        "kl": list(_each(context, lambda spec: found("fidelity", spec)["kl"])),
        "autotune_extra_compile_ms": list(_each(context, lambda spec: 1e3 * found("tuning", spec)["seconds"])),
    }
    body = []
    for key, values in ours.items():
        ranged = not isinstance(theirs.get(key), int | float)
        nothing = ABSENT if key == "energy_reduction_pct" else "not measured"
        low, high = (min(values), max(values)) if values else (nothing, "")
        paper = theirs.get(key, NONE)
        body.append((key, low if ranged or not values else high, high if ranged else "", *_pair(paper)))
    note = (
        "Over the models and both peers (static OpenVINO, ONNX Runtime); a negative reduction is a loss. Time of "
        f"tuning: {context.plan.trials} trials. Paper: {PAPER}."
    )
    head = ("", "here, least (or the figure)", "most", "paper: least (or the figure)", "paper: most")
    return Table("headline: the abstract's figures", head, tuple(body), note)


def _pair(paper: Any) -> tuple[Any, Any]:
    return (paper[0], paper[1]) if isinstance(paper, list) else (paper, "")


def _each(context: Context, value: Callable[[str], float | None]) -> Iterator[float]:
    """The value of each model that has one."""
    for spec in context.plan.models:
        try:
            found = value(spec)
        except ForgeError:
            continue
        if found is not None:
            yield found


def _energy(context: Context) -> list[float]:
    def reduction(spec: str, backend: str) -> float | None:
        theirs, ours = row(context, spec, backend).energy, row(context, spec, OURS).energy
        return None if isnan(theirs) or isnan(ours) else 100 * (1 - ours / theirs)

    return [v for b in STRONG for v in _each(context, lambda spec, b=b: reduction(spec, b))]  # type: ignore[misc]


def hardware(context: Context) -> Table:
    here = where(context.plan.threads)
    ours = f"{here['machine']}, threads: {context.plan.threads}, {here['precision']}, no NPU"
    return Table("hardware: where it was measured", ("here", "paper"), ((ours, context.theirs.get("hardware", NONE)),))
