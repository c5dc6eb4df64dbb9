"""Instruction selection.

Takes a graph with static shapes and a target. Gives a *selected* :class:`Program`: one instruction per operation, in
program order. Promises: every operation has an instruction (the host runs what no device has a kernel for); nothing
that matters is dropped; composites without a kernel are expanded by their definition; literals become immediates,
projections disappear.
Not here: the final device and order (``schedule``), storage (``alloc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forge_eq.errors import LowerError
from forge_eq.ir.graph import Builder, Graph, Node
from forge_eq.ir.types import NoneType, Sym, TensorType, TupleType, Type
from forge_eq.lower.npu import TORCH, Imm, Instr, Operand, Program, VReg
from forge_eq.ops.spec import AttrVar, Computed, Op, Var, lit
from forge_eq.targets import Target, load


def lower(graph: Graph, target: str | Target) -> Program:
    """Selects instructions for ``graph`` (shapes in elements, all of them numbers) on ``target``.

    Raises:
        LowerError: a symbolic size, or a result that is no tensor.
        OptionsError: no such target.
    """
    return _Selector(expand(graph.live()), load(target)).run()


def prefer(op: Op, target: Target, operands: Sequence[Type], results: Sequence[Type]) -> tuple[str, str, str]:
    """(device, unit, reason): the first accelerator that computes ``op`` on these types, else the host."""
    kernel = op.kernel
    if kernel is None:
        return target.host, TORCH, "an effect" if op.effectful else "no kernel: torch runs it"
    reason = "the only device"
    for device in target.accelerators:
        if op.effectful:
            reason = "an effect"
        elif op.traits.gather and not device.gathers:
            reason = "data-dependent reads are at home on the host"
        elif not device.computes(kernel.unit, operands, results):
            shown = ", ".join(sorted({_dtype(t) for t in (*operands, *results)} - {*device.dtypes, "lit"}))
            reason = f"{device.name} has no {kernel.unit} unit for {shown or 'it'}"
        else:
            return device.name, kernel.unit, "has the kernel"
    return target.host, kernel.unit, reason


def _dtype(type: Type) -> str:
    return type.dtype if isinstance(type, TensorType) else str(type)


class _Selector:
    """Walks the graph once; ``parts`` maps a node to the operands that hold its value."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.vregs: list[VReg] = []
        self.instrs: list[Instr] = []
        self.inputs: list[tuple[int, int]] = []
        self.constants: dict[str, int] = {}
        self.parts: list[tuple[Operand, ...]] = []

    def run(self) -> Program:
        for node in self.graph.nodes:
            self.parts.append(self.visit(node))
        program = Program(
            name=self.graph.name, target=self.target.name, vregs=tuple(self.vregs),
            inputs=tuple(v for _, v in sorted(self.inputs)),
            constants=tuple((v, name) for name, v in self.constants.items()),
            instrs=tuple(self.instrs), outputs=tuple(self.output(i) for i in self.graph.outputs),
            data=self.graph.constants, submodules=self.graph.submodules, signature=self.graph.signature,
        )
        return home_leaves(program, self.target.host)

    def visit(self, node: Node) -> tuple[Operand, ...]:
        self.refuse_symbols(node)
        if node.op.leaf == "literal":
            return (Imm(node.attrs[0]),)
        if node.op.leaf == "input":
            made = self.define(node.type, self.target.host)
            self.inputs.append((node.attrs[0], made))
            return (made,)
        if node.op.leaf == "constant":
            name = node.attrs[0]
            if name not in self.constants:
                self.constants[name] = self.define(node.type, self.target.host)
            return (self.constants[name],)
        if node.inputs and isinstance(self.graph.nodes[node.inputs[0]].type, TupleType):
            return (self.parts[node.inputs[0]][node.attrs[0]],)  # only a projection reads a multi-output value
        return self.select(node)

    def select(self, node: Node) -> tuple[Operand, ...]:
        srcs = tuple(self.parts[i][0] for i in node.inputs)
        types = [self.graph.nodes[i].type for i in node.inputs]
        results = (node.type.items or (NoneType(),)) if isinstance(node.type, TupleType) else (node.type,)
        device, unit, _ = prefer(node.op, self.target, types, results)
        alias = srcs[0] if node.op.traits.view and isinstance(srcs[0], int) else None
        dsts = tuple(self.define(t, device, alias) for t in results)
        self.instrs.append(Instr(node.op, dsts, srcs, node.attrs, device, unit, node.id, node.origin))
        return dsts

    def define(self, type: Type, device: str, alias: int | None = None) -> int:
        self.vregs.append(VReg(len(self.vregs), type, device, alias))
        return len(self.vregs) - 1

    def output(self, node_id: int) -> int:
        part = self.parts[node_id][0] if len(self.parts[node_id]) == 1 else None
        if not isinstance(part, int):
            node = self.graph.nodes[node_id]
            raise LowerError(
                "lower", f"%{node_id} {node.op.name}", f"an output of type {node.type} has no register",
                "return tensors or host numbers; select one part of a multi-output value",
            )
        return part

    def refuse_symbols(self, node: Node) -> None:
        parts = node.type.items if isinstance(node.type, TupleType) else (node.type,)
        if any(isinstance(t, TensorType) and not t.static for t in parts) or _symbolic(node.attrs):
            raise LowerError(
                "lower", f"%{node.id} {node.op.name}", f"{node.type} {node.attrs} has an unknown size",
                "compile specialises shapes first: pass concrete example inputs, or max_size",
            )


def _symbolic(attr: Any) -> bool:
    return isinstance(attr, Sym) or (isinstance(attr, tuple) and any(_symbolic(a) for a in attr))


def home_leaves(program: Program, host: str) -> Program:
    """Puts inputs and constants where their readers are; the host when readers differ or there are none."""
    readers: dict[int, set[str]] = {}
    for instr in program.instrs:
        for read in instr.reads:
            readers.setdefault(read, set()).add(instr.device)
    vregs = list(program.vregs)
    for leaf in (*program.inputs, *program.constant_names):
        found = readers.get(leaf, {host})
        tensor = isinstance(vregs[leaf].type, TensorType)
        device = next(iter(found)) if len(found) == 1 and tensor else host
        vregs[leaf] = VReg(leaf, vregs[leaf].type, device)
    return replace(program, vregs=tuple(vregs))


# ---------------------------------------------------------------------------------------------- expansion


def expand(graph: Graph) -> Graph:
    """The graph with every composite that has no kernel replaced by its definition, as deep as needed.

    Raises LowerError when a definition does not give the type of the node that it replaces.
    """
    while any(_composite(n.op) for n in graph.nodes):
        graph = _expand_once(graph)
    return graph


def _composite(op: Op) -> bool:
    return op.define is not None and op.kernel is None


def _expand_once(graph: Graph) -> Graph:
    builder = Builder(graph)
    mapping: dict[int, tuple[int, ...]] = {}  # old node -> new node, or the parts of an expanded multi-output one
    for node in graph.nodes:
        read = graph.nodes[node.inputs[0]] if node.inputs else None
        if read is not None and isinstance(read.type, TupleType) and _composite(read.op):
            mapping[node.id] = (mapping[node.inputs[0]][node.attrs[0]],)
            continue
        inputs = tuple(mapping[i][0] for i in node.inputs)
        if _composite(node.op):
            mapping[node.id] = _Expansion(builder, node, inputs).run()
        else:
            mapping[node.id] = (builder.add(node.op, inputs, node.attrs, node.type, node.origin),)
    return builder.finish(tuple(mapping[i][0] for i in graph.outputs))


class _Expansion:
    """Builds the nodes of one definition; equal subterms become one node."""

    def __init__(self, builder: Builder, node: Node, inputs: tuple[int, ...]) -> None:
        self.builder, self.node = builder, node
        op = node.op
        fixed = len(op.inputs) - op.variadic
        names = [*op.inputs[:fixed], *(f"{op.inputs[-1]}{i}" for i in range(len(inputs) - fixed))]
        self.tensors = dict(zip(names, inputs, strict=True))
        self.attrs = {name: value for (name, _), value in zip(op.attrs, node.attrs, strict=True)}
        self.made: dict[Any, int] = {}

    def run(self) -> tuple[int, ...]:
        op = self.node.op
        assert op.define is not None
        tensors = [Var(name, self.builder.nodes[i].type) for name, i in self.tensors.items()]
        # A definition that is also a pattern takes attribute variables; any other may look at the values.
        attrs = [AttrVar(n) if op.recognise else v for n, v in self.attrs.items()]
        terms = op.define(*tensors, *attrs)
        roots = tuple(self.build(t) for t in (terms if isinstance(terms, tuple | list) else (terms,)))
        expected = self.node.type.items if isinstance(self.node.type, TupleType) else (self.node.type,)
        found = tuple(self.builder.nodes[r].type for r in roots)
        if found != expected:
            raise LowerError(
                "lower", f"%{self.node.id} {op.name}",
                f"its definition gives {', '.join(map(str, found))}, not {', '.join(map(str, expected))}",
                "correct the op's define or shape",
            )
        return roots

    def build(self, term: Any) -> int:
        if isinstance(term, Var):
            return self.tensors[term.name]
        if isinstance(term, int | float | bool):
            term = lit(term)
        inputs = tuple(self.build(a) for a in term.args)
        attrs = tuple(self.value(a) for a in term.attrs)
        key = (term.op, inputs, repr(attrs))  # by text: 1, 1.0 and True are equal in Python and differ here
        if key not in self.made:
            self.made[key] = self.builder.add(term.op, inputs, attrs, origin=self.node.origin)
        return self.made[key]

    def value(self, attr: Any) -> Any:
        if isinstance(attr, AttrVar):
            return self.attrs[attr.name]
        if isinstance(attr, tuple):
            return tuple(self.value(a) for a in attr)
        if isinstance(attr, Computed):
            known = {**{n: self.builder.nodes[i].type for n, i in self.tensors.items()}, **self.attrs}
            found = attr.fn(*(known[n] for n in attr.args))
            if found is None:
                raise LowerError(
                    "lower", f"%{self.node.id} {self.node.op.name}",
                    f"its definition needs an attribute computed from {', '.join(attr.args)}, which has no answer",
                    "give the op a kernel, or correct the definition",
                )
            return found
        return attr

