"""Lower bounds on the cost of every extraction.

Takes a :class:`Problem` (and, for the sharper bound, a hint from a choice that is thought good). Gives integers in
units of ``1 / problem.scale``. Promises: no acyclic choice costs less, whatever hint was passed in.
Not here: choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from forge_eq.extract.problem import Nodes, Problem

MANY = 50_000  # classes beyond which a bit set over them for each of them would take gigabytes


def forced(problem: Problem) -> list[int]:
    """Per class, as a bit set: classes that every term of it contains (itself included).

    These are the dominators of the AND-OR graph: F(c) = {c} + intersection over e-nodes of the union of their
    children's F, the greatest solution, found by starting from everything and shrinking until nothing changes. By
    induction on its height, a finite term of c contains F(c). Children first, so one pass is enough without cycles.
    """
    everything = (1 << len(problem.classes)) - 1
    return shrink(problem.kids, problem.children_first, [everything] * len(problem.classes))


def shrink(kids: Sequence[Nodes] | Mapping[int, Nodes], order: Sequence[int], sets: list[int]) -> list[int]:
    """The greatest solution of F(c) = {c} + intersection of unions below ``sets``, over the classes of ``order``.

    Changes ``sets`` and returns it. A class is looked at again only when one that it reads has changed since.
    """
    place = {c: at for at, c in enumerate(order)}
    readers: list[list[int]] = [[] for _ in order]
    for at, c in enumerate(order):
        for kid in dict.fromkeys(k for children in kids[c] for k in children):
            if kid in place:
                readers[place[kid]].append(at)
    queue, queued = list(range(len(order))), bytearray(b"\1") * len(order)
    while queue:
        at = heappop(queue)
        queued[at], c = 0, order[at]
        common = sets[c]
        for children in kids[c]:
            union = 0
            for kid in children:
                union |= sets[kid]
            common &= union
        common |= 1 << c
        if common != sets[c]:
            sets[c] = common
            for reader in readers[at]:
                if not queued[reader]:
                    queued[reader] = 1
                    heappush(queue, reader)
    return sets


def members(bits: int) -> list[int]:
    """The elements of a bit set, ascending."""
    text = bin(bits)[:1:-1]
    found, at = [], text.find("1")
    while at >= 0:
        found.append(at)
        at = text.find("1", at + 1)
    return found


def in_every_extraction(problem: Problem) -> list[int]:
    """Classes that all terms of some root contain, ascending.

    Of more than :data:`MANY` classes only those that are reached through classes with a single e-node.
    """
    if len(problem.classes) <= MANY:
        sets, union = forced(problem), 0
        for root in problem.roots:
            union |= sets[root]
        return members(union)
    found, stack = set(problem.roots), list(problem.roots)
    while stack:
        nodes = problem.kids[stack.pop()]
        fresh = set(nodes[0]) - found if len(nodes) == 1 else set()
        found |= fresh
        stack.extend(fresh)
    return sorted(found)


def forced_bound(problem: Problem) -> int:
    """Every class that all terms of some root contain pays at least its cheapest e-node."""
    return sum(min(problem.weights[c], default=0) for c in in_every_extraction(problem))


def shared_bound(problem: Problem, guide: Mapping[int, Iterable[int]]) -> int:
    """A dual solution of the linear relaxation; ``guide`` tells which children each used class of a good choice uses.

    Give every class c a price u(c) and split it into shares w(p, c) for the classes p that may use it and one for
    the outside if c is a root, together at most u(c). Let u(c) <= weight(n) + the sum of w(c, k) over the children k
    of n, for each e-node n of c. Then for any extraction, summed over its classes c with their e-nodes,
    cost = sum of weight >= sum of u(c) - sum of w(c, k) >= the outside shares of the roots, because each share w(c, k)
    is part of the u(k) of a class k that is used too. Here prices are set children first (a child that comes
    later counts as free), and shares go evenly to the users that the guide names, so that the bound is tight where
    those uses are unavoidable.
    """
    count = len(problem.classes)
    readers: list[list[int]] = [[] for _ in range(count)]
    place = [-1] * count
    for at, c in enumerate(problem.children_first):
        place[c] = at
    for c, kids in guide.items():
        for kid in kids:
            if place[kid] < place[c]:
                readers[kid].append(c)
    root_set, bound = set(problem.roots), 0
    shares: list[dict[int, int]] = [{} for _ in range(count)]
    for c in problem.children_first:
        mine, weights = shares[c], problem.weights[c]
        price = min(
            (weights[i] + (sum(mine.get(k, 0) for k in kids) if mine else 0) for i, kids in enumerate(problem.kids[c])),
            default=0,
        )
        users = readers[c] or [p for p in problem.users[c] if place[p] > place[c]]
        parts = len(users) + (c in root_set)
        if not parts:
            continue
        part, rest = divmod(price, parts)
        for first, p in enumerate(users):
            shares[p][c] = part + (first < rest)
        if c in root_set:
            bound += part
    return bound
