"""Cost, gap and time of every extractor on serialised e-graphs and on synthetic transformers.

Usage: python bench/gym.py [folder or file of the extraction gym ...]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from egraphs import transformer
from forge_eq.extract import EXTRACTORS, Budget, Problem, check

SHARED = Path(os.environ.get("FORGE_EQ_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def main(arguments: list[str]) -> None:
    for layers in (12, 24, 48):
        show(f"transformer, {layers} layers", transformer(layers))
    for start in map(Path, arguments or [str(SHARED / "data/extraction_gym")]):
        for file in [start] if start.is_file() else sorted(start.rglob("*.json")):
            show(f"{file.parent.name}/{file.stem}", Problem.from_json(file.read_text()))


def show(title: str, problem: Problem) -> None:
    """One paragraph: the problem, then a line per extractor."""
    print(f"{title}: {len(problem.classes)} classes, {problem.size} e-nodes")
    for extractor in EXTRACTORS:
        fresh = Problem(problem.classes, problem.roots, problem.names)  # nothing cached by the one before
        start = time.perf_counter()
        answer = extractor.solve(fresh, Budget())
        took = time.perf_counter() - start
        check(problem, answer)
        work = " ".join(f"{name} {count}" for name, count in answer.work.items())
        print(
            f"  {extractor.name:13} cost {answer.cost:12.5f}  gap {answer.gap:7.2%}  {answer.status:9} "
            f"{took * 1e3:9.1f} ms  {work}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
