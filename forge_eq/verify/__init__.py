"""Evidence for rules: a rule without evidence does not load.

Takes rules. Gives :class:`Evidence`. A rule goes through the type obligation (``shapes``), refutation on numbers
(``numeric``), proof on small shapes (``smt``) and guard mutation (``mutation``); the first failure refuses it, with
the instance. Promises: the same verdict on every machine. Not here: programs, which are checked after extraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from forge_eq.errors import RuleError
from forge_eq.rules.dsl import Rule
from forge_eq.verify.ledger import Evidence, cached, check_loaded, evidence, remember
from forge_eq.verify.mutation import mutate
from forge_eq.verify.numeric import Counterexample, refute
from forge_eq.verify.samples import sample
from forge_eq.verify.shapes import oblige
from forge_eq.verify.smt import TESTED_ONLY, prove

__all__ = [
    "LEVELS",
    "Counterexample",
    "Evidence",
    "admit",
    "check_loaded",
    "evidence",
    "verify_rule",
    "verify_rules",
]


@dataclass(frozen=True)
class Level:
    """How much is done: instances of each kind, attempts to find them, numeric trials, instances to prove."""

    instances: int
    attempts: int
    symbolic: int
    trials: int
    proofs: int


LEVELS = {"quick": Level(8, 400, 20, 8, 1), "full": Level(60, 4000, 300, 60, 4)}


def verify_rule(rule: Rule, level: str = "full") -> Evidence:
    """Evidence for one rule, for or against.

    Args:
        level: ``"quick"`` (tests) or ``"full"`` (the ledger).

    The ``reason`` and ``counterexample`` of refused evidence say what is wrong.
    """
    todo = LEVELS[level]
    found = sample(rule, todo.instances, todo.attempts)
    types = oblige(rule, found, attempts=todo.symbolic)
    counts = {"types": f"{types.fired}/{types.refused}", "symbolic": str(types.symbolic)}
    if types.failed:
        return _refused(rule, counts, types.failed)
    trials = refute(rule, [*found.fired, *types.concrete[: todo.instances]], trials=todo.trials)
    counts |= {"float64": str(trials.passed["numeric"]), "torch": str(trials.passed["torch"])}
    if trials.failed or not trials.passed["numeric"]:
        never = Counterexample(rule.id, "numeric", "the left side never has a value")
        return _refused(rule, counts, trials.failed or never)
    proof = prove(rule, found.fired, instances=todo.proofs)
    counts["z3"] = str(proof.proved)
    if rule.id not in TESTED_ONLY and rule.exact != "approx" and (proof.failed or proof.unknown):
        return _refused(rule, counts, proof.failed or Counterexample(rule.id, "smt", proof.unknown))
    mutants = mutate(rule, found)
    idle = tuple(str(m.guard) for m in mutants if not m.noticed)
    counts["guards"] = f"{len(mutants) - len(idle)}/{len(mutants)}"
    verdict = "tested-only" if rule.id in TESTED_ONLY or rule.exact == "approx" else "proved"
    return Evidence(rule.id, rule.hash, rule.exact, verdict, counts, idle)


def _refused(rule: Rule, counts: dict[str, str], failed: Counterexample) -> Evidence:
    reason = f"{failed.method}: {failed.reason}"
    return Evidence(rule.id, rule.hash, rule.exact, "refused", counts, reason=reason, counterexample=failed)


def verify_rules(
    rules: Iterable[Rule], level: str = "full", progress: Callable[[Evidence], None] | None = None
) -> list[Evidence]:
    """Evidence for each rule; ``progress`` is called after each."""
    made = []
    for rule in rules:
        made.append(verify_rule(rule, level))
        if progress is not None:
            progress(made[-1])
    return made


def admit(rule: Rule) -> Evidence:
    """Evidence for a user's rule: from the ledger, from the cache, or by verifying it now.

    Raises RuleError when the rule is refused; the counterexample is in the message, as tensors.
    """
    known = evidence(rule) or cached(rule)
    if known is not None:
        return known
    made = verify_rule(rule)
    if not made.accepted:
        remedy = "mend the rule, or add the guard it lacks"
        raise RuleError("verify", rule.id, f"is refused\n{made.counterexample}", remedy)
    remember(made)
    return made
