"""Memory and build time of the two orientations: what OpenVINO keeps besides the weights, in fresh processes.

Usage: python bench/weights.py [--models llama] [--tokens 1,16] [--repeats 3] [--out FOLDER]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from order import LAYERS, programs, saturated
from sheet import ROOT, Sheet, arguments, finish, one_of, progress, where

VARIANTS = ("activation apart", "cut", "left, layers only")  # of bench/order.py: rows, the cut, every layer
SHARE = 0.25  # of the weights, that the layers with the weight on the left may cost besides


def one(name: str, tokens: int, variant: str, threads: int) -> dict[str, float]:
    """Megabytes and seconds of one build, in this process."""
    import torch

    from forge_eq.run.executor import Executable
    from forge_eq.schedule.plan import schedule

    torch.set_num_threads(threads)
    made, job = saturated(name, tokens)
    program = schedule(programs(job)[variant], job.target).program
    import openvino

    openvino.Core()  # loading the library is not the model's
    before, start = resident(), time.process_time()
    executable = Executable(program, job.target, (), threads)
    seconds = time.process_time() - start
    executable(list(made.args))
    weights = sum(p.numel() * p.element_size() for p in made.module.parameters()) / 1e6
    return {"weights": weights, "besides": resident() - before, "seconds": seconds}


def resident() -> float:
    """Megabytes of this process in memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmRSS"))


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "weights")
    parser.add_argument("--models", default="llama", type=one_of(LAYERS), help=f"of {', '.join(LAYERS)}")
    parser.add_argument("--tokens", default="1,16", type=lambda text: [int(t) for t in text.split(",")])
    parser.add_argument("--repeats", type=int, default=3, help="fresh processes each")
    parser.add_argument("--one", nargs=3, help="one build in this process: model, tokens, variant")
    given = parser.parse_args(argv)
    if given.one:
        print(json.dumps(one(given.one[0], int(given.one[1]), given.one[2], given.threads)))
        return 0
    sheet = Sheet("Memory and build time by orientation", where(given.threads, layers=LAYERS))
    cases = [(m, t, v) for m in given.models for t in given.tokens for v in VARIANTS]
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for case in progress(cases, "build"):
        runs = [fresh(*case, given.threads) for _ in range(given.repeats)]
        found[case] = {k: median(r[k] for r in runs) for k in runs[0]}
    rows = [(f"{m}, {t}", v, f["weights"], f["besides"], f["seconds"]) for (m, t, v), f in found.items()]
    head = ("model, tokens", "variant", "weights MB", "besides them MB", "build s (processor)")
    sheet.table("builds", head, rows, "what the process grew by from before the build to after one call")
    for (m, t, v), f in found.items():
        if v == VARIANTS[-1]:
            sheet.demand(
                f"{m}, {t}: memory besides the weights, left, over weights", f["besides"] / f["weights"], SHARE
            )
    return finish(sheet, "weights", given.out)


def fresh(name: str, tokens: int, variant: str, threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--threads", str(threads), "--one", name, str(tokens), variant]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=300)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
