"""Spellings that are recognised and near misses that are not, by composite.

Usage: python bench/recognition.py [--count 1000] [--first 1000000] [--twins 100] [--composites gelu,...] [--out FOLDER]

``tests/spelling*.py`` write the composites as people write them and know no rule. The grammar and the rules were
developed on seeds below 1,000; the default range was never looked at while they were. A spelling that is not one
composite in the chosen program is a miss; what it lacks is in ``tests/test_spellings.py`` (``MISSING``).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sheet import Sheet, arguments, finish, one_of, progress, where

NAMES = (
    "gelu", "gelu_tanh", "silu", "swiglu", "softmax", "rms_norm", "layer_norm", "linear", "rope", "attention",
)  # fmt: skip
BATCH, GOAL = 20, 0.98


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "recognition")
    parser.add_argument("--count", type=int, default=1000, help="spellings of each composite")
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--twins", type=int, default=100, help="spellings of each near miss")
    parser.add_argument("--composites", default=",".join(NAMES), type=one_of(NAMES))
    given = parser.parse_args(argv)

    import torch

    import spellings_heads  # noqa: F401  (enters all composites)
    from spelling import COMPOSITES

    torch.set_num_threads(given.threads)
    assert set(NAMES) == set(COMPOSITES)
    seeds = f"{given.first} to {given.first + given.count - 1}"
    sheet = Sheet("Recognition", where(given.threads, "float32 and float64", seeds=seeds))
    work = [(name, twin) for name in given.composites for twin in ("", *COMPOSITES[name].twins)]
    found = {
        pair: draw(*pair, given.first, given.twins if pair[1] else given.count)
        for pair in progress(work, "recognition")
    }
    fill(sheet, {n: f for (n, twin), f in found.items() if not twin})
    misses(sheet, {n: f for (n, twin), f in found.items() if not twin})
    near(sheet, {pair: f for pair, f in found.items() if pair[1]})
    return finish(sheet, "recognition", given.out)


def draw(name: str, twin: str, first: int, count: int) -> list[Any]:
    """Verdicts on ``count`` spellings, ``BATCH`` of them in one program."""
    from spelling import spell
    from spelling_check import judge

    seeds = range(first, first + count)
    return [v for i in range(0, count, BATCH) for v in judge([spell(name, s, twin) for s in seeds[i : i + BATCH]])]


def fill(sheet: Sheet, found: dict[str, list[Any]]) -> None:
    rows = []
    for name, verdicts in found.items():
        axes = Counter(axis for v in verdicts for axis in v.spelling.choices.made)
        distinct = len({str(sorted(v.spelling.choices.made.items(), key=lambda i: i[0])) for v in verdicts})
        fused, wrong = sum(v.fused for v in verdicts), sum(bool(v.wrong) for v in verdicts)
        rows.append((name, len(axes), len(verdicts), distinct, fused, 100.0 * fused / len(verdicts), wrong))
        sheet.demand(f"{name}: not fused, share", 1.0 - fused / len(verdicts), 1.0 - GOAL)
        sheet.demand(f"{name}: wrong values", float(wrong), 0.0)
    sheet.table("spellings", ("composite", "axes", "spellings", "distinct", "fused", "fused %", "wrong values"), rows)


def misses(sheet: Sheet, found: dict[str, list[Any]]) -> None:
    """Each kind of miss: what is left over, the algebra that it lacks where that is known, and a seed."""
    from test_spellings import lacking

    kinds: dict[tuple[str, str, str], list[int]] = {}
    for name, verdicts in found.items():
        for v in (v for v in verdicts if not v.fused):
            kinds.setdefault((name, " ".join(v.left), lacking(v) or "not known"), []).append(v.spelling.seed)
    if kinds:
        rows = [(*kind, len(seeds), seeds[0]) for kind, seeds in sorted(kinds.items())]
        sheet.table("not fused", ("composite", "left over", "missing algebra", "spellings", "first seed"), rows)
    unknown = sum(len(seeds) for (_, _, why), seeds in kinds.items() if why == "not known")
    sheet.demand("misses whose missing algebra is not known", float(unknown), 0.0)


def near(sheet: Sheet, found: dict[tuple[str, str], list[Any]]) -> None:
    rows: list[Sequence[Any]] = [
        (name, twin, len(f), sum(v.fused for v in f), sum(bool(v.wrong) for v in f))
        for (name, twin), f in found.items()
    ]
    sheet.table("near misses", ("composite", "what is wrong", "spellings", "fused", "wrong values"), rows)
    sheet.demand("near misses that are fused", float(sum(r[3] for r in rows)), 0.0)
    sheet.demand("near misses that come out wrong", float(sum(r[4] for r in rows)), 0.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
