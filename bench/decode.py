"""What keeping the cache adds to a decode step: whole models, one token.

The same compiled step is run with its writes into the cache and without them, in turn, over the same memory. A second
table sets the step beside the model's own, transformers with a StaticCache in PyTorch. The criterion is on the ratio's
median; its interval is the bootstrap's.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from forge_eq import models
from forge_eq.cached import CachedLogits, causal
from forge_eq.program import compile
from forge_eq.run.executor import Executable, HostSegment
from sheet import Sheet, arguments, finish, one_of, tell, where

MODELS = ("smollm2", "gpt2", "gpt2-tiny", "llama-tiny")
LIMIT = 1.1


def without_writes(executable: Executable) -> list[Any]:
    """The segments of the same program that leave the cache as it is."""
    found: list[Any] = []
    for segment in executable.segments:
        if isinstance(segment, HostSegment):
            kept = object.__new__(HostSegment)
            kept.memory = segment.memory
            kept.steps = tuple(s for s in segment.steps if not executable.program.in_place(s[0]))
            segment = kept
        found.append(segment)
    return found


def interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(samples, k=len(samples))) for _ in range(1000))
    return medians[25], medians[974]


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def measure(name: str, rows: int, repeats: int, threads: int) -> dict[str, list[float]]:
    """Milliseconds of each step, the kinds in turn."""
    model = causal(models.load(name))
    module = CachedLogits(model, rows).eval()
    example = module.example(1)
    tell(f"{name}, {rows} rows: compile")
    program = compile(module, example, threads=threads)
    executable = program.last.executable
    writes = sum(executable.program.in_place(i) for i in executable.program.instrs)
    assert writes == 2 * module.layers, f"{writes} writes in place where {2 * module.layers} are due"
    whole, bare, cache = executable.segments, without_writes(executable), [c.clone() for c in example]
    times: dict[str, list[float]] = {"step": [], "step without writes": [], "PyTorch": []}
    for turn in range(repeats + 5):
        for kind, segments in (
            (("step", whole), ("step without writes", bare))
            if turn % 2
            else (
                ("step without writes", bare),
                ("step", whole),
            )
        ):
            executable.segments = segments
            spent = timed(lambda: program(*cache))
            if turn >= 5:
                times[kind].append(spent)
        if turn >= 5 and turn % 5 == 0:
            with torch.no_grad():
                times["PyTorch"].append(timed(lambda: module(*cache)))
    executable.segments = whole
    return times


def main(argv: list[str] | None = None) -> int:
    parser = arguments(__doc__, "decode")
    parser.add_argument("--models", type=one_of(MODELS), default=["smollm2", "gpt2"], help="which")
    parser.add_argument("--rows", default="128,1024", help="rows of the cache, half of them in use")
    parser.add_argument("--repeats", type=int, default=100, help="timed steps of each kind")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    made = Sheet("What a cache adds to a decode step", where(given.threads))
    table = []
    for name in given.models:
        for rows in (int(r) for r in given.rows.split(",")):
            times = measure(name, rows, given.repeats, given.threads)
            made.figures[f"{name} {rows}"] = times
            ratios = [a / b for a, b in zip(times["step"], times["step without writes"], strict=True)]
            low, high = interval(ratios)
            medians = [statistics.median(t) for t in times.values()]
            table.append((name, rows, *medians, statistics.median(ratios), f"{low:.3f} to {high:.3f}"))
            made.demand(f"{name}, {rows} rows: step / step without writes", statistics.median(ratios), LIMIT)
    head = ("model", "rows", "step ms", "without writes ms", "PyTorch ms", "ratio", "95 % interval")
    made.table("one token", head, table, "PyTorch: the same module, eager, with its StaticCache; every fifth turn")
    return finish(made, "decode", given.out)


if __name__ == "__main__":
    sys.exit(main())
