"""From the e-graph to the chosen program.

Takes an EGraphView, the captured Graph and a cost. Gives the chosen Graph. Promises: outputs, effects and
their order, inputs and signature are those of the captured graph; every node names the rule that made it;
the choice was re-checked for cycles and true cost. Not here: folding (``extract.fold``).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forge_eq.egraph.view import EGraphView, ENode
from forge_eq.errors import ExtractError
from forge_eq.extract.base import Budget, Extraction, Extractor, check
from forge_eq.extract.cost import LEAF, FusionGain, foldable, leaf_of
from forge_eq.extract.default import Default
from forge_eq.extract.problem import ENode as Choice
from forge_eq.extract.problem import Problem
from forge_eq.ir.graph import NOWHERE, Builder, Graph, Origin
from forge_eq.ir.types import Type
from forge_eq.options import Limits


@dataclass(frozen=True)
class Chosen:
    """The chosen program with what was paid for it."""

    graph: Graph
    extraction: Extraction
    captured_cost: float  # of the captured graph under the same cost


def problem_of(view: EGraphView, graph: Graph, cost: FusionGain, limits: Limits) -> Problem:
    """The extraction problem of an e-graph. A constant class is one free leaf: the value, folded.

    Weights, arguments and numbers are not children: they are always there, and a number that every layer
    reads would tie the layers into one problem that no exact search can finish.
    """
    classes: list[tuple[Choice, ...]] = []
    leaves = [leaf_of(cls) for cls in view.classes]
    for cls, leaf in zip(view.classes, leaves, strict=True):
        if leaf is not None:
            classes.append((Choice(leaf.op.name, (), LEAF, "", leaf),))
        elif foldable(cls, limits.fold_bytes):
            classes.append((Choice("folded", (), cost.folded(cls), "", None),))
        else:
            choice = len(cls.nodes) > 1
            classes.append(tuple([_alternative(n, view, cls.type, cost, leaves, choice) for n in cls.nodes]))
    roots = dict.fromkeys(view.class_of[i] for i in (*graph.outputs, *graph.effects))
    return Problem(tuple(classes), tuple(roots))


def _alternative(
    node: ENode, view: EGraphView, out: Type, cost: FusionGain, leaves: Sequence[ENode | None], choice: bool
) -> Choice:
    children = tuple([c for c in node.children if leaves[c] is None])
    # The key tells alternatives of equal cost apart by structure: captured ones first, then by what they read.
    key = (bool(node.rule), node.op.name, repr(node.attrs), node.children) if choice else ""
    return Choice(node.op.name, children, cost.node(node, view.classes, out), key, node)


def choose(
    view: EGraphView, graph: Graph, cost: FusionGain, limits: Limits | None = None, extractor: Extractor | None = None
) -> Chosen:
    """The cheapest program that the extractor finds. Raises ExtractError when there is none."""
    limits = limits or Limits()
    if not graph.outputs and not graph.effects:
        return Chosen(graph, Extraction({}, 0.0, 0.0, "optimal", "none"), 0.0)
    problem = problem_of(view, graph, cost, limits)
    extraction = (extractor or Default()).solve(problem, Budget(moves=limits.moves))
    check(problem, extraction)
    picked: dict[int, ENode | None] = {}
    for cls, index in extraction.choice.items():
        payload = problem.classes[cls][index].payload
        picked[cls] = payload if isinstance(payload, ENode) else None
        for child in payload.children if isinstance(payload, ENode) else ():
            leaf = leaf_of(view.classes[child])
            if leaf is not None:
                picked[child] = leaf
    chosen = _rebuild(view, graph, _with_constants(view, picked))
    return Chosen(chosen, extraction, captured_cost(view, graph, cost, limits))


def captured_cost(view: EGraphView, graph: Graph, cost: FusionGain, limits: Limits) -> float:
    """What the captured program costs: its own nodes, CSE and folding aside from nothing else."""
    total, seen, live = 0.0, set(), graph.live_ids()
    for node in graph.nodes:
        if node.id not in live:
            continue
        cls = view.classes[view.class_of[node.id]] if node.id in view.class_of else None
        key = (node.op, node.inputs, repr(node.attrs))
        if cls is None or key in seen or foldable(cls, limits.fold_bytes):
            continue
        seen.add(key)
        total += cost.time(node.op, [graph.nodes[i].type for i in node.inputs], node.attrs, node.type)
    return total


def _with_constants(view: EGraphView, picked: dict[int, ENode | None]) -> dict[int, ENode]:
    """Adds, for every folded class, nodes over constants that compute it: the ones of least depth."""
    need = [c for c, node in picked.items() if node is None]
    done: dict[int, ENode] = {c: n for c, n in picked.items() if n is not None}
    if not need:
        return done
    depth: dict[int, int] = {}
    best: dict[int, ENode] = {}
    users: dict[int, list[tuple[int, ENode]]] = {}
    missing: dict[tuple[int, int], int] = {}
    heap: list[tuple[int, int, int]] = []
    for c, cls in enumerate(view.classes):
        if not cls.constant:
            continue
        for k, node in enumerate(cls.nodes):
            children = set(node.children)
            if all(view.classes[i].constant for i in children):
                missing[c, k] = len(children)
                for child in sorted(children):
                    users.setdefault(child, []).append((c, node))
                if not children:
                    heapq.heappush(heap, (0 if node.op.leaf else 1, c, k))
    while heap:
        level, c, k = heapq.heappop(heap)
        if c in depth:
            continue
        depth[c], best[c] = level, view.classes[c].nodes[k]
        for parent, node in users.get(c, ()):
            index = view.classes[parent].nodes.index(node)
            missing[parent, index] -= 1
            if missing[parent, index] == 0 and parent not in depth:
                heapq.heappush(heap, (level + 1, parent, index))
    stack = list(need)
    while stack:
        c = stack.pop()
        if c in done:
            continue
        if c not in best:
            raise ExtractError("extract", f"class {c}", "a constant that nothing computes", "report this e-graph")
        done[c] = best[c]
        stack.extend(best[c].children)
    return done


def _rebuild(view: EGraphView, graph: Graph, picked: Mapping[int, ENode]) -> Graph:
    """Nodes in an order that follows the captured one wherever dependences leave a choice."""
    inputs = [view.class_of[n.id] for n in graph.inputs]
    effects = [view.class_of[i] for i in graph.effects]
    after: dict[int, set[int]] = {c: set(n.children) for c, n in picked.items()}
    for c in inputs:
        after.setdefault(c, set())
    for earlier, later in itertools.pairwise(effects):
        after[later].add(earlier)
    readers: dict[int, list[int]] = {}
    for c, needs in after.items():
        for child in needs:
            readers.setdefault(child, []).append(c)
    origin: dict[int, Origin] = {}
    for node in graph.nodes:
        origin.setdefault(view.class_of[node.id], node.origin)
    place = {c: i for i, c in enumerate(inputs)}
    ready = [(place.get(c, len(inputs) + c), c) for c, needs in after.items() if not needs]
    heapq.heapify(ready)
    builder, ids = Builder(graph), dict[int, int]()
    while ready:
        _, c = heapq.heappop(ready)
        pick = picked.get(c) or leaf_of(view.classes[c])
        assert pick is not None
        captured = origin.get(c, NOWHERE)
        made = captured if captured.rule == pick.rule else replace(captured, rule=pick.rule)
        ids[c] = builder.add(pick.op, tuple(ids[i] for i in pick.children), pick.attrs, view.classes[c].type, made)
        for reader in readers.get(c, ()):
            after[reader].discard(c)
            if not after[reader]:
                heapq.heappush(ready, (len(inputs) + reader, reader))
    return _inherit(builder.finish(tuple(ids[view.class_of[i]] for i in graph.outputs)))


def _inherit(graph: Graph) -> Graph:
    """A node that only a rule knows takes source and module from the first node that reads it."""
    users = graph.users()
    nodes = list(graph.nodes)
    for node in reversed(graph.nodes):
        if not node.origin.module and not node.op.leaf and users[node.id]:
            of = nodes[users[node.id][0]].origin
            nodes[node.id] = replace(node, origin=Origin(of.source, of.module, node.origin.rule))
    return replace(graph, nodes=tuple(nodes))
