"""The model families at their published sizes: one table each, the paper's figures beside ours.

Usage: python bench/families.py [--families gpt2-124m,...] [--tokens 128] [--no-run] [--no-growth] [--out FOLDER]

The published size goes without weights (meta device) from capture to allocation, in a process of its own whose peak
memory is reported. What is executed has its weights but fewer layers, and where it has a vocabulary a smaller one; its
name says so. Transitions: the capture order and the schedule have the same placement. Processor time is that of the
own stages (after capture, before the backend's build).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from forge_eq.families import FAMILIES, layers_of
from layer_patterns import family, faults, patterns
from sheet import PAPER, ROOT, Sheet, arguments, finish, one_of, paper, progress, tell, where
from stages import MIB, OWN, linear, peak

RESTRICTED = "restricted-npu"
CUT = 0.42  # of the transitions, unless no order needs fewer
RUN_LAYERS, RUN_VOCABULARY, RUN_TOKENS = {"lfm2-2.6b": 3}, 2048, 32  # two layers of the others
DEEP, DEPTHS, LIMIT, REPEATS = "llama-3.1-8b", (8, 16, 32), 1.2, 3


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "families")
    parser.add_argument("--families", default=",".join(FAMILIES), type=one_of(FAMILIES))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--no-run", action="store_true", help="execute nothing")
    parser.add_argument("--no-growth", action="store_true", help="leave out time against depth")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        import torch

        torch.set_num_threads(given.threads)
        print(json.dumps(CHILDREN[given.child](given.families[0], given.tokens)))
        return 0
    sheet = Sheet("Model families", where(given.threads, tokens=given.tokens))
    found: dict[str, dict[str, Any]] = {}
    for name in (pair[1] for pair in progress([("family", n) for n in given.families], "families")):
        found[name] = child("full", name, given)
        if not given.no_run:
            found[name]["run"] = child("run", name, given)
    for name, f in found.items():
        fill(sheet, name, f)
    summary(sheet, found)
    if not given.no_growth:
        tell(f"growth: {DEEP}, {DEPTHS} layers")
        growth(sheet, child("growth", DEEP, given))
    return finish(sheet, "families", given.out)


def child(kind: str, name: str, given: Any) -> Any:
    """One measurement in a fresh process."""
    more = ["--threads", str(given.threads), "--tokens", str(given.tokens)]
    command = [sys.executable, __file__, "--child", kind, "--families", name, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------ measurements


def captured(name: str, tokens: int, layers: int | None = None) -> tuple[Any, float]:
    """The graph of a model without weights, and the seconds of its capture."""
    import torch

    from forge_eq.capture import capture
    from forge_eq.families import build

    with torch.device("meta"):
        model = build(name, tokens, layers=layers, meta=True)
        start = time.perf_counter()
        return capture(model.module, model.args), time.perf_counter() - start


def full(name: str, tokens: int) -> dict[str, Any]:
    """Capture to allocation of the published size, for the native target and the restricted one."""
    from forge_eq.alloc.linear_scan import allocate
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.report.match import calls

    graph, seconds = captured(name, tokens)
    start = time.process_time()
    job = run(Job(Options(), forms={"capture": graph}))
    processor = time.process_time() - start
    chosen, plan = job["extract"], job["schedule"]
    made = allocate(plan.program, job.target, "instr")
    other = Job(Options(target=RESTRICTED), forms={"capture": graph, "saturate": job["saturate"]})
    return {
        "captured": len(calls(graph)),
        "chosen": len(calls(chosen)),
        "stop": job["saturate"].saturation.stop,
        "gap": job["chosen"].extraction.gap,
        "faults": faults(chosen, family(name)),
        "patterns": {k: dict(v) for k, v in patterns(chosen).items()},
        "opaque": Counter(str(n.attrs[0]) for n in chosen.live().nodes if n.op.name.startswith("opaque")),
        "host": Counter(i.op.name for i in plan.program.instrs if i.op and i.device == job.target.host),
        "leaves": len(graph.constants),
        "storage": {k: getattr(made, k) for k in ("virtual", "physical", "peak", "bound")},
        "native": transitions(plan.figures),
        "restricted": transitions(run(other)["schedule"].figures),
        "seconds": {"capture": seconds, **{s: job.seconds[s] for s in OWN}},
        "processor": processor,
        "peak": peak(),
    }


def transitions(figures: Any) -> list[int]:
    return [figures.transitions_before, figures.transitions, figures.transitions_least]


def execute(name: str, tokens: int) -> dict[str, Any]:
    """A truncated model with weights, compiled and compared with torch on inputs that it was not compiled with."""
    import torch

    import forge_eq
    from forge_eq.families import build
    from forge_eq.run.differential import float64_outputs
    from forge_eq.run.probes import probes
    from forge_eq.verify.criterion import compare

    layers = RUN_LAYERS.get(name, 2) if FAMILIES[name].depth else None
    model = build(name, RUN_TOKENS, layers=layers, vocabulary=RUN_VOCABULARY)
    program = forge_eq.compile(model.module, model.args, threads=torch.get_num_threads())
    verdicts, size = [], 0.0
    for _, inputs in probes(model.args, seed=7):
        with torch.no_grad():
            want, got = model.module(*inputs), program(*inputs)
        verdicts.append(compare([got], [want], lambda inputs=inputs: float64_outputs(program.captured, inputs)))
        size = max(size, float(want.abs().max()))
    return {
        "model": model.name,
        "difference": max(v.difference for v in verdicts),
        "size": size,
        "reasons": [v.reason for v in verdicts if not v],
        "remarks": [str(r) for r in program.remarks if r.kind != "passed"],
        "peak": peak(),
    }


def growth_child(name: str, tokens: int) -> dict[str, list[float]]:
    """Processor seconds of the own stages at several depths, the depths in turn, the first round left out."""
    from stages import own_stages

    graphs = {d: captured(name, tokens, d)[0] for d in DEPTHS}
    samples: dict[str, list[float]] = {str(d): [] for d in DEPTHS}
    for repeat in range(REPEATS + 1):
        for depth, graph in graphs.items():
            found = own_stages(graph)["processor"]
            if repeat:
                samples[str(depth)].append(found)
    return samples


CHILDREN = {"full": full, "run": execute, "growth": growth_child}

# ------------------------------------------------------------------------------------------------ tables


def fill(sheet: Sheet, name: str, f: dict[str, Any]) -> None:
    """The table of one family, and its criteria."""
    sheet.figures[name] = f
    row = FAMILIES[name].paper
    theirs = {k: t["rows"].get(row) for k, t in paper().items() if isinstance(t, dict) and "rows" in t} if row else {}
    s, seconds, pair = f["storage"], f["seconds"], "{} -> {}".format
    rows: list[tuple[Any, ...]] = [
        ("calls, captured -> chosen", pair(f["captured"], f["chosen"]), _of(theirs, "nodes", "{0} -> {1}")),
        ("change of calls, %", 100.0 * (f["chosen"] / f["captured"] - 1), _of(theirs, "nodes", "{2}")),
        ("layers recognised", f"{_good(f, name)} of {layers_of(name)}", "-"),
        ("a layer has", _each(f["patterns"]), "-"),
        ("opaque calls left", _counts(f["opaque"]), "-"),
        ("on the host", _counts(f["host"]), "-"),
        ("buffers, virtual -> physical", pair(s["virtual"], s["physical"]), _of(theirs, "buffers", "{0} -> {1}")),
        ("change of buffers, %", 100.0 * (s["physical"] / s["virtual"] - 1), _of(theirs, "buffers", "-{2}")),
        ("arena, MiB", s["peak"] / MIB, "-"),
        ("arena / max-live bound", s["peak"] / s["bound"], "-"),
        ("transitions, native target", _moves(f["native"]), "-"),
        (f"transitions, {RESTRICTED}", _moves(f["restricted"]), _of(theirs, "transitions", "{0} -> {1} ({2} %)")),
        ("capture (torch.export), s", seconds["capture"], "-"),
        *((f"{stage}, s", seconds[stage], "-") for stage in OWN),
        ("own stages, s", sum(seconds[stage] for stage in OWN), _of(theirs, "optimise_ms", "{1} ms optimise")),
        ("own stages, processor s", f["processor"], "-"),
        ("extraction gap", f["gap"], "-"),
        ("peak memory of the process, MiB", f["peak"] / MIB, "-"),
    ]
    if "run" in f:
        verdict = "; ".join(f["run"]["reasons"]) or "within the criterion"
        shown = f"{f['run']['difference']:.2g} at values to {f['run']['size']:.2g}, {verdict}"
        rows.append((f"largest difference to torch: {f['run']['model']}", shown, _of(theirs, "fidelity", "{2}")))
        sheet.demand(f"{name}: inputs on which the program is worse than torch", float(len(f["run"]["reasons"])), 0.0)
        sheet.demand(f"{name}: remarks that something failed", float(len(f["run"]["remarks"])), 0.0)
    sheet.table(name, ("", "here", "paper"), rows, f"Paper: {PAPER}." if row else "Not in the paper.")
    before, after, least = f["restricted"]
    sheet.demand(f"{name}: layers with something missing", float(len(f["faults"])), 0.0)
    sheet.demand(f"{name}: opaque calls left", float(sum(f["opaque"].values())), 0.0)
    sheet.demand(f"{name}: arena / max-live bound", s["peak"] / s["bound"], 1.05)
    sheet.demand(f"{name}: transitions on {RESTRICTED}", float(after), max(float(least), (1 - CUT) * before))
    sheet.demand(f"{name}: peak memory, MiB", f["peak"] / MIB, 2048.0)


def summary(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    head = ("family", "layers recognised", "calls", "change %", "buffers", "change %", "own stages, processor s", "MiB")
    rows = []
    for name, f in found.items():
        s = f["storage"]
        calls, buffers = f"{f['captured']} -> {f['chosen']}", f"{s['virtual']} -> {s['physical']}"
        change = 100.0 * (f["chosen"] / f["captured"] - 1), 100.0 * (s["physical"] / s["virtual"] - 1)
        layers = f"{_good(f, name)} of {layers_of(name)}"
        rows.append((name, layers, calls, change[0], buffers, change[1], f["processor"], f["peak"] / MIB))
    sheet.table("all families", head, rows)
    sheet.table(
        f"transitions, same placement: {RESTRICTED}",
        ("family", "capture order", "scheduled", "least possible", "change %"),
        [(n, *f["restricted"], _change(f["restricted"])) for n, f in found.items()],
        "Where scheduled equals least possible, no order with this placement has fewer.",
    )


def growth(sheet: Sheet, samples: dict[str, list[float]]) -> None:
    times = {int(d): sorted(s)[len(s) // 2] for d, s in samples.items()}
    fit = linear(list(times), list(times.values()))
    assert fit is not None
    sheet.figures["growth"] = samples
    head = (*(f"{d} layers, s" for d in times), "ms per layer", "R squared")
    note = f"Processor time, medians of {REPEATS}."
    sheet.table(f"own stages against depth: {DEEP}", head, [(*times.values(), fit[0] * 1e3, fit[2])], note)
    first, last = min(times), max(times)
    sheet.demand(f"{DEEP}: own stages at {last} layers, processor s", times[last], LIMIT)
    sheet.demand(f"{DEEP}: t({last}) / t({first})", times[last] / times[first], 1.1 * last / first)


def _of(theirs: dict[str, Any], table: str, form: str) -> str:
    row = theirs.get(table)
    return form.format(*row) if row else "-"


def _good(f: dict[str, Any], name: str) -> int:
    """Layers without a fault."""
    return layers_of(name) - len({fault.partition(":")[0] for fault in f["faults"]})


def _each(layers: dict[str, dict[str, int]]) -> str:
    alike = Counter(tuple(sorted(c.items())) for c in layers.values())
    return "; ".join(f"{', '.join(f'{k} {v}' for k, v in c)} (x{n})" for c, n in alike.most_common())


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{k} {v}" for k, v in sorted(found.items())) or "none"


def _change(found: list[int]) -> float:
    before, after, _ = found
    return 100.0 * (after - before) / before if before else 0.0


def _moves(found: list[int]) -> str:
    before, after, least = found
    return f"{before} -> {after} ({_change(found):.0f} %), least possible {least}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
