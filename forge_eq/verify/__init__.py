"""Evidence for rules: a rule without evidence does not load.

Takes rules. Gives :class:`Evidence`. A rule goes through the type obligation (``shapes``), refutation on numbers
(``numeric``) and in a prime field (``field``), proof on small shapes (``smt``) and guard mutation (``mutation``); the
first failure refuses it, with the instance. Promises: the same verdict on every machine. Not here: programs, which are
checked after extraction.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from forge_eq.errors import RuleError
from forge_eq.ir.types import WEAK, TensorType
from forge_eq.rules.dsl import REGISTRY, Rule
from forge_eq.verify.field import refute_in_field
from forge_eq.verify.interpret import Binding
from forge_eq.verify.ledger import Evidence, cached, check_loaded, evidence, remember
from forge_eq.verify.mutation import mutate
from forge_eq.verify.numeric import Counterexample, refute
from forge_eq.verify.samples import sample
from forge_eq.verify.shapes import oblige
from forge_eq.verify.smt import TESTED_ONLY, Proof, prove

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
    begun = time.perf_counter()
    return replace(_verify(rule, level), seconds=time.perf_counter() - begun)


def _verify(rule: Rule, level: str) -> Evidence:
    todo = LEVELS[level]
    found = sample(rule, todo.instances, todo.attempts)
    types = oblige(rule, found, attempts=todo.symbolic)
    counts = {"types": f"{types.fired}/{types.refused}", "symbolic": str(types.symbolic), **_corners(found.fired)}
    if types.failed:
        return _refused(rule, counts, types.failed)
    trials = refute(rule, [*found.fired, *types.concrete[: todo.instances]], trials=todo.trials)
    counts |= {"float64": str(trials.passed["numeric"]), "torch": str(trials.passed["torch"])}
    if trials.failed or not trials.passed["numeric"]:
        never = Counterexample(rule.id, "numeric", "the left side never has a value")
        return _refused(rule, counts, trials.failed or never)
    agreed, differs = refute_in_field(rule, found.fired)
    counts["field"] = str(agreed)
    if differs is not None and rule.id not in TESTED_ONLY:
        return _refused(rule, counts, differs)
    tested = rule.id in TESTED_ONLY or rule.exact == "approx"
    proof = Proof() if tested else prove(rule, found.fired, instances=todo.proofs)
    counts["z3"] = str(proof.proved)
    if proof.failed or proof.unknown:
        return _refused(rule, counts, proof.failed or Counterexample(rule.id, "smt", proof.unknown))
    mutants = mutate(rule, found)
    idle = tuple(str(m.guard) for m in mutants if not m.noticed)
    counts["guards"] = f"{len(mutants) - len(idle)}/{len(mutants)}"
    verdict = "tested-only" if tested else "proved"
    return Evidence(rule.id, rule.hash, rule.exact, verdict, counts, idle)


def _refused(rule: Rule, counts: dict[str, str], failed: Counterexample) -> Evidence:
    reason = f"{failed.method}: {failed.reason}"
    return Evidence(rule.id, rule.hash, rule.exact, "refused", counts, reason=reason, counterexample=failed)


def _corners(bindings: list[Binding]) -> dict[str, str]:
    """Which ranks occur, and in how many instances a size of 0, a size of 1, and operands that broadcast."""
    shapes = [[t.shape for t in b.types.values() if isinstance(t, TensorType) and t.dtype != WEAK] for b in bindings]
    ranks = sorted({len(s) for each in shapes for s in each})
    return {
        "ranks": "".join(map(str, ranks)),
        "empty": str(sum(any(0 in s for s in each) for each in shapes)),
        "ones": str(sum(any(1 in s for s in each) for each in shapes)),
        "mixed": str(sum(len(set(each)) > 1 for each in shapes)),
    }


def verify_rules(
    rules: Iterable[Rule], level: str = "full", progress: Callable[[Evidence], None] | None = None, jobs: int = 1
) -> list[Evidence]:
    """Evidence for each rule, in their order; ``progress`` is called after each.

    Args:
        jobs: processes that share the work; rules that are not in the registry are verified in this one.
    """
    made = []
    for found in _each(list(rules), level, jobs):
        made.append(found)
        if progress is not None:
            progress(found)
    return made


def _each(rules: list[Rule], level: str, jobs: int) -> Iterator[Evidence]:
    if jobs < 2 or len(rules) < 2 or any(REGISTRY.get(r.id) is not r for r in rules):
        yield from (verify_rule(r, level) for r in rules)
        return
    # A new interpreter each: threads of torch and z3 do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_by_id, [r.id for r in rules], [level] * len(rules))


def _by_id(rule: str, level: str) -> Evidence:
    import torch

    import forge_eq.rules  # noqa: F401  (enters the rules)

    torch.set_num_threads(1)
    return verify_rule(REGISTRY[rule], level)


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
