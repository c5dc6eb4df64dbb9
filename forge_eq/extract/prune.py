"""Pruning: the same problem without the e-nodes that no best extraction needs.

Takes a :class:`Problem`. Gives :class:`Pruned`. Promises: at least one cheapest extraction survives, classes
and e-nodes come out in an order that depends on structure and keys only, and classes come out children first
wherever the e-graph has no cycle. Not here: any choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forge_eq.extract.bounds import shrink
from forge_eq.extract.knuth import no_finite_term, waiting
from forge_eq.extract.problem import ENode, Problem


@dataclass(frozen=True, slots=True)
class Pruned:
    """A smaller problem and the way back: ``class_ids[c]`` and ``node_ids[c][i]`` are the original indices."""

    problem: Problem
    class_ids: tuple[int, ...]
    node_ids: tuple[tuple[int, ...], ...]

    def restore(self, choice: Mapping[int, int]) -> dict[int, int]:
        """A choice on the pruned problem as a choice on the original one."""
        return {self.class_ids[c]: self.node_ids[c][i] for c, i in choice.items()}


def prune(problem: Problem) -> Pruned:
    """Drops unreachable classes, and e-nodes that close a cycle in every use, have no finite term, or are dominated.

    An e-node of c closes a cycle in every use if all terms of one of its children contain c. It is dominated by
    another of its class that costs no more and whose children are a subset of its own (on a full tie the one with the
    smaller key stays). Raises ExtractError when a root has no finite term.
    """
    pruned = _once(problem, _with_finite_terms(problem))
    while any(pruned.problem.cyclic):
        small = pruned.problem
        circular = _circular(small)
        if not circular:
            break
        usable = [[i for i in row if (c, i) not in circular] for c, row in enumerate(small.order)]
        then = _once(small, usable)
        ids = tuple(pruned.class_ids[c] for c in then.class_ids)
        nodes = tuple(
            tuple(pruned.node_ids[c][i] for i in row) for c, row in zip(then.class_ids, then.node_ids, strict=True)
        )
        pruned = Pruned(then.problem, ids, nodes)
    return pruned


def _once(problem: Problem, usable: list[list[int]]) -> Pruned:
    for root in problem.roots:
        if not usable[root]:
            raise no_finite_term(root)
    kept: list[tuple[int, ...] | None] = [None] * len(problem.classes)
    post = _children_first(problem, usable, kept)
    number = {c: new for new, c in enumerate(post)}
    node_ids = tuple(kept[c] or () for c in post)
    classes = tuple(tuple(_renumber(problem.classes[c][i], number) for i in kept[c] or ()) for c in post)
    names = tuple(problem.names[c] for c in post) if problem.names else ()
    return Pruned(Problem(classes, tuple(number[r] for r in problem.roots), names), tuple(post), node_ids)


def _circular(problem: Problem) -> set[tuple[int, int]]:
    """E-nodes with a child whose every term contains the e-node's own class. Both lie in one component."""
    components: dict[int, list[int]] = {}
    for c in problem.children_first:
        if problem.cyclic[c]:
            components.setdefault(problem.scc[c], []).append(c)
    found = set()
    for component in components.values():
        local = {c: at for at, c in enumerate(component)}
        inner = [tuple(tuple(local[k] for k in kids if k in local) for kids in problem.kids[c]) for c in component]
        every = (1 << len(component)) - 1
        sets = shrink(inner, range(len(component)), [every] * len(component))
        for at, c in enumerate(component):
            for i, kids in enumerate(inner[at]):
                if any(sets[k] >> at & 1 for k in kids):
                    found.add((c, i))
    return found


def _renumber(node: ENode, number: Mapping[int, int]) -> ENode:
    return ENode(node.op, tuple([number[k] for k in node.children]), node.cost, node.key, node.payload)


def _with_finite_terms(problem: Problem) -> list[list[int]]:
    """Per class: the e-nodes whose children all have a finite term (self loops left out), in key order."""
    waits, pending = waiting(problem)
    ready = [c for c, counts in enumerate(pending) if 0 in counts]
    done = set(ready)
    while ready:
        for c, i in waits[ready.pop()]:
            pending[c][i] -= 1
            if not pending[c][i] and c not in done:
                done.add(c)
                ready.append(c)
    return [
        [i for i in problem.order[c] if not pending[c][i] and c not in problem.kids[c][i]]
        for c in range(len(problem.classes))
    ]


def _undominated(problem: Problem, c: int, candidates: list[int]) -> tuple[int, ...]:
    """The candidates that no other one dominates, in the order given (key order)."""
    if len(candidates) < 2:
        return tuple(candidates)
    kids, weights = problem.kids[c], problem.weights[c]
    place = {i: p for p, i in enumerate(candidates)}
    # A dominator is found under its smallest child, which has to be among the children of the dominated.
    under: dict[int, list[tuple[frozenset[int], int]]] = {}
    stay = []
    for i in sorted(candidates, key=lambda i: (weights[i], len(kids[i]), place[i])):
        mine = frozenset(kids[i])
        if any(other <= mine for k in (-1, *mine) for other, _ in under.get(k, ())):
            continue
        under.setdefault(min(mine, default=-1), []).append((mine, i))
        stay.append(i)
    return tuple(sorted(stay, key=place.__getitem__))


def _children_first(problem: Problem, usable: list[list[int]], kept: list[tuple[int, ...] | None]) -> list[int]:
    """Classes reachable through undominated e-nodes, in depth-first postorder; fills ``kept``."""
    post: list[int] = []
    for root in problem.roots:
        if kept[root] is not None:
            continue
        kept[root] = _undominated(problem, root, usable[root])
        work = [(root, iter([k for i in kept[root] or () for k in problem.kids[root][i]]))]
        while work:
            c, rest = work[-1]
            for kid in rest:
                if kept[kid] is None:
                    mine = kept[kid] = _undominated(problem, kid, usable[kid])
                    work.append((kid, iter([k for i in mine for k in problem.kids[kid][i]])))
                    break
            else:
                post.append(c)
                work.pop()
    return post
