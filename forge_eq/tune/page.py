"""The page that a tuning run leaves: history and importance as pictures, settings and times as tables.

Takes :class:`Tuned`. Gives one HTML file's text that needs nothing else. Not here: any figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge_eq.tune.study import Tuned

WIDTH, HEIGHT, EDGE = 640, 240, 48
STYLE = "body{font:14px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}td,th{padding:2px 12px;\
text-align:right}td:first-child,th:first-child{text-align:left}svg text{font-size:11px}"


def page(tuned: Tuned) -> str:
    """The whole page."""
    unit = "predicted us" if tuned.objective == "predicted" else "Kendall's tau"
    settings = [(r.name, f"{tuned.settings[r.name]:.4g}", f"{r.low:g} .. {r.high:g}") for r in tuned.space]
    parts = [
        f"<h1>Tuning</h1><p>{len(tuned.history)} trials, {tuned.programs} distinct programs seen here. Objective: "
        f"{unit}; base {tuned.base:.6g}, best {tuned.value:.6g}.</p>",
        "<h2>History</h2>" + history([v for _, v in tuned.history], unit, tuned.objective == "order"),
        "<h2>Importance</h2>" + bars(tuned.importance.items()),
        "<h2>Settings</h2>" + _table(("setting", "best", "range"), settings),
    ]
    if tuned.timing is not None:
        rows = [(n, f"{r:.3f}", f"{low:.3f}") for n, (r, low) in tuned.timing.ratios.items()]
        parts.append(f"<h2>Measured</h2><p>Used: {escape(tuned.timing.winner)}. A/A {tuned.timing.noise:.1%}.</p>")
        parts.append(_table(("program", "captured / it", "lower 95 %"), rows))
    body = "\n".join(parts)
    return f"<!doctype html><meta charset=utf-8><title>forge_eq tune</title><style>{STYLE}</style>\n{body}\n"


def history(values: Sequence[float], unit: str, up: bool) -> str:
    """A dot per trial and the best so far as a line."""
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def at(index: int, value: float) -> tuple[float, float]:
        x = EDGE + index * (WIDTH - 2 * EDGE) / max(1, len(values) - 1)
        return x, HEIGHT - EDGE / 2 - (value - low) * (HEIGHT - EDGE) / span

    best = list(itertools.accumulate(values, max if up else min))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(i, v) for i, v in enumerate(best)))
    dots = "".join(
        '<circle cx="{:.1f}" cy="{:.1f}" r="3" fill="#69c"/>'.format(*at(i, v)) for i, v in enumerate(values)
    )
    labels = f'<text x="2" y="{EDGE / 2}">{high:.5g}</text><text x="2" y="{HEIGHT - EDGE / 2}">{low:.5g}</text>'
    labels += f'<text x="{WIDTH / 2 - 60}" y="{HEIGHT - 4}">trial; {escape(unit)}, line: best so far</text>'
    return _svg(HEIGHT, f'{dots}<polyline points="{line}" fill="none" stroke="#c33"/>{labels}')


def bars(entries: Iterable[tuple[str, float]]) -> str:
    """A bar per setting, the largest on top."""
    found = sorted(entries, key=lambda e: -e[1])
    if not found:
        return "<p>All trials gave the same value, so no setting matters here.</p>"
    rows = "".join(
        f'<text x="0" y="{20 * i + 14}">{escape(name)}</text>'
        f'<rect x="150" y="{20 * i + 3}" height="14" width="{max(0.0, share) * (WIDTH - 220):.1f}" fill="#69c"/>'
        f'<text x="{155 + max(0.0, share) * (WIDTH - 220):.1f}" y="{20 * i + 14}">{share:.2f}</text>'
        for i, (name, share) in enumerate(found)
    )
    return _svg(20 * len(found) + 4, rows)


def _svg(height: float, body: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">{body}</svg>'


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["".join(f"<th>{escape(h)}</th>" for h in head)]
    lines += ["".join(f"<td>{escape(str(c))}</td>" for c in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
