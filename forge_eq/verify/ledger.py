"""The ledger: one line of evidence for each default rule, generated, reviewed in the diff, read when rules load.

Takes evidence. Gives lines of text and reads them back. A line holds for the content hash it names and for no
other: change a rule, a helper or an op it rests on, and the rule does not load until it is verified again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forge_eq.errors import FileError, RuleError
from forge_eq.files import cache_home, replace_file
from forge_eq.rules.dsl import Rule
from forge_eq.verify.numeric import Counterexample

LEDGER = Path(__file__).with_name("ledger.txt")
VERDICTS = ("proved", "tested-only", "refused")
HEADER = """\
# Evidence for the default rules; written by `forge-eq verify --write`, not by hand.
# rule, content hash, exactness, verdict, and what was done: types (instances that fire / that the e-graph's type
# check keeps out), symbolic sizes, ranks that occur and instances with a size of 0, a size of 1 and different shapes,
# trials in float64 and in torch, instances that agree in a prime field, instances proved by z3, guards found needed.
"""


@dataclass(frozen=True)
class Evidence:
    """What is known about a rule. ``counts`` are those of the ledger; ``idle`` guards were dropped unnoticed."""

    rule: str
    hash: str
    exact: str
    verdict: str
    counts: Mapping[str, str]
    idle: tuple[str, ...] = field(default=(), compare=False)
    reason: str = field(default="", compare=False)
    counterexample: Counterexample | None = field(default=None, compare=False)
    seconds: float = field(default=0.0, compare=False)  # of the verification; 0 when it was read

    @property
    def accepted(self) -> bool:
        return self.verdict != "refused"

    def __str__(self) -> str:
        return " ".join([self.rule, self.hash, self.exact, self.verdict, *(f"{k}={v}" for k, v in self.counts.items())])


def parse(line: str) -> Evidence:
    """Reads what ``str(evidence)`` wrote. Raises FileError on anything else."""
    parts = line.split()
    try:
        rule, hashed, exact, verdict = parts[:4]
        counts: dict[str, str] = dict([p.split("=", 1) for p in parts[4:]])
    except ValueError:
        verdict = ""
    if verdict not in VERDICTS:
        raise FileError("verify", LEDGER.name, f"{line!r} is no line of the ledger", "run `forge-eq verify --write`")
    return Evidence(rule, hashed, exact, verdict, counts)


def read(path: Path = LEDGER) -> dict[str, Evidence]:
    """Evidence by rule id; empty when there is no ledger."""
    if not path.exists():
        return {}
    lines = [x for x in path.read_text().splitlines() if x.strip() and not x.startswith("#")]
    return {e.rule: e for e in map(parse, lines)}


def write(evidence: Iterable[Evidence], path: Path = LEDGER) -> None:
    """Replaces the ledger. Raises RuleError when a rule was refused: the ledger holds accepted rules only."""
    kept = sorted(evidence, key=lambda e: e.rule)
    for one in kept:
        if not one.accepted:
            raise RuleError("verify", one.rule, one.reason or "was refused", "mend the rule or move it to rejected")
    replace_file(path, HEADER + "".join(f"{e}\n" for e in kept))


@functools.cache
def _shipped() -> dict[str, Evidence]:
    return read()


def evidence(rule: Rule) -> Evidence | None:
    """The ledger's evidence for this very rule: same id, same content."""
    found = _shipped().get(rule.id)
    return found if found is not None and found.hash == rule.hash and found.accepted else None


def check_loaded(rules: Iterable[Rule]) -> None:
    """Raises RuleError when a rule has no evidence in the ledger."""
    for rule in rules:
        if evidence(rule) is None:
            known = rule.id in _shipped()
            reason = "has changed since it was verified" if known else "has no evidence"
            raise RuleError("verify", rule.id, reason, f"run `forge-eq verify {rule.id} --write`")


# ------------------------------------------------------------------------------------------------ users' rules


def cache_directory() -> Path:
    """Where evidence for users' rules is kept."""
    return cache_home() / "rules"


def cached(rule: Rule) -> Evidence | None:
    """Evidence found earlier on this machine for this very rule; a file that does not parse counts as none."""
    try:
        found = parse((cache_directory() / f"{rule.hash}.txt").read_text())
    except (OSError, FileError):
        return None
    return found if (found.rule, found.hash) == (rule.id, rule.hash) and found.accepted else None


def remember(found: Evidence) -> None:
    """Keeps accepted evidence; without a writable cache nothing is kept."""
    if found.accepted:
        try:
            replace_file(cache_directory() / f"{found.hash}.txt", f"{found}\n")
        except OSError:
            return
