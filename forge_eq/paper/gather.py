"""Runs the measurements that tables need, each in a fresh process, and keeps them.

Takes a plan and units. Gives :class:`Found`. Promises: a failure is kept in memory as its reason and does not stop the
rest; what was measured before in the same way is taken from the folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge_eq.errors import ForgeError, RunError
from forge_eq.paper.plan import Plan, Unit, called, fitting
from forge_eq.peers.backends import OURS, STRONG
from forge_eq.peers.table import Row, from_data
from forge_eq.report.kept import Kept

Tell = Callable[[str], None]
Measure = Callable[[Unit, str], Any]  # (unit, the spec that is run) -> plain data
BACKENDS = (OURS, *STRONG)
MOST = 1800.0  # seconds of one measurement


class Found:
    """Measurements by unit; asking for one that failed raises its RunError."""

    def __init__(self) -> None:
        self.data: dict[Unit, Any] = {}
        self.failed: dict[Unit, str] = {}

    def __call__(self, kind: str, spec: str, more: str = "") -> Any:
        unit = Unit(kind, spec, more)
        if unit in self.data:
            return self.data[unit]["found"]
        reason = self.failed.get(unit, "was not measured")
        raise RunError("bench", unit.key, reason, "run the command again")

    def name(self, kind: str, spec: str, more: str = "") -> str:
        """The model as it was measured, truncation included."""
        unit = Unit(kind, spec, more)
        return str(self.data[unit]["name"]) if unit in self.data else spec

    def rows(self, spec: str, tokens: int) -> dict[str, Row]:
        """The backends of a cell."""
        return {r["backend"]: from_data(r) for r in self("cell", spec, str(tokens))}


def gather(units: Sequence[Unit], kept: Kept, measure: Measure, memory: int, tell: Tell) -> Found:
    """Every unit, from the folder or measured now. ``memory``: bytes of the machine."""
    found = Found()
    sizes = [Unit("model", u.spec) for u in units if u.fitted]
    ordered = list(dict.fromkeys([*sizes, *units]))
    for number, unit in enumerate(ordered, 1):
        earlier = kept.get(unit.key)
        if earlier is not None:
            found.data[unit] = earlier
            tell(f"{number}/{len(ordered)} {unit.key}: taken from {kept.folder}")
            continue
        start = time.perf_counter()
        try:
            spec = fitting(unit.spec, found("model", unit.spec), memory) if unit.fitted else unit.spec
            tell(f"{number}/{len(ordered)} {' '.join(p for p in (unit.kind, called(spec), unit.more) if p)}")
            found.data[unit] = {"name": called(spec), "found": measure(unit, spec)}
        except ForgeError as e:
            found.failed[unit] = e.reason
            tell(f"  failed: {e.reason}")
            continue
        tell(f"  {time.perf_counter() - start:.0f} s")
        kept.put(unit.key, {**found.data[unit], "seconds": time.perf_counter() - start})
    return found


def measurer(plan: Plan, folder: Path, tell: Tell) -> Measure:
    """What measures a unit for real: cells by the comparison with peers, the rest by a child. Logs go to ``folder``."""

    def measure(unit: Unit, spec: str) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        return _cell(plan, unit, spec, folder, tell) if unit.kind == "cell" else _child(plan, unit, spec, folder)

    return measure


def _cell(plan: Plan, unit: Unit, spec: str, folder: Path, tell: Tell) -> list[dict[str, Any]]:
    from forge_eq.peers import measure
    from forge_eq.peers.cases import cell
    from forge_eq.peers.table import data, rows

    one = cell(spec, unit.more)
    peers = measure.Plan(plan.threads, plan.rounds, plan.blocks, plan.seconds, BACKENDS)
    with measure.scratch() as place:
        path, size = measure.prepared(one, Path(place))
        sittings = measure.measure(one, peers, size["weights"], path, folder, lambda text: tell(f"  {text}"))
    found = rows(sittings, size["weights"])
    ours = next(r for r in found if r.backend == OURS)
    if ours.failed:
        raise RunError("bench", unit.key, ours.failed, f"read the logs in {folder}")
    return [data(r) for r in found]


def _child(plan: Plan, unit: Unit, spec: str, folder: Path) -> Any:
    count, log = str(plan.threads), folder / f"{unit.key}.log"
    environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "forge_eq.paper.child", unit.kind, spec, json.dumps(plan.settings())]
    try:
        with log.open("w", encoding="utf-8") as errors:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False, env=environment, timeout=MOST
            )
    except subprocess.TimeoutExpired:
        raise RunError("bench", unit.key, f"took more than {MOST / 60:g} minutes", "choose a smaller model") from None
    if done.returncode:
        told = _reason(done.returncode, log.read_text(encoding="utf-8", errors="replace").splitlines())
        raise RunError("bench", unit.key, told, f"read {log}")
    log.unlink()
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise RunError("bench", unit.key, "gave no figures", "run the command again") from None


def _reason(status: int, lines: Sequence[str]) -> str:
    """The error's own line, which is the last that is not indented (a remedy is); else how the process ended."""
    errors = [line for line in lines if line[:1].strip() and not line.startswith("Traceback")]
    if status < 0:
        return f"its process was ended by signal {-status}{' (out of memory?)' if status == -9 else ''}"
    return errors[-1][:300] if errors else f"its process ended with status {status}"
