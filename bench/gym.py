"""DAG cost, bound, gap and time of every extractor on serialised e-graphs and on synthetic transformers.

Usage: python bench/gym.py [folder or file of the extraction gym ...] [--extractors default,ilp] [--out FOLDER]
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from egraphs import transformer
from forge_eq.extract import EXTRACTORS, Budget, Extraction, Problem, check
from sheet import SHARED, Sheet, arguments, finish, one_of, progress, where

BASELINES = ("bottom-up", "greedy-dag")


def main(argv: list[str]) -> int:
    names = [e.name for e in EXTRACTORS]
    parser = arguments(__doc__, "gym")
    parser.add_argument("paths", nargs="*", type=Path, default=[SHARED / "data/extraction_gym"])
    parser.add_argument("--extractors", default=",".join(names), type=one_of(names), help=f"of {', '.join(names)}")
    parser.add_argument("--checks", type=int, default=Budget().checks, help="work of the integer program, per part")
    parser.add_argument("--layers", default="12,24,48", help="layers of the synthetic transformers; empty for none")
    given = parser.parse_args(argv)
    sheet = Sheet("Extraction", where(1, "exact", checks=given.checks))
    files = [f for path in given.paths for f in ([path] if path.is_file() else sorted(path.rglob("*.json")))]
    layers = [int(n) for n in given.layers.split(",") if n]
    found = measure([*map(str, layers), *map(str, files)], given.extractors, Budget(checks=given.checks))
    fill(sheet, found, given.extractors)
    return finish(sheet, "gym", given.out)


def load(source: str) -> tuple[str, Problem]:
    """A file of the gym, or a synthetic transformer by its number of layers."""
    if source.isdigit():
        return f"transformer, {source} layers", transformer(int(source))
    file = Path(source)
    return f"{file.parent.name}/{file.stem}", Problem.from_json(file.read_text(encoding="utf-8"))


Found = list[tuple[str, Problem, dict[str, tuple[Extraction, float]]]]


def measure(sources: Sequence[str], extractors: Sequence[str], budget: Budget) -> Found:
    """Per source: title, problem, and per extractor the checked answer and its seconds."""
    chosen = [e for e in EXTRACTORS if e.name in extractors]
    found: Found = []
    for source in progress(sources, "gym"):
        title, problem = load(source)
        answers = {}
        for extractor in chosen:
            fresh = Problem(problem.classes, problem.roots, problem.names)  # nothing cached by the one before
            start = time.perf_counter()
            answer = extractor.solve(fresh, budget)
            answers[extractor.name] = answer, time.perf_counter() - start
            check(problem, answer)  # raises on a cycle, on a wrong cost and on a bound above it
        found.append((title, problem, answers))
    return found


def fill(sheet: Sheet, found: Found, extractors: Sequence[str]) -> None:
    """A line per file and extractor, totals, and the criteria that need more than one extractor."""
    head = ("e-graph", "classes", "e-nodes", "extractor", "cost", "bound", "gap %", "status", "ms")
    note = "bound: no extraction costs less. Every answer was checked for cycles and true cost."
    sheet.table("per file", head, rows(found), note)
    real = [item for item in found if not item[0].startswith("transformer")]
    totals = []
    for name in extractors:
        costs = [answers[name][0].cost for _, _, answers in real]
        seconds = sum(answers[name][1] for _, _, answers in real)
        proved = sum(answers[name][0].gap <= 0.01 for _, _, answers in real)
        totals.append((name, math.fsum(costs), proved, len(costs), seconds))
    sheet.table("all files", ("extractor", "total cost", "gap <= 1 %", "files", "s"), totals)
    sheet.figures["work"] = {t: {n: dict(a.work) for n, (a, _) in answers.items()} for t, _, answers in found}
    for name in extractors:
        if name in ("default", "ilp"):
            for base in (b for b in BASELINES if b in extractors):
                worst = max((answers[name][0].cost / answers[base][0].cost for _, _, answers in found), default=1.0)
                sheet.demand(f"{name} over {base}, worst file", worst, 1.0)


def rows(found: Found) -> Iterator[tuple[Any, ...]]:
    for title, problem, answers in found:
        for name, (a, seconds) in answers.items():
            gap = round(100 * a.gap, 4)
            yield title, len(problem.classes), problem.size, name, a.cost, a.lower_bound, gap, a.status, seconds * 1e3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
