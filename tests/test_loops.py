"""Loop cuts exclude cyclic solutions and no acyclic one; what dominators show to be circular is pruned."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from egraphs import acyclic, brute_force, random_problem
from forge_eq.extract import Budget, ENode, GreedyDag, Problem, check, prune, solve
from forge_eq.extract.beam import Beam
from forge_eq.extract.bounds import forced
from forge_eq.extract.loops import Cut, Loops

SEEDS = range(120)


def leaf(name: str, cost: float = 1.0) -> ENode:
    return ENode(name, (), cost, name)


def ring() -> Problem:
    """A = f(B) or a dear leaf, B = g(A) or a dear leaf, the root needs A."""
    rows = [(leaf("a", 5.0), ENode("f", (1,), 0.1, "f")), (leaf("b", 5.0), ENode("g", (0,), 0.1, "g"))]
    return Problem((*rows, (ENode("root", (0,), 1.0),)), (2,))


def holds(cut: Cut, choice: dict[int, int]) -> bool:
    entered = sum(choice.get(c) == i for c, i in cut.entries)
    return entered >= sum(choice.get(c) == i for c, i in cut.uses)


def acyclic_choices(problem: Problem):
    """Every acyclic choice over the classes that it uses."""
    rows = [range(len(nodes)) for nodes in problem.classes]
    for picks in itertools.product(*rows):
        used, stack = {}, list(problem.roots)
        while stack:
            c = stack.pop()
            if c not in used:
                used[c] = picks[c]
                stack.extend(problem.kids[c][picks[c]])
        if acyclic(problem, used):
            yield used


def test_no_acyclic_choice_violates_a_cut_and_every_cyclic_one_is_cut():
    cuts = cyclic = 0
    for seed in SEEDS:
        problem = random_problem(seed, classes=6)  # pruned, few would have a cycle left
        loops, rng = Loops(problem), random.Random(seed)
        good = list(acyclic_choices(problem))
        for _ in range(4):
            values = [[rng.choice((0.0, 0.3, 0.6, 1.0)) / len(row) for _ in row] for row in problem.classes]
            for cut in loops.violated(values):
                cuts += 1
                assert all(holds(cut, choice) for choice in good), seed
        for choice in good[:5]:
            assert not loops.violated(rows(problem, choice)), seed
        picks = [rng.randrange(len(row)) for row in problem.classes]
        whole = dict(enumerate(picks))
        if not acyclic(problem, whole):
            cyclic += 1
            found = loops.violated(rows(problem, whole))
            assert found, seed
            assert not all(holds(cut, whole) for cut in found), seed
    assert cuts > 20
    assert cyclic > 10


def rows(problem: Problem, choice: dict[int, int]) -> list[list[float]]:
    return [[float(choice.get(c) == i) for i in range(len(nodes))] for c, nodes in enumerate(problem.classes)]


def test_a_ring_that_supports_itself_pays_for_a_way_in():
    highspy = pytest.importorskip("highspy", reason="the integer program is an extra: pip install 'forge_eq[ilp]'")
    assert highspy
    from forge_eq.extract.ilp import relaxed_bound

    problem = ring()
    bound = relaxed_bound(problem, 10 * problem.scale) / problem.scale
    assert bound == pytest.approx(6.0, rel=1e-5)  # without cuts the ring costs 1.2
    assert bound <= solve(problem).cost == 6.0


def test_the_relaxation_is_a_bound():
    pytest.importorskip("highspy", reason="the integer program is an extra: pip install 'forge_eq[ilp]'")
    from forge_eq.extract.ilp import relaxed_bound

    for seed in SEEDS:
        problem = prune(random_problem(seed)).problem
        best = brute_force(problem)
        assert relaxed_bound(problem, math.ceil(2 * best * problem.scale)) <= best * problem.scale * (1 + 1e-9), seed


def test_forced_classes_are_in_every_term_and_cycles_hide_none():
    for seed in SEEDS:
        problem = prune(random_problem(seed, classes=6)).problem
        sets = forced(problem)
        always = set(range(len(problem.classes)))
        for choice in acyclic_choices(problem):
            always &= set(choice)
        union = 0
        for root in problem.roots:
            union |= sets[root]
        assert {c for c in range(len(problem.classes)) if union >> c & 1} <= always, seed
    assert forced(ring())[2] == 0b101
    reader = (ENode("h", (0,), 1.0), ENode("k", (2, 0), 9.0))
    twice = Problem((*ring().classes[:2], (ENode("r", (3,), 1.0),), reader), (2,))
    assert forced(twice)[2] == 0b1101, "class 3 reads the root in one e-node, which no finite term can use"


def test_an_enode_that_needs_its_own_class_is_pruned():
    """x = split(concat(x, y)): every term of the pair contains x."""
    rows = (
        (leaf("x", 9.0), ENode("split", (2,), 0.1, "split")),
        (leaf("y", 1.0),),
        (ENode("concat", (0, 1), 0.1, "concat"),),
        (ENode("root", (0, 2), 1.0, "root"),),
    )
    left = prune(Problem(rows, (3,))).problem
    assert sorted(n.op for nodes in left.classes for n in nodes) == ["concat", "root", "x", "y"]


def test_a_beam_is_never_dearer_than_greedy_and_sometimes_cheaper():
    better = 0
    for seed in range(120):
        problem = random_problem(seed, classes=12)
        beam, greedy = Beam().solve(problem, Budget()), GreedyDag().solve(problem, Budget())
        check(problem, beam)
        assert beam.cost <= greedy.cost * (1 + 1e-12), seed
        better += beam.cost < greedy.cost * (1 - 1e-9)
    assert better > 0


def test_one_stopped_solver_is_named_and_its_incumbent_kept():
    pytest.importorskip("highspy", reason="the integer program is an extra: pip install 'forge_eq[ilp]'")
    noted = 0
    for seed in range(12):
        problem = random_problem(seed, classes=30)
        answer = solve(problem, Budget(visits=1, restarts=0, checks=1))
        check(problem, answer)
        noted += any("HiGHS was stopped" in note for note in answer.notes)
    assert noted > 0
