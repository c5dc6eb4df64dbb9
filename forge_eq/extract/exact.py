"""Exact search: branch and bound over the classes needed, for small problems.

Takes a pruned :class:`Problem` and the cost to beat. Gives a cheaper choice if there is one, and a lower bound.
Promises: the bound is valid even when the budget ends the search; with budget left it meets the best cost.
Not here: large problems; the work doubles with each decision that the bound does not settle.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_eq.extract.bounds import forced, members
from forge_eq.extract.problem import Problem

Chain = tuple[int, int, "Chain"] | None  # decisions made so far: (class, e-node, those before)


@dataclass(frozen=True, slots=True)
class Found:
    """``choice`` over the used classes, None if nothing beats the incumbent; exact integer ``cost`` and ``bound``."""

    choice: dict[int, int] | None
    cost: int
    bound: int
    visits: int


def branch_and_bound(problem: Problem, incumbent: int, visits: int) -> Found:
    """Depth first, cheapest branch first, deciding the class nearest the roots.

    A branch costs at least what is paid, plus the cheapest e-node of every undecided class that all terms of an
    open class contain. ``incumbent`` is the exact integer cost of a known choice.
    """
    sets = forced(problem)
    least = [min(weights) for weights in problem.weights]
    masks = [[sum(1 << k for k in kids) for kids in nodes] for nodes in problem.kids]
    start = 0
    for root in problem.roots:
        start |= 1 << root
    best, best_cost, visited = None, incumbent, 0
    # open classes, decided classes, paid, bound, decisions
    stack: list[tuple[int, int, int, int, Chain]] = [(start, 0, 0, _bound(start, 0, sets, least), None)]
    while stack and visited < visits:
        opened, done, paid, bound, chain = stack.pop()
        if bound >= best_cost:
            continue
        visited += 1
        if not opened:
            best, best_cost = chain, paid
            continue
        c = opened.bit_length() - 1
        done |= 1 << c
        branches = []
        for i, mask in enumerate(masks[c]):
            then = (opened | mask) & ~done
            total = paid + problem.weights[c][i]
            limit = total + _bound(then, done, sets, least)
            if limit < best_cost and not (problem.cyclic[c] and _closes_cycle(problem, c, i, chain)):
                branches.append((limit, i, then, total))
        for limit, i, then, total in sorted(branches, reverse=True):
            stack.append((then, done, total, limit, (c, i, chain)))
    bound = min([best_cost, *(limit for _, _, _, limit, _ in stack)])
    return Found(_as_dict(best) if best_cost < incumbent else None, best_cost, bound, visited)


def _bound(opened: int, done: int, sets: list[int], least: list[int]) -> int:
    union = 0
    for c in members(opened):
        union |= sets[c]
    return sum(map(least.__getitem__, members(union & ~done)))


def _as_dict(chain: Chain) -> dict[int, int]:
    choice = {}
    while chain is not None:
        c, i, chain = chain
        choice[c] = i
    return choice


def _closes_cycle(problem: Problem, start: int, i: int, chain: Chain) -> bool:
    choice = _as_dict(chain)
    stack, seen = list(problem.kids[start][i]), set[int]()
    while stack:
        c = stack.pop()
        if c == start:
            return True
        if c in choice and c not in seen:
            seen.add(c)
            stack.extend(problem.kids[c][choice[c]])
    return False
