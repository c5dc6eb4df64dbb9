"""Pictures of our figures beside the paper's: compilation, latency, calls, buffers and transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_eq.errors import ForgeError
from forge_eq.paper.plan import paper_row
from forge_eq.paper.tables.frame import NONE, Context, fewer
from forge_eq.paper.tables.timed import row
from forge_eq.peers.backends import STRONG
from forge_eq.peers.picture import COLOURS, LAYOUT, ONE


def figures(context: Context) -> list[Any]:
    """The pictures that there are measurements for."""
    return [f for f in (_speed(context, "compile"), _speed(context, "latency"), _reductions(context)) if f is not None]


def _speed(context: Context, kind: str) -> Any:
    """Their time over ours here, with intervals, and the paper's ratio, for both peers."""
    import plotly.graph_objects as go

    titles = {
        "compile": "Compilation: their time over ours, from the module to the first output",
        "latency": "A call: their time over ours; above the line we are faster",
    }
    figure, any_point = go.Figure(), False
    for number, (backend, column) in enumerate(zip(STRONG, ("openvino", "onnxruntime"), strict=True)):
        points: list[tuple[str, Any]] = []
        for spec in context.plan.models:
            try:
                r = row(context, spec, backend)
            except ForgeError:
                continue
            interval = r.total if kind == "compile" else r.latency
            if interval is not None:
                points.append((spec, interval))
        any_point = any_point or bool(points)
        error = {
            "type": "data",
            "symmetric": False,
            "array": [i.high - i.middle for _, i in points],
            "arrayminus": [i.middle - i.low for _, i in points],
        }
        colour = COLOURS[number]
        figure.add_bar(
            name=backend, x=[s for s, _ in points], y=[i.middle for _, i in points], error_y=error, marker_color=colour
        )
        paper = [(s, _ratio(context, s, kind, column)) for s, _ in points]
        figure.add_bar(
            name=f"{backend}, paper",
            x=[s for s, v in paper if v],
            y=[v for _, v in paper if v],
            marker=_hatched(colour),
        )
    if not any_point:
        return None
    figure.add_hline(y=1, **ONE)
    figure.update_layout(**LAYOUT, title=titles[kind], barmode="group", height=420)
    return figure


def _hatched(colour: str) -> dict[str, Any]:
    """How the paper's bars look, beside ours of the same colour."""
    return {"pattern": {"shape": "/", "fgcolor": colour, "bgcolor": "#fff"}, "line": {"color": colour, "width": 1}}


def _ratio(context: Context, spec: str, kind: str, column: str) -> float | None:
    key, names = ("compile_ms", ("forge", column)) if kind == "compile" else (
        "latency_ms_wikitext103", ("forge_mean", f"{column}_mean"))  # fmt: skip
    ours, theirs = (context.paper(key, paper_row(spec), n) for n in names)
    return None if NONE in (ours, theirs) else float(theirs / ours)


def _reductions(context: Context) -> Any:
    """Calls, buffers and transitions: per cent fewer, here and in the paper."""
    import plotly.graph_objects as go

    ran: list[tuple[str, dict[str, Any]]] = []
    for spec in context.plan.models:
        try:
            ran.append((spec, context.found("stages", spec)))
        except ForgeError:
            continue
    if not ran:
        return None
    kinds: Sequence[tuple[str, Any, str, str]] = (
        ("calls", lambda f: fewer(f["captured"], f["chosen"]), "nodes", "delta_pct"),
        ("buffers", lambda f: fewer(f["storage"]["virtual"], f["storage"]["physical"]), "buffers", "reduction_pct"),
        ("transitions", lambda f: fewer(*f["restricted"][:2]), "transitions", "delta_pct"),
    )
    figure = go.Figure()
    for number, (name, value, key, column) in enumerate(kinds):
        colour = COLOURS[number]
        figure.add_bar(name=name, x=[s for s, _ in ran], y=[value(f) for _, f in ran], marker_color=colour)
        paper = [(s, context.paper(key, paper_row(s), column)) for s, _ in ran]
        figure.add_bar(
            name=f"{name}, paper",
            x=[s for s, v in paper if v != NONE],
            y=[abs(v) for _, v in paper if v != NONE],
            marker=_hatched(colour),
        )
    figure.update_layout(**LAYOUT, title="Per cent fewer calls, buffers, transitions", barmode="group", height=420)
    figure.update_yaxes(ticksuffix=" %")
    return figure
