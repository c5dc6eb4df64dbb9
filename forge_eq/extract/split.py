"""Splitting: a problem as independent parts.

Takes a pruned :class:`Problem`. Gives the classes already decided and :class:`Part` problems. Promises: the union of
one best extraction per part, and the decided classes, is a best extraction of the whole, and it has no cycle.
Not here: solving the parts.

A class that every extraction contains is paid in any case, so a use of it costs nothing and binds nothing: the edge
can go, and the class becomes a root of its own. What is left falls apart into small groups that have to be decided
together, such as the fusions around one residual addition. Edges inside a strongly connected component stay, because
they decide about cycles, and every cycle lies inside one component, hence inside one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_eq.extract.bounds import in_every_extraction
from forge_eq.extract.problem import ENode, Problem

NESTING = 20  # splits within splits at most; real problems need 2 or 3


@dataclass(frozen=True, slots=True)
class Part:
    """A problem of its own; ``class_ids`` are its classes in the whole, with the e-nodes in the same order."""

    problem: Problem
    class_ids: tuple[int, ...]

    def restore(self, choice: Mapping[int, int]) -> dict[int, int]:
        """A choice on the part as a choice on the whole."""
        return {self.class_ids[c]: i for c, i in choice.items()}


def split(problem: Problem) -> tuple[list[int], list[Part]]:
    """The classes decided already (forced, with one e-node: index 0), and the parts in order of their first class."""
    always = bytearray(len(problem.classes))
    for c in in_every_extraction(problem):
        always[c] = 1
    decided = [c for c, nodes in enumerate(problem.classes) if always[c] and len(nodes) == 1 and not problem.cyclic[c]]
    alive = sorted(set(range(len(problem.classes))) - set(decided))
    bound_kids = {
        c: [[k for k in kids if not always[k] or problem.scc[k] == problem.scc[c]] for kids in problem.kids[c]]
        for c in alive
    }
    return decided, [_part(problem, group, bound_kids, always) for group in _groups(alive, bound_kids)]


def is_whole(problem: Problem, decided: list[int], parts: list[Part]) -> bool:
    """Whether splitting took nothing away, neither a class nor an edge."""
    return not decided and len(parts) == 1 and _edges(parts[0].problem) == _edges(problem)


def _edges(problem: Problem) -> int:
    return sum(len(kids) for nodes in problem.kids for kids in nodes)


def _groups(alive: list[int], bound_kids: Mapping[int, list[list[int]]]) -> list[list[int]]:
    leader = {c: c for c in alive}

    def find(c: int) -> int:
        while leader[c] != c:
            leader[c] = c = leader[leader[c]]
        return c

    for c, nodes in bound_kids.items():
        for kids in nodes:
            for kid in kids:
                leader[find(kid)] = find(c)
    groups: dict[int, list[int]] = {}
    for c in alive:
        groups.setdefault(find(c), []).append(c)
    return list(groups.values())


def _part(problem: Problem, group: list[int], bound_kids: Mapping[int, list[list[int]]], always: bytearray) -> Part:
    number = {c: new for new, c in enumerate(group)}
    classes = []
    for c in group:
        nodes = []
        choice = len(problem.classes[c]) > 1  # else there is nothing that a key could tell apart
        for node, kids in zip(problem.classes[c], bound_kids[c], strict=True):
            # Equal groups of different layers get equal orders: what differs between layers comes last in the key.
            key = f"{node.op} {len(kids)} {node.cost!r} {node.key}" if choice else ""
            nodes.append(ENode(node.op, tuple([number[k] for k in kids]), node.cost, key))
        classes.append(tuple(nodes))
    return Part(Problem(tuple(classes), tuple(number[c] for c in group if always[c])), tuple(group))
