"""The saturated e-graph as plain data: what extraction reads.

Classes and nodes are numbered by structure (captured nodes first, then by what they are built from), so
the numbering is the same for any hash seed and any order of rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forge_eq.ir.types import Type
from forge_eq.ops.spec import Op


@dataclass(frozen=True, slots=True)
class ENode:
    """One way to compute a class: an op on classes. ``rule`` made it (empty: captured)."""

    op: Op
    children: tuple[int, ...]
    attrs: tuple[Any, ...]
    rule: str = ""


@dataclass(frozen=True, slots=True)
class EClass:
    """Equal values. ``constant`` when they depend on constants only."""

    type: Type
    constant: bool
    nodes: tuple[ENode, ...]


@dataclass(frozen=True)
class Saturation:
    """How saturation went: why it stopped, and how often each rule's left side matched."""

    stop: str  # saturated | node limit | iteration limit
    rounds: int = field(default=0, compare=False)  # of questions to Python; fewer when they were asked before
    matches: Mapping[str, int] = field(default_factory=dict, compare=False)
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)  # per rule, as egglog reports it
    spent: dict[str, float] = field(default_factory=dict, compare=False)  # processor seconds: load, saturate, read


@dataclass(frozen=True)
class EGraphView:
    """The e-graph. ``class_of`` maps captured node ids to classes."""

    name: str
    classes: tuple[EClass, ...]
    class_of: Mapping[int, int]
    saturation: Saturation

    @property
    def nodes(self) -> int:
        return sum(len(c.nodes) for c in self.classes)


def number_classes(
    raw: Mapping[Any, list[tuple[Op, tuple[Any, ...], tuple[Any, ...], str]]], captured: Mapping[Any, int]
) -> dict[Any, int]:
    """Ranks class handles by structure: captured ones by node id, the others in rounds, each round naming
    the classes that have a node over named classes and sorting them by their least such node.
    """
    rank = {handle: i for i, (handle, _) in enumerate(sorted(captured.items(), key=lambda item: item[1]))}
    waiting = [h for h in raw if h not in rank]
    while waiting:
        named: list[tuple[Any, Any]] = []
        left = []
        for handle in waiting:
            keys = [
                (op.name, tuple(rank[c] for c in children), repr(attrs))
                for op, children, attrs, _ in raw[handle]
                if all(c in rank for c in children)
            ]
            if keys:
                named.append((min(keys), handle))
            else:
                left.append(handle)
        if not named:
            break  # classes that are only reachable through themselves: nothing can be computed from them
        for _, handle in sorted(named, key=lambda item: item[0]):
            rank[handle] = len(rank)
        waiting = left
    return rank
