"""Which rules and which layout a program's time comes from: each family left out, and rows throughout, timed in turn.

Usage: python bench/gains.py [--families gpt2-124m,...] [--tokens 1,16,128] [--layers N] [--rounds 21] [--out FOLDER]

Models of the published widths with a few layers, a small vocabulary and random weights, exported with SDPA as they are
compared with peers. A ratio above 1 is what a family or the layout gains there; "surely" says that the lower 95 %
bound is above 1 too. On one thread the processor's time is measured. Programs that come out equal are timed once. With
--out, a finished case is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from ablation import ALL, compared, extracted, timed
from family_runs import source_hash
from forge_eq.families import FAMILIES, PAPER, build
from forge_eq.report.kept import Kept
from sheet import Sheet, arguments, few, finish, one_of, progress, where

VOCABULARY = 2048
NO_RULE, ROWS = "every rule", "the layout: rows throughout"


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "gains")
    parser.add_argument("--families", default=",".join(PAPER), type=one_of(FAMILIES))
    parser.add_argument("--tokens", default="1,16,128")
    parser.add_argument("--layers", type=int, default=0, help="0: what several programs have room for")
    parser.add_argument("--rounds", type=int, default=21)
    given = parser.parse_args(argv)

    import torch

    torch.set_num_threads(given.threads)
    settings = {"layers": given.layers, "rounds": given.rounds}
    sheet = Sheet("What the time comes from", where(given.threads, **settings, attention="sdpa"))
    depends = {**settings, "threads": given.threads, "source": source_hash()}
    kept = Kept(given.out / "gains" if given.out else None, depends)
    found = []
    for name, tokens in progress([(n, t) for n in given.families for t in given.tokens.split(",")], "gains"):
        key = f"{name}-{tokens}"
        earlier = kept.get(key)
        if earlier is None:
            earlier = measure(name, int(tokens), given)
            kept.put(key, earlier)
        found += earlier
    fill(sheet, found)
    return finish(sheet, "gains", given.out)


def measure(name: str, tokens: int, given: Any) -> list[dict[str, Any]]:
    """The programs without each family, with no rule, and with rows throughout, over the full one."""
    from forge_eq.rules import default

    model = build(name, tokens, layers=given.layers or few(name), vocabulary=VOCABULARY)
    jobs: dict[str, Any] = {ALL: extracted(model, default, given.threads)}
    for family in sorted({r.family for r in default}):
        jobs[family] = extracted(model, default - default.select(family), given.threads, jobs[ALL]["capture"])
    jobs[NO_RULE] = extracted(model, default - default, given.threads, jobs[ALL]["capture"])
    jobs[ROWS] = by_rows(extracted(model, default, given.threads, jobs[ALL]["capture"]))
    shown = {what: program_text(job) for what, job in jobs.items()}
    first = {t: what for what, t in reversed(shown.items())}
    samples = timed(
        {w: jobs[w] for w in dict.fromkeys(first[t] for t in shown.values())}, model, given.threads, given.rounds
    )
    rows = []
    for what in jobs:
        ms, ratio, low = compared(samples, first[shown[what]])
        same = first[shown[what]] == ALL
        rows.append({"model": model.name, "tokens": tokens, "without": what, "same": same, "ms": ms,
                     "ratio": 1.0 if same else ratio, "low": 1.0 if same else low})  # fmt: skip
    return rows


def by_rows(job: Any) -> Any:
    """The same chosen program, lowered without choosing layouts."""
    from forge_eq.lower.select import lower

    job.forms["lower"] = lower(job["extract"], job.target)
    return job


def program_text(job: Any) -> str:
    """The lowered program, layouts included."""
    from forge_eq.lower.text import text
    from forge_eq.pipeline import run

    return text(run(job, "lower")["lower"])


def fill(sheet: Sheet, found: list[dict[str, Any]]) -> None:
    sheet.figures["gains"] = found
    rows = [
        (f["model"], f["tokens"], f["without"], f["ms"], f["ratio"], f["low"], "surely" if f["low"] > 1 else "")
        for f in found
        if not f["same"]
    ]
    head = ("model", "tokens", "without", "ms", "time over the full program's", "lower 95 %", "gains")
    sheet.table("left out one at a time", head, rows, "Only what changes the program. Families may replace each other.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
