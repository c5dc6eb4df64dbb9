"""Evidence for the default rules: all of it found again, and what the ledger already says looked up again.

Usage: python bench/evidence.py [--jobs 2] [--level full] [--out FOLDER]

The first is what a change of the verifier costs, the second what every start of the compiler costs in a new process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from itertools import groupby
from typing import Any

from sheet import Sheet, arguments, finish, tell, where

FULL, CACHED = 300.0, 5.0  # seconds of wall time on two cores


def main(argv: list[str]) -> int:
    parser = arguments(__doc__, "evidence")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the work")
    parser.add_argument("--level", default="full", choices=("quick", "full"))
    given = parser.parse_args(argv)

    from forge_eq import rules
    from forge_eq.rules.rejected import rejected
    from forge_eq.verify import verify_rule, verify_rules

    sheet = Sheet("Evidence for rules", where(given.threads, jobs=given.jobs, level=given.level))
    ordered = sorted(rules.default, key=lambda r: r.id)
    tell(f"verifying {len(ordered)} rules")
    begun = time.perf_counter()
    found = verify_rules(ordered, given.level, jobs=given.jobs)
    full = time.perf_counter() - begun
    tell("looking them up in the ledger, in a new process")
    begun = time.perf_counter()
    again = subprocess.run([sys.executable, "-m", "forge_eq", "verify", "--cached"], check=False, capture_output=True)
    cached = time.perf_counter() - begun
    tell(f"refusing {len(rejected)} wrong rules")
    wrong = [verify_rule(r, given.level) for r in rejected]
    fill(sheet, found, wrong)
    sheet.demand("rules without evidence", float(sum(not e.accepted for e in found)), 0.0)
    sheet.demand("share of rules that are tested only", share(found, "tested-only"), 0.15)
    sheet.demand("wrong rules that pass", float(sum(e.accepted for e in wrong)), 0.0)
    sheet.demand("rules that the ledger lacks or refuses", float(again.returncode), 0.0)
    sheet.demand("full verification, s", full, FULL)
    sheet.demand("cached re-check in a new process, s", cached, CACHED)
    return finish(sheet, "evidence", given.out)


def share(found: list[Any], verdict: str) -> float:
    return sum(e.verdict == verdict for e in found) / len(found)


def fill(sheet: Sheet, found: list[Any], wrong: list[Any]) -> None:
    rows = []
    for family, members in groupby(found, key=lambda e: e.rule.partition("/")[0]):
        group = list(members)
        exact, verdict = Counter(e.exact for e in group), Counter(e.verdict for e in group)
        trials = sum(int(e.counts.get("float64", 0)) + int(e.counts.get("torch", 0)) for e in group)
        fields, proofs = (sum(int(e.counts.get(k, 0)) for e in group) for k in ("field", "z3"))
        guards = [e.counts.get("guards", "0/0").split("/") for e in group]
        rows.append(
            (
                family,
                len(group),
                f"{exact['bit']} bit, {exact['real']} real",
                verdict["proved"],
                verdict["tested-only"],
                trials,
                fields,
                proofs,
                f"{sum(int(a) for a, _ in guards)}/{sum(int(b) for _, b in guards)}",
                sum(e.seconds for e in group),
            )
        )
    sheet.table(
        "default rules by family",
        ("family", "rules", "class", "proved", "tested only", "trials", "field", "z3", "guards needed", "s"),
        rows,
        "Trials in float64 and torch, instances that agree in a prime field, instances proved; seconds of one process.",
    )
    methods = Counter((e.counterexample.method if e.counterexample else "passes") for e in wrong)
    sheet.table("wrong rules, by what refutes them", ("method", "rules"), sorted(methods.items()))
    sheet.figures["rules"] = [{"rule": e.rule, "verdict": e.verdict, **e.counts, "s": e.seconds} for e in found]
    sheet.figures["wrong"] = [{"rule": e.rule, "reason": e.reason} for e in wrong]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
