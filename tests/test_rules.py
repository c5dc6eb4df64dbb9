"""Every default rule is verified again, quickly; the ledger is complete and up to date; the verifier itself."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from forge_eq import rules
from forge_eq.errors import FileError, RuleError
from forge_eq.ir.types import TensorType
from forge_eq.ops.elementwise import add, mul, neg
from forge_eq.ops.spec import Var, lit
from forge_eq.rules.dsl import Attr, Rule, both, build, rule, to
from forge_eq.rules.guards import fact, is_float
from forge_eq.verify import admit, check_loaded, evidence, ledger, verify_rule
from forge_eq.verify.interpret import Binding, fires, infer
from forge_eq.verify.numeric import close, same_bits
from forge_eq.verify.samples import attempt, sample
from forge_eq.verify.smt import TESTED_ONLY

ALL = list(rules.default)


# The ledger, which must be current, has the evidence of all; the fast tier asks every fourth rule again.
QUICK = [pytest.param(r, marks=pytest.mark.slow if k % 4 else (), id=r.id) for k, r in enumerate(ALL)]


@pytest.mark.parametrize("one", QUICK)
def test_default_rule_holds(one: Rule) -> None:
    found = verify_rule(one, "quick")
    assert found.accepted, str(found.counterexample)


@pytest.mark.slow
@pytest.mark.parametrize("one", ALL, ids=lambda r: r.id)
def test_ledger_line_is_what_verification_gives(one: Rule) -> None:
    found = verify_rule(one, "full")
    assert found.accepted, str(found.counterexample)
    assert not found.idle, f"guards that can be dropped unnoticed: {found.idle}"
    assert str(found) == str(ledger.read()[one.id])


# ------------------------------------------------------------------------------------------------ the ledger


def test_ledger_is_complete_and_current() -> None:
    known = ledger.read()
    assert sorted(known) == sorted(r.id for r in ALL)
    stale = [r.id for r in ALL if known[r.id].hash != r.hash]
    assert not stale, f"run `forge-eq verify --write`: {stale}"
    check_loaded(ALL)


def test_ledger_guards_are_all_needed() -> None:
    for one in ledger.read().values():
        noticed, mutants = one.counts["guards"].split("/")
        assert noticed == mutants, one.rule


def test_few_rules_go_without_proof() -> None:
    assert len(TESTED_ONLY) <= 0.15 * len(ALL)
    assert set(TESTED_ONLY) <= {r.id for r in ALL}
    assert {e.rule for e in ledger.read().values() if e.verdict == "tested-only"} == set(TESTED_ONLY)


def test_ledger_lines_read_back_and_nonsense_does_not() -> None:
    for one in ledger.read().values():
        assert ledger.parse(str(one)) == one
    for line in ("", "a/b c real", "a/b c real perhaps x=1", "a/b c real proved x"):
        with pytest.raises(FileError):
            ledger.parse(line)


def _rule(exact: str = "real", guard: float = 2.0) -> Rule:
    x = Var("x")
    when = [fact("above", lambda t: t.rank < guard, "x")]
    return build("mine", "twice_neg", to(neg(neg(x)), x), doc="Nothing.", source="axiom", exact=exact, when=when)[0]


def test_hash_follows_meaning() -> None:
    assert _rule().hash == _rule().hash
    assert _rule().hash != _rule(exact="bit").hash
    assert _rule().hash != _rule(guard=3.0).hash, "a value that a guard closes over"


def test_changed_or_unknown_rule_does_not_load() -> None:
    with pytest.raises(RuleError, match=r"has no evidence(?s:.)*forge-eq verify mine/twice_neg --write"):
        check_loaded([_rule()])
    changed = build(
        "simplify", "alias_is_identity", to(neg(neg(Var("x"))), Var("x")), doc="Changed.", source="axiom", exact="bit"
    )
    assert evidence(changed[0]) is None
    with pytest.raises(RuleError, match="has changed since"):
        check_loaded(changed)


def test_write_refuses_refused_evidence(tmp_path: Path) -> None:
    bad = build("mine", "wrong", to(neg(Var("x")), Var("x")), doc="Wrong.", source="none", exact="real")[0]
    with pytest.raises(RuleError, match="mine/wrong"):
        ledger.write([verify_rule(bad, "quick")], tmp_path / "ledger.txt")
    assert not (tmp_path / "ledger.txt").exists()


# ------------------------------------------------------------------------------------------------ users' rules


@rule("mine", exact="real", source="the product distributes over the sum")
def mul_over_add(a, b, c):
    """Shares a factor."""
    return both(mul(add(a, b), c), add(mul(a, c), mul(b, c)))


def test_users_rule_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = build("mine", "neg_neg", to(neg(neg(Var("x"))), Var("x")), doc="Nothing.", source="axiom", exact="bit")[0]
    made = admit(one)
    assert made.verdict == "proved"
    monkeypatch.setattr("forge_eq.verify.verify_rule", lambda *_: pytest.fail("verified again"))
    assert admit(one) == made
    [file] = (tmp_path / "forge_eq" / "rules").iterdir()
    file.write_text("rubbish")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert admit(one) == made, "a damaged cache is as good as none"


def test_wrong_users_rule_is_refused_with_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bad = build("mine", "neg_is_nothing", to(neg(Var("x")), Var("x")), doc="Wrong.", source="none", exact="real")[0]
    with pytest.raises(RuleError, match=r"neg_is_nothing(?s:.)*x = (?s:.)*left = (?s:.)*right = "):
        admit(bad)
    assert not list(tmp_path.rglob("*.txt"))


def test_distributivity_is_real() -> None:
    """(0 + 1) inf is inf and 0 inf + 1 inf is NaN: neither is finite, which is all that the class asks there."""
    found = [verify_rule(r, "quick") for r in mul_over_add]
    assert [e.rule for e in found] == ["mine/mul_over_add", "mine/mul_over_add.rev"]
    assert all(e.accepted for e in found), [str(e.counterexample) for e in found]


# ------------------------------------------------------------------------------------------------ the verifier's parts


@pytest.mark.slow
@pytest.mark.parametrize("one", ALL, ids=lambda r: r.id)
def test_samples_type_check_and_repeat(one: Rule) -> None:
    first, again = sample(one, 4, 150), sample(one, 4, 150)
    assert [str(b) for b in first.fired] == [str(b) for b in again.fired]
    for binding in first.fired:
        assert fires(one, binding) == ""
        assert set(binding.types) == set(one.tensors)
        assert set(binding.attrs) == set(one.attrs)


def test_samples_reach_the_corners() -> None:
    one = rules.REGISTRY["traits/add_commutes"]
    rng = random.Random(1)
    seen = [b for _ in range(3000) if (b := attempt(one, rng))]
    types = [t for b in seen for t in b.types.values() if isinstance(t, TensorType)]
    assert {0, 1, 2, 3, 4} <= {t.rank for t in types}
    assert {0, 1, 2, 3, 4} <= {d for t in types for d in t.shape}
    assert {"f32", "f64", "i64", "bool", "lit"} <= {t.dtype for t in types}
    assert any(b.types["a"] != b.types["b"] for b in seen), "broadcasting"


def test_rule_without_instance_is_refused() -> None:
    x, y = Var("x"), Var("y")
    never = build(
        "mine",
        "never",
        to(add(x, y), add(y, x)),
        doc="Never.",
        source="axiom",
        exact="bit",
        when=[fact("no", lambda t: False, "x")],
    )[0]
    found = verify_rule(never, "quick")
    assert not found.accepted
    assert "no instance" in found.reason


def test_idle_guard_is_reported() -> None:
    x, y = Var("x"), Var("y")
    swap, careful = to(add(x, y), add(y, x)), [is_float("x")]
    cautious = build("mine", "cautious", swap, doc="Too careful.", source="axiom", exact="bit", when=careful)
    assert verify_rule(cautious[0], "quick").idle == ("is_float(x)",)


def test_number_that_changes_a_dtype_is_refused() -> None:
    """A shape rule lets 0.5 stand beside integers; torch would give floats."""
    x = Var("x")
    equation = to(add(x, 0), add(mul(x, 0.5), mul(x, 0.5)))
    halves = build("mine", "half_of", equation, doc="Halves.", source="none", exact="real")
    found = verify_rule(halves[0], "quick")
    assert found.reason.startswith("shape")


def test_computed_attributes_and_literals_are_typed() -> None:
    binding = Binding({"x": TensorType("f32", (2, 3))}, {"s": 0.5})
    assert infer(mul(Var("x"), lit(0.5)), binding) == TensorType("f32", (2, 3))


def test_bits_and_closeness() -> None:
    nan, inf = float("nan"), float("inf")
    assert same_bits(np.array([nan, 1.0]), np.array([-nan, 1.0]))
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.array([1.0]), np.array([1.0 + 1e-16 * 4]))
    assert not same_bits(np.array([1.0]), np.array([1.0], dtype=np.float32))
    assert not same_bits(np.array([1.0]), np.array([[1.0]]))
    assert close(np.array([1e9, 0.0, inf, nan]), np.array([1e9, 0.5, inf, nan]), 1e-9)
    assert not close(np.array([1.0]), np.array([1.0 + 1e-8]), 1e-9)
    assert close(np.array([inf]), np.array([nan]), 1e-9)
    assert not close(np.array([inf]), np.array([1.0]), 1e-9)
    assert not close(np.array([nan]), np.array([1.0]), 1e-9)
    assert not close(np.array([1]), np.array([1.0]), 1e-9)


def test_attr_annotation_is_used() -> None:
    @rule("mine", exact="bit", source="axiom")
    def scaled(x: Var, s: Attr):
        """An attribute."""
        return to(mul(x, lit(s)), mul(lit(s), x))

    [one] = scaled
    assert (one.tensors, one.attrs) == (["x"], ["s"])
    assert verify_rule(one, "quick").accepted
