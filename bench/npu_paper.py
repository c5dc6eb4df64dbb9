"""The paper's tables 15, 16 and 21 for the NPU target: attention fusion, buffers, transitions with latency.

Usage: python bench/npu_paper.py [--families gpt2-124m,...] [--platform 4000] [--minutes 4.5] [--out FOLDER]

Latencies are simulated by Intel's NPU compiler, of a few layers of each family at 128 tokens, exported with attention
spelled out; the paper's stand beside them. The NPU compiler recognises attention by itself, so "without" is what is
left for our rules to gain. Transitions are those of a device without vector units (target restricted-npu), in captured
order and as scheduled, each program compiled segment by segment; a transition costs what the target file says, the
host's own instructions nothing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from forge_eq.families import FAMILIES, PAPER, build
from forge_eq.npu import parts
from forge_eq.npu.compiler import SIMULATED, Compiler
from npu import LEFT, VOCABULARY, Case, InTime, _depth
from sheet import PAPER as THEIRS
from sheet import Sheet, Table, arguments, finish, one_of, paper, tell, where

TOKENS = 128


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "npu_paper")
    parser.add_argument("--families", default=",".join(PAPER), type=one_of(FAMILIES))
    parser.add_argument("--platform", default="4000")
    parser.add_argument("--minutes", type=float, default=4.5)
    parser.add_argument("--store", type=Path, default=parts.folder() / "paper.jsonl")
    given = parser.parse_args(argv)
    import torch

    torch.set_num_threads(given.threads)
    found = read(given.store)
    compiler = InTime(given.minutes)
    with compiler:
        for case in cases(given):
            if case.name in found or compiler.late:
                continue
            tell(case.name)
            try:
                found[case.name] = measure(case, compiler)
            except TimeoutError:
                break
            with given.store.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"case": case.name, "family": case.family, "found": found[case.name]}) + "\n")
    left = sum(c.name not in found for c in cases(given))
    sheet = Sheet("NPU, the paper's tables", where(given.threads, precision="float16 on the NPU", times=SIMULATED))
    fill(sheet, {c.family: found[c.name] for c in cases(given) if c.name in found})
    status = finish(sheet, "npu_paper", given.out)
    return LEFT if left else status


def cases(given: Any) -> list[Case]:
    return [Case(f, _depth(f), TOKENS, given.platform) for f in given.families]


def read(store: Path) -> dict[str, Any]:
    if not store.is_file():
        return {}
    return {row["case"]: row["found"] for row in map(json.loads, store.read_text(encoding="utf-8").splitlines())}


def measure(case: Case, compiler: Compiler) -> dict[str, Any]:
    """All three tables' figures of one family."""
    from forge_eq import rules
    from forge_eq.alloc.linear_scan import allocate
    from forge_eq.capture import capture
    from forge_eq.npu.check import check
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run

    model = build(case.family, case.tokens, "eager", layers=case.layers, vocabulary=VOCABULARY)
    name, graph = f"intel-npu-{case.platform}", capture(model.module, model.args)
    found: dict[str, Any] = {"model": model.name}
    for kind, used in (("with", None), ("without", rules.default - rules.default.select("attention"))):
        job = run(Job(Options(target=name, rules=used), forms={"capture": graph}), "schedule")
        report = check(job["schedule"].program, job.target, compiler, case.platform)
        found[kind] = report.total if report.accepted else None
        if kind == "with":
            made = allocate(job["schedule"].program, job.target, "instr")
            found["buffers"] = {k: getattr(made, k) for k in ("virtual", "physical", "peak", "bound")}
            found["native"] = job["schedule"].program.transitions
    found["transitions"] = transitions(graph, case.platform, compiler)
    return found


def transitions(graph: Any, platform: str, compiler: Compiler) -> dict[str, Any]:
    """Transitions and simulated latency on the restricted device, before and after ordering."""
    from forge_eq.npu.check import check
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.schedule.affinity import place
    from forge_eq.schedule.order import order
    from forge_eq.schedule.transfer import materialise
    from forge_eq.targets import load

    job = run(Job(Options(target="restricted-npu"), forms={"capture": graph}), "lower")
    target = replace(load("restricted-npu"), transfer_us=load(f"intel-npu-{platform}").transfer_us)
    placed = materialise(job["lower"], [p.device for p in place(job["lower"], job.target)], target.host)
    found: dict[str, Any] = {}
    for kind, program in (("before", placed), ("after", order(placed, target)[0])):
        report = check(program, target, compiler, platform)
        latency = report.total + program.transitions * target.transfer_us if report.accepted else None
        found[kind] = {"transitions": program.transitions, "us": latency}
    return found


TABLES = ("fusion", "buffers", "transitions")


def tables(found: dict[str, dict[str, Any]], theirs: dict[str, Any]) -> list[Table]:
    """Tables 15, 16 and 21 of the families found, the paper's figures (``sheet.paper``) beside ours."""

    def of(table: str, family: str) -> list[Any] | None:
        row: list[Any] | None = theirs.get(table, {}).get("rows", {}).get(FAMILIES[family].paper)
        return row

    fusion, buffers, moves = [], [], []
    for family, f in found.items():
        ours = (f["with"], f["without"])
        change = 100 * (ours[0] / ours[1] - 1) if None not in ours else float("nan")
        row = of("attention_fusion_latency", family)
        fusion.append((f["model"], ours[1] or "refused", ours[0] or "refused", change, row[3] if row else "-"))
        b, row = f["buffers"], of("buffers", family)
        shrunk = 100 * (1 - b["physical"] / b["virtual"])
        buffers.append(
            (f["model"], b["virtual"], b["physical"], shrunk, b["peak"] / b["bound"], row[2] if row else "-")
        )
        before, after, row = f["transitions"]["before"], f["transitions"]["after"], of("transitions", family)
        latency = 100 * (after["us"] / before["us"] - 1) if None not in (after["us"], before["us"]) else float("nan")
        change = 100 * (after["transitions"] / max(before["transitions"], 1) - 1)
        shown = f"{row[2]}, {row[3]}" if row else "-"
        moves.append((f["model"], f["native"], before["transitions"], after["transitions"], change, latency, shown))
    note = f"Times {SIMULATED}. Paper: {THEIRS}."
    head = ("", "virtual", "physical", "reduction %", "peak / bound", "paper's reduction %")
    last = ("", "native", "captured order", "scheduled", "%", "latency %", "paper %, latency %")
    return [
        Table("table 15, attention fusion, us", ("", "without", "with", "%", "paper %"), tuple(fusion), note),
        Table("table 16, buffers (per instruction)", head, tuple(buffers), f"Paper: {THEIRS}."),
        Table("table 21, transitions of a device without vector units", last, tuple(moves), note),
    ]


def fill(sheet: Sheet, found: dict[str, dict[str, Any]]) -> None:
    sheet.figures.update(found)
    for t in tables(found, paper()):
        sheet.table(t.title, t.head, t.rows, t.note)
    for family, f in found.items():
        if None not in (f["with"], f["without"]):
            sheet.demand(f"{family}: with / without attention fusion", f["with"] / f["without"], 1.0)
        sheet.demand(f"{family}: native transitions", float(f["native"]), 1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
