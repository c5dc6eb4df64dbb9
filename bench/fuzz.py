"""Random programs through ``optimize`` and ``compile``, none of which may come out wrong; resumable.

Usage: python bench/fuzz.py [--n 30000] [--first 0] [--jobs 2] [--compiled 10] [--minutes 4] [--log FILE] [--out DIR]

Blocks of 200 seeds go to ``--jobs`` processes; every ``--compiled``-th block is compiled for OpenVINO too. Each block
that is done is a line of the log, and what is there is not done again while the code is the same: repeat the command
until nothing is left. The exit status is 1 while something is left and when anything is wrong.
What is compared, and how: ``tests/fuzzing.py``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from sheet import ROOT, Sheet, arguments, finish, tell, where

BLOCK = 200
SOURCES = ("forge_eq", "tests/fuzzing.py", "tests/random_*.py")
RESULTS = ("bits", "close", "rounding", "refused", "mismatch", "crash")


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "fuzz")
    parser.add_argument("--n", type=int, default=30_000, help="programs in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--compiled", type=int, default=10, help="every how many-th block is compiled for OpenVINO; 0: none"
    )
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no block after so long")
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"), help="what is done, a line a block")
    given = parser.parse_args(argv)

    code = code_hash()
    log = read(given.log, code)
    todo = [k for k in plan(given) if k not in log]
    tell(f"{len(plan(given)) - len(todo)} of {len(plan(given))} blocks are in {given.log} for this code")
    work(todo, given, code, log)
    return finish(fill(given, log, code), "fuzz", given.out)


Block = tuple[int, int, bool]  # first seed, how many, whether they are compiled


def plan(given: argparse.Namespace) -> list[Block]:
    end = given.first + given.n
    firsts = range(given.first, end, BLOCK)
    return [(f, min(BLOCK, end - f), bool(given.compiled) and (f // BLOCK) % given.compiled == 0) for f in firsts]


def code_hash() -> str:
    """The content of everything that decides a result."""
    files = sorted(p for s in SOURCES for p in ((ROOT / s).rglob("*.*") if (ROOT / s).is_dir() else ROOT.glob(s)))
    digest = hashlib.sha256()
    for path in files:
        if path.suffix in (".py", ".toml"):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def commit() -> str:
    """The commit of the checkout, marked when what decides a result differs from it."""

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    dirty = git("diff", "--quiet", "HEAD", "--", *SOURCES).returncode
    return (git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown") + ("-dirty" if dirty else "")


def read(path: Path, code: str) -> dict[Block, dict[str, Any]]:
    """The blocks that are done with this code."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    done = [json.loads(line) for line in lines]
    return {(d["first"], d["count"], d["compiled"]): d for d in done if d["code"] == code}


# ------------------------------------------------------------------------------------------- work


def work(todo: list[Block], given: argparse.Namespace, code: str, log: dict[Block, dict[str, Any]]) -> None:
    start, stop = time.perf_counter(), time.monotonic() + 60 * given.minutes
    tasks = [(block, given.threads, stop) for block in todo]
    with (
        multiprocessing.get_context("spawn").Pool(given.jobs) as pool,
        given.log.open("a", encoding="utf-8") as out,
    ):
        for done in pool.imap_unordered(one, tasks):
            if done is None:
                continue
            done |= {"code": code, "commit": commit()}
            log[done["first"], done["count"], done["compiled"]] = done
            out.write(json.dumps(done) + "\n")
            out.flush()
            bad = sum(done["counts"].get(f"{r}", 0) for r in ("mismatch", "crash"))
            tell(f"fuzz {len(log)} blocks ({time.perf_counter() - start:.0f} s so far), {bad} wrong in {done['first']}")


def one(task: tuple[Block, int, float]) -> dict[str, Any] | None:
    """A block in a worker; None when the time is over."""
    (first, count, compiled), threads, stop = task
    if time.monotonic() > stop:
        return None
    import warnings

    import torch

    import fuzzing

    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    start, found = time.process_time(), []
    for seeds in parts(range(first, first + count), fuzzing.kind_of):
        found += attempt(seeds, compiled)
    wrong = [o for o in found if o["result"] not in ("bits", "close")]
    counts = Counter(o["result"] for o in found) + Counter(f"{o['kind']} {o['result']}" for o in found)
    repaired = sorted({r for o in found for r in o["repaired"]})
    return {
        "first": first,
        "count": count,
        "compiled": compiled,
        "counts": counts,
        "told": [{k: o[k] for k in ("seed", "kind", "result", "reason")} for o in wrong],
        "repaired": repaired,
        "seconds": time.process_time() - start,
    }


def parts(seeds: range, kind: Any) -> list[list[int]]:
    """The seeds by kind: what dies is then one kind's."""
    return [[s for s in seeds if kind(s) == k] for k in sorted({kind(s) for s in seeds})]


def attempt(seeds: list[int], compiled: bool) -> list[dict[str, Any]]:
    """Outcomes as data. A crash or ten minutes without an end is halved until it is one seed's."""
    import fuzzing

    def late(*_: Any) -> None:
        raise TimeoutError("no end after 600 s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(600)
    try:
        return [vars(o) for o in fuzzing.examine(seeds, compiled)]
    except Exception as e:  # the search for what nobody expects
        if len(seeds) > 1:
            half = len(seeds) // 2
            return attempt(seeds[:half], compiled) + attempt(seeds[half:], compiled)
        text = "".join(traceback.format_exception(e)[-3:])
        return [
            {"seed": seeds[0], "kind": fuzzing.kind_of(seeds[0]), "result": "crash", "reason": text, "repaired": ()}
        ]
    finally:
        signal.alarm(0)


# ------------------------------------------------------------------------------------------- report


def fill(given: argparse.Namespace, log: dict[Block, dict[str, Any]], code: str) -> Sheet:
    import fuzzing

    blocks = [log[k] for k in plan(given) if k in log]
    commits = ", ".join(sorted({b["commit"] for b in blocks}))
    seeds = f"{given.first} to {given.first + given.n - 1}"
    sheet = Sheet("Random programs", where(given.threads, "mixed", seeds=seeds, commit=commits, code=code))
    total = sum((Counter(b["counts"]) for b in blocks), Counter[str]())
    compiled = sum(b["count"] for b in blocks if b["compiled"])
    names = [*fuzzing.GROUP, ""]
    rows = [
        (
            name or "all",
            sum(total[f"{name} {r}".strip()] for r in RESULTS),
            *(total[f"{name} {r}".strip()] for r in RESULTS),
        )
        for name in names
    ]
    sheet.table(
        "results",
        ("kind", "programs", *RESULTS),
        rows,
        f"All through optimize and torch, {compiled} also through compile and OpenVINO. Results: see tests/fuzzing.py.",
    )
    told = [t for b in blocks for t in b["told"]]
    reasons = Counter(
        (t["result"], t["kind"], t["reason"].splitlines()[0][:100]) for t in told if t["result"] != "rounding"
    )
    if reasons:
        sheet.table(
            "refused or wrong", ("result", "kind", "reason", "count"), [(*k, n) for k, n in reasons.most_common(40)]
        )
    repaired = [r for b in blocks for r in b["repaired"]]
    if repaired:
        sheet.table(
            "wrong in the backend, found and put right by the guard", ("what",), [(r[:160],) for r in repaired[:40]]
        )
    sheet.figures |= {"told": told, "repaired": repaired, "cpu seconds": sum(b["seconds"] for b in blocks)}
    sheet.demand("programs left to do", float(given.n - sum(b["count"] for b in blocks)), 0.0)
    sheet.demand("mismatches", float(total["mismatch"]), 0.0)
    sheet.demand("crashes", float(total["crash"]), 0.0)
    return sheet


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
