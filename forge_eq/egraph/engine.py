"""The egglog engine: declarations once per rule set, each when a program first needs it, then load, saturate, read.

Takes a Graph and a RuleSet. Gives an EGraphView. Promises: a node is never lost, CSE is hash-consing, no
rule fires outside its shape obligation, and growth stops at a named limit.

Loading is by tables of integers and reading by frozen rows: both take milliseconds where program text and
terms take a second (docs/decisions/0003). The rows of a program are deleted before the next one is loaded, so
that a process with one program never declares how; declarations and answers stay.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from forge_eq.egraph.compile_rules import LOADED, PREAMBLE, CompiledRule, constructor
from forge_eq.egraph.demand import Demand
from forge_eq.egraph.intern import INTERNER
from forge_eq.egraph.native import bindings
from forge_eq.egraph.read import read_view
from forge_eq.egraph.view import EGraphView, Saturation
from forge_eq.egraph.vocabulary import Usable, Vocabulary
from forge_eq.egraph.words import Words
from forge_eq.ir.constness import constant_nodes
from forge_eq.ir.graph import Graph
from forge_eq.ops.spec import REGISTRY, Op
from forge_eq.options import Limits
from forge_eq.rules.dsl import RuleSet

PATIENCE = 10  # steps after which questions are asked though rules still fire: an answer may be what makes them end
SHM = Path("/dev/shm")  # tables are written for the engine to read: keep them in memory where that exists


class Engine:
    """One e-graph with a rule set's declarations, used by one program at a time, on the thread that made it."""

    def __init__(self, rules: RuleSet) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="forge_eq-", dir=SHM if SHM.is_dir() else None))
        weakref.finalize(self, _remove, self.folder, os.getpid())
        self.egraph = bindings.EGraph(fact_directory=self.folder)
        self.rules = [CompiledRule(r, i + 1) for i, r in enumerate(sorted(rules, key=lambda r: r.id))]
        self.demand = Demand.of(rules)
        self.declared: dict[str, tuple[Op, int]] = {}
        self.loaded: set[tuple[Op, int]] = set()  # of these those that programs were written with
        self.asking: set[int] = set()  # rules whose ask rule is declared, by number
        self.firing: set[int] = set()  # the same of the fire rule: some question of theirs has an answer
        self.relations: set[str] = set()  # of questions and answers
        self.tables: dict[int, str] = {}
        self.schedules: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {}
        self.asked: dict[tuple[int, ...], tuple[int, ...] | None] = {}
        self.full = False  # whether a program's rows may be there
        self.pending: list[str] = [PREAMBLE]  # commands that the next run waits for
        self.forgetting: list[str] = []  # rules that delete rows, due before the next program
        for name, size in {"typed": 2, "is_constant": 1, "weight": 2, "in_part": 1, **LOADED}.items():
            self._forgotten(name, size)
        for name in ("N", "ty"):
            self._forgotten(name, 1, valued=True)

    def _run(self, schedule: str) -> Any:
        """Gives the engine what is pending and one schedule; its report.

        Through a file, which the engine reads itself: turning commands into Python objects and back takes as long as
        declaring them.
        """
        path = self.folder / "commands.egg"
        path.write_text("\n".join([*self.pending, f"(run-schedule {schedule})"]), encoding="utf-8")
        self.pending.clear()
        made: Any = self.egraph.run_program(bindings.Include(bindings.PanicSpan(), str(path)))
        return made[0].report

    def _forgotten(self, table: str, columns: int, *, valued: bool = False) -> None:
        """Notes that the rows of a table go when a program is done: far cheaper than ``push`` and ``pop``, which
        copy every rule. What is answered stays, and holds for every program."""
        row = " ".join([table, *(f"x{i}" for i in range(columns))])
        met = f"(= y ({row}))" if valued else f"({row})"
        self.forgetting.append(f'(rule ({met}) ((delete ({row}))) :ruleset clear :name "forget {table}")')

    def forget(self) -> None:
        """Deletes the rows of the program before, if there was one, also when it failed half-way."""
        if self.full:
            self.pending += self.forgetting
            self.forgetting.clear()
            self._run("(run clear)")
        self.full = False

    def declare(self, constructors: Iterable[tuple[Op, int]]) -> None:
        """Declares ops at their numbers of operands, with the rules that load them and carry constness."""
        for op, arity in constructors:
            name = constructor(op, arity)
            if name in self.declared:
                continue
            self.declared[name] = (op, arity)
            attrs = len(op.attrs)
            table, number = self._table(op, arity), len(self.declared)
            args = " ".join([f"c{i}" for i in range(arity)] + [f"a{i}" for i in range(attrs)])
            nodes = " ".join([f"(N c{i})" for i in range(arity)] + [f"a{i}" for i in range(attrs)])
            sorts = " ".join(["T"] * arity + ["i64"] * attrs)
            self.pending.append(
                f"(constructor {name} ({sorts}) T)\n(function by_{name} ({sorts}) i64 :merge (min old new))\n"
                f"(rule (({table} {number} e {args})) ((union (N e) ({name} {nodes})) (set (by_{name} {nodes}) 0))"
                f' :ruleset load :name "load {name}")'
            )
            for made in (name, f"by_{name}"):
                self._forgotten(made, arity + attrs, valued=True)
            if op.pure and op.leaf in ("", "literal"):  # a number that a rule made is as constant as a captured one
                known = " ".join(f"(is_constant c{i})" for i in range(arity))
                known += "".join(f" (>= a{i} 0)" for i, (_, kind) in enumerate(op.attrs) if kind == "ints")
                constness = f'((is_constant e)) :ruleset facts :name "constness of {name}"'
                self.pending.append(f"(rule ((= e ({name} {args})) {known}) {constness})")

    def _declare_asking(self, rule: CompiledRule) -> None:
        if rule.index not in self.asking:
            self.asking.add(rule.index)
            self.declare(sorted(rule.matched, key=lambda c: (c[0].name, c[1])))
            self._relation(rule.tables[0], 1 + rule.key_size, forgotten=True)
            self.pending.append(rule.ask())

    def _declare_firing(self, rule: CompiledRule) -> None:
        if rule.index not in self.firing:
            self.firing.add(rule.index)
            self.declare(sorted(rule.made, key=lambda c: (c[0].name, c[1])))
            self._relation(rule.tables[1], 1 + rule.key_size + rule.answer_size, forgotten=False)
            self.pending.append(rule.fire())

    def _relation(self, name: str, columns: int, *, forgotten: bool) -> None:
        """Declares a table of questions or answers; both begin with the rule's number."""
        if name not in self.relations:
            self.relations.add(name)
            self.pending.append(f"(relation {name} ({' '.join(['i64'] * columns)}))")
            if forgotten:
                self._forgotten(name, columns)

    def _table(self, op: Op, arity: int) -> str:
        """The table that nodes of this op are loaded from: one for each number of columns, the op's number first."""
        columns = 2 + arity + len(op.attrs)
        if columns not in self.tables:
            self.tables[columns] = f"l_{columns}"
            self.pending.append(f"(relation l_{columns} ({' '.join(['i64'] * columns)}))")
            self._forgotten(f"l_{columns}", columns)
        return self.tables[columns]

    # ------------------------------------------------------------------------------------------- running

    def prepare(self, words: Words) -> None:
        """Declares words that a program is likely to have, before there is one."""
        ops = [(REGISTRY[name], arity) for name, arity in words.constructors if name in REGISTRY]
        self.declare(ops)
        known = {r.id: r for r in self.rules}
        for kind, declare in ((words.asking, self._declare_asking), (words.firing, self._declare_firing)):
            for name in kind:
                if name in known:
                    declare(known[name])
        self._run("(run load)")

    @property
    def words(self) -> Words:
        """What the programs so far needed, be it declared for them or before."""
        asking = [self.rules[i - 1] for i in sorted({i for ask, _ in self.schedules for i in ask})]
        answered = {index for (index, *_), reply in self.asked.items() if reply is not None}
        firing = [self.rules[i - 1] for i in sorted(answered)]
        ops = self.loaded.union(*(r.matched for r in asking), *(r.made for r in firing))
        constructors = sorted((op.name, arity) for op, arity in ops)
        return Words(tuple(constructors), tuple(r.id for r in asking), tuple(r.id for r in firing))

    def saturate(self, graph: Graph, limits: Limits) -> EGraphView:
        """Loads a program, saturates it and reads it back."""
        self.forget()
        attrs = [tuple(map(INTERNER.id, n.attrs)) for n in graph.nodes]
        present = Vocabulary(graph.nodes, attrs)
        self.loaded |= present.ops
        self.declare(sorted(present.ops, key=lambda c: (c[0].name, c[1])))
        part = self.demand.in_part(graph)
        marks = [time.process_time()]
        self.full = True
        self._load(graph, attrs, part)
        marks.append(time.process_time())
        usable = Usable((r for r in self.rules if part or not r.wants_part), present)
        saturation = self._saturate(limits, usable, len(graph.nodes), bool(part))
        marks.append(time.process_time())
        view = read_view(graph, saturation, self.egraph, self.declared, self.rules)
        marks.append(time.process_time())
        spent = (after - before for before, after in pairwise(marks))
        saturation.spent.update(zip(("load", "saturate", "read"), spent, strict=True))
        return view

    def _schedule(self, usable: Usable) -> str:
        """Names the rules that can match (:class:`Usable`), and of these the ones that have answers: the others only
        cost time, to declare (half a millisecond each) and to run.

        Every rule has rulesets of its own; a combination of them is declared once and named by its number.
        """
        usable.grow(self.firing)
        ask = tuple(sorted(usable.found))
        fire = tuple(i for i in ask if i in self.firing)
        if (ask, fire) not in self.schedules:
            for i in ask:
                self._declare_asking(usable.found[i])
            self.schedules[ask, fire] = name = f"all_{len(self.schedules)}"
            cuts = [i for i in fire if self.rules[i - 1].wants_part]
            for kind, which in (("ask", ask), ("fire", [i for i in fire if i not in cuts]), ("cut", cuts)):
                of = "fire" if kind == "cut" else kind
                rulesets = " ".join(f"{of}_{i}" for i in which)
                self.pending.append(f"(unstable-combined-ruleset {kind}_{name} {rulesets})")
        return self.schedules[ask, fire]

    def _load(self, graph: Graph, attrs: Iterable[tuple[int, ...]], part: set[int]) -> None:
        known = constant_nodes(graph)
        tables: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        numbers = {declared: i + 1 for i, declared in enumerate(self.declared.values())}
        for node, ids in zip(graph.nodes, attrs, strict=True):
            row = (numbers[node.op, len(node.inputs)], node.id, *node.inputs, *ids)
            tables[self.tables[len(row)]].append(row)
            tables["l_type"].append((node.id, INTERNER.id(node.type)))
            if node.id in known:
                tables["l_constant"].append((node.id,))
                if node.op.leaf == "constant":
                    tables["l_weight"].append((node.id, node.id))
        tables["l_in_part"] = [(i,) for i in sorted(part)]
        for name, rows in tables.items():
            self._insert(name, rows)
        self._run("(run load)")

    def _insert(self, table: str, rows: Iterable[tuple[int, ...]]) -> None:
        path = self.folder / f"{table}.tsv"
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
        self.pending.append(f'(input {table} "{path.name}")')

    def _saturate(self, limits: Limits, usable: Usable, nodes: int, cut: bool) -> Saturation:
        matches: dict[str, int] = defaultdict(int)
        seconds: dict[str, float] = defaultdict(float)
        left, rounds, stop = limits.iterations, 0, "saturated"
        most = nodes  # e-nodes at most: counting them costs as much as a step, so it is left until it could matter
        while stop == "saturated":
            rounds += 1
            which = self._schedule(usable)
            makes = {r.id: len(r.created) for i, r in usable.found.items() if i in self.firing}
            # A cut moves by one node a round, so these few rules have rounds of their own.
            cuts = f'(saturate (run cut_{which} :until (<= {limits.nodes} (get-size! "typed"))))' if cut else ""
            step = f"(seq (saturate (run facts)) (run fire_{which}) {cuts})"
            # One step at a time: egglog's ``repeat`` goes on after the last change, which would use up the limit.
            for _ in range(PATIENCE):
                if left <= 0:
                    stop = "iteration limit"
                    break
                report = self._run(step)
                for name, count in report.num_matches_per_rule.items():
                    matches[name] += count
                    most += count * makes.get(name, 0)
                for name, spent in report.search_and_apply_time_per_rule.items():
                    seconds[name] += spent.total_seconds()
                if not (busy := report.updated):
                    break
                left -= 1
                if most >= limits.nodes and (most := self._size()) >= limits.nodes:
                    stop = "node limit"
                    break
            if stop == "saturated":
                # When the rules have no more to do with the answers at hand: it costs as much as firing.
                asked = self._run(f"(run ask_{which})").updated
                if not (asked and self._answer()) and not busy:
                    break
        fired = {r.id for r in self.rules}
        return Saturation(
            stop,
            rounds,
            {n: c for n, c in sorted(matches.items()) if n in fired and c},
            {n: s for n, s in sorted(seconds.items()) if n in fired},
        )

    def _size(self) -> int:
        """E-nodes. Answers do not count: they are kept, and must not use up the next program's limit."""
        frozen = self.egraph.freeze().functions
        return sum(len(f.rows) for name, f in frozen.items() if name.startswith("op_"))

    def _answer(self) -> bool:
        """Answers the questions that are new; says whether any had an answer."""
        functions = self.egraph.freeze().functions
        to_int = self.egraph.value_to_i64
        fresh: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for want in sorted({self.rules[i - 1].tables[0] for i in self.asking}):
            for row in functions[want].rows:
                index, *key = (to_int(v) for v in row.inputs)
                question = (index, *key)
                if question in self.asked:
                    continue
                rule = self.rules[index - 1]
                reply = self.asked[question] = rule.answer(tuple(key))
                if reply is not None:
                    self._declare_firing(rule)
                    fresh[rule.tables[1]].append((*question, *reply))
        for table, rows in fresh.items():
            self._insert(table, rows)
        return bool(fresh)


def _remove(folder: Path, owner: int) -> None:
    """Removes an engine's folder, unless this process has only inherited it by a fork."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
