"""Extractors keep their promises on random e-graphs; the checker and the input checks refuse."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from egraphs import acyclic, brute_force, random_problem, tree_costs
from forge_eq.errors import CheckError, ExtractError
from forge_eq.extract import (
    EXTRACTORS,
    BottomUp,
    Budget,
    Default,
    ENode,
    Extraction,
    Problem,
    check,
    prune,
    solve,
)
from forge_eq.extract.answer import lower_bound
from forge_eq.extract.bounds import forced_bound, shared_bound
from forge_eq.extract.exact import branch_and_bound

BUDGET = Budget()
SEEDS = range(150)


def leaf(name: str, cost: float = 1.0) -> ENode:
    return ENode(name, (), cost, name)


# ---- promises on random e-graphs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=lambda e: e.name)
@pytest.mark.parametrize("cyclic", [False, True])
def test_every_extractor_is_valid_and_not_below_the_optimum(extractor, cyclic):
    for seed in SEEDS:
        problem = random_problem(seed, cyclic=cyclic)
        best, answer = brute_force(problem), extractor.solve(problem, BUDGET)
        check(problem, answer)
        assert acyclic(problem, dict(answer.choice)), seed
        assert answer.cost >= best * (1 - 1e-12), seed
        assert answer.lower_bound <= best * (1 + 1e-12), seed
        if answer.status == "optimal":
            assert math.isclose(answer.cost, best), seed


@pytest.mark.parametrize("extractor", [e for e in EXTRACTORS if e.promise == "tree-optimal"], ids=lambda e: e.name)
def test_tree_optimal_is_tree_optimal(extractor):
    for seed in SEEDS:
        problem = random_problem(seed)
        choice = extractor.solve(problem, BUDGET).choice

        def tree(c, problem=problem, choice=choice):
            node = problem.classes[c][choice[c]]
            return node.cost + sum(map(tree, node.children))

        least = tree_costs([list(nodes) for nodes in problem.classes])
        for c in choice:
            assert math.isclose(tree(c), least[c]), seed


@pytest.mark.parametrize("cyclic", [False, True])
def test_default_is_optimal_when_its_budget_lasts(cyclic):
    for seed in range(400, 520):
        problem = random_problem(seed, classes=9, cyclic=cyclic)
        answer = solve(problem)
        assert answer.status == "optimal", seed
        assert math.isclose(answer.cost, brute_force(problem)), seed


def test_a_spent_budget_still_gives_a_valid_answer_with_a_valid_bound():
    statuses = Counter()
    for seed in range(200):
        problem = random_problem(seed, classes=9)
        answer = Default().solve(problem, Budget(moves=0, visits=2, restarts=0, checks=0))
        check(problem, answer)
        best = brute_force(problem)
        assert answer.lower_bound <= best * (1 + 1e-12)
        assert answer.cost >= best * (1 - 1e-12)
        statuses[answer.status] += 1
    assert statuses["budget"] > 5
    assert statuses["optimal"] > 50


@pytest.mark.slow
def test_more_budget_never_costs_more():
    improved = 0
    for seed in range(30):
        problem = random_problem(seed, classes=30)
        small, large = (
            solve(problem, Budget(moves=10_000, visits=3, restarts=0, checks=0)),
            solve(problem, Budget(restarts=4)),
        )
        assert large.cost <= small.cost, seed
        assert large.lower_bound >= small.lower_bound * (1 - 1e-12), seed
        improved += large.cost < small.cost
    assert improved > 0


def test_bounds_are_valid_with_any_hint():
    for seed in SEEDS:
        problem = random_problem(seed)
        best = brute_force(problem) * (1 + 1e-12)
        choice = BottomUp().solve(problem, BUDGET).choice
        hint = {c: problem.kids[c][i] for c, i in choice.items()}
        assert forced_bound(problem) / problem.scale <= best, seed
        for guide in ({}, hint, {c: nodes[0] for c, nodes in enumerate(problem.kids) if nodes}):
            assert shared_bound(problem, guide) / problem.scale <= best, seed
            assert lower_bound(problem, guide) <= best, seed


def test_branch_and_bound_agrees_with_brute_force():
    for seed in SEEDS:
        problem = prune(random_problem(seed)).problem
        best = round(brute_force(problem) * problem.scale)
        found = branch_and_bound(problem, best * 2 + 1, visits=100_000)
        assert found.choice is not None
        assert math.isclose(found.cost, best)
        assert found.bound == found.cost
        assert acyclic(problem, found.choice)


# ---- the checker refuses ------------------------------------------------------------------------------------------


def two_step() -> Problem:
    """0 = leaf | f(1);  1 = leaf | g(0);  2 = h(0, 1)."""
    return Problem(
        (
            (leaf("a", 5.0), ENode("f", (1,), 1.0, "f")),
            (leaf("b", 5.0), ENode("g", (0,), 1.0, "g")),
            (ENode("h", (0, 1), 1.0, "h"),),
        ),
        (2,),
    )


def test_the_checker_accepts_a_right_answer():
    check(two_step(), Extraction({2: 0, 0: 0, 1: 1}, 7.0, 7.0, "optimal", "by hand"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"choice": {2: 0, 0: 1, 1: 1}, "cost": 3.0, "lower_bound": 1.0, "status": "converged"}, "depend on itself"),
        ({"choice": {2: 0, 0: 0}}, "no e-node of it is chosen"),
        ({"choice": {2: 0, 0: 0, 1: 2}}, "no e-node of it is chosen"),
        ({"choice": {2: 0, 0: 0, 1: -1}}, "no e-node of it is chosen"),
        ({"cost": 6.0, "lower_bound": 6.0}, "is claimed"),
        ({"lower_bound": 7.5, "status": "converged"}, "is above cost"),
        ({"lower_bound": math.nan, "status": "converged"}, "is above cost"),
        ({"lower_bound": 6.0}, "claims to be optimal"),
    ],
)
def test_the_checker_refuses(change, reason):
    right = Extraction({2: 0, 0: 0, 1: 1}, 7.0, 7.0, "optimal", "by hand")
    with pytest.raises(CheckError, match=reason):
        check(two_step(), replace(right, **change))


def test_the_checker_refuses_a_class_that_nothing_needs():
    problem = Problem(((leaf("a"),), (leaf("b"),)), (0,))
    with pytest.raises(CheckError, match="nothing needs it"):
        check(problem, Extraction({0: 0, 1: 0}, 2.0, 1.0, "converged", "by hand"))


# ---- input and pruning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0.0, -1.0, math.inf, math.nan])
def test_costs_must_be_positive_and_finite(cost):
    with pytest.raises(ExtractError, match="finite cost above zero"):
        Problem(((leaf("a", cost),),), (0,))


def test_bad_ids_and_empty_roots_are_refused():
    with pytest.raises(ExtractError, match="densely"):
        Problem(((ENode("f", (1,), 1.0),),), (0,))
    with pytest.raises(ExtractError, match="root"):
        Problem(((leaf("a"),),), ())
    with pytest.raises(ExtractError, match="root"):
        Problem(((leaf("a"),),), (1,))


@pytest.mark.parametrize("extractor", EXTRACTORS, ids=lambda e: e.name)
def test_a_root_without_a_finite_term_is_refused(extractor):
    problem = Problem(((ENode("f", (1,), 1.0),), (ENode("g", (0,), 1.0), ENode("loop", (1,), 1.0))), (0,))
    with pytest.raises(ExtractError, match="no finite term"):
        extractor.solve(problem, BUDGET)


def test_pruning_drops_what_no_best_extraction_needs_and_maps_back():
    problem = Problem(
        (
            (leaf("a"),),
            (leaf("b"),),
            (
                ENode("dear", (0,), 3.0, "1"),
                ENode("superset", (0, 1), 2.5, "2"),
                ENode("cheap", (0,), 2.0, "3"),
                ENode("other", (1,), 1.0, "4"),
                ENode("self", (2,), 0.1, "0"),
            ),
            (leaf("unreachable"),),
            (ENode("root", (2,), 1.0),),
            (ENode("endless", (5,), 0.1),),
        ),
        (4,),
    )
    pruned = prune(problem)
    left = {problem.classes[c][i].op for c, row in zip(pruned.class_ids, pruned.node_ids, strict=True) for i in row}
    assert left == {"a", "b", "cheap", "other", "root"}
    back = pruned.restore({c: 0 for c in range(len(pruned.class_ids))})
    assert all(
        problem.classes[old][back[old]].op == pruned.problem.classes[new][0].op
        for new, old in enumerate(pruned.class_ids)
    )


def test_pruning_keeps_the_optimum():
    for seed in SEEDS:
        problem = random_problem(seed)
        assert math.isclose(brute_force(prune(problem).problem), brute_force(problem)), seed


def test_on_a_tie_the_smaller_key_wins():
    rows = [ENode("f", (), 1.0, key) for key in ("b", "a", "c")]
    for extractor in EXTRACTORS:
        assert extractor.solve(Problem((tuple(rows),), (0,)), BUDGET).choice == {0: 1}


def test_children_used_twice_are_paid_once():
    problem = Problem(((leaf("a", 4.0),), (ENode("square", (0, 0), 1.0),)), (1, 1))
    for extractor in EXTRACTORS:
        assert extractor.solve(problem, BUDGET).cost == 5.0


def test_json_reads_names_classes_and_raises_zero_costs():
    data = {
        "nodes": {
            "n2": {"op": "add", "children": ["n0", "n1"], "eclass": "sum", "cost": 2.0},
            "n0": {"op": "x", "children": [], "eclass": "x", "cost": 0.0},
            "n1": {"op": "x2", "children": [], "eclass": "x", "cost": 1.0},
        },
        "root_eclasses": ["sum"],
    }
    problem = Problem.from_json(data)
    answer = solve(problem)
    chosen = {problem.names[c]: problem.classes[c][i].payload for c, i in answer.choice.items()}
    assert chosen == {"sum": "n2", "x": "n0"}
    assert answer.cost == 2.0 + 1e-9


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"nodes": {"a": {}}, "root_eclasses": []}', '{"nodes": {}, "root_eclasses": ["missing"]}']
)
def test_bad_json_is_refused(text):
    with pytest.raises(ExtractError):
        Problem.from_json(text)
