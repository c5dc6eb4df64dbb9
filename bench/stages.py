"""Time of the compiler's own stages against depth, cold and warm, and what a compilation adds to memory.

Usage: python bench/stages.py [--layers 12,24,48] [--repeats 5] [--tokens 128] [--memory gpt2] [--out FOLDER]

Own stages: saturate, extract, lower, schedule, alloc; after capture, before the backend's build. Cold: the first
program of a fresh process, apart from imports and from what is declared while a program is captured ("declare rules":
what the process before needed; the first row of a new machine has none). Warm: the same again in one process, the
depths in turn. The weights are on the meta device, except for the memory table.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from sheet import PAPER, Sheet, arguments, finish, paper, progress, tell, where

OWN = ("saturate", "extract", "lower", "schedule", "alloc")
LIMIT, AT = 0.12, 12  # seconds, layers
MIB = 1 << 20
PROCESSOR = (
    "The stages run on one thread, so processor time is what a quiet machine would take; what others use of this one "
    "shows in the other columns, which are wall time. Criteria are on processor time."
)


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "stages")
    parser.add_argument("--layers", default="12,24,48", help="depths of GPT-2")
    parser.add_argument("--repeats", type=int, default=5, help="warm repetitions, and cold processes, of each depth")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--memory", default="gpt2", help="built-in model of the memory table; empty leaves it out")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        print(json.dumps(CHILDREN[given.child](given)))
        return 0
    depths = [int(d) for d in given.layers.split(",")]
    sheet = Sheet(
        "Own stages of the compiler", where(given.threads, tokens=given.tokens, model="GPT-2, width 768, meta device")
    )
    rounds = [(f"{d} layers", f"round {r + 1}") for r in range(given.repeats) for d in depths]
    cold: dict[int, list[dict[str, Any]]] = {d: [] for d in depths}
    for index, _ in enumerate(progress(rounds, "cold")):
        depth = depths[index % len(depths)]
        cold[depth].append(child("cold", given, ["--layers", str(depth)]))
    tell("warm")
    warm = child("warm", given, ["--layers", given.layers, "--repeats", str(given.repeats)])
    fill(sheet, depths, cold, {int(d): samples for d, samples in warm.items()})
    if given.memory:
        tell(f"memory: {given.memory}")
        fill_memory(sheet, given.memory, child("memory", given, ["--memory", given.memory]))
    return finish(sheet, "stages", given.out)


# ------------------------------------------------------------------------------------------ measurements


def child(kind: str, given: Any, more: Sequence[str]) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [
        sys.executable,
        __file__,
        "--child",
        kind,
        "--threads",
        str(given.threads),
        "--tokens",
        str(given.tokens),
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cold_child(given: Any) -> dict[str, Any]:
    """Imports, declaration of the rules, and one program, each timed by itself."""
    import torch

    torch.set_num_threads(given.threads)
    after_torch = time.perf_counter()
    capture_all = _import_compiler()
    after_import = time.perf_counter()
    from forge_eq.egraph.worker import prepare
    from forge_eq.rules import default

    prepare(default).result()
    after_rules = time.perf_counter()
    captured = capture_all(int(given.layers), given.tokens)
    return {
        "import forge_eq": after_import - after_torch,
        "declare rules": after_rules - after_import,
        "nodes": len(captured.nodes),
        **own_stages(captured),
    }


def warm_child(given: Any) -> dict[str, Any]:
    """Repetitions on programs that were captured before; the depths in turn, the first round left out."""
    import torch

    torch.set_num_threads(given.threads)
    capture_all = _import_compiler()
    captured = {int(d): capture_all(int(d), given.tokens) for d in given.layers.split(",")}
    samples: dict[str, list[dict[str, Any]]] = {str(d): [] for d in captured}
    for repeat in range(given.repeats + 1):
        for depth, graph in captured.items():
            found = own_stages(graph)
            if repeat:
                samples[str(depth)].append(found)
    return samples


def memory_child(given: Any) -> dict[str, Any]:
    """Resident and peak bytes after each step of compiling a model that has its weights."""
    import torch

    torch.set_num_threads(given.threads)
    _import_compiler()
    from forge_eq import models
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.run.executor import Executable

    steps = []

    def note(step: str) -> None:
        steps.append({"step": step, "now": resident(), "peak": peak()})
        reset_peak()

    note("imports")
    model = models.load(given.memory, given.tokens)
    weights = sum(p.untyped_storage().nbytes() for p in {p.data_ptr(): p for p in model.module.parameters()}.values())
    note("model loaded")
    job = run(Job(Options(threads=given.threads), (model.module, model.args, None, None)), "capture")
    note("capture")
    run(job)
    note("own stages")
    executable = Executable(job["schedule"].program, job.target, (), given.threads)
    note("OpenVINO build")
    executable([*model.args])
    note("first run")
    return {"weights": weights, "steps": steps, "resets": RESETS.exists()}


CHILDREN = {"cold": cold_child, "warm": warm_child, "memory": memory_child}


def _import_compiler() -> Any:
    """Imports every module that the pipeline uses, and gives the function that captures GPT-2 of some depth."""
    from forge_eq import pipeline
    from forge_eq.alloc import linear_scan
    from forge_eq.egraph import worker
    from forge_eq.extract import fold, program
    from forge_eq.lower import select
    from forge_eq.schedule import plan

    assert all((pipeline, linear_scan, worker, fold, program, select, plan))
    return capture_gpt2


def capture_gpt2(layers: int, tokens: int, **config: Any) -> Any:
    """GPT-2 without data: meta weights, so that depth costs no memory."""
    import torch

    from forge_eq import models
    from forge_eq.capture import capture

    with torch.device("meta"):
        model = models.gpt2(tokens, n_layer=layers, **config)
        return capture(model.module, (torch.zeros(1, tokens, dtype=torch.int64),))


def own_stages(captured: Any) -> dict[str, Any]:
    """Seconds of each own stage on a captured graph, and wall and processor time of all of them."""
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    job = Job(Options(), forms={"capture": captured})
    with collections_timed() as collecting:
        wall, processor = time.perf_counter(), time.process_time()
        run(job)
        found = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor}
    return {
        **found,
        "collection": sum(collecting),
        **{s: job.seconds[s] for s in OWN},
        "own": sum(job.seconds[s] for s in OWN),
        "stop": job["saturate"].saturation.stop,
    }


@contextmanager
def collections_timed() -> Iterator[list[float]]:
    """Seconds of each garbage collection of Python's within the block.

    A full one walks every object of the process, those of torch and transformers too, and falls into whatever stage
    happens to run: without this column it looks like that stage's own.
    """
    started, spent = [0.0], list[float]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            started[0] = time.perf_counter()
        else:
            spent.append(time.perf_counter() - started[0])

    gc.callbacks.append(note)
    try:
        yield spent
    finally:
        gc.callbacks.remove(note)


# ------------------------------------------------------------------------------------------------ memory

RESETS = Path("/proc/self/clear_refs")


def resident() -> int:
    """Resident bytes now; 0 where the system does not tell."""
    return _status("VmRSS:")


def peak() -> int:
    """Largest resident bytes since the last reset, or of the process where it cannot be reset."""
    found = _status("VmHWM:")
    if found:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> None:
    if RESETS.exists():
        RESETS.write_text("5")


def _status(key: str) -> int:
    path = Path("/proc/self/status")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key)), 0)


# ------------------------------------------------------------------------------------------------ tables


def fill(
    sheet: Sheet, depths: list[int], cold: dict[int, list[dict[str, Any]]], warm: dict[int, list[dict[str, Any]]]
) -> None:
    sheet.figures.update(cold={str(d): s for d, s in cold.items()}, warm={str(d): s for d, s in warm.items()})
    for kind, samples in (("cold", cold), ("warm", warm)):
        rows = [
            (
                d,
                *(_median(samples[d], k) for k in (*OWN, "own", "processor", "collection")),
                *_spread(samples[d]),
                samples[d][0]["stop"],
            )
            for d in depths
        ]
        count = len(samples[depths[0]])
        sheet.table(
            f"own stages, {kind}, seconds",
            ("layers", *OWN, "own stages", "processor time", "of it collecting garbage", "least", "most", "saturation"),
            rows,
            f"Medians of {count}. {PROCESSOR}",
        )
        fit = linear(depths, [_median(samples[d], "processor") for d in depths])
        if fit is not None:
            sheet.table(
                f"growth of processor time, {kind}",
                ("ms per layer", "ms at no layer", "R squared", *_ratio_names(depths)),
                [
                    (fit[0] * 1e3, fit[1] * 1e3, fit[2], *_ratios(depths, samples)),
                ],
            )
        if AT in depths:
            sheet.demand(
                f"own stages at {AT} layers, {kind}, processor seconds", _median(samples[AT], "processor"), LIMIT
            )
        if len(depths) > 1:
            first, last = depths[0], depths[-1]
            name = f"t({last}) / t({first}), {kind}; linear is at most {last / first:g}"
            sheet.demand(name, _ratios(depths, samples)[-1], 1.1 * last / first)
    once = [s for samples in cold.values() for s in samples]
    keys = ("import forge_eq", "declare rules")
    sheet.table(
        "once per process, seconds",
        ("", "median", "least", "most"),
        [(k, _median(once, k), min(s[k] for s in once), max(s[k] for s in once)) for k in keys],
    )
    row = paper().get("phases_gpt2_ms")
    if row:
        sheet.table("paper, GPT-2, ms", tuple(row), [tuple(row.values())], f"Absolute figures: {PAPER}.")


def fill_memory(sheet: Sheet, name: str, found: dict[str, Any]) -> None:
    sheet.figures["memory"] = found
    loaded = next(s["now"] for s in found["steps"] if s["step"] == "model loaded")
    rows = [
        (s["step"], s["now"] / MIB, s["peak"] / MIB, (s["peak"] - loaded) / MIB if index > 1 else "-")
        for index, s in enumerate(found["steps"])
    ]
    reset = "peak of the step itself" if found["resets"] else "peak of the process so far, it cannot be reset here"
    sheet.table(
        f"memory of compiling {name}, MiB",
        ("after", "resident", "peak", "peak over the loaded model"),
        rows,
        f"Weights {found['weights'] / MIB:.0f} MiB; {reset}.",
    )


def linear(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float] | None:
    """(slope, intercept, R squared) of the least-squares line; None for fewer than three points."""
    if len(x) < 3:
        return None
    mx, my = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
    cut = my - slope * mx
    left = sum((b - slope * a - cut) ** 2 for a, b in zip(x, y, strict=True))
    total = sum((b - my) ** 2 for b in y)
    return slope, cut, 1 - left / total if total else 1.0


def _median(samples: list[dict[str, Any]], key: str) -> float:
    return median(s[key] for s in samples)


def _spread(samples: list[dict[str, Any]]) -> tuple[float, float]:
    return min(s["own"] for s in samples), max(s["own"] for s in samples)


def _ratio_names(depths: list[int]) -> list[str]:
    return [f"t({d})/t({depths[0]})" for d in depths[1:]]


def _ratios(depths: list[int], samples: dict[int, list[dict[str, Any]]]) -> list[float]:
    return [_median(samples[d], "processor") / _median(samples[depths[0]], "processor") for d in depths[1:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
