"""Rule families one after another and each left out: cost, e-nodes, calls, and measured latency, beside the paper's.

Usage: python bench/ablation.py [--families gpt2-124m,...] [--layers 2] [--tokens 32] [--rounds 21] [--out FOLDER]

Models of the published widths with a few layers, a small vocabulary and random weights; attention written out (eager),
so that recognising it is the rules' work. Programs that come out equal are timed once. All programs of a model are
timed in turn.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.families import FAMILIES, build, layers_of
from sheet import PAPER, Sheet, arguments, finish, one_of, paper, progress, where

ATTENTION, ALL, VOCABULARY = "attention", "nothing", 2048


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "ablation")
    parser.add_argument("--families", default="gpt2-124m,qwen2-0.5b", type=one_of(FAMILIES))
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=21, help="times that every program runs; 0 measures nothing")
    given = parser.parse_args(argv)

    import torch

    from forge_eq.rules import default as rules

    torch.set_num_threads(given.threads)
    used = f"{rules.hash}, {len(rules)} rules"
    sheet = Sheet("Rule families", where(given.threads, tokens=given.tokens, attention="eager", rules=used))
    ratios: list[tuple[Any, ...]] = []
    for name in progress(given.families, "model"):
        layers = min(given.layers, layers_of(name))
        model = build(name, given.tokens, "eager", layers=layers, vocabulary=VOCABULARY)
        cumulative(sheet, model, given.threads)
        ratios += left_out(sheet, model, FAMILIES[name].paper, given.threads, given.rounds)
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
    return finish(sheet, "ablation", given.out)


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


def cumulative(sheet: Sheet, model: Any, threads: int) -> None:
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
    head = ("rules up to", "rules", "saturate ms", "more ms", "more e-nodes", "calls", "change", "cost us")
    sheet.table(
        f"{model.name}: families one after another",
        head,
        rows,
        "Calls are before constants are folded. A rule set's first saturation also answers its questions about sizes.",
    )


def left_out(sheet: Sheet, model: Any, theirs: str, threads: int, rounds: int) -> list[tuple[Any, ...]]:
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
    samples = timed({f: jobs[f] for f in dict.fromkeys(first[t] for t in shown.values())}, model, rounds)
    full, rows = jobs[ALL], []
    for family, job in jobs.items():
        cost, same = job["chosen"].extraction.cost, first[shown[family]]
        ms, ratio, low = compared(samples, same)
        delta = 100 * (cost / full["chosen"].extraction.cost - 1)
        nodes = job["saturate"].nodes - full["saturate"].nodes
        rows.append((family, cost, delta, nodes, calls(job["chosen"].graph), ms, ratio, low,
                     "" if same == family else f"as without {same}"))  # fmt: skip
    head = ("without", "cost us", "delta %", "e-nodes", "calls", "ms", "time over that of all", "lower 95 %", "program")
    note = f"cost: predicted; ms: medians of {rounds} interleaved rounds on OpenVINO."
    sheet.table(f"{model.name}: each family left out", head, rows, note)
    known = paper().get("attention_fusion_latency", {}).get("rows", {}).get(theirs, ("", "", "", ""))
    if not samples:
        return []
    with_ms, (without, ratio, low) = compared(samples, ALL)[0], compared(samples, first[shown[ATTENTION]])
    return [(model.name, with_ms, without, 100 * (with_ms / without - 1), ratio, low, *known[1:])]


def timed(jobs: dict[str, Any], model: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds per round of each program, in turn; the values of all are compared with torch's first."""
    if not rounds:
        return {}
    import torch

    from forge_eq.program import CompiledProgram
    from forge_eq.program import finish as build_program
    from forge_eq.tune.measure import interleaved

    programs = {}
    with torch.no_grad():
        wanted = model.module(*model.args)
        for family, job in jobs.items():
            made = build_program(job, model.args, model.kwargs or None)
            programs[family] = CompiledProgram(job["capture"], job.options, None, made)
            torch.testing.assert_close(programs[family](*model.args), wanted, rtol=1e-3, atol=1e-4)
        found = interleaved([lambda p=p: p(*model.args) for p in programs.values()], rounds)
    return dict(zip(programs, found, strict=True))


def compared(samples: dict[str, list[float]], name: str) -> tuple[Any, Any, Any]:
    """Milliseconds of a program; its time over that of all rules: median and lower 95 % bound."""
    from forge_eq.tune.order import speedup

    if not samples:
        return "", "", ""
    return 1e3 * median(samples[name]), *speedup(samples[name], samples[ALL])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
