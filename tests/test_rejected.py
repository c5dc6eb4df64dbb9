"""The verifier refuses every tempting wrong rule, for the reason that makes it wrong."""

from __future__ import annotations

import pytest

from forge_eq import rules
from forge_eq.rules.dsl import Rule
from forge_eq.rules.rejected import rejected
from forge_eq.verify import verify_rule
from forge_eq.verify.field import refute_in_field
from forge_eq.verify.numeric import refute
from forge_eq.verify.samples import sample
from forge_eq.verify.smt import prove

WRONG = list(rejected)
TRUE_OF_REALS = {  # z3 proves these: only numbers refute them
    "add_zero",
    "add_zero_of_any_dtype",
    "maximum_commutes_to_the_bit",
    "add_reassociates_to_the_bit",
    "mul_zero",
    "sub_self",
    "scales_merge_without_bound",
    "where_by_arithmetic",
    "cast_down_and_up",
    "layers_meet_when_empty",
    "softmax_forgets_what_rows_share",
    "cast_through_fewer_bits",
}


RARE = {  # the quick level may miss these
    "maximum_commutes_to_the_bit",
    "scales_merge_without_bound",
    "layers_meet_when_empty",
    "largest_of_scaled",
    "norm_of_scaled_by_any_sign",
    "clamp_forgets_relu",
    "any_query_sees_all_keys",
}
IN_A_FIELD = {  # refuted by residues alone: nothing but algebra is wrong with them
    "scale_under_mask_of_any_sign",
    "softmax_passes_matmul",
    "gate_and_up_swapped",
    "eps_outside_root",
    "gelu_by_tanh",
    "root_of_square",
    "sum_of_products",
    "any_permute_is_swap_last",
    "reshape_swallows_permute",
    "transpose_flag_lost",
    "products_commute",
    "scale_of_bias_lost",
    "sum_of_rows_counts_one_bias",
    "division_past_sum",
}


@pytest.mark.parametrize("one", WRONG, ids=lambda r: r.name)
def test_wrong_rule_is_refused_with_a_counterexample(one: Rule) -> None:
    found = verify_rule(one, "full" if one.name in RARE else "quick")
    assert not found.accepted
    assert found.counterexample is not None
    assert found.counterexample.method in ("numeric", "torch"), found.reason
    assert found.counterexample.values, "the tensors are shown"
    text = str(found.counterexample)
    assert ("left = " in text and "right = " in text) or "the right side has no value" in text


@pytest.mark.slow
@pytest.mark.parametrize("one", WRONG, ids=lambda r: r.name)
def test_proof_alone(one: Rule) -> None:
    """z3 refuses what is wrong over the reals; what it proves, numbers must refute."""
    found = sample(one, 20, 1000)
    proof = prove(one, found.fired, instances=6)
    if one.name in TRUE_OF_REALS:
        assert proof.failed is None
    else:
        assert proof.failed or proof.unknown, "proved"


@pytest.mark.parametrize(
    ("name", "sign"),
    [("empty_row_is_zero", "inf"), ("where_by_arithmetic", "nan"), ("add_zero", "-0."), ("sub_self", "nan")],
)
def test_counterexample_shows_the_odd_number(name: str, sign: str) -> None:
    [one] = [r for r in WRONG if r.name == name]
    failed = refute(one, sample(one, 30, 1500).fired).failed
    assert failed is not None
    assert sign in str(failed)


@pytest.mark.parametrize("one", [r for r in WRONG if r.name in IN_A_FIELD], ids=lambda r: r.name)
def test_a_field_refutes_what_is_wrong_as_algebra(one: Rule) -> None:
    _, failed = refute_in_field(one, sample(one, 12, 500).fired)
    assert failed is not None
    assert failed.method == "field"
    assert "left = " in str(failed)


def test_a_field_says_nothing_of_rounding() -> None:
    """True of polynomials: whoever promises bits must be refuted by numbers."""
    [one] = [r for r in WRONG if r.name == "add_reassociates_to_the_bit"]
    agreed, failed = refute_in_field(one, sample(one, 12, 500).fired)
    assert agreed > 0
    assert failed is None


def test_enough_wrong_rules_and_none_loads() -> None:
    assert len(WRONG) >= 60
    assert not {r.id for r in WRONG} & set(rules.REGISTRY)
