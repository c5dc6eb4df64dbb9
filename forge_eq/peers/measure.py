"""Runs a cell: a process per backend, all alive at once where memory allows, called in turn.

Takes a cell and backends. Gives the sittings: set-up, samples by block, failures of each backend. Promises: while
one backend runs, the others wait for a line; their order rotates; every group contains ours, so that a ratio never
spans groups.
"""

from __future__ import annotations

import compileall
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_eq.errors import RunError
from forge_eq.peers.backends import AGAIN, BACKENDS, OURS
from forge_eq.peers.cases import Cell

Tell = Callable[[str], None]
GIB = 1 << 30
SHOWS = ("cli", "demo.py", "report/page.py", "peers/picture.py", "peers/sheets.py", "paper/tables")  # measure nothing
MOST_SECONDS = 1200.0  # without an answer before a backend counts as failed


@dataclass(frozen=True)
class Plan:
    """``rounds`` of fresh processes; in each ``blocks`` turns of about ``seconds`` a backend."""

    threads: int
    rounds: int = 3
    blocks: int = 8
    seconds: float = 0.5
    backends: tuple[str, ...] = tuple(BACKENDS)


@dataclass
class Turn:
    """What a backend did in one sitting: nanoseconds by block; ``failed`` says why there is nothing."""

    setup: dict[str, Any] = field(default_factory=dict)
    wall: list[list[int]] = field(default_factory=list)
    processor: list[list[int]] = field(default_factory=list)
    energy: list[float] = field(default_factory=list)  # microjoules of a call, by block; empty where unreadable
    peak: int = 0
    failed: str = ""


class Worker:
    """A backend's process. Raises RunError when it ends without a word."""

    def __init__(self, name: str, path: Path, threads: int, log: Path) -> None:
        self.name, self.log = name, log
        count = str(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "forge_eq.peers.worker", name, str(path), count]
        self._errors = log.open("ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment
        )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        watch = threading.Timer(MOST_SECONDS, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            code = self.process.wait()
            raise RunError("bench", self.name, f"its process ended with status {code}", f"read {self.log}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: answer() says how
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()


def measure(cell: Cell, plan: Plan, weights: int, path: Path, logs: Path, tell: Tell) -> list[dict[str, Turn]]:
    """The sittings of a cell: in each, backends that ran in turn."""
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)  # as an installed package is, and the peers are
    sittings: list[dict[str, Turn]] = []
    groups = grouped(plan.backends, weights, available())
    for number in range(plan.rounds):
        for names in groups:
            tell(f"{cell.name}: round {number + 1}/{plan.rounds}, {', '.join(names)}")
            sitting = _sitting(names, plan, number, path, logs)
            sittings.append(sitting)
            for name in [n for n in names if sitting[n].failed]:
                tell(f"  {name} failed: {sitting[name].failed}")
                groups = [[n for n in g if n != name] for g in groups]  # it would fail the same way again
    return sittings


def grouped(names: Sequence[str], weights: int, memory: int) -> list[list[str]]:
    """The backends in groups that fit into memory together, ours in each.

    A process is reckoned to need twice the weights beside its mapping of them, and 1 GiB.
    """
    share = 2 * weights + GIB
    room = max(2, int((0.85 * memory - weights) // share))
    first = [n for n in names if n in (OURS, AGAIN)]
    peers = [n for n in names if n not in first]
    if OURS not in first or len(names) <= room:
        return [list(names)]
    groups = [[*first, *peers[: max(1, room - len(first))]]]
    peers = peers[max(1, room - len(first)) :]
    while peers:
        groups.append([OURS, *peers[: room - 1]])
        peers = peers[room - 1 :]
    return groups


def _sitting(names: Sequence[str], plan: Plan, number: int, path: Path, logs: Path) -> dict[str, Turn]:
    workers: dict[str, Worker] = {}
    turns = {name: Turn() for name in names}
    order = _rotated(names, number)
    try:
        for name in order:
            workers[name] = Worker(name, path, plan.threads, logs / f"{name.replace(' ', '-')}.log")
            _guarded(turns[name], lambda name=name: _set_up(workers[name], turns[name]))  # type: ignore[misc]
        counts = {n: _count(workers[n], turns[n], plan.seconds) for n in order if not turns[n].failed}
        for block in range(plan.blocks):
            for name in _rotated(list(counts), block):
                if not turns[name].failed:
                    _guarded(turns[name], lambda name=name: _run(workers[name], turns[name], counts[name]))  # type: ignore[misc]
        for name in counts:
            if not turns[name].failed:
                turns[name].peak = workers[name].ask("quit")["peak"]
    finally:
        for worker in workers.values():
            worker.close()
    return turns


def _set_up(worker: Worker, found: Turn) -> None:
    said = worker.answer()
    found.failed = said.get("failed", "")
    found.setup = {} if found.failed else said


def _count(worker: Worker, found: Turn, seconds: float) -> int:
    """Calls of one block. The calls that find it out are the warm-up."""
    try:
        worker.ask("run 2")
        once = float(min(worker.ask("run 3")["wall"])) / 1e9
    except RunError as e:
        found.failed = str(e)
        return 0
    return max(2, min(400, round(seconds / once)))


def _run(worker: Worker, found: Turn, count: int) -> None:
    samples = worker.ask(f"run {count}")
    found.wall.append(samples["wall"])
    found.processor.append(samples["processor"])
    if samples["energy"] is not None:
        found.energy.append(samples["energy"] / count)


def _guarded(found: Turn, step: Callable[[], None]) -> None:
    try:
        step()
    except RunError as e:  # a crash of a peer is a row, not the end of the run
        found.failed = e.reason


def _rotated(names: Sequence[str], by: int) -> list[str]:
    by %= max(1, len(names))
    return [*names[by:], *names[:by]]


def available() -> int:
    """Bytes of memory that programs may still take."""
    import psutil

    return int(psutil.virtual_memory().available)


def prepared(cell: Cell, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The cell's file, written by a process of its own so that this one stays small."""
    path = folder / f"{cell.key}.pt"
    code = "import json,sys;from pathlib import Path;from forge_eq.peers.cases import Cell,prepare;"
    code += "m,c,l,p=sys.argv[1:];print(json.dumps(prepare(Cell(m,c,int(l)),Path(p))))"
    command = [sys.executable, "-c", code, cell.model, cell.case, str(cell.layers), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RunError("bench", cell.name, f"could not be built: {last[0]}", "choose another model or case")
    return path, json.loads(done.stdout.splitlines()[-1])


def stamp(threads: int) -> dict[str, Any]:
    """What a kept measurement depends on: versions, the machine, and our own sources."""
    import forge_eq
    from forge_eq.report.kept import sources
    from forge_eq.report.sheet import where

    found = where(threads)
    del found["load average"]
    return {**found, "forge_eq sources": sources(Path(forge_eq.__file__).parent, SHOWS)}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for the cells' files, gone at the end."""
    return tempfile.TemporaryDirectory(prefix="forge-eq-peers-")
