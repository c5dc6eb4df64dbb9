"""A simulated schedule to look at: Chrome's trace format, and a picture of the time line (SVG).

Takes a :class:`Simulation` with its tasks. Gives text. Promises: equal simulations give equal bytes; every task that is
at least a pixel long is drawn to scale, and shorter ones are joined with their neighbours.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from itertools import chain

from forge_eq.npu.trace import Simulation, Task

WIDTH, LEFT, TOP, ROW, GAP = 1200, 170, 46, 16, 4
COLOURS = {"dma": "#4878a8", "dpu": "#5a9a4a", "shave": "#c8742c"}


def chrome_trace(simulation: Simulation, title: str) -> str:
    """The tasks for ``chrome://tracing`` or Perfetto; times in microseconds."""
    lanes = {lane: number for number, lane in enumerate(sorted({t.lane for t in simulation.tasks}))}
    names = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": n, "args": {"name": x}} for x, n in lanes.items()]
    tasks = [
        {
            "name": t.layer,
            "cat": t.engine,
            "ph": "X",
            "ts": t.start,
            "dur": t.duration,
            "pid": 0,
            "tid": lanes[t.lane],
        }
        for t in simulation.tasks
    ]
    process = {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": title}}
    return json.dumps({"traceEvents": [process, *names, *tasks], "displayTimeUnit": "ns"})


def timeline(simulation: Simulation, title: str) -> str:
    """The time line as SVG: a row for each engine, longest layers named underneath."""
    rows: dict[str, list[Task]] = defaultdict(list)
    for task in simulation.tasks:
        rows[task.lane].append(task)
    lanes = sorted(rows, key=lambda lane: (rows[lane][0].engine != "dma", lane))
    scale = (WIDTH - LEFT - 20) / max(simulation.total, 1e-9)
    height = TOP + len(lanes) * (ROW + GAP)
    body = chain.from_iterable(_row(n, lane, rows[lane], scale) for n, lane in enumerate(lanes))
    legend = _legend(simulation, height + 34)
    total = height + 60 + 16 * (len(legend) - 1)
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{total}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{total}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
        *_axis(simulation.total, scale, height),
    ]
    return "\n".join([*head, *body, *legend, "</svg>"]) + "\n"


def _row(number: int, lane: str, tasks: list[Task], scale: float) -> Iterable[str]:
    y = TOP + number * (ROW + GAP)
    yield f'<text x="{LEFT - 8}" y="{y + 12}" font-size="11" text-anchor="end">{escape(lane_name(lane))}</text>'
    for start, end, engine, name in _joined(tasks, 1.0 / scale):
        x, wide = LEFT + start * scale, max((end - start) * scale, 0.5)
        tip = f"<title>{escape(name)}: {start:.1f} to {end:.1f} us</title>"
        place = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{ROW}"'
        yield f'<rect {place} fill="{COLOURS[engine]}" stroke="white" stroke-width="0.3">{tip}</rect>'


def _joined(tasks: list[Task], least: float) -> Iterable[tuple[float, float, str, str]]:
    """Tasks in order; what is shorter than ``least`` and touches the one before is drawn with it."""
    last: list[tuple[float, float, str, str]] = []
    for t in sorted((t for t in tasks if t.duration), key=lambda t: (t.start, t.end)):
        if last and t.duration < least and t.start - last[0][1] < least:
            last[0] = (last[0][0], max(last[0][1], t.end), t.engine, last[0][3])
            continue
        yield from last
        last = [(t.start, t.end, t.engine, t.layer)]
    yield from last


def lane_name(lane: str) -> str:
    """A lane's name without what it says twice: ``DMA DMA 0 CMX 2`` is ``DMA 0 CMX``."""
    words = lane.replace("(", "").replace(")", "").replace("Shave", "SHAVE").split()
    words = words[1:] if words[:1] == words[1:2] else words
    return " ".join(words if words[-2:-1] == ["SHAVE"] else words[:-1])  # a cluster has several SHAVEs


def ticks(total: float) -> list[float]:
    """Round numbers from 0, five to ten steps of them up to ``total``."""
    power = 10.0 ** math.floor(math.log10(max(total, 1e-9)))
    step = next(s * power for s in (0.1, 0.2, 0.5, 1.0) if total / (s * power) <= 10.0)
    return [step * n for n in range(math.floor(total / step) + 1)]


def _axis(total: float, scale: float, height: int) -> Iterable[str]:
    for moment in ticks(total):
        x = LEFT + moment * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}" stroke="#dddddd"/>'
        yield f'<text x="{x:.1f}" y="{TOP - 10}" font-size="10" text-anchor="middle">{moment:g} us</text>'
    x = LEFT + total * scale
    yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height}" stroke="#888888"/>'


def _legend(simulation: Simulation, y: int) -> list[str]:
    busy = {"dma": simulation.dma, "dpu": simulation.dpu, "shave": simulation.shave}
    parts, x = [], LEFT
    for engine, time in busy.items():
        parts.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{COLOURS[engine]}"/>')
        told = f"{engine.upper()} busy {time:.0f} us"
        parts.append(f'<text x="{x + 17}" y="{y}" font-size="11">{told}</text>')
        x += 190
    parts.append(f'<text x="{x}" y="{y}" font-size="11">together {simulation.total:.1f} us; longest layers:</text>')
    lines = ["".join(parts)]
    for number, layer in enumerate(sorted(simulation.layers, key=lambda x: (-x.share, x.name))[:8]):
        below = y + 22 + 16 * number
        kind = "" if layer.kind.startswith("<") else layer.kind
        told = " ".join(w for w in (layer.name, kind, "(a kernel without a price)" * layer.unknown) if w)
        taken = f'<text x="{LEFT - 8}" y="{below}" font-size="11" text-anchor="end">{layer.share:.1f} us</text>'
        lines.append(f'{taken}<text x="{LEFT}" y="{below}" font-size="11">{escape(told)}</text>')
    return lines
