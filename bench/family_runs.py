"""What ``bench/families.py`` measures, each measurement in a process of its own: its peak memory is the process's.

A finished measurement is kept in the folder of results with what it depends on, so that a run that was stopped goes
on where it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from forge_eq.families import FAMILIES
from forge_eq.paper.graphs import captured, moves, through
from forge_eq.report.kept import Kept, sources
from layer_patterns import family, faults, patterns
from sheet import ROOT, tell
from stages import peak

# Width is kept. One layer where two with their float64 copies and OpenVINO's are more than 8 GB; LFM2's first three
# have both of its kinds.
RUN_LAYERS = {"lfm2-2.6b": 3, "llama-3.1-8b": 1, "phi3-mini": 1}
RUN_VOCABULARY, RUN_TOKENS, RUN_INPUTS = 2048, 64, 4
DEEP, DEPTHS, REPEATS = "llama-3.1-8b", (8, 16, 24, 32), 5


def source_hash() -> str:
    """The package's and the bench's source."""
    return " ".join(sources(ROOT / folder) for folder in ("forge_eq", "bench"))


def measured(kept: Kept, kind: str, name: str, given: Any) -> Any:
    """One measurement, from the folder or from a fresh process."""
    found = kept.get(f"{name}.{kind}")
    if found is not None:
        tell(f"  {name}: {kind} is there already")
        return found
    more = ["--threads", str(given.threads), "--tokens", str(given.tokens), "--attention", given.attention]
    command = [sys.executable, str(ROOT / "bench/families.py"), "--child", kind, "--families", name, *more]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    tell(f"  {name}: {kind} in {time.perf_counter() - start:.0f} s")
    found = json.loads(done.stdout.splitlines()[-1])
    kept.put(f"{name}.{kind}", found)
    return found


# ------------------------------------------------------------------------------------------ full size, no data


def full(given: Any, name: str) -> dict[str, Any]:
    """Capture to allocation of the published size, for the native target and the restricted one, all checked."""
    from forge_eq.alloc import checker
    from forge_eq.pipeline import STAGES

    whole = through(name, given.tokens, given.attention)
    job, chosen = whole.job, whole.job["extract"]
    highest = peak()
    for done in (job, whole.restricted):  # each raises a CheckError, ScheduleError or AllocError
        for stage in STAGES:
            if stage.check is not None:
                stage.check(done)
    checker.check(job["schedule"].program, job.target, whole.allocation)
    graph = job["capture"]
    return {
        **whole.figures(),
        "faults": faults(chosen, family(name)),
        "patterns": {k: dict(v) for k, v in patterns(chosen).items()},
        "opaque": Counter(str(n.attrs[0]) for n in chosen.live().nodes if n.op.name.startswith("opaque")),
        "host": Counter(i.op.name for i in job["schedule"].program.instrs if i.op and i.device == job.target.host),
        "leaves": len(graph.constants),
        "millions": sum(t.numel() for t in graph.constants.values()) / 1e6,
        "native": moves(job),
        "peak": highest,
    }


def growth(given: Any, name: str) -> dict[str, list[float]]:
    """Processor seconds of the own stages at several depths, the depths in turn, the first round left out."""
    from stages import own_stages

    graphs = {d: captured(name, given.tokens, given.attention, d)[0] for d in DEPTHS}
    samples: dict[str, list[float]] = {str(d): [] for d in DEPTHS}
    for repeat in range(REPEATS + 1):
        for depth, graph in graphs.items():
            found = own_stages(graph)["processor"]
            if repeat:
                samples[str(depth)].append(found)
    return samples


# ------------------------------------------------------------------------------------------ executed


def execute(given: Any, name: str) -> dict[str, Any]:
    """A truncated model with weights: ours, torch and plain OpenVINO against float64, on unseen inputs."""

    import forge_eq
    from candidates import eager, float64, plain_openvino
    from fidelity import EAGER, OURS, PLAIN, TRUTH, Errors
    from forge_eq.families import build, layers_of

    whole = layers_of(name)
    layers = min(RUN_LAYERS.get(name, 2), whole) if FAMILIES[name].depth else None
    model = build(name, RUN_TOKENS, given.attention, layers=layers, vocabulary=RUN_VOCABULARY)
    program = forge_eq.compile(model.module, model.args, threads=given.threads)
    plain = plain_openvino(model.module, model.args, given.threads)
    reference, truth = eager(model.module), float64(model.module)
    errors = {n: Errors() for n in (EAGER, PLAIN, OURS)}
    size = 0.0
    for x in unseen(model.args[0], RUN_INPUTS):
        found = {EAGER: reference(x), PLAIN: plain(x), OURS: program(x)}
        exact = truth(x.double() if x.is_floating_point() else x)
        size = max(size, float(exact.abs().max()))
        for n, e in errors.items():
            e.add(found[n], found[EAGER], exact)
            if exact.shape[-1] == RUN_VOCABULARY and not x.is_floating_point():
                e.add_logits(found[n][0], found[EAGER][0], exact[0], x[0])
    return {
        "model": model.name,
        "truth": TRUTH,
        "size": size,
        "rmse": {n: e.rmse for n, e in errors.items()},
        "to_truth": {n: e.to_truth for n, e in errors.items()},
        "to_eager": {n: e.to_eager for n, e in errors.items()},
        "kl": {n: sum(e.kl_truth) / len(e.kl_truth) for n, e in errors.items() if e.kl_truth},
        "faults": faults(program.job["extract"], family(name, layers=layers)),
        "remarks": [str(r) for r in program.remarks if r.kind not in ("passed", "analysis")],
        "peak": peak(),
    }


def unseen(example: Any, count: int) -> list[Any]:
    """Other inputs of the same type."""
    import torch

    generator = torch.Generator().manual_seed(11)
    if example.is_floating_point():
        return [torch.randn(example.shape, generator=generator) for _ in range(count)]
    return [torch.randint(0, RUN_VOCABULARY, example.shape, generator=generator) for _ in range(count)]


CHILDREN: dict[str, Callable[[Any, str], dict[str, Any]]] = {"full": full, "run": execute, "growth": growth}
