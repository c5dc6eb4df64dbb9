"""The simulated schedule that the NPU compiler writes, as data.

Takes the text of its trace (Chrome's trace format, microseconds). Gives a :class:`Simulation`. Promises: task times are
the compiler's own; a layer with a DPU or SHAVE task of zero time is ``unknown``: the cost model has no price for it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forge_eq.errors import NpuError

ENGINES = {"DMA": "dma", "DPU": "dpu", "Shave": "shave"}
VARIANTS = "DPU Variants"  # the lane that shows the parts of what the lane "DPU" shows
NONE = "(nothing)"  # the name under which idle time is counted


@dataclass(frozen=True, slots=True)
class Task:
    """One task. ``layer`` is the friendly name of the node that it belongs to, ``lane`` the engine's own name;
    ``start`` and ``duration`` are microseconds."""

    layer: str
    engine: str
    lane: str
    start: float
    duration: float

    @property
    def end(self) -> float:
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: sums over its tasks in microseconds, and its share of the total. ``kind`` is OpenVINO's type."""

    name: str
    kind: str
    start: float
    end: float
    dma: float
    dpu: float
    shave: float
    share: float
    unknown: bool


@dataclass(frozen=True)
class Simulation:
    """A simulated schedule; all times in microseconds.

    ``total`` is the latency. ``dma``, ``dpu`` and ``shave`` are the times in which at least one such engine works;
    they overlap. The shares of the layers and of ``idle`` add up to the total.
    """

    total: float
    dma: float
    dpu: float
    shave: float
    idle: float
    mhz: float
    layers: tuple[Layer, ...]
    tasks: tuple[Task, ...]

    @property
    def unknown(self) -> tuple[Layer, ...]:
        """The layers that contain a kernel without a price."""
        return tuple(layer for layer in self.layers if layer.unknown)


def parse(text: str) -> Simulation:
    """The simulation in a trace. Raises NpuError when the text is no trace of the compiler."""
    try:
        table = json.loads(text)
        events, totals = table["traceEvents"], table["taskStatistics"]
        tasks = tuple(_tasks(events))
        kinds = {e["name"]: e["args"].get("Layer type", "") for e in events if e.get("cat") == "Layer"}
        point = table["workpoint"]
        total, mhz = float(totals["total duration"]), float(point["freq"])
        dma, dpu, shave = (float(totals[f"{name} duration"]) for name in ("DMA", "DPU", "SW"))
        idle = float(totals["total idle"])
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise NpuError("npu", "trace", f"it is not of the form known: {e!r}", "use the pinned compiler") from e
    if point.get("status") != "SIM":
        raise NpuError("npu", "trace", f"its status is {point.get('status')!r}, not SIM", "use the pinned compiler")
    return Simulation(total, dma, dpu, shave, idle, mhz, tuple(_layers(tasks, kinds)), tasks)


def _tasks(events: Iterable[Mapping[str, Any]]) -> Iterable[Task]:
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    places = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    for e in events:
        if e.get("ph") == "X" and e.get("cat") in ENGINES:
            thread = threads[e["pid"], e["tid"]]
            if thread == VARIANTS:
                continue
            lane = f"{places[e['pid']]} {thread} {e['tid']}"
            yield Task(layer_of(e["name"]), ENGINES[e["cat"]], lane, float(e["ts"]), float(e["dur"]))


def layer_of(task: str) -> str:
    """The layer's name in a task's: ``NAME?t_TYPE/part/part``."""
    return task.partition("?")[0]


def _layers(tasks: Iterable[Task], kinds: Mapping[str, str]) -> Iterable[Layer]:
    grouped: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        grouped[task.layer].append(task)
    parts = shares(tasks)
    for name, own in grouped.items():
        sums = {engine: sum(t.duration for t in own if t.engine == engine) for engine in ENGINES.values()}
        start, end = min(t.start for t in own), max(t.end for t in own)
        unknown = any(t.engine != "dma" and not t.duration for t in own)
        share = parts.get(name, 0.0)
        yield Layer(name, kinds.get(name, ""), start, end, sums["dma"], sums["dpu"], sums["shave"], share, unknown)


def shares(tasks: Iterable[Task]) -> dict[str, float]:
    """The time line divided among the layers: each moment in equal parts among those at work then."""
    edges: dict[float, list[tuple[int, str]]] = defaultdict(list)
    for task in tasks:
        if task.duration:
            edges[task.start].append((1, task.layer))
            edges[task.end].append((-1, task.layer))
    running: dict[str, int] = {}
    found: dict[str, float] = defaultdict(float)
    last = 0.0
    for moment in sorted(edges):
        for name in running or (NONE,):
            found[name] += (moment - last) / max(len(running), 1)
        last = moment
        for step, name in edges[moment]:
            running[name] = running.get(name, 0) + step
            if not running[name]:
                del running[name]
    return dict(found)
