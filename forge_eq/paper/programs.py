"""What is measured with weights: programs that run. Each function is called in a process of its own.

Takes a model's spec. Gives plain data. Promises: float32, the threads asked for, the cache on disk not used.
"""

from __future__ import annotations

import time
from importlib import import_module
from statistics import median
from typing import Any

import torch

import forge_eq
from forge_eq import families, models
from forge_eq.errors import FileError
from forge_eq.models import Model
from forge_eq.paper import data
from forge_eq.paper.graphs import ATTENTION, again, parts_of
from forge_eq.paper.plan import TRAINED
from forge_eq.report.differences import Errors

WARM = 3  # calls before the first that counts


def built(spec: str, tokens: int, attention: str = "sdpa") -> Model:
    name, tiny, layers = parts_of(spec)
    return families.build(name, tokens, attention, layers=layers, tiny=tiny)


def fusion(spec: str, tokens: int, threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds with every rule and without those of attention, in turn, and the ratio with its lower bound."""
    from forge_eq.rules import default
    from forge_eq.tune.measure import clock_of, interleaved
    from forge_eq.tune.order import speedup

    model = built(spec, tokens, "eager")
    sets = (default, default - default.select(ATTENTION))
    programs = [
        forge_eq.compile(model.module, model.args, threads=threads, cache=False, capture="export", rules=kept)
        for kept in sets
    ]
    with torch.no_grad():
        found = interleaved([lambda p=p: p(*model.args) for p in programs], rounds, clock_of(threads))  # type: ignore[misc]
    ratio, low = speedup(found[1], found[0])
    with_ms, without_ms = (1e3 * median(s) for s in found)
    return {"name": model.name, "with": with_ms, "without": without_ms, "ratio": ratio, "low": low}


def fidelity(spec: str, tokens: int, threads: int, windows: int) -> dict[str, Any]:
    """Perplexity before and after, the largest difference of logits and KL to torch."""
    model = models.BUILT_IN[TRAINED](tokens=tokens) if spec == TRAINED else built(spec, tokens)
    program = forge_eq.compile(model.module, model.args, threads=threads, cache=False, capture="export")
    before, after = Errors(), Errors()
    given = text_windows(model, tokens, windows)
    with torch.no_grad():
        for (ids,) in given:
            reference, got = model.module(ids), program(ids)
            for errors, logits in ((before, reference), (after, got)):
                errors.add(logits, reference, reference.double())
                errors.add_logits(logits[0], reference[0], reference[0], ids[0])
    return {
        "name": model.name,
        "text": "WikiText" if model.tokenizer else "random tokens",
        "perplexity": [before.perplexity, after.perplexity],
        "largest": after.to_eager,
        "kl": sum(after.kl_eager) / len(after.kl_eager),
    }


def run(spec: str, tokens: int, threads: int, calls: int) -> dict[str, Any]:
    """One fresh compilation and its calls: seconds of each stage, milliseconds, calls of the graph, FGR."""
    from forge_eq.peers.worker import samples
    from forge_eq.report.match import calls as calls_of

    model = built(spec, tokens)
    import_module("openvino")  # before the clock, as for peers
    start = time.perf_counter()
    program = forge_eq.compile(model.module, model.args, threads=threads, cache=False, capture="export")
    with torch.no_grad():
        program(*model.args)
        taken = time.perf_counter() - start
        for _ in range(WARM):
            program(*model.args)
        found = samples(lambda: program(*model.args), calls)
    job = program.job
    costs = [again(job, alpha=alpha)["chosen"].extraction.cost for alpha in (0.0, 1.0)]
    return {
        "compile": 1e3 * taken,
        "stages": dict(job.seconds),
        "ms": [ns / 1e6 for ns in found["wall"]],
        "calls": [len(calls_of(job["capture"])), len(calls_of(job["extract"]))],
        "fgr": costs[0] / costs[1],
    }


def text_windows(model: Model, tokens: int, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Consecutive windows of the text's head, ``int64[1, tokens]`` each; random tokens without a tokenizer.

    Raises FileError where the text is absent or too short.
    """
    if model.tokenizer is None:
        generator = torch.Generator().manual_seed(1)
        high = int(model.args[0].max()) + 1
        return [(torch.randint(0, high, (1, tokens), generator=generator),) for _ in range(count)]
    path = data.folder() / "data/text/wikitext103_test.txt"
    if not path.is_file():
        raise FileError("bench", str(path), "the text is not there", "set FORGE_EQ_SHARED to the data folder")
    ids = model.tokenizer(path.read_text(encoding="utf-8")[: count * tokens * 12])["input_ids"][: count * tokens]
    if len(ids) < count * tokens:
        raise FileError("bench", str(path), "is too short", "ask for fewer windows")
    return [(row[None],) for row in torch.tensor(ids).reshape(count, tokens)]
