"""The comparison as one page of HTML: bars of latency and set-up, with the tables below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from forge_eq.peers.cases import Cell
from forge_eq.peers.table import PHASES, Row
from forge_eq.report.sheet import Sheet, shown

STYLE = """body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:1150px;color:#222}
table{border-collapse:collapse;margin:.5rem 0 1rem;display:block;overflow-x:auto}
td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}.note,.where{color:#666}.FAIL{color:#b00020;font-weight:600}"""


def write(path: Path, sheet: Sheet, found: Mapping[Cell, Sequence[Row]]) -> None:
    """One file that needs no network."""
    from plotly.offline import get_plotlyjs

    figures = [_latency(found), *(_set_up(cell, rows) for cell, rows in found.items())]
    drawn = "".join(f.to_html(full_html=False, include_plotlyjs=False) for f in figures)
    body = f"<h1>{escape(sheet.title)}</h1>{_where(sheet)}{drawn}{''.join(map(_table, sheet.all_tables()))}"
    head = f"<meta charset='utf-8'><title>{escape(sheet.title)}</title><style>{STYLE}</style>"
    page = (
        f"<!doctype html><html lang='en'><head>{head}<script>{get_plotlyjs()}</script></head><body>{body}</body></html>"
    )
    part = path.with_suffix(".part")
    part.write_text(page, encoding="utf-8")
    part.replace(path)


def _latency(found: Mapping[Cell, Sequence[Row]]) -> Any:
    """Peer's time over ours for each cell, with intervals; the line at 1 is ours."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = list(dict.fromkeys(r.backend for rows in found.values() for r in rows if r.latency is not None))
    for name in names:
        points = [(c.name, r.latency) for c, rows in found.items() for r in rows if r.backend == name and r.latency]
        above = [i.high - i.middle for _, i in points]
        below = [i.middle - i.low for _, i in points]
        error = {"type": "data", "array": above, "arrayminus": below, "symmetric": False}
        figure.add_bar(name=name, x=[c for c, _ in points], y=[i.middle for _, i in points], error_y=error)
    figure.add_hline(y=1, line_dash="dot")
    figure.update_layout(title="a call: their time over ours, above 1 we are faster", barmode="group", height=460)
    return figure


def _set_up(cell: Cell, rows: Sequence[Row]) -> Any:
    """Seconds of the phases, stacked."""
    import plotly.graph_objects as go

    ran = [r for r in rows if not r.failed]
    figure = go.Figure()
    for phase in PHASES[2:]:
        if any(r.phases[phase] > 0 for r in ran):
            figure.add_bar(name=phase, y=[r.backend for r in ran], x=[r.phases[phase] for r in ran], orientation="h")
    title = f"{cell.name}: seconds from the module to the first output"
    figure.update_layout(title=title, barmode="stack", height=120 + 34 * len(ran), yaxis={"autorange": "reversed"})
    return figure


def _where(sheet: Sheet) -> str:
    return "<p class='where'>" + "<br>".join(f"{escape(k)}: {escape(str(v))}" for k, v in sheet.where.items()) + "</p>"


def _table(table: Any) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in table.head)
    body = ""
    for row in table.rows:
        mark = " class='FAIL'" if "FAIL" in map(str, row) else ""
        body += f"<tr{mark}>" + "".join(f"<td>{escape(shown(v))}</td>" for v in row) + "</tr>"
    note = f"<p class='note'>{escape(table.note)}</p>" if table.note else ""
    return f"<h2>{escape(table.title)}</h2><table><tr>{head}</tr>{body}</table>{note}"
