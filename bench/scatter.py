"""The picture of bench/order.py: predicted against measured time of each variant, both over the mean of their chunk.

Takes the chunks. Gives one page of SVG, without scripts. A point on the diagonal is predicted right; two points in the
same order on both axes are a pair in the right order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

SIZE, EDGE, COLUMNS = 260, 34, 3
COLOURS = ("#1b6ca8", "#c0392b", "#1e8449", "#7d3c98", "#b9770e", "#117a65", "#5d6d7e", "#943126", "#2e4053", "#af7ac5")


def scatter(chunks: Mapping[str, Any]) -> str:
    """The page."""
    names = list(dict.fromkeys(n for c in chunks.values() for n in c["variants"]))
    colour = {n: COLOURS[i % len(COLOURS)] for i, n in enumerate(names)}
    rows = -(-len(chunks) // COLUMNS)
    cells = [
        _panel(key, found, colour, (i % COLUMNS) * (SIZE + EDGE), (i // COLUMNS) * (SIZE + EDGE))
        for i, (key, found) in enumerate(sorted(chunks.items()))
    ]
    width, height = COLUMNS * (SIZE + EDGE) + EDGE, rows * (SIZE + EDGE) + EDGE
    key = "".join(f'<li style="color:{colour[n]}">{escape(n)}</li>' for n in names)
    return (
        '<!doctype html><meta charset="utf-8"><title>Predicted and measured order</title>'
        "<h1>Predicted and measured order</h1><p>Across: measured. Up: predicted. Both over the geometric mean of the "
        "model at that number of tokens; the grey band is twice the A/A spread around the mean.</p>"
        f'<svg width="{width}" height="{height}" font-family="sans-serif" font-size="11">{"".join(cells)}</svg>'
        f"<ul>{key}</ul>\n"
    )


def _panel(title: str, found: Mapping[str, Any], colour: Mapping[str, str], left: float, top: float) -> str:
    variants = found["variants"]
    logs = {k: {n: math.log(v[k]) for n, v in variants.items()} for k in ("measured", "predicted")}
    centred = {k: {n: x - sum(v.values()) / len(v) for n, x in v.items()} for k, v in logs.items()}
    reach = 1.1 * max(0.05, *(abs(x) for v in centred.values() for x in v.values()))
    x0, y0, half = left + EDGE, top + EDGE, SIZE / 2

    def at(value: float) -> float:
        return half * value / reach

    band = min(half, at(2 * found["spread"]))
    points = "".join(
        f'<circle cx="{x0 + half + at(centred["measured"][n]):.1f}" cy="{y0 + half - at(centred["predicted"][n]):.1f}" '
        f'r="4" fill="{colour[n]}"><title>{escape(n)}: {v["measured"]:.0f} us, predicted {v["predicted"]:.0f}'
        "</title></circle>"
        for n, v in variants.items()
    )
    return (
        f'<rect x="{x0}" y="{y0}" width="{SIZE}" height="{SIZE}" fill="none" stroke="#999"/>'
        f'<rect x="{x0 + half - band:.1f}" y="{y0}" width="{2 * band:.1f}" height="{SIZE}" fill="#eee"/>'
        f'<line x1="{x0}" y1="{y0 + SIZE}" x2="{x0 + SIZE}" y2="{y0}" stroke="#bbb"/>{points}'
        f'<text x="{x0}" y="{y0 - 6}">{escape(title)} tokens, +-{100 * (math.exp(reach) - 1):.0f} %</text>'
    )
