"""Instruction selection.

Takes a graph with static shapes and a target. Gives a *selected* :class:`Program`: one instruction per operation, in
program order, save that a write in place follows what reads the value before it. Promises: every operation has an
instruction (the host runs what no device has a kernel for); nothing that matters is dropped; composites without a
kernel are expanded by their definition; literals become immediates, projections disappear.
Not here: the final device and order (``schedule``), storage (``alloc``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forge_eq.errors import LowerError
from forge_eq.ir.expand import expand_graph
from forge_eq.ir.graph import Graph, Node
from forge_eq.ir.sizes import is_symbolic
from forge_eq.ir.types import NoneType, TensorType, TupleType, Type
from forge_eq.lower.axes import with_fewer_axes
from forge_eq.lower.blocks import in_blocks
from forge_eq.lower.npu import TORCH, Imm, Instr, Operand, Program, VReg
from forge_eq.lower.pack import pack
from forge_eq.lower.state import in_place, written_inputs
from forge_eq.ops.spec import Op
from forge_eq.targets import Target, load


def lower(graph: Graph, target: str | Target) -> Program:
    """Selects instructions for ``graph`` (shapes in elements, all of them numbers) on ``target``.

    Raises:
        LowerError: a symbolic size, or a result that is no tensor.
        OptionsError: no such target.
    """
    chosen = load(target)
    whole = pack(expand(graph.live()), chosen)
    if most := min((d.max_rank for d in chosen.accelerators if d.max_rank), default=0):
        whole = with_fewer_axes(whole, most)
    return _Selector(in_blocks(whole, chosen.blocks) if chosen.blocks else whole, chosen).run()


def expand(graph: Graph) -> Graph:
    """The graph with every composite that has no kernel replaced by its definition, as deep as needed.

    Raises CheckError when a definition does not give the type of the op that it defines.
    """
    if not any(n.op.fused and n.op.kernel is None for n in graph.nodes):
        return graph
    return expand_graph(graph, lambda node: node.op.kernel is None)


def prefer(
    op: Op, target: Target, operands: Sequence[Type], results: Sequence[Type], attrs: Sequence[Any] = ()
) -> tuple[str, str, str]:
    """(device, unit, reason): the first accelerator that computes ``op`` on these types, else the host."""
    kernel = op.kernel
    named = {name: value for (name, _), value in zip(op.attrs, attrs, strict=False)}
    if kernel is None:
        return target.host, TORCH, "an effect" if op.effectful else "no kernel: torch runs it"
    reason = "the only device"
    for device in target.accelerators:
        if op.effectful:
            reason = "an effect"
        elif op.traits.gather and not device.gathers:
            reason = "data-dependent reads are at home on the host"
        elif not device.computes(kernel.unit, operands, results, kernel.reads):
            shown = ", ".join(sorted({_dtype(t) for t in (*operands, *results)} - {*device.dtypes, "lit"}))
            reason = f"{device.name} has no {kernel.unit} unit for {shown or 'it'}"
        elif refusal := device.refusal(op.name, operands, results, named):
            reason = refusal
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
            name=self.graph.name,
            target=self.target.name,
            vregs=tuple(self.vregs),
            inputs=tuple(v for _, v in sorted(self.inputs)),
            constants=tuple((v, name) for name, v in self.constants.items()),
            instrs=tuple(self.instrs),
            outputs=tuple(self.output(i) for i in self.graph.outputs),
            data=self.graph.constants,
            submodules=self.graph.submodules,
            writes=written_inputs(self.graph.signature),
            signature=self.graph.signature,
        )
        return home_leaves(in_place(program), self.target.host)

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
        device, unit, _ = prefer(node.op, self.target, types, results, node.attrs)
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
                "lower",
                f"%{node_id} {node.op.name}",
                f"an output of type {node.type} has no register",
                "return tensors or host numbers; select one part of a multi-output value",
            )
        return part

    def refuse_symbols(self, node: Node) -> None:
        parts = node.type.items if isinstance(node.type, TupleType) else (node.type,)
        if any(isinstance(t, TensorType) and not t.static for t in parts) or is_symbolic(node.attrs):
            raise LowerError(
                "lower",
                f"%{node.id} {node.op.name}",
                f"{node.type} {node.attrs} has an unknown size",
                "compile specialises shapes first: pass concrete example inputs, or max_size",
            )


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
        if vregs[leaf].device != device:
            vregs[leaf] = VReg(leaf, vregs[leaf].type, device)
    return replace(program, vregs=tuple(vregs))
