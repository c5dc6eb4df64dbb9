"""A sheet as one page of HTML that needs no network: pictures, contents, tables.

Takes a Sheet and figures of plotly. Promises: long texts wrap, wide tables scroll within themselves, the first column
stays in view. Not here: what the pictures show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from forge_eq.report.sheet import Sheet, Table, shown

STYLE = """
body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:1280px;padding:0 1rem;color:#1f2328}
h1{font-size:1.6rem;margin:0 0 .6rem}h2{font-size:1.05rem;margin:2rem 0 .4rem}
.where{display:flex;flex-wrap:wrap;gap:.1rem 1.4rem;color:#59636e;margin:0 0 1rem;padding:0;list-style:none}
nav{columns:3 260px;margin:1rem 0 1.5rem;font-size:13px}nav a{display:block;color:#0550ae;text-decoration:none}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .7rem;border-bottom:1px solid #d8dee4;text-align:right;vertical-align:top;max-width:26rem}
th{border-bottom:2px solid #afb8c1;font-weight:600;vertical-align:bottom}
td.text{text-align:left;min-width:9rem}td.number{white-space:nowrap}td.paper,th.paper{color:#6e7781}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:#fff}
tr.FAIL td,td.failed{color:#b00020}tr.FAIL td{font-weight:600}.note{color:#59636e;max-width:110ch;margin:.4rem 0}
"""


def write(path: Path, sheet: Sheet, figures: Sequence[Any] = ()) -> None:
    """Writes the page, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(page(sheet, figures), encoding="utf-8")
    part.replace(path)


def page(sheet: Sheet, figures: Sequence[Any] = ()) -> str:
    """The page as text; plotly's script is in it where there are figures."""
    title, tables = escape(sheet.title), sheet.all_tables()
    script, drawn = "", ""
    if figures:
        from plotly.offline import get_plotlyjs

        script = f"<script>{get_plotlyjs()}</script>"
        drawn = "".join(
            f.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False}, div_id=f"figure{k}")
            for k, f in enumerate(figures)
        )
    places = "".join(f"<li>{escape(k)}: {escape(str(v))}</li>" for k, v in sheet.where.items())
    links = "".join(f"<a href='#{anchor(t.title)}'>{escape(t.title)}</a>" for t in tables)
    body = f"<h1>{title}</h1><ul class='where'>{places}</ul><nav>{links}</nav>{drawn}{''.join(map(table, tables))}"
    view = "<meta name='viewport' content='width=device-width'>"
    head = f"<meta charset='utf-8'>{view}<title>{title}</title><style>{STYLE}</style>{script}"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


def table(found: Table) -> str:
    """One table with its title and note."""
    theirs = ["paper" if h.startswith("paper") else "" for h in found.head]
    head = "".join(f"<th class='{p}'>{escape(h)}</th>" for h, p in zip(found.head, theirs, strict=True))
    body = ""
    for row in found.rows:
        mark = " class='FAIL'" if "FAIL" in map(str, row) else ""
        cells = (f"<td class='{_kind(v, p)}'>{escape(shown(v))}</td>" for v, p in zip(row, theirs, strict=True))
        body += f"<tr{mark}>{''.join(cells)}</tr>"
    note = f"<p class='note'>{escape(found.note)}</p>" if found.note else ""
    place, title = anchor(found.title), escape(found.title)
    return f"<h2 id='{place}'>{title}</h2><div class='scroll'><table><tr>{head}</tr>{body}</table></div>{note}"


def anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title).strip("-").lower()


def _kind(value: Any, theirs: str) -> str:
    words = shown(value)
    kinds = ["number" if len(words) <= 28 else "text", theirs, "failed" if words.startswith("failed") else ""]
    return " ".join(filter(None, kinds))
