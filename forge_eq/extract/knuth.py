"""Settling: every class once, in order of what it costs, each e-node on classes that were settled before it.

Takes a :class:`Problem` and the price of an e-node whose children are settled. Gives a choice. Promises: acyclic by
construction, whatever the prices; ties go to the smaller key, whatever the numbering. Not here: prices.

Knuth's generalisation of Dijkstra's algorithm (1977): an e-node waits until its last child is settled, so each is
priced once. As weights are positive, all e-nodes that tie wait in the heap when their class is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from forge_eq.errors import ExtractError
from forge_eq.extract.problem import Problem

Price = Callable[[int, int], int]  # (class, e-node) -> total, once all children are settled
Settled = Callable[[int, int, int], None]  # (class, e-node, total)


def settle_in_order(problem: Problem, weights: Sequence[Sequence[int]], price: Price, settled: Settled) -> list[int]:
    """Per class the e-node of the lowest price, -1 where there is none; ``settled`` is told of each.

    ``weights`` are the prices of e-nodes without children. Raises ExtractError when a root has no finite term.
    """
    choice = [-1] * len(problem.classes)
    waits, pending = waiting(problem)
    rank = [{i: r for r, i in enumerate(order)} for order in problem.order]
    heap = [
        (weights[c][i], rank[c][i], c, i)
        for c, counts in enumerate(pending)
        for i, count in enumerate(counts)
        if not count
    ]
    heapify(heap)
    while heap:
        total, _, c, i = heappop(heap)
        if choice[c] >= 0:
            continue
        choice[c] = i
        settled(c, i, total)
        for p, j in waits[c]:
            pending[p][j] -= 1
            if not pending[p][j] and choice[p] < 0:
                heappush(heap, (price(p, j), rank[p][j], p, j))
    for root in problem.roots:
        if choice[root] < 0:
            raise no_finite_term(root)
    return choice


def waiting(problem: Problem) -> tuple[list[list[tuple[int, int]]], list[list[int]]]:
    """Per class the e-nodes that use it; per class and e-node how many distinct children it has."""
    waits: list[list[tuple[int, int]]] = [[] for _ in problem.classes]
    for c, nodes in enumerate(problem.kids):
        for i, kids in enumerate(nodes):
            for kid in kids:
                waits[kid].append((c, i))
    return waits, [[len(kids) for kids in nodes] for nodes in problem.kids]


def no_finite_term(root: int) -> ExtractError:
    """The error of a root that cannot be computed."""
    return ExtractError(
        "extract",
        f"root class {root}",
        "it has no finite term",
        "give some e-node of the class children that can be computed",
    )
