"""Fills the marked blocks of docs/performance.md from measurements that were kept.

Usage: python bench/performance.py [--peers FOLDER] [--paper FOLDER] [--gains FOLDER]

Takes the folders of ``forge-eq bench peers``, ``forge-eq bench paper`` and ``bench/gains.py``; what the page needs of
them is kept in docs/data (figures to four digits). Without folders the page is filled from there. Nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from forge_eq.errors import FileError
from forge_eq.peers.backends import AGAIN, OURS, RECORD, STRONG
from forge_eq.peers.cases import DECODE, Cell
from forge_eq.peers.sheets import verdict
from forge_eq.peers.statistics import Interval, geomean
from forge_eq.peers.table import Row, best, from_data, narrowest, spread
from forge_eq.report.sheet import Table, markdown, shown

ROOT = Path(__file__).resolve().parents[1]
PAGE, DATA = ROOT / "docs/performance.md", ROOT / "docs/data"
KINDS = ("peers", "paper", "gains")
BLOCK = re.compile(r"<!-- (\w+) -->\n(.*?)<!-- /\1 -->", re.S)
NOT_YET = "Not measured yet.\n"
LATENCY = ((DECODE, 1.08), ("16", 1.04), ("128", 0.98), ("512", 0.98))  # least geometric mean of peer / ours
Cells = list[tuple[Cell, list[Row]]]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench/performance.py", description=(__doc__ or "").partition("\n\n")[0])
    for kind in KINDS:
        count = "+" if kind == "peers" else 1
        parser.add_argument(f"--{kind}", type=Path, nargs=count, help=f"where {kind}.json is")
    given = parser.parse_args(argv)
    for kind in KINDS:
        if folders := getattr(given, kind):
            keep(kind, [f / f"{kind}.json" for f in folders], DATA)
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(DATA)), encoding="utf-8")
    print(f"filled {PAGE.relative_to(ROOT)}")
    return 0


# ------------------------------------------------------------------------------------------------ data


def keep(kind: str, sources: Sequence[Path], folder: Path) -> None:
    """Copies what the page needs: of several runs the cells of all, and where the first was made.

    Raises FileError where a measurement is absent.
    """
    runs = []
    for source in sources:
        if not source.is_file():
            raise FileError("bench", str(source), "is absent", f"run the command that writes {kind}.json first")
        runs.append(json.loads(source.read_text(encoding="utf-8")))
    found = runs[0]
    cells = [c for run in runs for c in run["figures"]["cells"]] if kind == "peers" else []
    settings = dict.fromkeys(run["where"].get("measured", "") for run in runs)
    if len(settings) > 1:
        found["where"]["measured"] = "; or ".join(settings)
    parts = {
        "peers": lambda: {"where": found["where"], "cells": [_cell(c) for c in cells]},
        "paper": lambda: {"where": found["where"], "tables": found["tables"]},
        "gains": lambda: {"where": found["where"], "gains": found["figures"]["gains"]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(parts[kind]()), indent=0)
    (folder / f"{kind}.json").write_text(text + "\n", encoding="utf-8")


def _cell(found: dict[str, Any]) -> dict[str, Any]:
    rows = [{k: v for k, v in r.items() if k not in ("processor", "runs")} for r in found["rows"]]
    return {"cell": found["cell"], "rows": rows}


def rounded(value: Any) -> Any:
    """Floats to four digits, as far down as they are."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value


def read(kind: str, folder: Path) -> dict[str, Any] | None:
    path = folder / f"{kind}.json"
    found: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found


# ------------------------------------------------------------------------------------------------ page


def filled(page: str, found: dict[str, str]) -> str:
    """The page with each block's text replaced. Raises KeyError for a block that nobody writes."""
    return BLOCK.sub(lambda m: f"<!-- {m[1]} -->\n{found[m[1]]}<!-- /{m[1]} -->", page)


def blocks(folder: Path) -> dict[str, str]:
    """The text of every block; a block without measurements says so."""
    peers, paper, gains = (read(kind, folder) for kind in KINDS)
    made: dict[str, str] = {"machine": machine({k: v for k, v in zip(KINDS, (peers, paper, gains), strict=True) if v})}
    cells = [(Cell(**c["cell"]), [from_data(r) for r in c["rows"]]) for c in peers["cells"]] if peers else []
    of_cells: dict[str, Callable[[Cells], str]] = {
        "criteria": criteria, "latency": latency, "compilation": compilation, "losses": losses,
    }  # fmt: skip
    made |= {name: write(cells) if cells else NOT_YET for name, write in of_cells.items()}
    made["paper"] = "\n".join(_shown(t) for t in paper["tables"]) if paper else NOT_YET
    made["gains"] = sources(gains["gains"]) if gains else NOT_YET
    made["truncations"] = truncations(cells, paper, gains)
    return made


def _shown(kept: dict[str, Any]) -> str:
    rows = tuple(tuple(r) for r in kept["rows"])
    return "\n".join(markdown(Table(kept["title"], tuple(kept["head"]), rows, kept["note"]), "###"))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    bars = [f"| {' | '.join(shown(v) for v in row)} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([*bars, ""])


def machine(found: dict[str, dict[str, Any]]) -> str:
    """Where each was measured: one column a command."""
    if not found:
        return NOT_YET
    keys = list(dict.fromkeys(k for f in found.values() for k in f["where"]))
    return table(("", *found), [(k, *(f["where"].get(k, "-") for f in found.values())) for k in keys])


def truncations(cells: Cells, paper: dict[str, Any] | None, gains: dict[str, Any] | None) -> str:
    """Every model that was cut, and where."""
    cut = {c.name.partition(",")[0]: "peers" for c, _ in cells if c.layers}
    names = [("paper", str(r[0])) for t in (paper or {}).get("tables", []) for r in t["rows"]]
    names += [("gains", g["model"]) for g in (gains or {}).get("gains", [])]
    for where, name in names:
        if re.search(r"\(\d+ of \d+ (?:layers|tokens)", name):
            cut.setdefault(name, where)
    return "".join(f"- {name}: {where}\n" for name, where in cut.items()) or "No model is cut.\n"


# ------------------------------------------------------------------------------------------------ peers


def _of(rows: list[Row], name: str) -> Row | None:
    return next((r for r in rows if r.backend == name and not r.failed), None)


def _ratio(interval: Interval | None) -> str:
    return "-" if interval is None else str(interval)


def latency(cells: Cells) -> str:
    """A call: beside both strong peers, with the noise, the tail and memory."""
    body = []
    for cell, rows in cells:
        ours, peer, noise = _of(rows, OURS), best(rows, STRONG), spread(rows)
        if ours is None:
            continue
        ratios = [_ratio(r.latency if (r := _of(rows, name)) else None) for name in STRONG]
        says = verdict(peer.latency, noise) if peer and peer.latency else "-"
        tails = [_ratio(r.tail if r else None) for r in (ours, narrowest(rows))]
        body.append((cell.name, ours.p50, *ratios, _ratio(noise), says, *tails, _memory(rows)))
    head = ("cell", "ours, p50 ms", *(f"{n} / ours" for n in STRONG), "ours again / ours", "beside the better",
            "our p99/p50", "best peer's", "memory over OpenVINO's")  # fmt: skip
    return table(head, body)


def _memory(rows: list[Row]) -> float:
    ours, static = _of(rows, OURS), _of(rows, STRONG[0])
    return ours.memory / static.memory if ours and static else float("nan")


def compilation(cells: Cells) -> str:
    """Seconds of ours by phase, and the peers' over ours after capture and end to end."""
    body = []
    for cell, rows in cells:
        ours, record, static = _of(rows, OURS), _of(rows, RECORD), _of(rows, STRONG[0])
        if ours is None:
            continue
        phases = [ours.phases.get(p, 0.0) for p in ("capture", "own", "build", "guard")]
        peers = [(_ratio(r.compile), _ratio(r.total)) if (r := _of(rows, n)) else ("-", "-") for n in STRONG]
        apart = _unguarded(ours, static) if static else "-"
        faster = static.end_to_end / record.end_to_end if static and record else "-"
        body.append((cell.name, *phases, *(v for pair in peers for v in pair), apart, faster))
    names = [f"{n} / ours, {what}" for n in STRONG for what in ("after capture", "end to end")]
    more = (f"{STRONG[0]} / ours after capture, guard apart", f"{STRONG[0]} / ours recorded, end to end")
    return table(("cell", "capture s", "own s", "build s", "guard s", *names, *more), body)


def criteria(cells: Cells) -> str:
    """What was promised, what was measured."""
    body: list[tuple[Any, ...]] = []
    for case, least in LATENCY:
        found = [p.latency.middle for c, r in cells if c.case == case and (p := best(r, STRONG)) and p.latency]
        if found:
            name = f"the better of both / ours, {case if case == DECODE else f'{case} tokens'}, geometric mean"
            body.append(_judged(name, geomean(found), least, True))
    for cell, rows in cells:
        body += [_judged(f"{cell.name}: {name}", *rest) for name, *rest in _promises(cell, rows)]
        body += _tails(cell, rows)
    return table(("promise", "measured", "limit", "result"), body)


def _promises(cell: Cell, rows: list[Row]) -> Iterator[tuple[str, float, float, bool]]:
    """(what, measured, limit, whether that is the least) of one cell."""
    ours, static, record, gpt2 = _of(rows, OURS), _of(rows, STRONG[0]), _of(rows, RECORD), cell.model.startswith("gpt2")
    if ours is None or static is None:
        return
    yield f"{STRONG[0]} / ours after capture, our guard apart", _unguarded(ours, static), 4.0, True
    yield f"{STRONG[0]} / ours end to end", static.end_to_end / ours.end_to_end, 2.5 if gpt2 else 2.0, True
    if record is not None:
        yield f"{STRONG[0]} / ours recorded, end to end", static.end_to_end / record.end_to_end, 5.0, True
    limit = 0.3 if cell.model.startswith("llama") else 0.8
    yield "memory above the weights over OpenVINO's", ours.memory / static.memory, limit, False
    if record is not None:
        yield "the same, recorded", record.memory / static.memory, limit, False


def _tails(cell: Cell, rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Few calls decide a 99th percentile: what lies within the intervals of both is no difference."""
    ours, peer = _of(rows, OURS), narrowest(rows)
    if ours is None or ours.tail is None or peer is None or peer.tail is None:
        return
    name = f"{cell.name}: p99/p50 over the best peer's, {peer.backend}"
    result = "within the noise" if ours.tail.low <= peer.tail.high else "missed"
    ratio = ours.tail.middle / peer.tail.middle
    yield name, ratio, "<= 1", "met" if ratio <= 1 else result


def _unguarded(ours: Row, theirs: Row) -> float:
    """What comes after capture, theirs over ours, without our comparison with PyTorch."""
    return theirs.after_capture / (ours.after_capture - ours.phases.get("guard", 0.0))


def _judged(name: str, value: float, limit: float, least: bool) -> tuple[Any, ...]:
    good = value >= limit if least else value <= limit
    return name, value, f"{'>=' if least else '<='} {limit:g}", "met" if good else "missed"


def losses(cells: Cells) -> str:
    """Every cell and figure in which a peer is better, and every backend that failed."""
    lines = []
    for cell, rows in cells:
        ours = _of(rows, OURS)
        if ours is None:
            lines.append(f"{cell.name}: ours failed")
            continue
        for r in rows:
            if r.failed:
                lines.append(f"{cell.name}: {r.backend} failed, so that nothing is won there: {r.failed}")
            elif r.backend not in (OURS, AGAIN, RECORD):
                lines += [f"{cell.name}: {r.backend} {what}" for what in _better(r, ours, spread(rows))]
    return "".join(f"- {line}\n" for line in lines) or "Nothing was lost in the cells measured.\n"


def _better(theirs: Row, ours: Row, noise: Interval | None) -> list[str]:
    found = []
    if theirs.latency and verdict(theirs.latency, noise) == "slower":
        found.append(f"is faster a call: its time / ours is {theirs.latency}")
    if theirs.total and theirs.total.low < 1 and theirs.phases.get("build", 0.0):
        found.append(f"is ready no later: its time / ours is {theirs.total}")
    if theirs.tail and ours.tail and theirs.tail.middle < ours.tail.middle:
        sure = "" if theirs.tail.high < ours.tail.low else " (within the noise)"
        found.append(f"has the narrower tail{sure}: p99/p50 {theirs.tail}, ours {ours.tail}")
    if theirs.memory < ours.memory:
        share = shown(ours.memory / theirs.memory) if theirs.memory > 0 else "many times as much"
        found.append(f"takes less memory above the weights: ours over its is {share}")
    if theirs.difference < ours.difference:
        found.append(f"is closer to eager: {shown(theirs.difference)}, ours {shown(ours.difference)}")
    return found


# ------------------------------------------------------------------------------------------------ gains


def sources(gains: list[dict[str, Any]]) -> str:
    """Of each model and number of tokens: what gains there for sure, the most first; what costs."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for g in gains:
        cells.setdefault((g["model"], g["tokens"]), []).append(g)
    body = []
    for (model, tokens), found in cells.items():
        sure = sorted((g for g in found if g["low"] > 1 and not g["same"]), key=lambda g: -g["ratio"])
        lost = [g for g in found if g["ratio"] < 0.98 and not g["same"]]
        body.append((model, tokens, _named(sure) or "nothing for sure", _named(lost) or "-"))
    return table(("model", "tokens", "gains: time without it over with it", "seems to cost"), body)


def _named(found: list[dict[str, Any]]) -> str:
    return ", ".join(f"{g['without']} {g['ratio']:.2f} (>= {g['low']:.2f})" for g in found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
