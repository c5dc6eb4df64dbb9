"""Definitions made concrete: a term over variables becomes nodes with types.

Takes a builder, an operation with a definition and the ids of its operands. Gives the ids of the
definition's results. Promises: equal subterms become one node; the types are those of the operation itself.
Not here: whether to expand (lowering and execution decide), recognition (rules).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forge_eq.errors import CheckError
from forge_eq.ir.graph import NOWHERE, Attr, Builder, Graph, Node, Origin
from forge_eq.ir.types import TupleType, Type
from forge_eq.ops.movement import project
from forge_eq.ops.spec import AttrVar, Computed, Op, Term, Var


def definition(op: Op, types: Sequence[Type], attrs: tuple[Attr, ...]) -> tuple[tuple[Term, ...], list[str]]:
    """The definition of ``op`` as terms, one per output, and the names of its tensor variables.

    Tensors and attributes appear as variables under the names of the signature (variadic operands as
    ``xs0``, ``xs1``...). An attribute of kind ``str`` is passed as its value: it selects which definition
    is meant. Raises CheckError when the op has no definition.
    """
    if op.define is None:
        raise CheckError("expand", op.name, "has no definition", "give it one, or stop expanding before it")
    names = operand_names(op, len(types))
    variables = [Var(name, type) for name, type in zip(names, types, strict=True)]
    given = [v if k == "str" else AttrVar(n) for (n, k), v in zip(op.attrs, attrs, strict=True)]
    made = op.define(*variables, *given)
    return (tuple(made) if isinstance(made, tuple) else (made,)), names


def operand_names(op: Op, count: int) -> list[str]:
    """The signature's names for ``count`` operands; a variadic name is numbered."""
    if not op.variadic:
        return list(op.inputs)
    fixed, last = op.inputs[:-1], op.inputs[-1]
    return [*fixed, *(f"{last}{i}" for i in range(count - len(fixed)))]


def resolve(value: Any, types: Mapping[str, Type], attrs: Mapping[str, Attr]) -> Any:
    """The value of an attribute of a term: a number, a variable, a computed one, or a tuple of these.

    Raises CheckError when a variable is unbound or a computation has no answer.
    """
    if isinstance(value, tuple):
        return tuple(resolve(v, types, attrs) for v in value)
    if isinstance(value, AttrVar):
        if value.name not in attrs:
            raise CheckError("expand", value.name, "is an unbound attribute variable", "bind it")
        return attrs[value.name]
    if not isinstance(value, Computed):
        return value
    unbound = [n for n in value.args if n not in types and n not in attrs]
    if unbound:
        raise CheckError("expand", unbound[0], "is an unbound variable of a computed attribute", "bind it")
    found = value.fn(*(types[n] if n in types else attrs[n] for n in value.args))
    if found is None:
        raise CheckError("expand", ", ".join(value.args), "gives no value for a computed attribute", "guard the rule")
    return found


def exact_key(value: Any) -> Any:
    """A hashable key under which 1, 1.0 and True differ, and 0.0 and -0.0 too."""
    if isinstance(value, tuple):
        return tuple(exact_key(v) for v in value)
    return (type(value).__name__, repr(value))


def expand_term(
    builder: Builder,
    term: Term,
    tensors: Mapping[str, int],
    attrs: Mapping[str, Attr],
    origin: Origin = NOWHERE,
    made: dict[Any, int] | None = None,
) -> int:
    """Appends the nodes of ``term`` to ``builder`` and gives the id of its value.

    Args:
        tensors: tensor variable -> node id.
        attrs: attribute variable -> value.
        made: nodes made so far for the same definition; pass one dict to share subterms between terms.
    """
    types = {name: builder.nodes[i].type for name, i in tensors.items()}
    known: dict[Any, int] = {} if made is None else made

    def walk(t: Term) -> int:
        if isinstance(t, Var):
            if t.name not in tensors:
                raise CheckError("expand", t.name, "is an unbound tensor variable", "bind it")
            return tensors[t.name]
        inputs = tuple(walk(a) for a in t.args)
        values = resolve(t.attrs, types, attrs)
        key = (t.op, inputs, exact_key(values))
        if key not in known:
            known[key] = builder.add(t.op, inputs, values, origin=origin)
        return known[key]

    return walk(term)


def expand(
    builder: Builder, op: Op, inputs: Sequence[int], attrs: tuple[Attr, ...] = (), origin: Origin = NOWHERE
) -> tuple[int, ...]:
    """Appends one level of the definition of ``op`` and gives one id per output (one for a single output).

    Raises:
        CheckError: the op has no definition, or its definition has another type than the op.
        ShapeError: the operands do not fit.
    """
    types = [builder.nodes[i].type for i in inputs]
    terms, names = definition(op, types, attrs)
    tensors = dict(zip(names, inputs, strict=True))
    values = {name: value for (name, _), value in zip(op.attrs, attrs, strict=True)}
    made: dict[Any, int] = {}
    ids = tuple(expand_term(builder, term, tensors, values, origin, made) for term in terms)
    due = op.infer(types, attrs)
    got = [builder.nodes[i].type for i in ids]
    if got != (list(due.items) if isinstance(due, TupleType) else [due]):
        shown = ", ".join(map(str, got))
        raise CheckError("expand", op.name, f"is {due}, its definition {shown}", "fix the definition")
    return ids


def expand_graph(graph: Graph, want: Callable[[Node], bool]) -> Graph:
    """The graph with every node for which ``want`` holds replaced by its definition, and so on inside it.

    ``want`` is asked about nodes that have a definition only. A projection of an expanded node becomes the
    part itself. Raises CheckError when anything else reads the tuple of an expanded node.
    """
    builder = Builder(graph)
    placed: dict[int, int | tuple[int, ...]] = {}
    _replay(builder, graph.nodes, placed, want)
    return builder.finish(tuple(_single(placed, i) for i in graph.outputs))


def _replay(
    builder: Builder, nodes: Sequence[Node], placed: dict[int, int | tuple[int, ...]], want: Callable[[Node], bool]
) -> None:
    """Appends ``nodes``. ``placed`` maps old ids to new ones; to the ids of its parts for an expanded tuple."""
    for node in nodes:
        if node.op is project and isinstance(parts := placed[node.inputs[0]], tuple):
            placed[node.id] = parts[node.attrs[0]]
            continue
        inputs = tuple(_single(placed, i) for i in node.inputs)
        if not (node.op.fused and want(node)):
            placed[node.id] = builder.add(node.op, inputs, node.attrs, node.type, node.origin)
            continue
        level = Builder()  # one level of the definition, on stand-ins for the operands
        level.nodes = [replace(builder.nodes[old], id=i, inputs=()) for i, old in enumerate(inputs)]
        results = expand(level, node.op, range(len(inputs)), node.attrs, node.origin)
        inner: dict[int, int | tuple[int, ...]] = dict(enumerate(inputs))
        _replay(builder, level.nodes[len(inputs) :], inner, want)
        ids = tuple(_single(inner, i) for i in results)
        placed[node.id] = ids if node.op.multi else ids[0]


def _single(placed: Mapping[int, int | tuple[int, ...]], old: int) -> int:
    found = placed[old]
    if isinstance(found, tuple):
        raise CheckError("expand", f"%{old}", "a tuple is read whole", "read its parts through project")
    return found
