"""Pictures of the comparison: latency with intervals, and the phases of set-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_eq.peers.cases import Cell
from forge_eq.peers.table import PHASES, Row
from forge_eq.report import page
from forge_eq.report.sheet import Sheet

# Okabe and Ito's colours, which differ for every kind of sight (https://jfly.uni-koeln.de/color).
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7f7f7f", "#000000")
LAYOUT: dict[str, Any] = {
    "template": "simple_white",
    "font": {"family": "system-ui,sans-serif", "size": 13},
    "margin": {"l": 10, "r": 10, "t": 80, "b": 10},
    "colorway": COLOURS,
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
    "title_x": 0.0,
    "title_xref": "paper",
    "title_yref": "container",
    "title_y": 0.97,
    "title_yanchor": "top",
}
ONE: dict[str, Any] = {"line_dash": "dot", "line_color": "#555", "line_width": 1.5, "opacity": 1}  # the line at 1


def write(path: Path, sheet: Sheet, found: Mapping[Cell, Sequence[Row]]) -> None:
    """One file that needs no network."""
    page.write(path, sheet, [_latency(found), *(_set_up(cell, rows) for cell, rows in found.items())])


def _latency(found: Mapping[Cell, Sequence[Row]]) -> Any:
    """Peer's time over ours for each cell, a point with its interval; the line at 1 is ours."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = list(dict.fromkeys(r.backend for rows in found.values() for r in rows if r.latency is not None))
    cells = list(found)
    for k, name in enumerate(names):
        points = [
            (place + 0.7 * ((k + 0.5) / len(names) - 0.5), r.latency)
            for place, cell in enumerate(cells)
            for r in found[cell]
            if r.backend == name and r.latency
        ]
        above = [i.high - i.middle for _, i in points]
        below = [i.middle - i.low for _, i in points]
        error = {"type": "data", "array": above, "arrayminus": below, "symmetric": False, "thickness": 2, "width": 5}
        figure.add_scatter(
            name=name,
            y=[p for p, _ in points],
            x=[i.middle for _, i in points],
            error_x=error,
            mode="markers",
            marker={"size": 9},
        )
    figure.add_vline(x=1, **ONE)
    figure.update_layout(**LAYOUT, title="A call: their time over ours; right of the line we are faster")
    figure.update_layout(height=150 + 24 * len(cells) * max(2, len(names)), xaxis_type="log")
    figure.update_xaxes(showgrid=True, gridcolor="#eee", tickformat=".3~g")
    figure.update_yaxes(
        tickvals=list(range(len(cells))), ticktext=[c.name for c in cells], autorange="reversed", automargin=True
    )
    return figure


def _set_up(cell: Cell, rows: Sequence[Row]) -> Any:
    """Seconds of the phases, stacked."""
    import plotly.graph_objects as go

    ran = [r for r in rows if not r.failed]
    figure = go.Figure()
    for phase, colour in zip(PHASES[2:], COLOURS, strict=False):
        if any(r.phases[phase] > 0 for r in ran):
            figure.add_bar(
                name=phase,
                y=[r.backend for r in ran],
                x=[r.phases[phase] for r in ran],
                orientation="h",
                marker_color=colour,
            )
    figure.update_layout(**LAYOUT, title=f"{cell.name}: seconds from the module to the first output", barmode="stack")
    figure.update_layout(height=150 + 30 * len(ran), legend_traceorder="normal")
    figure.update_xaxes(showgrid=True, gridcolor="#eee", ticksuffix=" s")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure
