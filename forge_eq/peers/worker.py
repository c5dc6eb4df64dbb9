"""One backend in a process of its own: sets up, says how, then runs on demand.

Takes ``python -m forge_eq.peers.worker BACKEND FILE THREADS``, then lines ``run N`` and ``quit`` on standard input.
Gives a line of JSON for each on standard output: the set-up, then wall and processor nanoseconds of N calls.
Promises: what libraries print goes to standard error; while it waits for a line it computes nothing.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

WARM = 2  # calls of each turn that are not counted


class Phases:
    """Wall and processor seconds and peak memory of each phase; called with the phase that has just ended."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.processor: dict[str, float] = {}
        self.peak: dict[str, int] = {}
        self._at = (time.perf_counter(), time.process_time())

    def __call__(self, name: str) -> None:
        now = (time.perf_counter(), time.process_time())
        self.wall[name] = self.wall.get(name, 0.0) + now[0] - self._at[0]
        self.processor[name] = self.processor.get(name, 0.0) + now[1] - self._at[1]
        self.peak[name] = peak()
        self._at = now

    def split(self, parts: dict[str, float], rest: str) -> None:
        """The phase that has just ended in parts whose wall time is known; all that is left over is ``rest``."""
        self(rest)
        for name, seconds in parts.items():
            self.wall[name] = self.wall.get(name, 0.0) + seconds
        self.wall[rest] = max(0.0, self.wall[rest] - sum(parts.values()))


def peak() -> int:
    """Largest resident bytes of this process so far. On Linux ru_maxrss would count the parent's before exec, too."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    told = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)
    return told or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def set_up(name: str, path: Path, threads: int) -> tuple[Any, dict[str, Any]]:
    """The backend's call, and what making it took."""
    import torch

    from forge_eq.peers.backends import BACKENDS
    from forge_eq.peers.cases import answer_path, read

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    backend = BACKENDS[name]
    phases = Phases()
    for package in backend.packages:
        importlib.import_module(package)
    phases("import")
    module, args = read(path)
    phases("load")
    start = (time.perf_counter(), time.process_time())
    call = backend.prepare(module, args, threads, phases)
    phases("other")
    found = call()
    phases("first call")
    total = (time.perf_counter() - start[0], time.process_time() - start[1])
    wanted = torch.load(answer_path(path), weights_only=True)
    return call, {
        "wall": phases.wall,
        "processor": phases.processor,
        "peak": phases.peak,
        "end to end": {"wall": total[0], "processor": total[1]},
        "difference": difference(found, wanted),
    }


def difference(found: Any, wanted: Any) -> float:
    """The largest absolute difference from eager over all outputs; infinite where shapes differ."""
    import torch

    worst = 0.0
    if len(found) != len(wanted):
        return float("inf")
    for a, b in zip(found, wanted, strict=True):
        ours = torch.as_tensor(a)
        if ours.shape != b.shape:
            return float("inf")
        worst = max(worst, float((ours - b).abs().max()))
    return worst


def samples(call: Any, count: int) -> dict[str, Any]:
    """Nanoseconds of each call: wall, and of the process's all threads; microjoules of all, None where unreadable.

    The first calls of a turn are not counted: threads wake up, and the caches hold the weights of whoever ran before.
    """
    from forge_eq.peers.energy import counters, used

    wall, processor = [], []
    for _ in range(WARM):
        call()
    before = counters()
    for _ in range(count):
        start = (time.perf_counter_ns(), time.process_time_ns())
        call()
        wall.append(time.perf_counter_ns() - start[0])
        processor.append(time.process_time_ns() - start[1])
    return {"wall": wall, "processor": processor, "energy": used(before, counters())}


def main(name: str, path: str, threads: str) -> None:
    told = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not stand among our lines

    def tell(found: dict[str, Any]) -> None:
        told.write(json.dumps(found) + "\n")
        told.flush()

    try:
        call, found = set_up(name, Path(path), int(threads))
    except Exception as e:  # a peer may fail in any way: that is a row of the table
        traceback.print_exc()
        tell({"failed": f"{type(e).__name__}: {e}".splitlines()[0][:300]})
        return
    tell(found)
    for line in sys.stdin:
        command = line.split()
        if command[0] == "quit":
            tell({"peak": peak()})
            return
        tell(samples(call, int(command[1])))


if __name__ == "__main__":
    main(*sys.argv[1:])
