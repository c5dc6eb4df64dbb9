"""Demand: which captured values the program reads in part only, so that the rest of them is dead.

Takes rules, then graphs. Gives node ids. Promises: linear in the graph; a value that any reader needs as a whole is
not among them; nothing is in part without rules that move a cut through. Not here: which part, and along which axis:
a rule that moves a slice says that with types.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forge_eq.ir.graph import Graph
from forge_eq.ops.spec import App, Op, Term, Var
from forge_eq.rules.dsl import Rule


@dataclass(frozen=True)
class Demand:
    """``cuts``: ops that read a part of their operand. ``through``: op -> operands that it reads in part when it is."""

    cuts: frozenset[Op]
    through: Mapping[Op, frozenset[int]]

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> Demand:
        """Read off the rules that have the guard: what the right side cuts of the operands under the left's root."""
        cuts: set[Op] = set()
        through: dict[Op, set[int]] = defaultdict(set)
        pairs = [pair for rule in rules if any(g.name == "in_part" for g in rule.guards) for pair in rule.pairs]
        for left, right in pairs:
            if isinstance(left, App) and isinstance(left.args[0], App):
                inner, cut = left.args[0], _operands(right, left.op)
                cuts.add(left.op)
                through[inner.op] |= {n for n, a in enumerate(inner.args) if a in cut}
        return cls(frozenset(cuts), {op: frozenset(positions) for op, positions in through.items()})

    def in_part(self, graph: Graph) -> set[int]:
        """Ids of the nodes of which every reader takes a part, itself or through what it is read by."""
        whole = {*graph.outputs, *graph.effects}
        part: set[int] = set()
        for node in reversed(graph.nodes):
            if node.op in self.cuts and node.type != graph.nodes[node.inputs[0]].type:
                part.update(node.inputs)
                continue
            passed = self.through.get(node.op, frozenset()) if node.id in part and node.id not in whole else frozenset()
            for n, i in enumerate(node.inputs):
                (part if n in passed else whole).add(i)
        return part - whole


def _operands(term: Term, op: Op) -> set[Term]:
    """What a term applies ``op`` to."""
    if isinstance(term, Var):
        return set()
    found = {t for a in term.args for t in _operands(a, op)}
    return found | {term.args[0]} if term.op is op else found
