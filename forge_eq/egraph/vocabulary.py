"""Which rules can match a program at all: the others are neither declared nor run.

Takes the nodes of a program, then rules. Gives the rules whose left sides it can have: of its own words, and of what
such rules make. Promises: a rule that is left out cannot match, whatever is united. Not here: what rules say
(``compile_rules``), running them (``engine``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from forge_eq.egraph.compile_rules import ANY, CompiledRule, Slot
from forge_eq.ir.graph import Node
from forge_eq.ops.spec import Op


class Vocabulary:
    """What nodes of an e-graph can be, at least: ops at their numbers of operands, and the attributes in each place.

    A rule needs its left side's words to be in it. Classes do not matter, so it holds whatever has been united.
    """

    def __init__(self, nodes: Iterable[Node], attrs: Iterable[tuple[int, ...]]) -> None:
        """``attrs`` are the ids of each node's attributes."""
        words = dict.fromkeys((n.op, len(n.inputs), a) for n, a in zip(nodes, attrs, strict=True))
        self.ops: set[tuple[Op, int]] = {(op, arity) for op, arity, _ in words}
        self.values: defaultdict[Slot, set[int]] = defaultdict(set)
        for op, arity, ids in words:
            for place, attr in enumerate(ids):
                self.values[op, arity, place].add(attr)

    def has(self, rule: CompiledRule) -> bool:
        """Whether the left side's words are there."""
        if rule.head not in self.ops or not rule.matched <= self.ops:  # most are told by the head
            return False
        return all(not {v, ANY}.isdisjoint(self.values[slot]) for slot, v in rule.fixed)

    def add(self, rule: CompiledRule) -> bool:
        """Adds what a rule makes; says whether any of it is new."""
        grown = not rule.made <= self.ops
        self.ops |= rule.made
        for slot, source in rule.given:
            more = {source} if isinstance(source, int) else self.values[source]
            grown |= not more <= self.values[slot]
            self.values[slot] |= more
        return grown


class Usable:
    """The rules of a set that a program can use, as they come to be known: ``found`` only grows."""

    def __init__(self, rules: Iterable[CompiledRule], present: Vocabulary) -> None:
        self.known, self.waiting = present, list(rules)
        self.found: dict[int, CompiledRule] = {}

    def grow(self, firing: Collection[int]) -> None:
        """Adds what has come to be usable, now that the rules with the numbers ``firing`` may have made something."""
        grown = True
        while grown:
            self.found |= {r.index: r for r in self.waiting if self.known.has(r)}
            self.waiting = [r for r in self.waiting if r.index not in self.found]
            grown = any([self.known.add(r) for i, r in self.found.items() if i in firing])
