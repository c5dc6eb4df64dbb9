"""What is measured without weights: graphs of the published sizes, captured on the meta device.

Takes a model's spec (``FAMILY``, ``FAMILY:LAYERS``, ``FAMILY-tiny``). Gives figures of the stages, of rule families,
of alpha and of tuning as plain data. Promises: nothing is executed and no weight exists.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forge_eq.families import build
from forge_eq.pipeline import Job, run

RESTRICTED = "restricted-npu"
OWN = ("saturate", "extract", "lower", "schedule", "alloc")  # between capture and the backend's build
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
ROUNDS = 4  # the first is cold
ATTENTION = "attention"  # the family of rules


def parts_of(spec: str) -> tuple[str, bool, int | None]:
    """Family, whether tiny, layers."""
    called, _, layers = spec.partition(":")
    return called.removesuffix("-tiny"), called.endswith("-tiny"), int(layers) if layers else None


def captured(spec: str, tokens: int, attention: str = "sdpa", layers: int | None = None) -> tuple[Any, float]:
    """The graph of a model without weights, and the seconds of its capture."""
    import torch

    from forge_eq.capture import capture

    name, tiny, cut = parts_of(spec)
    with torch.device("meta"):
        model = build(name, tokens, attention, layers=layers or cut, tiny=tiny, meta=True)
        start = time.perf_counter()
        return capture(model.module, model.args), time.perf_counter() - start


@dataclass(frozen=True)
class Whole:
    """Capture to allocation for the native target, and to schedule for the device without vector units."""

    job: Job
    restricted: Job
    allocation: Any
    capture: float  # seconds
    processor: float  # seconds of the own stages

    def figures(self) -> dict[str, Any]:
        """Calls, buffers, transitions, seconds."""
        from forge_eq.report.match import calls

        return {
            "captured": len(calls(self.job["capture"])),
            "chosen": len(calls(self.job["extract"])),
            "stop": self.job["saturate"].saturation.stop,
            "gap": self.job["chosen"].extraction.gap,
            "storage": {k: getattr(self.allocation, k) for k in ("virtual", "physical", "peak", "bound")},
            "restricted": moves(self.restricted),
            "seconds": {"capture": self.capture, **{s: self.job.seconds[s] for s in OWN}},
            "processor": self.processor,
        }


def through(spec: str, tokens: int, attention: str = "sdpa") -> Whole:
    """A model through every own stage."""
    from forge_eq.alloc.linear_scan import allocate
    from forge_eq.options import Options

    graph, seconds = captured(spec, tokens, attention)
    start = time.process_time()
    job = run(Job(Options(), forms={"capture": graph}))
    processor = time.process_time() - start
    made = allocate(job["schedule"].program, job.target, "instr")
    other = run(Job(Options(target=RESTRICTED), forms={"capture": graph, "saturate": job["saturate"]}))
    return Whole(job, other, made, seconds, processor)


def moves(job: Job) -> list[int]:
    """Transitions between devices: in captured order, as scheduled, the least that any order has."""
    found = job["schedule"].figures
    return [found.transitions_before, found.transitions, found.transitions_least]


def again(job: Job, **changes: Any) -> Job:
    """The same saturated e-graph extracted under other options."""
    kept = {k: job.forms[k] for k in ("capture", "saturate")}
    return run(Job(replace(job.options, **changes), forms=kept), "extract")


def fused(job: Job) -> int:
    """Calls of the chosen program that span two or more captured calls, by the cost model's own rule."""
    ops = {n.op for n in job["capture"].nodes}
    return sum(n.op.fused and bool(n.origin.rule) and n.op not in ops for n in job["chosen"].graph.nodes)


# ------------------------------------------------------------------------------------------ measurements


def model(spec: str, tokens: int) -> dict[str, Any]:
    """Parameters, widths and the bytes of each layer: what is needed to say how many fit."""
    import re

    name, tiny, layers = parts_of(spec)
    made = build(name, tokens, layers=layers, tiny=tiny, meta=True)
    sizes: dict[int, int] = {}
    rest = total = 0
    for key, parameter in made.module.named_parameters():
        layer = re.search(r"\.(?:layers|h)\.(\d+)\.", key)
        total += parameter.numel()
        if layer:
            sizes[int(layer[1])] = sizes.get(int(layer[1]), 0) + 4 * parameter.numel()
        else:
            rest += 4 * parameter.numel()
    config: Any = getattr(getattr(made.module, "model", None), "config", None)
    heads = config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return {
        "name": made.name,
        "parameters": total,
        "hidden": config.hidden_size,
        "attention": "MHA" if groups == heads else "GQA",
        "layers": [sizes[k] for k in sorted(sizes)],
        "rest": rest,
    }


def stages(spec: str, tokens: int) -> dict[str, Any]:
    """Calls, buffers, transitions and seconds of the published size."""
    return through(spec, tokens).figures()


def optimise(spec: str, tokens: int) -> dict[str, Any]:
    """Milliseconds of saturating and extracting with every rule and without those of attention."""
    from forge_eq.rules import default

    sets = {"all": default, "without": default - default.select(ATTENTION)}
    found = _timed(captured(spec, tokens, "eager")[0], sets)
    return {"first": found["all"]["ms"][0], **{name: min(f["ms"][1:]) for name, f in found.items()}}


def rules(spec: str, tokens: int) -> dict[str, list[float]]:
    """With every rule (""), and each family left out: milliseconds, calls, score; ``captured`` has calls only."""
    from forge_eq.report.match import calls
    from forge_eq.rules import default

    graph, _ = captured(spec, tokens, "eager")
    sets = {"": default, **{n: default - default.select(n) for n in sorted({r.family for r in default})}}
    found = _timed(graph, sets)
    return {
        "captured": [0.0, len(calls(graph)), 0.0],
        **{name: [min(f["ms"][1:]), f["calls"], f["score"]] for name, f in found.items()},
    }


def _timed(graph: Any, sets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Saturation and extraction under each set of rules, in turn: processor time of every round, calls, score.

    A set's first round is cold: it also declares rules and answers their questions.
    """
    from forge_eq.options import Options
    from forge_eq.report.match import calls

    found: dict[str, dict[str, Any]] = {name: {"ms": []} for name in sets}
    for _ in range(ROUNDS):
        for name, kept in sets.items():
            start = time.process_time()
            done = run(Job(Options(rules=kept), forms={"capture": graph}), "extract")
            found[name]["ms"].append(1e3 * (time.process_time() - start))
            found[name] |= {"calls": len(calls(done["extract"])), "score": done["chosen"].extraction.cost}
    return found


def scores(spec: str, tokens: int, alphas: Sequence[float] = ALPHAS) -> dict[str, Any]:
    """The cost of the extraction at each alpha, with its calls and fused ops."""
    from forge_eq.options import Options
    from forge_eq.report.match import calls

    job = run(Job(Options(), forms={"capture": captured(spec, tokens)[0]}), "saturate")
    found = {}
    for alpha in alphas:
        done = again(job, alpha=alpha)
        found[f"{alpha:.1f}"] = [done["chosen"].extraction.cost, len(calls(done["extract"])), fused(done)]
    return found


def tuning(spec: str, tokens: int, trials: int) -> dict[str, Any]:
    """The scores of the programs before and after tuning, under the given weights and under the tuned ones."""
    from forge_eq.options import Options
    from forge_eq.tune import tune

    job = run(Job(Options(), forms={"capture": captured(spec, tokens)[0]}), "saturate")
    start = time.perf_counter()
    found = tune(job, trials=trials)
    taken = time.perf_counter() - start
    given, tuned = before_and_after(job, found.settings)
    return {"given": given, "tuned": tuned, "trials": trials, "seconds": taken}


def before_and_after(job: Job, settings: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Microseconds of the program chosen under the job's own settings and of that under others, by either."""
    from forge_eq.tune.trial import Trials

    known = Trials(job)
    programs = [known.run(s).program for s in (known.base, settings)]
    given, tuned = (known.predict(s, programs) for s in (known.base, settings))
    return given, tuned
