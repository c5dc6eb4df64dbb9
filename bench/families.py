"""The model families at their published sizes: one table each, the paper's figures beside ours.

Usage: python bench/families.py [--families gpt2-124m,...] [--tokens 128] [--no-run] [--no-growth] [--out FOLDER]
       python bench/families.py --families llama-3.1-8b --no-run     (time against depth, and memory)

The published size goes without weights (meta device) from capture to allocation, in a process of its own whose peak
memory is reported; every stage's checker runs. What is executed has its width and its weights but fewer layers, and
where it has a vocabulary a smaller one; its name says so. Transitions: the capture order and the schedule have the same
placement. Processor time is that of the own stages (after capture, before the backend's build). With ``--out``,
finished measurements are kept there: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any

from family_runs import CHILDREN, DEEP, DEPTHS, REPEATS, measured, source_hash
from fidelity import EAGER, OURS, PLAIN, PLAIN_FACTOR, RMSE_FACTOR
from forge_eq.families import FAMILIES, layers_of
from forge_eq.paper.graphs import RESTRICTED
from forge_eq.report.kept import Kept
from sheet import PAPER, Sheet, arguments, finish, one_of, paper, progress, tell, where
from stages import MIB, OWN, linear

CUT = 0.42  # of the transitions, unless no order needs fewer
LIMIT, MEMORY = 1.2, 2048.0  # processor seconds at DEEP's full depth, MiB from capture to schedule


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "families")
    parser.add_argument("--families", default=",".join(FAMILIES), type=one_of(FAMILIES))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"), help="the export that is compiled")
    parser.add_argument("--no-run", action="store_true", help="execute nothing")
    parser.add_argument("--no-growth", action="store_true", help="leave out time against depth")
    parser.add_argument("--fresh", action="store_true", help="measure again what --out has already")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.child:
        import torch

        torch.set_num_threads(given.threads)
        print(json.dumps(CHILDREN[given.child](given, given.families[0])))
        return 0
    settings = {"tokens": given.tokens, "export": given.attention}
    sheet = Sheet("Model families", where(given.threads, **settings))
    kept = Kept(
        given.out / "families" if given.out and not given.fresh else None,
        {**settings, "threads": given.threads, "source": source_hash()},
    )
    found: dict[str, dict[str, Any]] = {}
    for name in (pair[1] for pair in progress([("family", n) for n in given.families], "families")):
        found[name] = measured(kept, "full", name, given)
        if not given.no_run:
            found[name]["run"] = measured(kept, "run", name, given)
    sheet.figures["families"] = found
    for name, f in found.items():
        fill(sheet, name, f)
    summary(sheet, found)
    if not given.no_growth and DEEP in given.families:
        tell(f"growth: {DEEP}, {DEPTHS} layers")
        growth(sheet, measured(kept, "growth", DEEP, given))
    return finish(sheet, "families", given.out)


# ------------------------------------------------------------------------------------------------ tables


def fill(sheet: Sheet, name: str, f: dict[str, Any]) -> None:
    row = FAMILIES[name].paper
    theirs = {k: t["rows"].get(row) for k, t in paper().items() if isinstance(t, dict) and "rows" in t} if row else {}
    s, seconds, pair = f["storage"], f["seconds"], "{} -> {}".format
    own, optimise = sum(seconds[stage] for stage in OWN), seconds["saturate"] + seconds["extract"]
    phases = paper().get("phases_gpt2_ms", {}) if name == "gpt2-124m" else {}
    rows: list[tuple[Any, ...]] = [
        ("parameters", f"{f['millions']:.0f}M", _of(theirs, "models", "{0}")),
        ("layers", layers_of(name), _of(theirs, "models", "{2}")),
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
        ("capture (torch.export), s", seconds["capture"], _milli(phases, "capture")),
        *((f"{stage}, s", seconds[stage], "-") for stage in OWN),
        ("saturate and extract, s", optimise, _of(theirs, "optimise_ms", "{1} ms")),
        (
            "lower, schedule, alloc, s",
            own - optimise,
            _milli(phases, "lower_alloc_schedule"),
        ),
        ("capture and own stages, s", seconds["capture"] + own, _of(theirs, "compile_ms", "{0} ms")),
        ("own stages, processor s", f["processor"], "-"),
        ("extraction gap", f["gap"], "-"),
        ("peak memory, capture to schedule, MiB", f["peak"] / MIB, "-"),
        *(_fidelity_rows(f["run"], theirs) if "run" in f else []),
    ]
    sheet.table(name, ("", "here", "paper"), rows, f"Paper: {PAPER}." if row else "Not in the paper.")
    before, after, least = f["restricted"]
    sheet.demand(f"{name}: layers with something missing", float(len(f["faults"])), 0.0)
    sheet.demand(f"{name}: opaque calls left", float(sum(f["opaque"].values())), 0.0)
    sheet.demand(f"{name}: arena / max-live bound", s["peak"] / s["bound"], 1.05)
    sheet.demand(f"{name}: transitions, native target", float(f["native"][1]), float(f["native"][2]))
    sheet.demand(f"{name}: transitions on {RESTRICTED}", float(after), max(float(least), (1 - CUT) * before))
    sheet.demand(f"{name}: peak memory, MiB", f["peak"] / MIB, MEMORY)
    if "run" in f:
        judge(sheet, name, f["run"])


def judge(sheet: Sheet, name: str, run: dict[str, Any]) -> None:
    """The criterion of fidelity: 2x torch's RMSE to float64, and 1.25x plain OpenVINO's largest difference."""
    rmse, off = run["rmse"], run["to_eager"]
    sheet.demand(f"{name}: RMSE to float64 over torch's", rmse[OURS] / rmse[EAGER], RMSE_FACTOR)
    sheet.demand(f"{name}: largest to torch over plain OpenVINO's", off[OURS] / off[PLAIN], PLAIN_FACTOR)
    sheet.demand(f"{name}: executed layers with something missing", float(len(run["faults"])), 0.0)
    sheet.demand(f"{name}: remarks that something failed", float(len(run["remarks"])), 0.0)


def _fidelity_rows(run: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[Any, ...]]:
    def each(key: str) -> str:
        return ", ".join(f"{run[key][n]:.2g}" for n in (OURS, EAGER, PLAIN) if n in run[key])

    rows: list[tuple[Any, ...]] = [
        ("executed", run["model"], "-"),
        ("RMSE to float64: ours, torch, plain OpenVINO", each("rmse"), "-"),
        ("largest to float64: ours, torch, plain OpenVINO", each("to_truth"), "-"),
        ("largest to torch: ours, torch, plain OpenVINO", each("to_eager"), _of(theirs, "fidelity", "{2}")),
        ("largest value", run["size"], "-"),
    ]
    if run["kl"]:
        rows.append(("KL to float64, nats: ours, torch, plain OpenVINO", each("kl"), _of(theirs, "fidelity", "{3}")))
    return [*rows, ("remarks that something failed", "; ".join(run["remarks"]) or "none", "-")]


def _milli(phases: dict[str, Any], key: str) -> str:
    return f"{phases[key]:g} ms" if key in phases else "-"


def summary(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    head = ("family", "layers recognised", "calls", "change %", "buffers", "change %", "own, processor s", "MiB")
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
    ran = {n: f["run"] for n, f in found.items() if "run" in f}
    if ran:
        sheet.table(
            "executed",
            (
                "model",
                "RMSE over torch's",
                "largest over plain OpenVINO's",
                "largest to torch",
                "largest value",
                "remarks",
            ),
            [
                (
                    r["model"],
                    r["rmse"][OURS] / r["rmse"][EAGER],
                    r["to_eager"][OURS] / r["to_eager"][PLAIN],
                    r["to_eager"][OURS],
                    r["size"],
                    len(r["remarks"]),
                )
                for r in ran.values()
            ],
            "RMSE is to float64, largest differences are to torch; OpenVINO is its own converter. Random weights.",
        )


def growth(sheet: Sheet, samples: dict[str, list[float]]) -> None:
    times = {int(d): sorted(s)[len(s) // 2] for d, s in samples.items()}
    fit = linear(list(times), list(times.values()))
    assert fit is not None
    sheet.figures["growth"] = samples
    head = (*(f"{d} layers, s" for d in times), "ms per layer", "R squared")
    note = f"Processor time, medians of {REPEATS}, the depths in turn."
    sheet.table(f"own stages against depth: {DEEP}", head, [(*times.values(), fit[0] * 1e3, fit[2])], note)
    first, last = min(times), max(times)
    sheet.demand(f"{DEEP}: own stages at {last} layers, processor s", times[last], LIMIT)
    sheet.demand(f"{DEEP}: t({last}) / t({first})", times[last] / times[first], 1.1 * last / first)
    sheet.demand(f"{DEEP}: what a line through the depths leaves unexplained", 1 - fit[2], 0.05)


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
