"""Time from a module to the graph: torch.export against the recorder, in turn, warm and in fresh processes.

Usage: python bench/capture.py [--models gpt2,llama-1b,...] [--attention sdpa] [--repeats 5] [--cold 3] [--out FOLDER]

Both end in the same graph, import included; the programs are compared operation by operation. Weights are on the meta
device, so the comparison with the module's values, which belongs to a compilation, is not in these figures. Cold: the
first capture of a fresh process that has built its model; imports and building stand in columns of their own.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sheet import Sheet, arguments, finish, one_of, progress, where

FAMILY = {"gpt2": "gpt2-124m", "llama-1b": "llama-3.2-1b", "qwen2-0.5b": "qwen2-0.5b", "granite-350m": "granite-350m"}
SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
MODELS = [*FAMILY, "smollm2-135m"]
WAYS = ("export", "record")
LEAST_GAIN = 5.0  # times, warm medians


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "capture")
    parser.add_argument("--models", type=one_of(MODELS), default=MODELS, help=f"of {', '.join(MODELS)}")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5, help="warm captures of each kind")
    parser.add_argument("--cold", type=int, default=3, help="fresh processes of each kind; 0 leaves the table out")
    parser.add_argument("--child", choices=("warm", *WAYS), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        print(json.dumps(warm(given) if given.child == "warm" else cold(given)))
        return 0
    about = "published sizes, weights on the meta device"
    sheet = Sheet("Capture", where(given.threads, tokens=given.tokens, attention=given.attention, models=about))
    fill_warm(sheet, {m: child("warm", m, given) for _, m in progress([("warm", m) for m in given.models], "model")})
    if given.cold:
        rounds = [(way, m) for _ in range(given.cold) for m in given.models for way in WAYS]
        found: dict[tuple[str, str], list[Any]] = {}
        for way, m in progress(rounds, "cold"):
            found.setdefault((m, way), []).append(child(way, m, given))
        fill_cold(sheet, found)
    return finish(sheet, "capture", given.out)


def child(kind: str, model: str, given: argparse.Namespace) -> dict[str, Any]:
    """One measurement in a fresh process."""
    flags = [f"--{n}={getattr(given, n)}" for n in ("threads", "tokens", "attention", "repeats")]
    command = [sys.executable, __file__, "--child", kind, "--models", model, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# ------------------------------------------------------------------------------------------ measurements


def build(name: str, tokens: int, attention: str) -> Any:
    import torch

    from forge_eq.families import build as family
    from forge_eq.models import Logits, Model

    if name in FAMILY:
        return family(FAMILY[name], tokens, attention, meta=True)
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        config: Any = LlamaConfig(**SMOLLM2)
        config._attn_implementation = attention
        module = Logits(LlamaForCausalLM(config)).eval()
    return Model(name, module, (torch.zeros((1, tokens), dtype=torch.int64, device="meta"),))


def once(model: Any, how: str) -> tuple[float, float, Any]:
    """(processor seconds, wall seconds, the graph)."""
    import torch

    from forge_eq.capture import capture

    gc.collect()
    with torch.device("meta"):
        wall, cpu = time.perf_counter(), time.process_time()
        graph = capture(model.module, model.args, how=how)
        return time.process_time() - cpu, time.perf_counter() - wall, graph


def warm(given: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(given.threads)
    model = build(given.models[0], given.tokens, given.attention)
    samples: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    graphs: dict[str, Any] = {}
    for repeat in range(given.repeats + 1):
        for way in WAYS:
            cpu, wall, graphs[way] = once(model, way)
            if repeat:
                samples[way].append((cpu, wall))
    return {"samples": samples, "nodes": len(graphs["record"].nodes), "different": different(graphs)}


def different(graphs: Mapping[str, Any]) -> int:
    """Operations that only one of the two programs has; storing a value densely counts as none."""
    from forge_eq.ops.movement import contiguous

    counts = [
        Counter((n.op.name, repr(n.attrs), str(n.type), n.origin.module) for n in g.nodes if n.op is not contiguous)
        for g in graphs.values()
    ]
    return ((counts[0] - counts[1]) + (counts[1] - counts[0])).total()


def cold(given: argparse.Namespace) -> dict[str, Any]:
    start = time.process_time()
    import torch

    import forge_eq.capture  # noqa: F401

    torch.set_num_threads(given.threads)
    imported = time.process_time()
    model = build(given.models[0], given.tokens, given.attention)
    built = time.process_time()
    return {"import": imported - start, "build": built - imported, "capture": once(model, given.child)[0]}


# ------------------------------------------------------------------------------------------ tables


def fill_warm(sheet: Sheet, found: Mapping[str, Any]) -> None:
    rows = []
    for model, result in found.items():
        cpu = {way: sorted(s[0] for s in result["samples"][way]) for way in WAYS}
        wall = {way: median(s[1] for s in result["samples"][way]) for way in WAYS}
        gain = median(cpu["export"]) / median(cpu["record"])
        low, high = cpu["export"][0] / cpu["record"][-1], cpu["export"][-1] / cpu["record"][0]
        rows.append(
            (model, result["nodes"], spread(cpu["export"]), spread(cpu["record"]), f"{gain:.1f} ({low:.1f}-{high:.1f})",
             f"{wall['export'] / wall['record']:.1f}")
        )  # fmt: skip
        sheet.demand(f"{model}: the share of torch.export's time", 1 / gain, 1 / LEAST_GAIN)
        sheet.demand(f"{model}: operations that only one program has", result["different"], 0, equal=True)
    head = ("model", "nodes", "export, CPU s", "record, CPU s", "times (range)", "times, wall")
    sheet.table("warm", head, rows, "Median, least and greatest of captures in turn; import into the graph included.")
    sheet.figures["warm"] = found


def fill_cold(sheet: Sheet, found: Mapping[tuple[str, str], Sequence[Mapping[str, float]]]) -> None:
    rows = []
    for (model, way), samples in found.items():
        columns = [spread(sorted(s[k] for s in samples)) for k in ("import", "build", "capture")]
        rows.append((model, way, *columns))
    head = ("model", "by", "import torch, forge_eq", "build the model", "first capture")
    sheet.table("cold: the first capture of a process, CPU s", head, rows, "Building imports the model's library.")
    sheet.figures["cold"] = [{"model": m, "by": w, "samples": s} for (m, w), s in found.items()]


def spread(samples: Sequence[float]) -> str:
    return f"{median(samples):.3f} ({samples[0]:.3f}-{samples[-1]:.3f})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
