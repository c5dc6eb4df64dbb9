"""The minimum cut of a directed graph with whole capacities.

Takes edges with capacities, a source and a sink. Gives the nodes on the sink's side. Promises: of all minimum cuts the
one with the fewest nodes there, so the answer does not depend on the order of the edges. The method is Dinic's
(1970): flow along shortest paths, a level graph at a time. Levels are few where most capacity is spent between
neighbours, as it is in orientation. Not here: what is cut (``lower.orient``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping


def sink_side(capacity: Mapping[tuple[Hashable, Hashable], int], source: Hashable, sink: Hashable) -> set[Hashable]:
    """The nodes from which the sink can be reached when the flow is largest."""
    network = _Network(capacity, source, sink)
    while network.levels():
        network.blocking_flow()
    return network.reaching_sink()


class _Network:
    """Edges in pairs: number ``e ^ 1`` is the reverse of number ``e``, and ``left[e]`` what it can still carry."""

    def __init__(self, capacity: Mapping[tuple[Hashable, Hashable], int], source: Hashable, sink: Hashable) -> None:
        self.numbers: dict[Hashable, int] = {source: 0, sink: 1}
        self.head: list[int] = []
        self.left: list[int] = []
        self.edges: list[list[int]] = [[], []]
        for (a, b), size in capacity.items():
            for end in (a, b):
                if end not in self.numbers:
                    self.numbers[end] = len(self.edges)
                    self.edges.append([])
            for start, end, carries in (a, b, size), (b, a, 0):
                self.edges[self.numbers[start]].append(len(self.head))
                self.head.append(self.numbers[end])
                self.left.append(carries)
        self.level: list[int] = []

    def levels(self) -> bool:
        """Distances to the sink along edges that can carry more; whether the source has one."""
        self.level = level = [-1] * len(self.edges)
        level[1], reached = 0, [1]
        for node in reached:
            for edge in self.edges[node]:
                start = self.head[edge]
                if level[start] < 0 and self.left[edge ^ 1]:
                    level[start] = level[node] + 1
                    reached.append(start)
        return level[0] >= 0

    def blocking_flow(self) -> None:
        """Fills shortest paths until each has a full edge."""
        next_edge = [0] * len(self.edges)
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                most = min(self.left[edge] for edge in path)
                for edge in path:
                    self.left[edge] -= most
                    self.left[edge ^ 1] += most
                full = next(k for k, edge in enumerate(path) if not self.left[edge])
                node = self.head[path[full] ^ 1]
                del path[full:]
                continue
            edges = self.edges[node]
            while next_edge[node] < len(edges):
                edge = edges[next_edge[node]]
                if self.left[edge] and self.level[self.head[edge]] == self.level[node] - 1:
                    break
                next_edge[node] += 1
            else:  # a dead end
                if not path:
                    return
                node = self.head[path.pop() ^ 1]
                next_edge[node] += 1
                continue
            path.append(edge)
            node = self.head[edge]

    def reaching_sink(self) -> set[Hashable]:
        """Once no flow can be added: the nodes that have a level."""
        return {node for node, number in self.numbers.items() if self.level[number] >= 0}
