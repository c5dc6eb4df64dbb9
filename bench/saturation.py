"""Time and growth of saturation with the default rules on graphs of about 1,000 nodes.

Usage: python bench/saturation.py [--repeats 7] [--graphs gpt2,...] [--profile] [--out FOLDER]

Models on the meta device at depths that give about 1,000 nodes, and random programs joined to that size. One process,
the graphs in turn; the first round is the cold one, in which guards and types are asked for the first time, and apart.
Saturating is firing the rules and answering their questions; loading the program and reading the e-graph back stand
beside it, as in docs/decisions/0003.
Saturation runs on one thread, so processor time is what a quiet machine would take.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sheet import Sheet, arguments, finish, one_of, progress, where

LIMIT_MS, NODES = 50.0, 1000
DEPTHS = {"gpt2": 16, "llama": 13, "bert": 12}  # layers that give about NODES nodes


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "saturation")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--graphs", default=",".join(GRAPHS), type=one_of(GRAPHS))
    parser.add_argument("--profile", action="store_true", help="add a table of the dearest rules")
    given = parser.parse_args(argv)

    import torch

    torch.set_num_threads(given.threads)
    graphs = {name: GRAPHS[name]() for name in given.graphs}
    found = measure(graphs, given.repeats)
    sheet = Sheet("Saturation", where(given.threads))
    fill(sheet, graphs, found)
    if given.profile:
        profile(sheet, found)
    return finish(sheet, "saturation", given.out)


# ------------------------------------------------------------------------------------------ graphs


def gpt2() -> Any:
    from stages import capture_gpt2

    return capture_gpt2(DEPTHS["gpt2"], 128)


def _family(name: str, kind: str) -> Any:
    from family_runs import captured

    return captured(name, 128, layers=DEPTHS[kind])[0]


def random_nodes() -> Any:
    """Composites and their twins, joined until there are enough nodes."""
    from fuzzing import joined
    from random_programs import random_program

    graphs: list[Any] = []
    while sum(len(g.nodes) for g in graphs) < NODES:
        graphs.append(random_program(len(graphs)).live())
    return joined(graphs)


def wide_nodes() -> Any:
    """The whole vocabulary, joined as well."""
    from fuzzing import joined
    from random_vocabulary import random_vocabulary

    graphs: list[Any] = []
    while sum(len(g.nodes) for g in graphs) < NODES:
        graphs.append(random_vocabulary(len(graphs)).live())
    return joined(graphs)


GRAPHS: dict[str, Callable[[], Any]] = {
    "gpt2": gpt2,
    "llama": lambda: _family("llama-3.2-1b", "llama"),
    "bert": lambda: _family("bert-base", "bert"),
    "random": random_nodes,
    "wide": wide_nodes,
}

# ------------------------------------------------------------------------------------------ measurement


def measure(graphs: dict[str, Any], repeats: int) -> dict[str, dict[str, Any]]:
    """Seconds of each round and the last e-graph, by graph."""
    from forge_eq.egraph.engine import Engine
    from forge_eq.options import Limits
    from forge_eq.pipeline import collector_held
    from forge_eq.rules import default

    made = Engine(default)
    found: dict[str, dict[str, Any]] = {name: {"processor": [], "wall": [], "spent": []} for name in graphs}
    for index, name in enumerate(progress([n for _ in range(repeats + 1) for n in graphs], "saturation")):
        del index
        with collector_held():
            wall, processor = time.perf_counter(), time.process_time()
            view = made.saturate(graphs[name], Limits())
            found[name]["processor"].append(time.process_time() - processor)
            found[name]["wall"].append(time.perf_counter() - wall)
        found[name]["view"] = view
        found[name]["spent"].append(dict(view.saturation.spent))
    return found


def fill(sheet: Sheet, graphs: dict[str, Any], found: dict[str, dict[str, Any]]) -> None:
    rows, ours = [], []
    for name, f in found.items():
        view = f["view"]
        (cold, *warm), wall = f["processor"], f["wall"][1:]
        stop = view.saturation.stop
        nodes = sum(len(c.nodes) for c in view.classes)
        parts = {k: 1e3 * median(s[k] for s in f["spent"][1:]) for k in ("load", "saturate", "read")}
        rows.append(
            (name, len(graphs[name].nodes), nodes, stop, view.saturation.rounds, *parts.values(), 1e3 * median(warm),
             1e3 * median(wall), 1e3 * cold)
        )  # fmt: skip
        ours.append(parts["saturate"])
        sheet.figures[name] = {k: f[k] for k in ("processor", "wall", "spent")}
    sheet.table(
        "saturation",
        (
            "graph",
            "nodes",
            "e-nodes",
            "ended",
            "rounds",
            "load ms",
            "saturate ms",
            "read ms",
            "all ms",
            "all ms, wall",
            "cold ms",
        ),
        rows,
        "Medians of processor time but for the last two columns. All: with clearing what the program left.",
    )
    sheet.demand("saturating, processor ms: median over the graphs of the medians", median(ours), LIMIT_MS)
    families = {name: grown(f["view"]) for name, f in found.items()}
    names = sorted({k for f in families.values() for k in f})
    sheet.table(
        "e-nodes by the family of the rule that made them",
        ("graph", *names),
        [(name, *(f[k] for k in names)) for name, f in families.items()],
    )


def grown(view: Any) -> Counter[str]:
    return Counter((n.rule.partition("/")[0] or "captured") for c in view.classes for n in c.nodes)


def profile(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    """The rules that egglog spends the most time on."""
    rows = []
    for name, f in found.items():
        spent = sorted(f["view"].saturation.seconds.items(), key=lambda i: -i[1])[:8]
        rows += [(name, rule, 1e3 * s, f["view"].saturation.matches.get(rule, 0)) for rule, s in spent]
    sheet.table("dearest rules", ("graph", "rule", "ms", "matches"), rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
