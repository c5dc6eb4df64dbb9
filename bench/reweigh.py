"""Weights against measured order: concordance before and after on models left out of the tuning.

Usage: python bench/reweigh.py FOLDER/order-chunks.json [--trials 24] [--seed 0] [--out FOLDER]

The file is what bench/order.py keeps. A model is judged by weights that all the other models chose. Twice: from the
target's file as it is shipped, which is what there is before a calibration or any tuning, and from this machine's
calibration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from forge_eq.tune.measured import TRIALS
from sheet import Sheet, arguments, finish, progress, where

RAISE, WANTED = 0.05, 0.85
BASES = {"shipped": "the target's file", "classes": "calibrated here"}


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "reweigh")
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)

    import torch

    from forge_eq.tune.measured import leave_one_out, overall, read_variants

    torch.set_num_threads(given.threads)
    sheet = Sheet("Tuned weights and measured order", where(given.threads, trials=given.trials, seed=given.seed))
    totals = {}
    for base, called in progress(list(BASES.items()), "leave one out"):
        found = leave_one_out(read_variants(given.file, base), given.trials, given.seed)
        rows = [(f.model, f.pairs, f.before, f.after, f.after - f.before, shown(f.weights)) for f in found]
        totals[base] = before, after = overall(found)
        rows.append(("all left out", sum(f.pairs for f in found), before, after, after - before, ""))
        note = (
            "Concordance: share of pairs in the measured order, of those apart by more than twice the A/A spread. "
            "A row's weights were chosen by the other models alone; those that differ from 1 by less than a tenth are "
            "not shown."
        )
        sheet.table(f"from {called}", ("model", "pairs", "fixed", "tuned", "raise", "weights"), rows, note)
    rows = [(called, *totals[base], totals[base][1] - totals[base][0]) for base, called in BASES.items()]
    sheet.table("concordance over all pairs of models left out", ("weights of", "fixed", "tuned", "raise"), rows)
    gain = totals["shipped"][1] - totals["shipped"][0]
    sheet.demand(f"what the raise of {gain:.3f} over the target's file lacks to {RAISE}", RAISE - gain, 0.0)
    sheet.demand("share of pairs in the wrong order, calibrated, fixed", 1 - totals["classes"][0], 1 - WANTED)
    return finish(sheet, "reweigh", given.out)


def shown(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{n} {w:.2f}" for n, w in sorted(weights.items()) if not 0.9 < w < 1.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
