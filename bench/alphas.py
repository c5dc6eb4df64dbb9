"""Extraction of whole models: gap at every alpha, time against depth, and every program that some alpha calls cheapest.

Usage: python bench/alphas.py [--families gpt2-124m,...] [--alphas 0,0.5,1] [--tokens 128] [--no-growth] [--out FOLDER]

Published sizes without weights, the default rule set. Where the default budget does not prove 1 %, the integer program
with ten times the work does it offline; the table says so.
"""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.families import FAMILIES, PAPER, build, layers_of
from sheet import Sheet, arguments, finish, one_of, progress, where

GAP, OFFLINE, QUICK = 1.0, 60.0, 100.0  # %, seconds, milliseconds of GPT-2
GPT2, DEEP, DEPTHS, REPEATS, LINEAR = "gpt2-124m", "llama-3.1-8b", (8, 16, 32), 5, 1.2
DISTINCT = 4


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "alphas")
    parser.add_argument("--families", default=",".join(PAPER), type=one_of(FAMILIES))
    parser.add_argument("--alphas", default="0,0.5,1", help="of the first table")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--target", default="openvino-cpu")
    parser.add_argument("--no-growth", action="store_true", help="leave out time against depth")
    given = parser.parse_args(argv)

    import torch

    from forge_eq.rules import default as rules

    torch.set_num_threads(given.threads)
    sheet = Sheet(
        "Extraction of models", where(given.threads, tokens=given.tokens, rules=f"{rules.hash}, {len(rules)}")
    )
    jobs = {name: saturated(name, given) for name in progress(given.families, "capture and saturate")}
    gaps(sheet, jobs, [float(a) for a in given.alphas.split(",")], rules.hash)
    paths(sheet, jobs)
    if not given.no_growth:
        growth(sheet, given)
    return finish(sheet, "alphas", given.out)


def saturated(name: str, given: Any, layers: int | None = None) -> Any:
    """A family's job, captured on the meta device and saturated with the default rules."""
    import torch

    from forge_eq.capture import capture
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    model = build(name, given.tokens, meta=True, layers=layers)
    with torch.device("meta"):
        graph = capture(model.module, model.args)
    return run(Job(Options(target=given.target), forms={"capture": graph}), "saturate")


def extracted(job: Any, **changes: Any) -> tuple[Any, float, float]:
    """The saturated e-graph extracted under other options; least processor and wall milliseconds of a few times."""
    from forge_eq.pipeline import Job, run

    kept = {k: job.forms[k] for k in ("capture", "saturate")}
    wall, own = [], []
    for _ in range(REPEATS):
        start, again = time.process_time(), Job(replace(job.options, **changes), forms=dict(kept))
        done = run(again, "extract")
        own.append(1e3 * (time.process_time() - start))
        wall.append(1e3 * done.seconds["extract"])
    return done["chosen"], min(own), min(wall)


def gaps(sheet: Sheet, jobs: dict[str, Any], alphas: list[float], rules: str) -> None:
    """Cost, bound, gap and time of the default extraction; offline where it has not proved enough."""
    from forge_eq.extract import Budget, Ilp
    from forge_eq.extract.cost import FusionGain
    from forge_eq.extract.program import problem_of

    rows, slowest = [], 0.0
    for name, job in progress(list(jobs.items()), "gaps"):
        view, layers = job["saturate"], layers_of(name)
        for alpha in alphas:
            chosen, ms, wall = extracted(job, alpha=alpha)
            a, how, offline = chosen.extraction, "default", 0.0
            if name == GPT2:
                slowest = max(slowest, ms)
            if 100 * a.gap > GAP:
                cost = FusionGain.of(job["capture"], job.target, alpha)
                problem, start = problem_of(view, job["capture"], cost, job.options.limits), time.perf_counter()
                a, how = Ilp().solve(problem, Budget(checks=10 * Budget().checks)), "offline"
                offline = time.perf_counter() - start
                sheet.demand(f"{name}, alpha {alpha:g}: offline, s", offline, OFFLINE)
            rows.append((name, layers, len(view.classes), view.nodes, alpha, a.cost, a.lower_bound, 100 * a.gap,
                         a.status, how, ms, wall, offline, rules))  # fmt: skip
            sheet.demand(f"{name}, alpha {alpha:g}: gap, %", 100 * a.gap, GAP)
    head = ("model", "layers", "classes", "e-nodes", "alpha", "cost us", "bound us", "gap %", "status", "by", "ms",
            "wall ms", "offline s", "rule set")  # fmt: skip
    note = f"cost: predicted. ms: processor time of pricing, extraction and rebuilding, least of {REPEATS}."
    sheet.table("gap per model and alpha", head, rows, note)
    if slowest:
        sheet.demand(f"default extraction of {GPT2}, processor ms", slowest, QUICK)


def paths(sheet: Sheet, jobs: dict[str, Any]) -> None:
    """Every distinct program between alpha 0 and 1."""
    from forge_eq.extract.alpha import alpha_path

    rows, counts = [], []
    for name, job in progress(list(jobs.items()), "alpha paths"):
        found = alpha_path(job["saturate"], job["capture"], job.target, job.options.limits)
        for s in found:
            fused = ", ".join(f"{count} {op}" for op, count in s.fused.items()) or "none"
            rows.append((name, f"{s.low:.4f} .. {s.high:.4f}", s.base, s.gain, sum(s.fused.values()), fused))
        score = found[0].cost(0.0), found[-1].cost(1.0)
        counts.append((name, len(found), *score, score[0] / score[1]))
        falls = sum(b.gain < a.gain for a, b in itertools.pairwise(found))
        sheet.demand(f"{name}: falls of the total gain along alpha", falls, 0)
        sheet.demand(f"{name}: fusions at alpha 0", sum(found[0].fused.values()), 0, equal=True)
        if name == GPT2:
            sheet.demand(f"{name}: {DISTINCT} over distinct programs", DISTINCT / len(found), 1.0)
    sheet.table("programs along alpha", ("model", "alpha", "unfused us", "gain us", "fused", "fusions"), rows,
                "Within a segment the program costs unfused - alpha * gain. All segments, not a grid.")  # fmt: skip
    note = "FGR = Score(0) / Score(1): what the cost model credits to fusion. Not a speed-up: nothing was run."
    sheet.table("distinct programs", ("model", "programs", "Score(0) us", "Score(1) us", "FGR"), counts, note)


def growth(sheet: Sheet, given: Any) -> None:
    """Extraction time per layer as a model gets deeper."""
    rows = []
    for depth in progress(DEPTHS, "growth"):
        job = saturated(DEEP, given, depth)
        chosen, ms, wall = extracted(job)
        rows.append((DEEP, depth, job["saturate"].nodes, ms, ms / depth, wall, 100 * chosen.extraction.gap))
    sheet.table("time against depth", ("model", "layers", "e-nodes", "ms", "ms per layer", "wall ms", "gap %"), rows)
    sheet.demand(f"{DEEP}: ms per layer, {DEPTHS[-1]} over {DEPTHS[0]} layers", rows[-1][4] / rows[0][4], LINEAR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
