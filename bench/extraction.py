"""Extraction per model: extractors, Score(alpha) and FGR, tuning; CEI with --cei.

Usage: python bench/extraction.py [--models gpt2-124m,...] [--tokens 16] [--tune 50] [--cei NAMES] [--out F]

The families at their published sizes, without weights. A model is a piece, kept in F/extraction-chunks.json: --seconds
begins none after that time, and the same command does the rest.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.families import FAMILIES, build
from forge_eq.families import PAPER as FAMILY
from forge_eq.paper.graphs import ALPHAS, again, before_and_after, fused
from forge_eq.tune.trial import Trials
from sheet import PAPER, Sheet, arguments, few, finish, one_of, paper, pieces, where

OF_PAPER = {"gpt2": "GPT-2 (125M)", **{name: f.paper for name, f in FAMILIES.items() if f.paper}}
OVER = 0.3  # seconds that 50 trials may take beyond their extractions
VOCABULARY = 2048  # of a family that is compiled
OWN = 20  # trials whose scores under their own weights are compared
TABLE_18 = (
    "A score is what one set of weights says of a program. Under one set, a change is predicted time that the other "
    "program saves; the judge of tuning is the given set, which its own program already minimises. The least own score "
    "is that of the trial whose weights call its program cheapest, which is how the paper's Table 18 compares: it "
    "falls with the weights, whatever the program, and says nothing about time."
)


def captures() -> dict[str, Callable[[int], Any]]:
    """Captured graphs by name: the built-in models, and the families at their full sizes without data."""
    import torch

    from forge_eq import models
    from forge_eq.capture import capture

    def built_in(name: str) -> Callable[[int], Any]:
        def made(tokens: int) -> Any:
            model = models.BUILT_IN[name](tokens=tokens)
            return capture(model.module, model.args, model.kwargs or None)

        return made

    def family(name: str) -> Callable[[int], Any]:
        def made(tokens: int) -> Any:
            model = build(name, tokens, meta=True)
            with torch.device("meta"):
                return capture(model.module, model.args)

        return made

    return {**{name: built_in(name) for name in models.BUILT_IN}, **{name: family(name) for name in FAMILIES}}


def main(argv: list[str]) -> int:
    known = captures()
    parser = arguments(__doc__, "extraction")
    parser.add_argument("--models", default=list(FAMILY), type=one_of(known), help=f"of {', '.join(known)}")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--target", default="openvino-cpu")
    parser.add_argument("--tune", type=int, default=50, help="trials of tuning; 0 for none")
    parser.add_argument(
        "--cei", default=[], type=one_of(known), help="models to compile and time against plain OpenVINO; a family is "
        f"cut down to a few layers and a vocabulary of {VOCABULARY}"
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no piece after this time")
    given = parser.parse_args(argv)

    import torch

    from forge_eq.rules import default as rules

    torch.set_num_threads(given.threads)
    file = given.out / "extraction-chunks.json" if given.out is not None else None
    pairs = {f"{m}, {given.tokens} tokens, rules {rules.hash}": m for m in given.models}
    timed = {f"CEI of {m}, {given.tokens} tokens, rules {rules.hash}": m for m in given.cei}

    def make(key: str) -> dict[str, Any]:
        if key in timed:
            return efficiency(timed[key], given.tokens, given.threads)
        return piece(pairs[key], known[pairs[key]](given.tokens), given.target, given.tune)

    kept = pieces(file, [*pairs, *timed], make, "extraction", given.seconds)
    sheet = Sheet("Extraction", where(given.threads, tokens=given.tokens, target=given.target, rules=rules.hash))
    fill(sheet, {m: kept[key] for key, m in pairs.items() if key in kept})
    if timed:
        head = (
            "model",
            "OpenVINO ms",
            "forge_eq ms",
            "OpenVINO over it",
            "lower 95 %",
            "compile s",
            "CEI",
            "paper CEI",
        )
        note = f"Interleaved medians; compile: capture, verification and the backend's build. paper: {PAPER}"
        rows = [kept[key]["row"] for key in timed if key in kept]
        sheet.table("Compilation Efficiency Index", head, rows, note)
    sheet.demand("pieces not measured yet", sum(key not in kept for key in (*pairs, *timed)), 0)
    return finish(sheet, "extraction", given.out)


def piece(name: str, graph: Any, target: str, trials: int) -> dict[str, Any]:
    """Everything about one captured model."""
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    job = run(Job(Options(target=target), forms={"capture": graph}), "saturate")
    scored, ratio = scores(name, job)
    return {
        "extractors": compare(name, job),
        "scores": scored,
        "ratio": ratio,
        "tuning": tuning(name, job, trials) if trials else None,
    }


def fill(sheet: Sheet, found: dict[str, Any]) -> None:
    """Tables and criteria."""
    head = ("model", "classes", "e-nodes", "extractor", "cost us", "bound us", "gap %", "status", "ms", "rule set")
    note = "cost: predicted, not measured; ms: processor time of pricing, extraction and rebuilding the graph"
    sheet.table("extractors", head, [row for c in found.values() for row in c["extractors"]], note)
    for name, c in found.items():
        gap = next(row[6] for row in c["extractors"] if row[3] == "default")
        sheet.demand(f"gap of {name}, %", gap, 1.0)
    head = ("model", "alpha", "score us", "calls", "fused", "paper score", "paper nodes", "paper fused")
    note = f"paper: {PAPER}; its unit is not stated. Calls are before constants are folded."
    sheet.table("Score(alpha)", head, [row for c in found.values() for row in c["scores"]], note)
    head = ("model", "Score(0) us", "Score(1) us", "FGR", "paper Score(0)", "paper Score(1)", "paper FGR")
    note = "FGR = Score(0) / Score(1): what the cost model credits to fusion. It is no speed-up: nothing was run."
    sheet.table("Fusion Gain Ratio", head, [c["ratio"] for c in found.values()], note)
    tuned = {name: c["tuning"] for name, c in found.items() if c["tuning"]}
    head = ("model", "trials", "programs", "extract s", "wall beyond s", "processor beyond s", "judged us",
            "judged tuned us")  # fmt: skip
    note = "judged: the kernels' predicted time under the settings given, without penalties or discounts."
    sheet.table("tuning", head, [(name, *t["cost"]) for name, t in tuned.items()], note)
    for name, t in tuned.items():
        over, trials = t["cost"][4], t["cost"][0]
        sheet.demand(f"{trials} trials of {name} beyond their extractions, processor s", over, OVER * trials / 50)
    head = ("model", "given us", "under given, tuned us", "change %", "under tuned, given us", "under tuned, tuned us",
            "change %", "least own score, change %", "its program under given, change %", "paper default",
            "paper tuned", "paper change %")  # fmt: skip
    sheet.table("score before and after tuning", head, [(name, *t["score"]) for name, t in tuned.items()], TABLE_18)


def compare(name: str, job: Any) -> list[tuple[Any, ...]]:
    """Every extractor at the default alpha."""
    from forge_eq.extract import EXTRACTORS
    from forge_eq.rules import default as rules

    rows, view = [], job["saturate"]
    for extractor in EXTRACTORS:
        start = time.process_time()
        a = again(job, extractor=extractor)["chosen"].extraction
        ms = 1e3 * (time.process_time() - start)
        size = len(view.classes), view.nodes
        rows.append((name, *size, extractor.name, a.cost, a.lower_bound, 100 * a.gap, a.status, ms, rules.hash))
    return rows


def calls(graph: Any) -> int:
    return sum(not n.op.leaf for n in graph.nodes)


def scores(name: str, job: Any) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """Score(alpha) is the cost of the extraction at alpha; FGR = Score(0) / Score(1), a ratio of predictions."""
    of_paper, rows, costs = paper(), [], []
    for alpha in ALPHAS:
        done = again(job, alpha=alpha)
        known = of_paper.get("alpha_gpt2", {}).get("rows", {}).get(str(alpha)) if "gpt2" in name else None
        theirs = known if name in OF_PAPER and known else ("", "", "")
        chosen = done["chosen"]
        costs.append(chosen.extraction.cost)
        rows.append((name, alpha, costs[-1], calls(chosen.graph), fused(done), *theirs))
    theirs = of_paper.get("fgr", {}).get("rows", {}).get(OF_PAPER.get(name, ""), ("", "", ""))
    return rows, (name, costs[0], costs[-1], costs[0] / costs[-1], *theirs)


def tuning(name: str, job: Any, trials: int) -> dict[str, Any]:
    """What trials cost beyond their extractions; the scores of both programs, under both settings."""
    from forge_eq.pipeline import Job
    from forge_eq.tune import tune

    found = tune(Job(job.options, job.source, {k: job.forms[k] for k in ("capture", "saturate")}), trials=trials)
    over = found.seconds["search"] - found.seconds["extract"]
    given, tuned = before_and_after(job, found.settings)
    known, own = Trials(job), []
    for settings, _ in found.history[:OWN]:
        program = known.run(settings).program
        own.append((known.predict(settings, [program])[0], known.predict(known.base, [program])[0]))
    flattered = min(own)
    theirs = paper().get("autotune", {}).get("rows", {}).get(OF_PAPER.get(name, ""), ("", "", ""))

    def change(before: float, after: float) -> float:
        return 100 * (after / before - 1)

    return {
        "cost": (trials, found.programs, found.seconds["extract"], over, found.seconds["sampling"], found.base,
                 found.value),
        "score": (*given, change(*given), *tuned, change(*tuned), change(given[0], flattered[0]),
                  change(given[0], flattered[1]), *theirs),
    }  # fmt: skip


def efficiency(name: str, tokens: int, threads: int) -> dict[str, Any]:
    """CEI = (latency of plain OpenVINO / ours) / seconds of our compilation, as the paper defines it."""
    import torch

    import forge_eq
    from candidates import plain_openvino
    from forge_eq import models
    from forge_eq.tune.measure import clock_of, interleaved
    from forge_eq.tune.order import speedup

    if name in FAMILIES:
        model = build(name, tokens, layers=few(name), vocabulary=VOCABULARY)
    else:
        model = models.BUILT_IN[name](tokens=tokens)
    start = time.perf_counter()
    program = forge_eq.compile(model.module, model.args, threads=threads)
    took = time.perf_counter() - start
    base = plain_openvino(model.module, model.args, threads)
    with torch.no_grad():
        samples = interleaved([lambda: base(*model.args), lambda: program(*model.args)], 21, clock_of(threads))
    plain, ours = (statistics.median(s) for s in samples)
    known = paper().get("cei", {}).get("rows", {}).get(OF_PAPER.get(name, ""), (math.nan, "", ""))[0]
    ratio, low = speedup(*samples)
    return {"row": (model.name, 1e3 * plain, 1e3 * ours, ratio, low, took, ratio / took, known)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
