"""Calibration of the intel-npu targets, and how well they predict: against Intel's NPU compiler's simulated schedules.

Usage: python bench/npu_calibrate.py [--platform 4000] [--collect parts|layers] [--seconds 240] [--fit] [--out FOLDER]

``--collect`` compiles small programs, one model part or one whole layer each, at several sizes and in several forms
(products whole and in blocks), and appends what each instruction takes to ``bench/data/npu-PLATFORM.jsonl``; it goes
on where it was stopped. ``--fit`` finds rates and weights per cost class that fit the parts, and judges them on the
layers, which the fit has not seen: pairs of programs of one model in the right order, and the median error. The rates
that the target file has are judged on the same layers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from forge_eq.npu import parts
from forge_eq.npu.compiler import SIMULATED, Compiler
from forge_eq.targets import Blocks
from sheet import Sheet, arguments, finish, tell, where

DATA = Path(__file__).parent / "data"
CLASSES = ("matmul", "attention", "norm", "elementwise", "movement")
ROUNDS = 60
JUDGED = ("programs", "pairs", "concordance", "median error")


class Part(nn.Module):
    """One part of a transformer layer between two narrow products, so that its values come from the device."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        wide = 4 * width
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, wide), nn.Linear(wide, width)
        self.gate = nn.Linear(width, wide, bias=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.layer, self.rms = nn.LayerNorm(width), nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(self.first(x))
        found: torch.Tensor = self.last(y)
        return found

    def part(self, y: torch.Tensor) -> torch.Tensor:
        match self.kind:
            case "gelu":
                return self.down(F.gelu(self.up(y), approximate="tanh"))  # type: ignore[no-any-return]
            case "swiglu":
                return self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]
            case "layer norm":
                return self.layer(y)  # type: ignore[no-any-return]
            case "rms norm":
                return self.rms(y)  # type: ignore[no-any-return]
            case "sum":
                return y + torch.sigmoid(y) * y
            case "softmax":
                return torch.softmax(y, -1)
        return attend(self.qkv(y), self.width // 64, self.kind == "masked")


def attend(qkv: torch.Tensor, heads: int, causal: bool) -> torch.Tensor:
    batch, tokens, width = *qkv.shape[:2], qkv.shape[2] // 3
    q, k, v = (z.reshape(batch, tokens, heads, 64).transpose(1, 2) for z in qkv.split(width, -1))
    found = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return found.transpose(1, 2).reshape(batch, tokens, width)


class Layer(nn.Module):
    """A layer of GPT-2 (``gelu``, layer norm) or of Llama's kind (``swiglu``, RMS norm), or of BERT (norm after)."""

    def __init__(self, kind: str, width: int, ratio: int) -> None:
        super().__init__()
        self.kind, self.heads = kind, width // 64
        norm = nn.RMSNorm if kind == "llama" else nn.LayerNorm
        bias = kind != "llama"
        self.one, self.two = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=bias), nn.Linear(width, width, bias=bias)
        self.up, self.down = nn.Linear(width, ratio * width, bias=bias), nn.Linear(ratio * width, width, bias=bias)
        self.gate = nn.Linear(width, ratio * width, bias=False) if kind == "llama" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.kind != "bert"
        h = self.out(attend(self.qkv(self.one(x) if before else x), self.heads, before))
        x = x + h if before else self.one(x + h)
        y = self.two(x) if before else x
        up = self.up(y)
        y = self.down(F.silu(self.gate(y)) * up if self.gate is not None else F.gelu(up))
        found: torch.Tensor = x + y if before else self.two(x + y)
        return found


def programs(group: str) -> Iterator[tuple[str, str, nn.Module, torch.Tensor]]:
    """(model, name, module, input), small ones first."""
    if group == "parts":
        kinds = ("gelu", "swiglu", "layer norm", "rms norm", "sum", "softmax", "plain", "masked")
        for width, tokens, kind in product((256, 512, 768), (32, 128), kinds):
            yield kind, f"{kind} {width} x {tokens}", Part(kind, width), torch.randn(1, tokens, width)
    else:
        for width, tokens, kind in product((256, 384, 640), (48, 96, 192), ("gpt2", "llama", "bert")):
            made = Layer(kind, width, 3 if kind == "llama" else 4)
            yield kind, f"{kind} layer {width} x {tokens}", made, torch.randn(1, tokens, width)


# ------------------------------------------------------------------------------------------ collecting


def collect(group: str, platform: str, seconds: float) -> int:
    """Compiles what is missing; returns how many programs are left."""
    from forge_eq.capture import capture
    from forge_eq.npu.check import check
    from forge_eq.npu.search import planned
    from forge_eq.options import Options
    from forge_eq.pipeline import Job, run
    from forge_eq.targets import load

    start, left = time.monotonic(), 0
    known = {row["name"] for row in read(platform)}
    target = replace(load(f"intel-npu-{platform}"), transfer_us=0.0, transfer_gbps=1e9)
    with Compiler(answers=parts.folder() / "answers") as compiler:
        for model, name, module, x in programs(group):
            wanted = [f for f in (FORMS if group == "layers" else ("whole",)) if f"{name}, {f}" not in known]
            if not wanted:
                continue
            if time.monotonic() - start > seconds:
                left += 1
                continue
            torch.manual_seed(0)
            job = Job(Options(target=f"intel-npu-{platform}"), forms={"capture": capture(module.eval(), (x,))})
            graph = run(job, "extract")["extract"]
            for form in wanted:
                variant = replace(target, blocks=FORMS[form])
                plan = planned(graph, variant)
                report = check(plan.program, variant, compiler, platform)
                if report.accepted:
                    append(platform, row_of(group, model, f"{name}, {form}", plan.program, report))
                    tell(f"{name}, {form}: {report.total:.1f} us")
    return left


FORMS: dict[str, Blocks | None] = {
    "whole": None,
    "outer": Blocks(1 << 30, 1, 1, outer=True),
    "halves": Blocks(512, 16, 2, outer=True),
    "quarters": Blocks(512, 16, 4, outer=True),
    "onto": Blocks(512, 16, 1, outer=True, onto=True, most=512),
}


def row_of(group: str, model: str, name: str, program: Any, report: Any) -> dict[str, Any]:
    """What is needed to predict the program without it, and what the compiler says."""
    instrs = [dict(zip(("class", "flops", "bytes"), features(program, i), strict=True)) for i in program.instrs]
    spent = {s.instr.dsts[0]: s for c in report.segments for s in c.spent if s.instr is not None}
    for instr, row in zip(program.instrs, instrs, strict=True):
        found = spent.get(instr.dsts[0])
        row["op"] = instr.op.name if instr.op is not None else "copy"
        row["us"], row["unknown"] = (found.share, found.unknown) if found else (0.0, False)
    return {"group": group, "model": model, "name": name, "total": report.total, "instrs": instrs}


def features(program: Any, instr: Any) -> tuple[str, float, float]:
    """Cost class, operations and bytes of an instruction, as ``schedule.affinity.kernel_time`` counts them."""
    from forge_eq.lower.npu import operand_type

    if instr.op is None or instr.op.traits.view:
        return "view", 0.0, 0.0
    types = [operand_type(program, s) for s in instr.srcs]
    results = [program.vregs[d].type for d in instr.dsts]
    moved = sum(program.vregs[v].nbytes for v in (*instr.reads, *instr.dsts))
    cost, single = instr.op.cost, len(results) == 1
    flops = cost.flops(types, instr.attrs, results[0]) if cost.flops and single else moved / 4
    nbytes = cost.bytes(types, instr.attrs, results[0]) if cost.bytes and single else moved
    return cost.cost_class, float(flops), float(nbytes)


def path(platform: str) -> Path:
    return DATA / f"npu-{platform}.jsonl"


def read(platform: str) -> list[dict[str, Any]]:
    if not path(platform).is_file():
        return []
    return [json.loads(line) for line in path(platform).read_text(encoding="utf-8").splitlines()]


def append(platform: str, row: dict[str, Any]) -> None:
    DATA.mkdir(exist_ok=True)
    with path(platform).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


# ------------------------------------------------------------------------------------------ fitting

Rates = dict[str, float]  # launch, gflops, gbps, and a weight for each class


def rates_of(platform: str) -> Rates:
    """What the target file has."""
    from forge_eq.targets import load

    target = load(f"intel-npu-{platform}")
    own = {"launch": target.launch_us, "gflops": target.peak_gflops, "gbps": target.bandwidth_gbps}
    return {**own, **{name: target.weights[name] for name in CLASSES}}


def time_of(row: dict[str, Any], r: Rates) -> float:
    """The target's roofline."""
    if row["class"] == "view":
        return 0.0
    slow = max(row["flops"] / (r["gflops"] * 1e3), row["bytes"] / (r["gbps"] * 1e3))
    return r.get(row["class"], 1.0) * (r["launch"] + slow)


def predicted(program: dict[str, Any], r: Rates) -> float:
    return sum(time_of(row, r) for row in program["instrs"])


def loss(rows: Sequence[dict[str, Any]], r: Rates) -> float:
    """Mean absolute log error of totals, and of classes within a program, half each: shares overlap, totals do not."""
    found = []
    for row in rows:
        found.append(abs(math.log(predicted(row, r) / row["total"])))
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for instr in row["instrs"]:
            if instr["class"] != "view" and not instr["unknown"]:
                sums[instr["class"]][0] += time_of(instr, r)
                sums[instr["class"]][1] += instr["us"]
        whole = row["total"]
        found.append(sum(abs(a - b) for a, b in sums.values()) / whole)
    return sum(found) / len(found)


def fit(rows: Sequence[dict[str, Any]]) -> Rates:
    """Coordinate descent on factors; deterministic. The weight of matmul stays 1: its rates have the factor."""
    r: Rates = {"launch": 1.0, "gflops": 4000.0, "gbps": 80.0, **dict.fromkeys(CLASSES, 1.0)}
    best, step = loss(rows, r), 2.0
    for _ in range(ROUNDS):
        moved = False
        for key in [k for k in r if k != "matmul"]:
            for factor in (step, 1 / step):
                trial = {**r, key: r[key] * factor}
                value = loss(rows, trial)
                if value < best - 1e-9:
                    r, best, moved = trial, value, True
        if not moved:
            step = 1 + (step - 1) / 2
    return r


def concordance(rows: Sequence[dict[str, Any]], r: Rates, least: float = 0.01) -> tuple[float, int]:
    """Share of pairs of one model that are predicted in the simulated order; pairs closer than ``least`` are ties."""
    good = count = 0
    for model in sorted({row["model"] for row in rows}):
        for a, b in combinations([row for row in rows if row["model"] == model], 2):
            if abs(a["total"] / b["total"] - 1) < least:
                continue
            count += 1
            good += (predicted(a, r) < predicted(b, r)) == (a["total"] < b["total"])
    return (good / count if count else float("nan")), count


def judged(rows: Sequence[dict[str, Any]], r: Rates) -> tuple[int, int, float, float]:
    """What :data:`JUDGED` names."""
    share, pairs = concordance(rows, r)
    return len(rows), pairs, share, median(abs(predicted(row, r) / row["total"] - 1) for row in rows)


def judge(platform: str, given: argparse.Namespace) -> int:
    rows = read(platform)
    seen, unseen = ([row for row in rows if row["group"] == g] for g in ("parts", "layers"))
    r = fit(seen)
    sheet = Sheet("NPU calibration", where(given.threads, precision="float16 on the NPU", times=SIMULATED))
    sheet.table(f"rates, NPU {platform}", ("name", "value"), list(r.items()))
    sheet.table("parts (fitted)", JUDGED, [judged(seen, r)])
    sheet.table("layers (not seen)", JUDGED, [judged(unseen, r)])
    by_size: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in unseen:
        by_size[row["name"].rpartition(", ")[0]].append({**row, "model": row["name"].rpartition(", ")[0]})
    share, pairs = concordance([row for group in by_size.values() for row in group], r)
    sheet.table("layers, forms of one program only", ("pairs", "concordance"), [(pairs, share)])
    sheet.table("layers, by the rates in the target file", JUDGED, [judged(unseen, rates_of(platform))])
    share, _ = concordance(unseen, r)
    sheet.demand("programs fewer than 60", float(max(60 - len(unseen), 0)), 0.0)
    sheet.demand("1 - concordance within a model", 1 - share, 0.15)
    return finish(sheet, "npu_calibrate", given.out)


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "npu_calibrate")
    parser.add_argument("--platform", default="4000")
    parser.add_argument("--collect", choices=["parts", "layers"], default="")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    left = collect(given.collect, given.platform, given.seconds) if given.collect else 0
    if left:
        tell(f"{left} programs are left: run it again")
    return judge(given.platform, given) if given.fit else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
