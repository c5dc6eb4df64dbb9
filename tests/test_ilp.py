"""The integer program against brute force, on cycles, under a work limit, with a solver that fails or is absent."""

from __future__ import annotations

import math
import random

import pytest

import forge_eq.extract.default as stack
import forge_eq.extract.highs as highs
import forge_eq.extract.ilp as ilp
from egraphs import brute_force, random_problem, transformer
from forge_eq.errors import ExtractError
from forge_eq.extract import Budget, Default, ENode, Ilp, Problem, check, prune
from forge_eq.extract.answer import settle
from forge_eq.extract.bottom_up import cheapest_trees

pytest.importorskip("highspy", reason="the solver is an extra: pip install 'forge_eq[ilp]'")


def leaf(name: str, cost: float = 1.0) -> ENode:
    return ENode(name, (), cost, name)


def from_trees(problem: Problem, checks: int = 10**6) -> ilp.Solved:
    """The integer program alone, from the cheapest trees, with no local search to help it."""
    trees = cheapest_trees(problem)[0]
    choice, cost = settle(problem, trees)
    return ilp.solve_ilp(problem, choice, cost, checks, lambda _hint: (choice, cost))


@pytest.mark.parametrize("cyclic", [False, True])
def test_it_meets_brute_force_and_its_bound_holds(cyclic: bool) -> None:
    better = 0
    for seed in range(250):
        problem = prune(random_problem(seed, classes=9, cyclic=cyclic)).problem
        best = brute_force(problem)
        found = from_trees(problem)
        cost = math.fsum(problem.classes[c][i].cost for c, i in found.choice.items())
        assert math.isclose(cost * problem.scale, found.cost, rel_tol=1e-12), seed
        assert math.isclose(cost, best, rel_tol=1e-9), seed
        assert best * (1 - 3 * highs.SAFETY) <= found.bound / problem.scale <= best * (1 + 1e-12), seed
        better += found.cost < settle(problem, cheapest_trees(problem)[0])[1]
    assert better > 5, "the incumbent was never improved: the solver did nothing"


def test_costs_of_very_different_size() -> None:
    rng = random.Random(3)
    for seed in range(60):
        base = random_problem(seed, classes=9)
        rows = tuple(
            tuple(ENode(n.op, n.children, 10.0 ** rng.randint(-6, 4), n.key) for n in nodes) for nodes in base.classes
        )
        problem = prune(Problem(rows, base.roots)).problem
        best, found = brute_force(problem), from_trees(problem)
        assert found.bound / problem.scale <= best * (1 + 1e-12), seed
        assert found.cost / problem.scale <= best * (1 + 3 * highs.SAFETY), seed


def ring(size: int) -> Problem:
    """Classes that could each be had from the next for little, so that the program without cuts pays no leaf."""
    rows = [(ENode("step", ((c + 1) % size,), 0.5, "step"), leaf(f"leaf{c}", 10.0 + c)) for c in range(size)]
    return Problem(tuple(rows), (0,))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_a_cycle_is_cut(size: int) -> None:
    problem = ring(size)
    found = from_trees(problem)
    assert found.cost == brute_force(problem) * problem.scale
    answer = Ilp().solve(problem, Budget())
    check(problem, answer)
    assert answer.gap <= 2 * highs.SAFETY


def tangle(seed: int, classes: int = 40, *, cyclic: bool = True) -> Problem:
    """Every class has a dear leaf and cheap e-nodes over others: anywhere, in many overlapping cycles, or only above
    itself."""
    rng = random.Random(seed)
    rows = []
    for c in range(classes):
        row = [leaf(f"leaf{c}", rng.uniform(5, 20))]
        for n in range(3):
            pool = range(classes) if cyclic else range(c + 1, classes)
            kids = tuple(k for k in rng.sample(pool, min(2, len(pool))) if k != c)
            row.append(ENode(f"op{n}", kids, rng.uniform(0.1, 1.0), (n, *kids)))
        rows.append(tuple(row))
    return Problem(tuple(rows), (0, 1, 2))


def test_tangles_of_cycles_end_with_a_valid_answer_and_bound() -> None:
    for seed in range(5):
        problem = tangle(seed, 25)
        answer = Ilp().solve(problem, Budget(checks=15))
        check(problem, answer)  # acyclic, the true cost, a bound below it
        assert answer.cost <= Default().solve(problem, Budget(visits=0, checks=0)).cost * (1 + 1e-12)


def test_work_is_counted_so_a_limit_gives_the_same_answer_twice() -> None:
    for checks in (1, 5, 12):
        first, again = (Ilp().solve(tangle(11, 40), Budget(checks=checks, moves=0)) for _ in range(2))
        assert first == again
        assert first.work["checks"] <= checks


def test_the_default_asks_it_only_for_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = stack.solve_ilp

    def watched(problem: Problem, *rest: object) -> ilp.Solved:
        asked.append(problem.size)
        return real(problem, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(stack, "solve_ilp", watched)
    assert Default().solve(transformer(12), Budget()).status == "optimal"
    assert asked == []
    problem = tangle(5, cyclic=False)
    weak = Budget(visits=1, restarts=0)
    closed, left = Default().solve(problem, weak), Default().solve(problem, Budget(visits=1, restarts=0, checks=0))
    assert asked
    assert closed.gap < left.gap
    assert closed.cost <= left.cost


def test_without_the_solver_the_default_works_and_the_extractor_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stack, "available", lambda: False)
    monkeypatch.setattr(ilp, "available", lambda: False)
    problem = tangle(5, cyclic=False)
    answer = Default().solve(problem, Budget(visits=1))
    check(problem, answer)
    assert answer.work["checks"] == 0
    with pytest.raises(ExtractError, match="highspy is not installed"):
        Ilp().solve(problem, Budget())


def test_a_solver_that_fails_is_named_and_the_incumbent_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(highs.SETTINGS, "mip_max_nodes", 0)
    monkeypatch.setitem(highs.SETTINGS, "time_limit", 0.0)
    problem = tangle(5, cyclic=False)
    known = Default().solve(problem, Budget(visits=0, checks=0))
    answer = Ilp().solve(problem, Budget(restarts=2))
    check(problem, answer)
    assert answer.cost == known.cost
    assert len(answer.notes) >= 1
    assert all("HiGHS" in note for note in answer.notes)


def test_an_infeasible_verdict_is_reported_and_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = highs.Model.__init__

    def broken(self: highs.Model, problem: Problem, cost: int) -> None:
        real(self, problem, cost)
        np = self.np
        self.solver.addRow(2.0, 9.0, 1, np.array([0], dtype=np.int32), np.ones(1))  # x0 >= 2, and x0 <= 1

    monkeypatch.setattr(highs.Model, "__init__", broken)
    problem = tangle(5, cyclic=False)
    answer = Ilp().solve(problem, Budget())
    check(problem, answer)
    assert any("Infeasible" in note for note in answer.notes)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    Ilp().solve(tangle(1, 20), Budget())
    assert capfd.readouterr() == ("", "")
