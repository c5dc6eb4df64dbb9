"""What ``tune --measure`` keeps, timed once more against the unoptimised program: it must never lose beyond noise.

Usage: python bench/measure.py --out FOLDER [--families gpt2-124m,...] [--tokens 1,16,128] [--seconds 240]

Families at their published widths, cut down to a few layers and a small vocabulary. A family at one number of tokens is
a piece, kept in FOLDER/measure-chunks.json: --seconds begins none after that time, and the same command does the rest.
On one thread the processor's time is measured.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.families import FAMILIES, PAPER, build
from sheet import Sheet, arguments, few, finish, one_of, pieces, where

VOCABULARY, TRIALS, TOP, ROUNDS, AGAIN = 2048, 20, 3, 15, 31


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "measure")
    parser.add_argument("--families", default=list(PAPER), type=one_of(FAMILIES), help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--tokens", default="16", type=lambda text: [int(t) for t in text.split(",")])
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no piece after this time")
    given = parser.parse_args(argv)

    import torch

    torch.set_num_threads(given.threads)
    file = given.out / "measure-chunks.json" if given.out is not None else None
    wanted = {f"{f}, {t}": (f, t) for f in given.families for t in given.tokens}
    kept = pieces(file, list(wanted), lambda key: chunk(*wanted[key], given.threads), "measure", given.seconds)
    sheet = Sheet("tune --measure", where(given.threads, vocabulary=VOCABULARY, trials=TRIALS, rounds=AGAIN))
    fill(sheet, {key: kept[key] for key in wanted if key in kept}, len(wanted))
    return finish(sheet, "measure", given.out)


def chunk(name: str, tokens: int, threads: int) -> dict[str, Any]:
    """Tunes, measures, keeps one program; then builds the unoptimised one afresh and times the two in turn."""
    import forge_eq
    from forge_eq.rules import default
    from forge_eq.tune import tune
    from forge_eq.tune.measure import clock_of, interleaved
    from forge_eq.tune.order import speedup

    model = build(name, tokens, layers=few(name), vocabulary=VOCABULARY)
    found = tune(
        model.module, model.args, trials=TRIALS, measure=True, top=TOP, rounds=ROUNDS, threads=threads, verify="off"
    )
    timing = found.timing
    assert timing is not None
    base = forge_eq.compile(model.module, model.args, threads=threads, rules=default - default, verify="off")
    pair = interleaved([lambda: base(*model.args), lambda: timing.program(*model.args)], AGAIN, clock_of(threads))
    ratio, low = speedup(*pair)
    return {
        "model": model.name,
        "programs": found.programs,
        "kept": timing.winner,
        "first": timing.ratios.get(timing.winner, (1.0, 1.0)),
        "candidates": {n: timing.ratios[n] for n in timing.seconds},
        "again": (ratio, low, 1.0 / speedup(pair[1], pair[0])[1]),
        "noise": timing.noise,
    }


def fill(sheet: Sheet, chunks: Mapping[str, Any], wanted: int) -> None:
    """A line per piece. A loss counts when the whole interval lies below 1: the program kept is surely slower."""
    rows = []
    for key, c in chunks.items():
        best = max((ratio for ratio, _ in c["candidates"].values()), default=math.nan)
        rows.append(
            (
                c["model"],
                key.rpartition(", ")[2],
                c["programs"],
                c["kept"],
                best,
                c["first"][0],
                c["first"][1],
                *c["again"],
                100 * c["noise"],
            )
        )
        sheet.demand(f"{key}: sure loss of the program kept, %", max(0.0, 100 * (1 / c["again"][2] - 1)), 0.0)
    head = ("model", "tokens", "programs", "kept", "best candidate", "kept, first", "lower 95 %", "again", "lower 95 %",
            "upper 95 %", "A/A %")  # fmt: skip
    note = (
        "Figures are the unoptimised program's time over that of another, medians of interleaved rounds. A program is "
        "kept only where the lower bound exceeds 1.03 in two measurements; the third, of a fresh build, decides here."
    )
    sheet.table("the program kept over the unoptimised one", head, rows, note)
    sheet.demand("pieces not measured yet", wanted - len(chunks), 0)
    sheet.figures["chunks"] = dict(chunks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
