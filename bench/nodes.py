"""Calls before and after, patterns per layer, storage and transitions, of three models in two spellings.

Usage: python bench/nodes.py [--models gpt2,smollm2,minilm] [--tokens 128] [--out FOLDER] [--no-build]
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from layer_patterns import bert, faults, gpt2, llama, patterns
from sheet import PAPER, Sheet, arguments, finish, one_of, paper, progress, where

ARCHITECTURES = {  # built-in model -> what its layers must show
    "gpt2": gpt2(12),
    "smollm2": llama(30),
    "minilm": bert(6),
    "gpt2-tiny": gpt2(2),
    "llama-tiny": llama(2),
    "bert-tiny": bert(2),
}
ATTENTIONS = ("eager", "sdpa")
GRANULARITIES = {"segment": "as run here", "instr": "NPU plan"}


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "nodes")
    parser.add_argument(
        "--models", default="gpt2,smollm2,minilm", type=one_of(ARCHITECTURES), help=f"of {', '.join(ARCHITECTURES)}"
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--target", default="openvino-cpu")
    parser.add_argument("--no-build", action="store_true", help="do not build the executor (its ownership is left out)")
    given = parser.parse_args(argv)

    import torch

    torch.set_num_threads(given.threads)
    sheet = Sheet("Calls, patterns, storage", where(given.threads, tokens=given.tokens, target=given.target))
    found = [
        (name, attention, measure(name, attention, given.tokens, given.target, not given.no_build))
        for name, attention in progress([(n, a) for n in given.models for a in ATTENTIONS], "nodes")
    ]
    fill(sheet, found)
    return finish(sheet, "nodes", given.out)


def measure(name: str, attention: str, tokens: int, target: str, build: bool) -> dict[str, Any]:
    """All figures of one export."""
    from forge_eq import models
    from forge_eq.alloc.linear_scan import allocate
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.report.match import calls
    from forge_eq.run.executor import Executable

    model = models.BUILT_IN[name](tokens=tokens, attention=attention)
    job = run(Job(Options(target=target), (model.module, model.args, None, None)))
    graph, plan = job["extract"], job["schedule"]
    storage = {}
    for granularity in GRANULARITIES:
        made = allocate(plan.program, job.target, granularity)
        storage[granularity] = {
            "virtual": made.virtual,
            "physical": made.physical,
            "peak": made.peak,
            "bound": made.bound,
        }
    figures = plan.figures
    owned = Executable(plan.program, job.target).ownership() if build else None
    return {
        "captured": len(calls(job["capture"])),
        "chosen": len(calls(graph)),
        "stop": job["saturate"].saturation.stop,
        "faults": faults(graph, ARCHITECTURES[name]),
        "patterns": {k: dict(v) for k, v in patterns(graph).items()},
        "storage": storage,
        "instructions": len(plan.program.instrs),
        "segments": len(plan.segments),
        "transitions": (figures.transitions_before, figures.transitions, figures.transitions_least),
        "owned": None if owned is None else {"arenas": owned.arenas, "shared": owned.shared, "inside": owned.inside},
    }


def fill(sheet: Sheet, found: list[tuple[str, str, dict[str, Any]]]) -> None:
    sheet.figures["exports"] = [{"model": n, "attention": a, **f} for n, a, f in found]
    sheet.table(
        "calls: captured -> chosen",
        ("model", "attention", "captured", "chosen", "change %", "saturation", "paper %"),
        [
            (
                n,
                a,
                f["captured"],
                f["chosen"],
                100.0 * (f["chosen"] - f["captured"]) / f["captured"],
                f["stop"],
                _paper(n),
            )
            for n, a, f in found
        ],
        f"Calls that compute something; leaves and parts of a multi-output call are not counted. Paper: {PAPER}; "
        "all its models -14.2 to -21.9 %.",
    )
    sheet.table(
        "recognised per layer",
        ("model", "attention", "layers", "each layer has", "result"),
        [(n, a, len(f["patterns"]), _each(f["patterns"]), "FAIL" if f["faults"] else "pass") for n, a, f in found],
        "; ".join(f"{n} {a}: {', '.join(f['faults'][:4])}" for n, a, f in found if f["faults"]),
    )
    sheet.table(
        "storage",
        (
            "model",
            "attention",
            "granularity",
            "virtual",
            "physical",
            "change %",
            "arena bytes",
            "max-live bound",
            "ratio",
        ),
        [(n, a, GRANULARITIES[g], *_storage(s)) for n, a, f in found for g, s in f["storage"].items()],
        "As run here a segment of OpenVINO is one step; what lives only inside it is OpenVINO's. The NPU plan has a "
        f"step for each instruction. {_paper_buffers()}",
    )
    sheet.table(
        "transitions between devices, same placement",
        ("model", "attention", "instructions", "segments", "capture order", "scheduled", "least possible"),
        [(n, a, f["instructions"], f["segments"], *f["transitions"]) for n, a, f in found],
        _paper_transitions(),
    )
    sheet.table(
        "what the executor owns, bytes",
        ("model", "attention", "our arenas", "constants shared with torch", "activations inside OpenVINO, at most"),
        [(n, a, _arenas(f["owned"]), f["owned"]["shared"], f["owned"]["inside"]) for n, a, f in found if f["owned"]],
        "OpenVINO also packs weights for its matrix products, up to once more their size; it cannot be asked how much.",
    )
    for name, attention, f in found:
        sheet.demand(f"{name} {attention}: layers with something missing", float(len(f["faults"])), 0.0)
        for granularity, s in f["storage"].items():
            ratio = s["peak"] / s["bound"] if s["bound"] else 1.0
            sheet.demand(f"{name} {attention}: arena / max-live bound, {GRANULARITIES[granularity]}", ratio, 1.05)


def _arenas(owned: dict[str, Any]) -> str:
    return ", ".join(f"{device} {size}" for device, size in owned["arenas"].items()) or "none"


def _each(layers: dict[str, dict[str, int]]) -> str:
    """The counts of a layer and how many layers have them; one entry when all are alike."""
    alike = Counter(tuple(sorted(c.items())) for c in layers.values())
    parts = [f"{', '.join(f'{k} {v}' for k, v in counts) or 'nothing'} (x{n})" for counts, n in alike.most_common()]
    return "; ".join(parts)


def _storage(s: dict[str, int]) -> tuple[Any, ...]:
    change = 100.0 * (s["physical"] - s["virtual"]) / s["virtual"] if s["virtual"] else 0.0
    return s["virtual"], s["physical"], change, s["peak"], s["bound"], s["peak"] / s["bound"] if s["bound"] else 1.0


_PAPER_NAMES = {"gpt2": "GPT-2 (125M)"}


def _paper(name: str) -> str:
    rows = paper().get("nodes", {}).get("rows", {})
    row = rows.get(_PAPER_NAMES.get(name, ""))
    return f"{row[2]} ({row[0]} -> {row[1]})" if row else "-"


def _paper_buffers() -> str:
    row = paper().get("buffers", {}).get("rows", {}).get("GPT-2 (125M)")
    return f"Paper, GPT-2: {row[0]} virtual, {row[1]} physical, -{row[2]} %; {PAPER}." if row else ""


def _paper_transitions() -> str:
    row = paper().get("transitions", {}).get("rows", {}).get("GPT-2 (125M)")
    return f"Paper, GPT-2: {row[0]} -> {row[1]}, {row[2]} %; {PAPER}." if row else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
