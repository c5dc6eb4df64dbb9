"""Ways to keep a cache of keys and values beside an OpenVINO model, one attention layer at real widths.

Each candidate is one decode step of one layer: projections of the new token, attention over what is past and the new
row, output projection. They differ only in how the new row comes into the cache. The floor is the same step that reads
the cache and keeps nothing. All steps of one table run in turn, so that a disturbance meets each of them; a step's
result is compared with the first candidate's before it is timed. The choice: docs/decisions/0008-kv-cache.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np

from cache_ways import CANDIDATES, FLOOR, WIDTHS, Layer
from sheet import Sheet, arguments, finish, one_of, tell, where


def measure(layer: Layer, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each candidate, the candidates in turn."""
    steps, wanted = {name: make(layer) for name, make in CANDIDATES.items()}, None
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 3):
        for name, step in steps.items():
            if hasattr(step, "reset"):
                step.reset()
            if turn == 0:
                found = step().copy()
                wanted = found if wanted is None else wanted
                assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5), f"{name} gives another result"
            elif hasattr(step, "reset"):
                step()  # the first step after a reset copies the whole state, which no later one does
            start = time.perf_counter()
            step()
            spent = (time.perf_counter() - start) * 1e3
            if turn >= 3:
                times[name].append(spent)
    return times


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, "decode_cache")
    parser.add_argument("--past", default="128,1024,4096", help="tokens in the cache")
    parser.add_argument("--widths", type=one_of(WIDTHS), default=list(WIDTHS), help="which layers")
    parser.add_argument("--repeats", type=int, default=60, help="timed steps of each candidate")
    given = parser.parse_args(argv)
    pasts = [int(p) for p in given.past.split(",")]
    made = Sheet("Keeping a cache of keys and values", where(given.threads))
    for width in given.widths:
        columns = {}
        for past in pasts:
            tell(f"{width}, {past} past tokens")
            columns[past] = measure(Layer(*WIDTHS[width], past, given.threads), given.repeats)
        made.figures[width] = columns
        rows = []
        for name in CANDIDATES:
            cells: list[Any] = [name]
            for past in pasts:
                own = statistics.median(columns[past][name])
                ratios = [a / b for a, b in zip(columns[past][name], columns[past][FLOOR], strict=True)]
                cells += [own, statistics.median(ratios)]
            rows.append(cells)
        head = ["", *(h for p in pasts for h in (f"ms at {p}", "ratio"))]
        made.table(f"{width}: one layer, one token", head, rows, "ratio: median over the turns of (step / floor)")
    return finish(made, "decode_cache", given.out)


if __name__ == "__main__":
    sys.exit(main())
