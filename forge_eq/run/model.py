"""An ``ov.Model`` of some instructions of a program.

Takes a program and positions of its instructions. Gives a :class:`Built`. Promises: static shapes; every result has the
type of its register and is row-major, unless told otherwise, whatever layouts are used inside; a value is stored in
another order only where a reader wants it so, once; each node is named after its instruction; weights are shared, in
every layout.
Not here: nodes of a kernel (``run.openvino_builder``), compiling and binding (``run.segments``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from forge_eq.errors import RunError
from forge_eq.ir.types import TensorType
from forge_eq.lower.layouts import Layout, is_layer, operand, permutation, row_major, shape_of, stored_shape
from forge_eq.lower.left import one_row
from forge_eq.lower.npu import Imm, Instr, Program
from forge_eq.ops.movement import reshape
from forge_eq.run.borders import Layouts
from forge_eq.run.openvino_builder import NodeBuilder, Weight, element_type
from forge_eq.run.values import describe

TURNED: Layout = (1, 0)  # a weight stored the other way


@dataclass(frozen=True)
class Built:
    """A model; ``reads`` are the registers of its parameters and ``writes`` those of its results, in order.

    ``weights`` are what its parameters behind these are. ``kept`` is the memory that its constants share. A segment
    drops its model once it is compiled.
    """

    model: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kept: tuple[torch.Tensor, ...]
    weights: tuple[Weight, ...] = ()


def build_model(
    program: Program,
    positions: Sequence[int],
    outputs: Sequence[int],
    constant: Callable[[int], torch.Tensor | None],
    name: str,
    builder: Callable[[], NodeBuilder] = NodeBuilder,
    apart: Collection[int] = (),
    layouts: Layouts = MappingProxyType({}),
) -> Built:
    """An ``ov.Model`` of the instructions at ``positions``, whose kernels are written on ``builder()``.

    A value that is made outside becomes a parameter, or a constant where ``constant(register)`` gives its data and it
    is not among those that are kept ``apart``. ``layouts`` are those of parameters and results that are not in rows. A
    copy computes nothing: its result stands for its operand.

    Raises:
        RunError: openvino is missing, a kernel cannot be built, or its result has not the type of its register.
    """
    return _ModelWriter(program, constant, builder(), apart, layouts).write(positions, outputs, name)


class _ModelWriter:
    def __init__(
        self,
        program: Program,
        constant: Callable[[int], torch.Tensor | None],
        g: NodeBuilder,
        apart: Collection[int],
        layouts: Layouts,
    ) -> None:
        self.program, self.constant, self.g, self.apart, self.layouts = program, constant, g, apart, layouts
        self.nodes: dict[int, dict[Layout, Any]] = {}  # register -> the layouts in which its value is there
        self.parameters: dict[int, Any] = {}
        self.turned: dict[int, Future[torch.Tensor]] = {}  # register -> its constant, stored the other way

    def write(self, positions: Sequence[int], outputs: Sequence[int], name: str) -> Built:
        with ThreadPoolExecutor(os.cpu_count(), "forge_eq-turn") as beside:
            self.turn(positions, beside)
            for position in positions:
                instr = self.program.instrs[position]
                if instr.is_copy:
                    self.read(instr.reads[0])
                    self.nodes[instr.dsts[0]] = self.nodes[instr.reads[0]]
                else:
                    self.add(instr)
        results = []
        for out in outputs:
            result = self.g.opset.result(self.read(out, self.layouts.get(out, ())))
            result.set_friendly_name(f"return v{out}")
            results.append(result)
        # A weight that nobody reads was wanted in another shape.
        weights = [(w, node) for w, node in self.g.weights.values() if node.output(0).get_target_inputs()]
        model = self.g.ov.Model(results, [*self.parameters.values(), *(node for _, node in weights)], name)
        kept = tuple(self.g.kept.values())
        return Built(model, tuple(self.parameters), tuple(outputs), kept, tuple(w for w, _ in weights))

    # ------------------------------------------------------------------------------------------ values

    def read(self, register: int, layout: Layout = ()) -> Any:
        """The node that holds a register's value in a layout; row-major by default."""
        there = self.nodes.setdefault(register, {})
        if not there:
            with self.g.instruction(f"v{register}"):
                there[self.layouts.get(register, ())] = self.leaf(register)
        layout = () if layout == row_major(len(layout)) else layout
        if layout not in there:
            have, node = ((), there[()]) if () in there else next(iter(there.items()))
            with self.g.instruction(f"v{register} stored {layout or 'in rows'}"):
                there[layout] = self.reordered(node, have, layout)
        return there[layout]

    def leaf(self, register: int) -> Any:
        """A value that is made outside the model."""
        if register in self.apart:
            return self.parted(register, turned=False)
        data = self.constant(register)
        return self.parameter(register) if data is None else self.g.constant(data)

    def parted(self, register: int, turned: bool) -> Any:
        """The parameter for a constant that is kept apart."""
        type = self.program.vregs[register].type
        assert isinstance(type, TensorType)
        shape = [int(str(d)) for d in type.shape]
        return self.g.weight(Weight(register, turned, tuple(shape[::-1] if turned else shape)), type.dtype)

    def turn(self, positions: Sequence[int], beside: ThreadPoolExecutor) -> None:
        """Begins to transpose the constants [k, n] that layers want on the left, once each.

        Read by a flag such a weight costs up to a quarter more at each call. The kernel uses the copy where it lies;
        with the weight on the right the plugin makes one of its own.
        """
        for instr in (self.program.instrs[p] for p in positions):
            if is_layer(instr) and instr.layout and not instr.attrs[0]:
                register = instr.srcs[1]
                assert isinstance(register, int)
                known = register in self.turned or register in self.apart
                data = None if known else self.constant(register)
                if data is not None:
                    self.turned[register] = beside.submit(transposed, data)

    def weight(self, instr: Instr) -> tuple[Any, bool]:
        """The weight of a layer as its left operand, and whether it is stored [n, k]."""
        register = instr.srcs[1]
        assert isinstance(register, int)
        apart = register in self.apart
        if instr.attrs[0] or not (apart or register in self.turned):
            return self.read(register), bool(instr.attrs[0])
        there = self.nodes.setdefault(register, {})
        if TURNED not in there:
            with self.g.instruction(f"v{register} stored {TURNED}"):
                there[TURNED] = (
                    self.parted(register, turned=True) if apart else self.g.constant(self.turned[register].result())
                )
        return there[TURNED], True

    def reordered(self, node: Any, have: Layout, wanted: Layout) -> Any:
        """A node's value in another order; where only axes of size 1 move, the same bytes under another shape."""
        rank = self.g.rank(node)
        have, wanted = have or row_major(rank), wanted or row_major(rank)
        order, shape = [have.index(a) for a in wanted], self.g.shape(node)
        long = [p for p in order if shape[p] > 1]
        if long == sorted(long):
            return self.g.reshaped(node, [shape[p] for p in order])
        return self.g.transpose(node, self.g.i64(order))

    def parameter(self, register: int) -> Any:
        type = self.program.vregs[register].type
        if not isinstance(type, TensorType):
            raise RunError("run", f"v{register}", f"a {type} enters an OpenVINO model", "keep its reader on the host")
        made = self.g.opset.parameter(stored_shape(type, self.layouts.get(register, ())), element_type(type.dtype))
        made.set_friendly_name(f"v{register}")
        self.parameters[register] = made
        return made

    # ------------------------------------------------------------------------------------------ instructions

    def add(self, instr: Instr) -> None:
        name = describe(self.program, instr)
        if instr.op is None or instr.op.kernel is None:
            raise RunError("run", name, "there is no kernel for it", "keep the instruction on the host")
        with self.g.instruction(f"{instr.opcode} v{instr.dsts[0]}"):
            try:
                made = self.compute(instr)
            except RuntimeError as e:
                raise RunError("run", name, f"OpenVINO refuses it: {e}", "keep the instruction on the host") from e
        if instr.op.multi:
            made = list(made) if isinstance(made, tuple | list) else made.outputs()
        else:
            made = [made]
        layout = () if one_row(self.program, instr) else instr.layout
        for dst, node in zip(instr.dsts, made, strict=True):
            self.nodes[dst] = {layout: self.checked(dst, layout, node, name)}

    def compute(self, instr: Instr) -> Any:
        """The nodes of an instruction, in its own layout."""
        assert instr.op is not None
        assert instr.op.kernel is not None
        first = instr.srcs[0] if instr.srcs else None
        if isinstance(first, int) and (instr.layout or (first in self.nodes and () not in self.nodes[first])):
            order = permutation(instr, len(shape_of(self.program.vregs[first].type)))
            if order is not None:  # a permutation of a value is that value in another order: one transposition at most
                layout = instr.layout or row_major(len(order))
                return self.read(first, tuple(order[a] for a in layout))
        if is_layer(instr) and instr.layout:
            return self.left(instr)
        operands = [s.value if isinstance(s, Imm) else self.wanted(instr, s) for s in instr.srcs]
        if instr.layout and instr.op is reshape:
            return self.g.reshaped(operands[0], stored_shape(self.program.vregs[instr.dsts[0]].type, instr.layout))
        return instr.op.kernel.openvino(self.g, *operands, *self.attributes(instr))

    def wanted(self, instr: Instr, source: int) -> Any:
        """An operand in the layout that the instruction's own asks for, spread to its rank where it is broadcast."""
        layout = operand(self.program, instr, source)
        if not instr.layout or layout is not None:
            return self.read(source, layout or ())
        node, rank = self.read(source), len(instr.layout)
        spread = self.g.reshaped(node, [1] * (rank - self.g.rank(node)) + self.g.shape(node))
        return self.reordered(spread, (), instr.layout)

    def left(self, instr: Instr) -> Any:
        """A linear layer with its weight on the left. Rows are read by a flag where they are the last axis but one."""
        assert instr.op is not None
        assert instr.op.kernel is not None
        assert instr.op.kernel.left is not None
        x, _, *bias = (s for s in instr.srcs if isinstance(s, int))
        stored = instr.layout in self.nodes.get(x, {}) or instr.layout[-1] != len(instr.layout) - 2
        behind = [self.read(b) for b in bias]
        if not one_row(self.program, instr):
            behind = [self.g.reshaped(b, [self.g.shape(b)[0], 1]) for b in behind]
        value = self.read(x, instr.layout if stored else ())
        weight, transposed = self.weight(instr)
        return instr.op.kernel.left(self.g, stored, value, weight, *behind, transposed, *instr.attrs[1:])

    def attributes(self, instr: Instr) -> list[Any]:
        """The attributes, with axes counted as they are stored."""
        assert instr.op is not None
        names = [name for name, _ in instr.op.attrs]
        if not instr.layout:
            return list(instr.attrs)
        found = dict(zip(names, instr.attrs, strict=True))
        if "axis" in found:
            found["axis"] = instr.layout.index(found["axis"])
        if "axes" in found:
            found["axes"] = tuple(instr.layout.index(a) for a in found["axes"])
        return list(found.values())

    def checked(self, register: int, layout: Layout, node: Any, name: str) -> Any:
        """The node, if it has the type of the register: a wrong size must not become an overrun of the arena."""
        type = self.program.vregs[register].type
        assert isinstance(type, TensorType)
        if self.g.shape(node) != stored_shape(type, layout) or self.g.type(node) != element_type(type.dtype):
            reason = f"its kernel gives {self.g.type(node)} {self.g.shape(node)}, not {type}"
            raise RunError("run", name, reason, "correct the kernel")
        return node


def transposed(data: torch.Tensor) -> torch.Tensor:
    """A copy of a matrix, stored the other way."""
    return torch.empty(data.shape[::-1], dtype=data.dtype).copy_(data.t())
