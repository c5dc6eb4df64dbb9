"""The golden cases in ``tests/cases``, each in every treatment. ``pytest --bless`` rewrites what they list."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from case_pipeline import SECTIONS, compile_case
from case_runner import SEEDS, Case, bless, differences, read_cases, run_case, under_seed

CASES = read_cases(Path(__file__).parent / "cases", SECTIONS)


@cache
def seeded(seed: str) -> dict[str, dict[str, str]]:
    """What a new process under this hash seed gives, for all cases together."""
    return under_seed(seed, "case_pipeline:compile_case", [c.path for c in CASES], SECTIONS)


def each(test):
    return pytest.mark.parametrize("case", CASES, ids=[c.path.stem for c in CASES])(test)


def test_there_are_cases():
    assert CASES


@each
def test_straight(case: Case, request: pytest.FixtureRequest):
    made = run_case(case, compile_case, reparse=False)
    if request.config.getoption("--bless"):
        bless(case, made)
        return
    assert not (shown := differences(case, made, "straight")), f"\n{shown}"


@each
def test_printed_and_parsed_between_stages(case: Case, request: pytest.FixtureRequest):
    if request.config.getoption("--bless"):
        pytest.skip("the files are being rewritten")
    assert not (shown := differences(case, run_case(case, compile_case, reparse=True), "reparsed")), f"\n{shown}"


@pytest.mark.slow  # each process of the fast tier has a seed of its own already
@pytest.mark.parametrize("seed", SEEDS)
@each
def test_hash_seed(case: Case, seed: str, request: pytest.FixtureRequest):
    if request.config.getoption("--bless"):
        pytest.skip("the files are being rewritten")
    made = seeded(seed)[str(case.path)]
    assert not (shown := differences(case, made, f"PYTHONHASHSEED={seed}")), f"\n{shown}"
