"""What egglog holds once a program is saturated, as an EGraphView.

Takes the frozen rows. Gives classes numbered by structure. Promises: neither egglog's handles nor the order of its rows
shows in the result. Not here: running rules (``engine``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from forge_eq.egraph.compile_rules import CompiledRule
from forge_eq.egraph.intern import INTERNER
from forge_eq.egraph.native import bindings
from forge_eq.egraph.view import EClass, EGraphView, ENode, Saturation, number_classes
from forge_eq.errors import CheckError, UnionError
from forge_eq.ir.graph import Graph
from forge_eq.ir.types import TensorType, Type
from forge_eq.ops.spec import Op


def read_view(
    graph: Graph,
    saturation: Saturation,
    egraph: bindings.EGraph,
    declared: Mapping[str, tuple[Op, int]],
    rules: Sequence[CompiledRule],
) -> EGraphView:
    """The classes of a saturated program. Raises UnionError where two types met in one."""
    functions = egraph.freeze().functions
    to_int, value = egraph.value_to_i64, INTERNER.value
    class_of = {to_int(row.inputs[0]): row.output for row in functions["N"].rows}
    raw: dict[Any, list[tuple[Op, tuple[Any, ...], tuple[Any, ...], str]]] = defaultdict(list)
    for name, (op, arity) in declared.items():
        if not (rows := functions[name].rows):
            continue
        by = {tuple(row.inputs): to_int(row.output) for row in functions[f"by_{name}"].rows}
        for row in rows:
            inputs = row.inputs
            made = by[tuple(inputs)]
            attrs = tuple([value(to_int(v)) for v in inputs[arity:]])
            raw[row.output].append((op, tuple(inputs[:arity]), attrs, rules[made - 1].id if made else ""))
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
            ENode(op, tuple([rank[c] for c in children]), attrs, rule)
            for op, children, attrs, rule in raw[handle]
            if all([c in rank for c in children])
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
