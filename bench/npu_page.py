"""Fills the marked blocks of docs/npu.md from the answers that were kept.

Usage: python bench/npu_page.py [--cases FILE] [--paper FILE] [--calibration FOLDER ..]

Takes the stores of ``bench/npu.py`` and ``bench/npu_paper.py`` (bench.jsonl and paper.jsonl beside the compiler's
parts) and the folders of ``bench/npu_calibrate.py --fit``, one for each platform; what the page needs of them is in
docs/data/npu.json (figures to four digits). Without them the page is filled from there. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge_eq.npu.compiler import SIMULATED
from npu import CASES, Case, criteria
from npu_calibrate import JUDGED
from npu_paper import TABLES, tables
from npu_plain import beside
from performance import DATA, NOT_YET, ROOT, filled, rounded
from performance import table as grid
from sheet import paper

PAGE, KEPT = ROOT / "docs/npu.md", "npu.json"
OURS, PLAIN = ("ours", "ours host"), ("plain", "plain host")
THEIRS = ("attention_fusion_latency", "buffers", "transitions")  # tables 15, 16 and 21 in the paper's data
GROUPS = ("layers", "decode", "whole", "platforms")
Found = dict[str, Any]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench/npu_page.py", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--cases", type=Path, help="store of bench/npu.py")
    parser.add_argument("--paper", type=Path, help="store of bench/npu_paper.py")
    parser.add_argument("--calibration", type=Path, nargs="+", help="folders with npu_calibrate.json")
    given = parser.parse_args(argv)
    kept = read(DATA)
    for kind in ("cases", "paper"):
        if getattr(given, kind) is not None:
            rows = [json.loads(line) for line in getattr(given, kind).read_text(encoding="utf-8").splitlines()]
            kept[kind] = list({row["case"]: row for row in rows}.values())
    if given.calibration is not None:
        files = [folder / "npu_calibrate.json" for folder in given.calibration]
        kept["calibration"] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    kept["times"] = SIMULATED
    if given.paper is not None:
        kept["theirs"] = {name: table for name, table in paper().items() if name in THEIRS}
    (DATA / KEPT).write_text(json.dumps(rounded(kept), indent=0) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), blocks(read(DATA))), encoding="utf-8")
    print(f"filled {PAGE.relative_to(ROOT)}")
    return 0


def read(folder: Path) -> Found:
    path = folder / KEPT
    found: Found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def blocks(kept: Found) -> dict[str, str]:
    """The text of every block; a block without figures says so."""
    found = {row["case"]: row["found"] for row in kept.get("cases", [])}
    made = {group: times([(c, found[c.name]) for c in CASES[group] if c.name in found]) for group in GROUPS}
    everything = [c for group in GROUPS for c in CASES[group]]
    there = [(c, found[c.name]) for c in everything if c.name in found]
    made["coded"] = coded(there)
    made["engines"] = engines(there)
    made["spent"] = spent([(c, f) for c, f in there if not c.layers])
    made["promised"] = promised(there)
    made["short"] = short(there, [c for c in everything if c.name not in found])
    ours = {row["family"]: row["found"] for row in kept.get("paper", [])}
    shown = tables(ours, kept.get("theirs", {})) if ours else []
    for n, name in enumerate(TABLES):
        made[name] = grid(shown[n].head, shown[n].rows) if shown else NOT_YET
    made["calibration"] = calibration(kept.get("calibration", []))
    made["times"] = f"Microseconds, {kept.get('times', SIMULATED)}; not measured on a device.\n"
    return made


def calibration(sheets: Sequence[Found]) -> str:
    """How well the rates of each platform predict."""
    body = []
    for sheet in sheets:
        rates, *judged = sheet["tables"]
        for table in judged:
            row = dict(zip(table["head"], table["rows"][0], strict=True))
            title = f"{rates['title'].removeprefix('rates, ')}, {table['title']}"
            body.append((title, *(row.get(k, "-") for k in JUDGED)))
    return grid(("", *JUDGED), body) if body else NOT_YET


def us(found: Found, name: str) -> Any:
    return found.get(name, {}).get("total", "refused" if "refused" in found.get(name, {}) else "-")


def before(found: Found, name: str) -> Any:
    """What plain takes; where it is refused, what stands for it and how long that takes."""
    other = beside(found, name)
    return us(found, name) if other == name else f"refused; {found[other]['form']}: {us(found, other):.4g}"


def changes(found: Found, name: str) -> str:
    """The changes that were asked in place of a refused conversion, the fastest first."""
    asked = sorted(found[beside(found, name)]["forms"].items(), key=lambda x: x[1])
    return "; ".join(f"{change}: {f'{us:.4g} us' if us < math.inf else 'refused'}" for change, us in asked)


def percent(found: Found, ours: str, theirs: str) -> str:
    a, b = us(found, ours), us(found, theirs)
    return "-" if isinstance(a, str) or isinstance(b, str) else f"{100 * (a / b - 1):+.1f} %"


def times(rows: Sequence[tuple[Case, Found]]) -> str:
    """Plain and ours, with the lookup on the NPU and on the host."""
    if not rows:
        return NOT_YET
    step = any(c.step for c, _ in rows)
    head = ["", "plain", "ours", "ours / plain", "form", "plain, host", "ours, host", "both on the host", "form"]
    head += ["plain, host, state forgotten", "ours, host / it"] if step else []
    body = []
    for case, f in rows:
        host = f["ours host"].get("form", "-")
        row = [case.name, before(f, "plain"), us(f, "ours"), percent(f, "ours", beside(f, "plain"))]
        row += [f["ours"].get("form", host), before(f, "plain host"), us(f, "ours host")]
        row += [percent(f, "ours host", beside(f, "plain host")), host]
        forgotten = "plain host, state forgotten"
        row += [us(f, forgotten), percent(f, "ours host", forgotten)] if step else []
        body.append(row)
    return grid(head, body)


def coded(rows: Sequence[tuple[Case, Found]]) -> str:
    """Weights in int8 beside f16."""
    name = "ours host, int8 weights"
    body = [
        (c.name, us(f, "ours host"), us(f, name), f["ours host"]["blob"] / 1e6, f[name]["blob"] / 1e6)
        for c, f in rows
        if name in f and "blob" in f["ours host"] and "blob" in f[name]
    ]
    return grid(("", "f16", "int8", "f16 blob, MB", "int8 blob, MB"), body) if body else NOT_YET


def engines(rows: Sequence[tuple[Case, Found]]) -> str:
    """How long each engine works, before and after, the lookup on the host."""
    body = []
    for case, f in rows:
        values: list[Any] = [case.name]
        for name in (beside(f, "plain host"), "ours host"):
            values += [f[name].get(k, "refused") for k in ("total", "dma", "dpu", "shave", "unknown")]
        body.append(values)
    names = [f"{who}, {what}" for who in ("plain", "ours") for what in ("us", "DMA", "DPU", "SHAVE", "without a price")]
    return grid(("", *names), body) if body else NOT_YET


def spent(rows: Sequence[tuple[Case, Found]]) -> str:
    """The time line of whole models by kind of node."""
    body = []
    for case, f in rows:
        both = [f[name].get("spent", {}) for name in (beside(f, "plain host"), "ours host")]
        for kind in sorted({*both[0], *both[1]}, key=lambda k: (*(-b.get(k, 0.0) for b in both), k)):
            parts = [b.get(kind, 0.0) for b in both]
            if max(parts) >= 1.0:
                body.append((case.name, kind, *parts))
    return grid(("", "kind", "plain, host", "ours, host"), body) if body else NOT_YET


def promised(rows: Sequence[tuple[Case, Found]]) -> str:
    """Every criterion of every case."""
    body = [
        (name, value, f"<= {limit:g}", "met" if value <= limit else "missed")
        for case, f in rows
        for name, value, limit in criteria(case, f)
    ]
    return grid(("promise", "simulated", "limit", "result"), body) if body else NOT_YET


def short(rows: Sequence[tuple[Case, Found]], missing: Sequence[Case]) -> str:
    """What is missed, refused or not there."""
    lines = [
        f"{name}: {value:.3f}, not at most {limit:g}"
        for case, f in rows
        for name, value, limit in criteria(case, f)
        if value > limit
    ]
    lines += [
        f"{case.name}: {name} is refused, so that there is nothing to compare: {f[name]['refused'].partition(':')[0]}"
        for case, f in rows
        for name in PLAIN
        if "refused" in f[beside(f, name)]
    ]
    lines += [
        f"{case.name}: {name} is refused ({f[name]['refused'].partition(':')[0]}); beside it stands {changes(f, name)}"
        for case, f in rows
        for name in PLAIN
        if beside(f, name) != name
    ]
    lines += [f"{case.name}: not asked yet" for case in missing]
    return "".join(f"- {line}\n" for line in lines) or "Nothing.\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
