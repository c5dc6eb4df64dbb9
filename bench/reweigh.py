"""Weights of cost classes against measured order: concordance before and after on models left out of the tuning.

Usage: python bench/reweigh.py FOLDER/order-chunks.json [--trials 200] [--seed 0] [--out FOLDER]

The file is what bench/order.py keeps. A model is judged by weights that all the other models chose.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from sheet import Sheet, arguments, finish, where

RAISE = 0.05


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "reweigh")
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)

    from forge_eq.tune.measured import leave_one_out, overall, read_variants

    variants = read_variants(given.file)
    sheet = Sheet("Tuned weights and measured order", where(given.threads, trials=given.trials, seed=given.seed))
    found = leave_one_out(variants, given.trials, given.seed)
    classes = sorted({c for v in variants for c in v.classes})
    rows = [
        (f.model, f.pairs, f.before, f.after, f.after - f.before, *(f.weights.get(c, 1.0) for c in classes))
        for f in found
    ]
    before, after = overall(found)
    rows.append(("all left out", sum(f.pairs for f in found), before, after, after - before, *("" for _ in classes)))
    note = (
        "Concordance: share of pairs in the measured order, of those apart by more than twice the A/A spread. "
        "A row's weights were chosen by the other models alone."
    )
    sheet.table("leave one model out", ("model", "pairs", "before", "after", "raise", *classes), rows, note)
    sheet.demand(f"what the raise of {after - before:.3f} lacks to {RAISE}", RAISE - (after - before), 0.0)
    return finish(sheet, "reweigh", given.out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
