"""The egglog engine: declarations once per rule set, then load, saturate, read.

Takes a Graph and a RuleSet. Gives an EGraphView. Promises: a node is never lost, CSE is hash-consing, no
rule fires outside its shape obligation, and growth stops at a named limit.

Loading is by tables of integers and reading by frozen rows: both take milliseconds where program text and
terms take a second (docs/decisions/0003). The declarations are kept on the bottom of the e-graph's stack
and each program lives between a push and a pop.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from egglog import bindings

from forge_eq.egraph.compile_rules import CompiledRule, constructor
from forge_eq.egraph.demand import Demand
from forge_eq.egraph.intern import INTERNER
from forge_eq.egraph.view import EClass, EGraphView, ENode, Saturation, number_classes
from forge_eq.errors import CheckError, UnionError
from forge_eq.ir.constness import constant_nodes
from forge_eq.ir.graph import Graph
from forge_eq.ir.types import TensorType, Type
from forge_eq.ops.spec import Op
from forge_eq.options import Limits
from forge_eq.rules.dsl import RuleSet

SHM = Path("/dev/shm")  # tables are written for the engine to read: keep them in memory where that exists

PREAMBLE = """
(sort T)
(constructor N (i64) T :unextractable)
(function ty (T) i64 :merge old)
(relation typed (T i64))
(relation is_constant (T))
(relation weight (T i64))
(relation in_part (T))
(relation l_type (i64 i64))
(relation l_constant (i64))
(relation l_weight (i64 i64))
(relation l_in_part (i64))
(ruleset load)
(ruleset facts)
(rule ((l_type e t)) ((set (ty (N e)) t) (typed (N e) t)) :ruleset load :name "load types")
(rule ((l_constant e)) ((is_constant (N e))) :ruleset load :name "load constants")
(rule ((l_in_part e)) ((in_part (N e))) :ruleset load :name "load what is read in part")
(rule ((l_weight e i)) ((weight (N e) i)) :ruleset load :name "load weights")
"""


class Engine:
    """One e-graph with a rule set's declarations, used by one program at a time."""

    def __init__(self, rules: RuleSet) -> None:
        self.lock = threading.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix="forge_eq-", dir=SHM if SHM.is_dir() else None))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.egraph = bindings.EGraph(fact_directory=self.folder)
        self.rules = [CompiledRule(r, i + 1) for i, r in enumerate(sorted(rules, key=lambda r: r.id))]
        self.demand = Demand.of(rules)
        self.declared: dict[str, tuple[Op, int]] = {}
        self.schedules: dict[tuple[int, ...], str] = {}
        self.asked: dict[tuple[int, ...], tuple[int, ...] | None] = {}
        self.pending: list[tuple[str, list[tuple[int, ...]]]] = []
        self._run(PREAMBLE)
        for one in self.rules:
            self.declare(sorted(one.matched | one.made, key=lambda c: (c[0].name, c[1])))
        columns: dict[str, int] = {}  # questions and answers begin with the rule's number
        for want, answer, key, out in sorted({(*r.tables, r.key_size, r.answer_size) for r in self.rules}):
            columns |= {want: 1 + key, answer: 1 + key + out}
        for name, count in columns.items():
            self._run(f"(relation {name} ({' '.join(['i64'] * count)}))")
        for one in self.rules:
            self._run(one.text())

    def _run(self, text: str) -> list[Any]:
        return self.egraph.run_program(*self.egraph.parse_program(text))

    def declare(self, constructors: Iterable[tuple[Op, int]]) -> None:
        """Declares ops at their numbers of operands, with the rules that load them and carry constness."""
        for op, arity in constructors:
            name = constructor(op, arity)
            if name in self.declared:
                continue
            self.declared[name] = (op, arity)
            attrs = len(op.attrs)
            args = " ".join([f"c{i}" for i in range(arity)] + [f"a{i}" for i in range(attrs)])
            nodes = " ".join([f"(N c{i})" for i in range(arity)] + [f"a{i}" for i in range(attrs)])
            sorts = " ".join(["T"] * arity + ["i64"] * attrs)
            self._run(
                f"(constructor {name} ({sorts}) T)\n(function by_{name} ({sorts}) i64 :merge (min old new))\n"
                f"(relation l_{name} ({' '.join(['i64'] * (1 + arity + attrs))}))\n"
                f"(rule ((l_{name} e {args})) ((union (N e) ({name} {nodes})) (set (by_{name} {nodes}) 0))"
                f' :ruleset load :name "load {name}")'
            )
            if op.pure and op.leaf in ("", "literal"):  # a number that a rule made is as constant as a captured one
                known = " ".join(f"(is_constant c{i})" for i in range(arity))
                known += "".join(f" (>= a{i} 0)" for i, (_, kind) in enumerate(op.attrs) if kind == "ints")
                constness = f'((is_constant e)) :ruleset facts :name "constness of {name}"'
                self._run(f"(rule ((= e ({name} {args})) {known}) {constness})")

    # ------------------------------------------------------------------------------------------- running

    def saturate(self, graph: Graph, limits: Limits) -> EGraphView:
        """Loads a program, saturates it and reads it back."""
        with self.lock:
            present = {(n.op, len(n.inputs)) for n in graph.nodes}
            self.declare(sorted(present, key=lambda c: (c[0].name, c[1])))
            part = self.demand.in_part(graph)
            step = self._schedule(present, bool(part))
            self._run("(push)")
            try:
                self._load(graph, part)
                saturation = self._saturate(limits, step)
                view = self._read(graph, saturation)
            finally:
                self._run("(pop)")
                self._keep_answers()
            return view

    def _schedule(self, present: set[tuple[Op, int]], in_part: bool) -> str:
        """Names the rules that can match a program of these ops, or of what such rules make: the others only cost time.

        Every rule has rulesets of its own; a combination of them is declared once and named by its number.
        """
        known, usable = set(present), set[int]()
        waiting = [r for r in self.rules if in_part or not r.wants_part]
        while ready := [r for r in waiting if r.matched <= known]:
            known.update(c for r in ready for c in r.made)
            usable.update(r.index for r in ready)
            waiting = [r for r in waiting if r.index not in usable]
        key = tuple(sorted(usable))
        if key not in self.schedules:
            self.schedules[key] = name = f"all_{len(self.schedules)}"
            cuts = [i for i in key if self.rules[i - 1].wants_part]
            for kind, which in (("ask", key), ("fire", [i for i in key if i not in cuts]), ("cut", cuts)):
                of = "fire" if kind == "cut" else kind
                self._run(f"(unstable-combined-ruleset {kind}_{name} {' '.join(f'{of}_{i}' for i in which)})")
        return self.schedules[key]

    def _load(self, graph: Graph, part: set[int]) -> None:
        known = constant_nodes(graph)
        tables: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for node in graph.nodes:
            name = constructor(node.op, len(node.inputs))
            tables[f"l_{name}"].append((node.id, *node.inputs, *map(INTERNER.id, node.attrs)))
            tables["l_type"].append((node.id, INTERNER.id(node.type)))
            if node.id in known:
                tables["l_constant"].append((node.id,))
                if node.op.leaf == "constant":
                    tables["l_weight"].append((node.id, node.id))
        tables["l_in_part"] = [(i,) for i in sorted(part)]
        for name, rows in tables.items():
            self._insert(name, rows)
        self._run("(run-schedule (saturate (run load)))")

    def _insert(self, table: str, rows: Iterable[tuple[int, ...]]) -> None:
        path = self.folder / f"{table}.tsv"
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
        self._run(f'(input {table} "{path.name}")')

    def _saturate(self, limits: Limits, which: str) -> Saturation:
        matches: dict[str, int] = defaultdict(int)
        seconds: dict[str, float] = defaultdict(float)
        left, rounds, stop = limits.iterations, 0, "saturated"
        # Only ops count: answers are kept from program to program, and must not use up the next one's limit.
        tables = " ".join(f'"{name}"' for name in self.declared)
        until = f":until (<= {limits.nodes} (get-size! {tables}))"
        # A cut moves by one node a round, so these few rules have rounds of their own.
        step = f"(run-schedule (saturate (run facts)) (run fire_{which} {until}) (saturate (run cut_{which} {until})))"
        ask = f"(run-schedule (run ask_{which}))"
        while True:
            rounds += 1
            # One step at a time: egglog's ``repeat`` goes on after the last change, which would use up the limit.
            while left > 0:
                report = self._run(step)[0].report
                for name, count in report.num_matches_per_rule.items():
                    matches[name] += count
                for name, spent in report.search_and_apply_time_per_rule.items():
                    seconds[name] += spent.total_seconds()
                if not report.updated:
                    break
                left -= 1
            else:
                stop = "iteration limit"
            if self._size() >= limits.nodes:
                stop = "node limit"
            if stop != "saturated":
                break
            self._run(ask)  # once the rules have no more to do with the answers at hand: asking costs as much as firing
            if not self._answer():
                break
        fired = {r.rule.id for r in self.rules}
        return Saturation(
            stop,
            rounds,
            {n: c for n, c in sorted(matches.items()) if n in fired and c},
            {n: s for n, s in sorted(seconds.items()) if n in fired},
        )

    def _size(self) -> int:
        """E-nodes, counted as the limit in ``_saturate`` counts them."""
        frozen = self.egraph.freeze().functions
        return sum(len(f.rows) for name, f in frozen.items() if name.startswith("op_"))

    def _answer(self) -> bool:
        """Answers the questions that are new; says whether any had an answer."""
        functions = self.egraph.freeze().functions
        to_int = self.egraph.value_to_i64
        fresh: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        for want in sorted({r.tables[0] for r in self.rules}):
            for row in functions[want].rows:
                index, *key = (to_int(v) for v in row.inputs)
                question = (index, *key)
                if question in self.asked:
                    continue
                rule = self.rules[index - 1]
                reply = self.asked[question] = rule.answer(tuple(key))
                if reply is not None:
                    fresh[rule.tables[1]].append((*question, *reply))
        for table, rows in fresh.items():
            self._insert(table, rows)
            self.pending.append((table, rows))
        return bool(fresh)

    def _keep_answers(self) -> None:
        """Answers hold for every program: enter them below the push, so that they are never asked again."""
        for table, rows in self.pending:
            self._insert(table, rows)
        self.pending = []

    # ------------------------------------------------------------------------------------------- reading

    def _read(self, graph: Graph, saturation: Saturation) -> EGraphView:
        functions = self.egraph.freeze().functions
        to_int, value = self.egraph.value_to_i64, INTERNER.value
        class_of = {to_int(row.inputs[0]): row.output for row in functions["N"].rows}
        raw: dict[Any, list[tuple[Op, tuple[Any, ...], tuple[Any, ...], str]]] = defaultdict(list)
        for name, (op, arity) in self.declared.items():
            if not functions[name].rows:
                continue
            by = {tuple(row.inputs): to_int(row.output) for row in functions[f"by_{name}"].rows}
            for row in functions[name].rows:
                inputs = row.inputs
                made = by[tuple(inputs)]
                attrs = tuple(value(to_int(v)) for v in inputs[arity:])
                raw[row.output].append((op, tuple(inputs[:arity]), attrs, self.rules[made - 1].rule.id if made else ""))
        types: dict[Any, set[int]] = defaultdict(set)
        for row in functions["typed"].rows:
            types[row.inputs[0]].add(to_int(row.inputs[1]))
        constants = {row.inputs[0] for row in functions["is_constant"].rows}
        captured: dict[Any, int] = {}
        for node in sorted(class_of):
            captured.setdefault(class_of[node], node)
        rank = number_classes(raw, captured)
        classes: list[EClass | None] = [None] * len(rank)
        for handle, index in rank.items():
            nodes = [
                ENode(op, tuple(rank[c] for c in children), attrs, rule)
                for op, children, attrs, rule in raw[handle]
                if all(c in rank for c in children)
            ]
            if len(nodes) > 1:
                nodes.sort(key=lambda n: (n.op.name, n.children, repr(n.attrs)))
            type_ = _one_type(types[handle], nodes, graph)
            classes[index] = EClass(type_, handle in constants, tuple(nodes))
        done = tuple(c for c in classes if c is not None)
        if len(done) != len(classes):
            raise CheckError("saturate", graph.name, "a class without nodes", "report this e-graph")
        return EGraphView(graph.name, done, {n: rank[h] for n, h in class_of.items()}, saturation)


def _one_type(ids: set[int], nodes: list[ENode], graph: Graph) -> Type:
    """The class's type. Two concrete ones mean that some rule is wrong; symbols that meet are equal sizes."""
    types = [INTERNER.value(i) for i in ids]
    if len(types) > 1:
        types.sort(key=str)
    first: Type = types[0]
    for other in types[1:]:
        if not _compatible(first, other):
            rules = sorted({n.rule for n in nodes if n.rule}) or ["no rule"]
            raise UnionError(
                "saturate",
                graph.name,
                f"{first} and {other} met in one class (made by {', '.join(rules)})",
                "remove the rule and report it",
            )
    return first


def _compatible(a: Type, b: Type) -> bool:
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    same = a.dtype == b.dtype and a.rank == b.rank
    return same and all(
        x == y or not (isinstance(x, int) and isinstance(y, int)) for x, y in zip(a.shape, b.shape, strict=True)
    )


_ENGINES: dict[str, Engine] = {}


def engine(rules: RuleSet) -> Engine:
    """The engine of a rule set, made once per process."""
    if rules.hash not in _ENGINES:
        _ENGINES[rules.hash] = Engine(rules)
    return _ENGINES[rules.hash]


def saturate(graph: Graph, rules: RuleSet, limits: Limits | None = None) -> EGraphView:
    """Every program that the rules show equal to ``graph``, as one e-graph."""
    return engine(rules).saturate(graph, limits or Limits())
