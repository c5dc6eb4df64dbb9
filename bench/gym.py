"""DAG cost, bound, gap and time of every extractor on serialised e-graphs and on synthetic transformers.

Usage: python bench/gym.py [folder or file of the extraction gym ...] [--extractors default,ilp] [--out DIR]

An e-graph is a piece, kept in DIR/gym-chunks.json: --seconds begins none after that time, and the same command does the
rest.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from egraphs import transformer
from forge_eq.extract import EXTRACTORS, Budget, Problem, check
from sheet import SHARED, Sheet, arguments, finish, one_of, pieces, where

BASELINES = ("bottom-up", "greedy-dag")


def main(argv: list[str]) -> int:
    names = [e.name for e in EXTRACTORS]
    parser = arguments(__doc__, "gym")
    parser.add_argument("paths", nargs="*", type=Path, default=[SHARED / "data/extraction_gym"])
    parser.add_argument("--extractors", default=",".join(names), type=one_of(names), help=f"of {', '.join(names)}")
    parser.add_argument("--checks", type=int, default=Budget().checks, help="work of the integer program, per part")
    parser.add_argument("--layers", default="12,24,48", help="layers of the synthetic transformers; empty for none")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no e-graph after this time")
    given = parser.parse_args(argv)
    sheet = Sheet("Extraction", where(1, "exact", checks=given.checks))
    files = [f for path in given.paths for f in ([path] if path.is_file() else sorted(path.rglob("*.json")))]
    wanted = [*(n for n in given.layers.split(",") if n), *map(str, files)]
    budget = Budget(checks=given.checks)
    kept = pieces(
        given.out / "gym-chunks.json" if given.out is not None else None,
        wanted,
        lambda source: measure(source, given.extractors, budget),
        "gym",
        given.seconds,
    )
    fill(sheet, [kept[source] for source in wanted if source in kept], given.extractors)
    sheet.demand("e-graphs not measured yet", sum(source not in kept for source in wanted), 0)
    return finish(sheet, "gym", given.out)


def load(source: str) -> tuple[str, Problem]:
    """A file of the gym, or a synthetic transformer by its number of layers."""
    if source.isdigit():
        return f"transformer, {source} layers", transformer(int(source))
    file = Path(source)
    return f"{file.parent.name}/{file.stem}", Problem.from_json(file.read_text(encoding="utf-8"))


Found = Mapping[str, Any]


def measure(source: str, extractors: Sequence[str], budget: Budget) -> Found:
    """One e-graph: its size and, per extractor, what it answered and the processor's seconds."""
    title, problem = load(source)
    answers = {}
    for extractor in (e for e in EXTRACTORS if e.name in extractors):
        fresh = Problem(problem.classes, problem.roots, problem.names)  # nothing cached by the one before
        start = time.process_time()
        a = extractor.solve(fresh, budget)
        seconds = time.process_time() - start
        check(problem, a)  # raises on a cycle, on a wrong cost and on a bound above it
        answers[extractor.name] = {
            "cost": a.cost, "bound": a.lower_bound, "gap": a.gap, "status": a.status, "seconds": seconds,
            "work": dict(a.work),
        }  # fmt: skip
    return {"title": title, "classes": len(problem.classes), "nodes": problem.size, "answers": answers}


def fill(sheet: Sheet, found: Sequence[Found], extractors: Sequence[str]) -> None:
    """A line per file and extractor, totals, and the criteria that need more than one extractor."""
    head = ("e-graph", "classes", "e-nodes", "extractor", "cost", "bound", "gap %", "status", "ms")
    note = "bound: no extraction costs less. Every answer was checked for cycles and true cost. ms: processor time."
    sheet.table("per file", head, rows(found), note)
    real = [c["answers"] for c in found if not c["title"].startswith("transformer")]
    totals = {name: math.fsum(answers[name]["cost"] for answers in real) for name in extractors}
    body = [
        (name, total, sum(a[name]["gap"] <= 0.01 for a in real), len(real), sum(a[name]["seconds"] for a in real))
        for name, total in totals.items()
    ]
    sheet.table("all files", ("extractor", "total cost", "gap <= 1 %", "files", "s"), body)
    sheet.figures["work"] = {c["title"]: {n: a["work"] for n, a in c["answers"].items()} for c in found}
    for name in (n for n in ("default", "ilp") if n in extractors):
        for base in (b for b in BASELINES if b in extractors):
            worst = max((c["answers"][name]["cost"] / c["answers"][base]["cost"] for c in found), default=math.nan)
            sheet.demand(f"{name} over {base}, worst file", worst, 1.0)
            if real:
                sheet.demand(f"{name} over {base}, total cost", totals[name] / totals[base], 1.0)


def rows(found: Sequence[Found]) -> Iterator[tuple[Any, ...]]:
    for c in found:
        for name, a in c["answers"].items():
            gap = round(100 * a["gap"], 4)
            yield (
                c["title"],
                c["classes"],
                c["nodes"],
                name,
                a["cost"],
                a["bound"],
                gap,
                a["status"],
                1e3 * a["seconds"],
            )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
