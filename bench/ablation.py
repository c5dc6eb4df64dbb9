"""Rule families one after another and each left out: cost, e-nodes, calls, and measured latency, beside the paper's.

Usage: python bench/ablation.py [--families gpt2-124m,...] [--tokens 32] [--rounds 21] [--seconds 240] [--out FOLDER]

Models of the published widths with a few layers, a small vocabulary and random weights; attention written out (eager),
so that recognising it is the rules' work. Programs that come out equal are timed once. All programs of a model are
timed in turn, by the processor's time on one thread. A model is a piece, kept in FOLDER/ablation-chunks.json: --seconds
begins none after that time, and the same command does the rest.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.families import FAMILIES, build
from forge_eq.families import PAPER as FAMILY
from sheet import PAPER, Sheet, arguments, few, finish, one_of, paper, pieces, where

ATTENTION, ALL, VOCABULARY = "attention", "nothing", 2048


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "ablation")
    parser.add_argument("--families", default=list(FAMILY), type=one_of(FAMILIES))
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=21, help="times that every program runs; 0 measures nothing")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no model after this time")
    given = parser.parse_args(argv)

    import torch

    from forge_eq.rules import default as rules

    torch.set_num_threads(given.threads)
    file = given.out / "ablation-chunks.json" if given.out is not None else None
    wanted = {f"{f}, {given.tokens} tokens, rules {rules.hash}": f for f in given.families}

    def make(key: str) -> dict[str, Any]:
        model = build(wanted[key], given.tokens, "eager", layers=few(wanted[key]), vocabulary=VOCABULARY)
        found = left_out(model, given.threads, given.rounds)
        return {"model": model.name, "cumulative": cumulative(model, given.threads), **found}

    kept = pieces(file, list(wanted), make, "model", given.seconds)
    used = f"{rules.hash}, {len(rules)} rules"
    sheet = Sheet("Rule families", where(given.threads, tokens=given.tokens, attention="eager", rules=used))
    fill(sheet, {f: kept[key] for key, f in wanted.items() if key in kept}, given.rounds)
    sheet.demand("models not measured yet", sum(key not in kept for key in wanted), 0)
    return finish(sheet, "ablation", given.out)


def fill(sheet: Sheet, found: dict[str, Any], rounds: int) -> None:
    """Tables, the paper's beside ours."""
    ratios = []
    for family, c in found.items():
        head = ("rules up to", "rules", "saturate ms", "more ms", "more e-nodes", "calls", "change", "cost us")
        note = (
            "Calls are before constants are folded. A rule set's first saturation also answers questions about sizes."
        )
        sheet.table(f"{c['model']}: families one after another", head, c["cumulative"], note)
        head = (
            "without",
            "cost us",
            "delta %",
            "e-nodes",
            "calls",
            "ms",
            "time over that of all",
            "lower 95 %",
            "program",
        )
        note = f"cost: predicted; ms: medians of {rounds} interleaved rounds on OpenVINO."
        sheet.table(f"{c['model']}: each family left out", head, c["left out"], note)
        theirs = paper().get("attention_fusion_latency", {}).get("rows", {}).get(FAMILIES[family].paper, [""] * 4)
        ratios += [(c["model"], *c["attention"], *theirs[1:])] if c["attention"] else []
    if ratios:
        head = ("model", "with ms", "without ms", "delta %", "without over with", "lower 95 %", "paper with",
                "paper without", "paper delta %")  # fmt: skip
        note = f"Few layers: compare ratios, not times. paper: Table 15, {PAPER}"
        sheet.table("attention fusion", head, ratios, note)
    for title, key in (
        ("passes of the paper, GPT-2", "passes_gpt2"),
        ("ablation of the paper, GPT-2", "ablation_gpt2"),
    ):
        table = paper().get(key)
        if table:
            sheet.table(title, ("pass", *table["cols"]), [(k, *v) for k, v in table["rows"].items()], PAPER)


def extracted(model: Any, rules: Any, threads: int, captured: Any = None) -> Any:
    """The job of a model under a rule set, up to its chosen program."""
    from forge_eq.api import make_job, make_options
    from forge_eq.pipeline import Job, run

    options = make_options(None, {"rules": rules, "threads": threads})
    job = make_job(model.module, model.args, model.kwargs or None, None, options)
    if captured is not None:
        job = Job(job.options, job.source, {"capture": captured})
    return run(job, "extract")


def calls(graph: Any) -> int:
    return sum(not n.op.leaf and not n.op.traits.view for n in graph.nodes)


def cumulative(model: Any, threads: int) -> list[tuple[Any, ...]]:
    """What each family adds to those before it, in the order of their names."""
    from forge_eq.rules import default

    captured = extracted(model, default, threads)["capture"]  # also answers the rules' questions about sizes
    families = sorted({r.family for r in default})
    rows, kept, before = [], default - default, (0, calls(captured), 0.0)
    for family in ("", *families):
        kept = kept + default.select(family) if family else kept
        job = extracted(model, kept, threads, captured)
        view, chosen = job["saturate"], job["chosen"]
        now = (view.nodes, calls(chosen.graph), 1e3 * job.seconds["saturate"])
        rows.append((family or "no rule", len(kept), now[2], now[2] - before[2], now[0] - before[0], now[1],
                     now[1] - before[1], chosen.extraction.cost))  # fmt: skip
        before = now
    return rows


def left_out(model: Any, threads: int, rounds: int) -> dict[str, Any]:
    """Each family left out, predicted and measured; the row of the attention table."""
    from forge_eq.ir.text import text
    from forge_eq.rules import default

    families = sorted({r.family for r in default})
    jobs: dict[str, Any] = {}
    for family in (ALL, *families):
        kept = default if family == ALL else default - default.select(family)
        jobs[family] = extracted(model, kept, threads, jobs[ALL]["capture"] if jobs else None)
    shown = {family: text(job["extract"]) for family, job in jobs.items()}
    first = {t: family for family, t in reversed(shown.items())}
    samples = timed({f: jobs[f] for f in dict.fromkeys(first[t] for t in shown.values())}, model, threads, rounds)
    full, rows = jobs[ALL], []
    for family, job in jobs.items():
        cost, same = job["chosen"].extraction.cost, first[shown[family]]
        ms, ratio, low = compared(samples, same)
        delta = 100 * (cost / full["chosen"].extraction.cost - 1)
        nodes = job["saturate"].nodes - full["saturate"].nodes
        rows.append((family, cost, delta, nodes, calls(job["chosen"].graph), ms, ratio, low,
                     "" if same == family else f"as without {same}"))  # fmt: skip
    if not samples:
        return {"left out": rows, "attention": ()}
    with_ms, (without, ratio, low) = compared(samples, ALL)[0], compared(samples, first[shown[ATTENTION]])
    return {"left out": rows, "attention": (with_ms, without, 100 * (with_ms / without - 1), ratio, low)}


def timed(jobs: dict[str, Any], model: Any, threads: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each program, in turn; the values of all are compared with torch's first."""
    if not rounds:
        return {}
    import torch

    from forge_eq.program import CompiledProgram
    from forge_eq.program import finish as build_program
    from forge_eq.tune.measure import clock_of, interleaved

    programs = {}
    with torch.no_grad():
        wanted = model.module(*model.args)
        for family, job in jobs.items():
            made = build_program(job, model.args, model.kwargs or None)
            programs[family] = CompiledProgram(job["capture"], job.options, None, made)
            torch.testing.assert_close(programs[family](*model.args), wanted, rtol=1e-3, atol=1e-4)
        found = interleaved([lambda p=p: p(*model.args) for p in programs.values()], rounds, clock_of(threads))
    return dict(zip(programs, found, strict=True))


def compared(samples: dict[str, list[float]], name: str) -> tuple[Any, Any, Any]:
    """Milliseconds of a program; its time over that of all rules: median and lower 95 % bound."""
    from forge_eq.tune.order import speedup

    if not samples:
        return "", "", ""
    return 1e3 * median(samples[name]), *speedup(samples[name], samples[ALL])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
