"""The extraction problem: classes of alternative e-nodes, and the roots that must be computed.

Takes an e-graph reduced to labels, children and costs (or the serialised JSON of one). Gives
:class:`Problem`. Promises: children are valid dense class ids, costs are finite and strictly positive.
Not here: where costs come from, pruning (``extract.prune``), solving (the extractors).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Any

from forge_eq.errors import ExtractError

Key = tuple[Any, ...] | str
Nodes = tuple[tuple[int, ...], ...]  # per e-node of one class: its distinct children


@dataclass(frozen=True, slots=True)
class ENode:
    """One way to compute a class.

    ``children`` are dense class ids, ``cost`` is finite and strictly positive (any one unit for the whole
    problem). ``key`` breaks ties; it must depend on structure only, never on insertion order or the hash
    seed (:func:`structural_keys` makes one). ``payload`` is the caller's and is never looked at.
    """

    op: str
    children: tuple[int, ...]
    cost: float
    key: Key = ""
    payload: object = field(default=None, compare=False)


@dataclass(frozen=True)
class Problem:
    """Choose one e-node per needed class, without cycles, at the least total cost of the classes used.

    Raises ExtractError when a child or root is not a class, or a cost is not finite and positive.
    """

    classes: tuple[tuple[ENode, ...], ...]
    roots: tuple[int, ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.classes)
        for c, nodes in enumerate(self.classes):
            for node in nodes:
                if not 0.0 < node.cost < math.inf:
                    raise ExtractError(
                        "extract",
                        f"class {c}: {node.op}",
                        f"its cost is {node.cost}",
                        "give every e-node a finite cost above zero",
                    )
                if node.children and not (min(node.children) >= 0 and max(node.children) < count):
                    raise ExtractError(
                        "extract",
                        f"class {c}: {node.op}",
                        f"children {node.children} are not all among {count} classes",
                        "number the classes densely from 0",
                    )
        if not self.roots or any(not 0 <= root < count for root in self.roots):
            raise ExtractError(
                "extract",
                "roots",
                f"roots {self.roots} are not all among {count} classes",
                "name at least one root class, and only existing ones",
            )

    @property
    def size(self) -> int:
        """The number of e-nodes."""
        return sum(map(len, self.classes))

    @cached_property
    def kids(self) -> tuple[Nodes, ...]:
        """Per class, per e-node: its distinct children, in order of first use."""
        return tuple(
            tuple([n.children if len(n.children) < 2 else tuple(dict.fromkeys(n.children)) for n in nodes])
            for nodes in self.classes
        )

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Per class: the classes with at least one e-node that uses it, ascending."""
        users: list[dict[int, None]] = [{} for _ in self.classes]
        for c, nodes in enumerate(self.kids):
            for kids in nodes:
                for kid in kids:
                    users[kid][c] = None
        return tuple(map(tuple, users))

    @cached_property
    def scale(self) -> int:
        """``cost * scale`` is an integer for every e-node.

        Solvers add and compare integers: no rounding, so no order of summation and no depth (tree costs
        double at every residual connection) can change a decision.
        """
        return max(
            (cost.as_integer_ratio()[1] for cost in {n.cost for nodes in self.classes for n in nodes}), default=1
        )

    @cached_property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """Per class, per e-node: ``cost * scale``, exact."""
        scale, exact = self.scale, dict[float, int]()
        for nodes in self.classes:
            for node in nodes:
                if node.cost not in exact:
                    top, bottom = float(node.cost).as_integer_ratio()
                    exact[node.cost] = top * (scale // bottom)
        return tuple(tuple([exact[node.cost] for node in nodes]) for nodes in self.classes)

    @cached_property
    def order(self) -> tuple[tuple[int, ...], ...]:
        """Per class: indices of its e-nodes by key (as text), the tie-break order."""
        return tuple(
            (0,)
            if len(nodes) == 1
            else tuple(sorted(range(len(nodes)), key=lambda i: (str(nodes[i].key), nodes[i].op)))
            for nodes in self.classes
        )

    @cached_property
    def children_first(self) -> tuple[int, ...]:
        """The classes under the roots in depth-first postorder: children first, but for edges that close a cycle."""
        post: list[int] = []
        seen = bytearray(len(self.classes))
        for root in self.roots:
            work = [] if seen[root] else [(root, chain.from_iterable(self.kids[root]))]
            seen[root] = 1
            while work:
                c, rest = work[-1]
                for kid in rest:
                    if not seen[kid]:
                        seen[kid] = 1
                        work.append((kid, chain.from_iterable(self.kids[kid])))
                        break
                else:
                    post.append(c)
                    work.pop()
        return tuple(post)

    @cached_property
    def scc(self) -> tuple[int, ...]:
        """Per class: the number of its strongly connected component (all alternatives taken together)."""
        if all(kid < c for c, nodes in enumerate(self.kids) for kids in nodes for kid in kids):
            return tuple(range(len(self.classes)))
        return _components([tuple(dict.fromkeys(k for kids in nodes for k in kids)) for nodes in self.kids])

    @cached_property
    def cyclic(self) -> tuple[bool, ...]:
        """Per class: whether it can lie on a cycle of classes."""
        sizes = [0] * len(self.classes)
        for component in self.scc:
            sizes[component] += 1
        return tuple(
            sizes[component] > 1 or any(c in kids for kids in self.kids[c]) for c, component in enumerate(self.scc)
        )

    @classmethod
    def from_json(cls, source: str | Mapping[str, Any], *, floor: float = 1e-9) -> Problem:
        """Reads a serialised e-graph (``nodes`` with ``op``, ``children``, ``eclass``, ``cost``; ``root_eclasses``).

        Children name nodes and stand for their classes. Costs below ``floor`` (the format allows zero) are
        raised to it. The payload of an e-node is its name in the file. Raises ExtractError when the text is
        not of that format.
        """
        try:
            data = json.loads(source) if isinstance(source, str) else source
            nodes, roots = data["nodes"], data["root_eclasses"]
            names = sorted({str(node["eclass"]) for node in nodes.values()})
            number = {name: c for c, name in enumerate(names)}
            classes: list[list[tuple[str, tuple[int, ...], float, str]]] = [[] for _ in names]
            for name, node in sorted(nodes.items()):
                children = tuple(number[str(nodes[child]["eclass"])] for child in node["children"])
                cost = max(float(node["cost"]), floor)
                classes[number[str(node["eclass"])]].append((str(node["op"]), children, cost, name))
            root_ids = tuple(number[str(root)] for root in roots)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExtractError(
                "extract",
                "json",
                f"not a serialised e-graph ({error!r})",
                "pass an object with nodes and root_eclasses",
            ) from error
        keys = structural_keys([[(op, children) for op, children, _, _ in nodes] for nodes in classes])
        return cls(
            tuple(
                tuple(
                    ENode(op, children, cost, key, name)
                    for (op, children, cost, name), key in zip(nodes, row, strict=True)
                )
                for nodes, row in zip(classes, keys, strict=True)
            ),
            root_ids,
            tuple(names),
        )


def structural_keys(classes: Sequence[Sequence[tuple[str, tuple[int, ...]]]]) -> list[list[str]]:
    """Keys for e-nodes given as (label, children), independent of numbering, order and hash seed.

    A class is digested from its e-nodes whose children are all less deep than itself (depth = height of its
    flattest term), so that one pass suffices on cyclic e-graphs too. Labels must tell leaves apart.
    Classes without a finite term share one digest.
    """
    depth = _depths(classes)
    digest = [""] * len(classes)
    for c in sorted((c for c in range(len(classes)) if depth[c] >= 0), key=lambda c: depth[c]):
        parts = sorted(
            _digest(label, [digest[k] for k in children])
            for label, children in classes[c]
            if all(0 <= depth[k] < depth[c] for k in children)
        )
        digest[c] = _digest("class", parts)
    return [
        [f"{label} {_digest(label, [digest[k] for k in children])}" for label, children in nodes] for nodes in classes
    ]


def _digest(label: str, parts: list[str]) -> str:
    return blake2b("\0".join([label, *parts]).encode(), digest_size=10).hexdigest()


def _depths(classes: Sequence[Sequence[tuple[str, tuple[int, ...]]]]) -> list[int]:
    """Height of the flattest term of each class, -1 where there is none."""
    depth = [-1] * len(classes)
    waits: list[list[tuple[int, int]]] = [[] for _ in classes]
    pending = [[len(set(children)) for _, children in nodes] for nodes in classes]
    for c, nodes in enumerate(classes):
        for i, (_, children) in enumerate(nodes):
            for kid in set(children):
                waits[kid].append((c, i))
    level = [c for c, counts in enumerate(pending) if 0 in counts]
    height = 0
    while level:
        ready = []
        for c in level:
            if depth[c] < 0:
                depth[c] = height
                ready.append(c)
        level, height = [], height + 1
        for kid in ready:
            for c, i in waits[kid]:
                pending[c][i] -= 1
                if not pending[c][i] and depth[c] < 0:
                    level.append(c)
    return depth


def _components(edges: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Strongly connected components (Tarjan 1972), iterative."""
    count = len(edges)
    index, low, component = [-1] * count, [0] * count, [-1] * count
    stack: list[int] = []
    clock = found = 0
    for start in range(count):
        if index[start] >= 0:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = clock
        clock += 1
        stack.append(start)
        while work:
            c, rest = work[-1]
            for kid in rest:
                if index[kid] < 0:
                    index[kid] = low[kid] = clock
                    clock += 1
                    stack.append(kid)
                    work.append((kid, iter(edges[kid])))
                    break
                if component[kid] < 0:
                    low[c] = min(low[c], index[kid])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[c])
                if low[c] == index[c]:
                    while component[c] < 0:
                        component[stack.pop()] = found
                    found += 1
    return tuple(component)
