"""Segments: a run of instructions on an OpenVINO device as one compiled model.

Takes a scheduled program and a range of its instructions. Gives an ``ov.Model`` (:func:`build_model`) and a compiled
one whose inputs and outputs are bound to the arena (:class:`ModelSegment`). Promises: static shapes; every result has
the type of its register; an intermediate is a plugin's buffer, a boundary value is the arena's, so nothing is copied
between segments; each node is named after its instruction.
Not here: nodes of a kernel (``run.openvino_builder``), host instructions (``run.executor``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forge_eq.errors import RunError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Imm, Instr, Program, Segment
from forge_eq.run.arena import Memory
from forge_eq.run.openvino_builder import PRECISION, NodeBuilder, element_type, load_openvino, shared_tensor
from forge_eq.run.values import describe


@dataclass(frozen=True)
class Built:
    """A model; ``reads`` are the registers of its parameters and ``writes`` those of its results, in order.

    ``kept`` is the memory that its constants share.
    """

    model: Any
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kept: tuple[torch.Tensor, ...]


def build_model(
    program: Program,
    positions: Sequence[int],
    outputs: Sequence[int],
    constant: Callable[[int], torch.Tensor | None],
    name: str,
    builder: Callable[[], NodeBuilder] = NodeBuilder,
) -> Built:
    """An ``ov.Model`` of the instructions at ``positions``, whose kernels are written on ``builder()``.

    A value that is made outside becomes a parameter, or a constant where ``constant(register)`` gives its data. A copy
    computes nothing: its result stands for its operand.

    Raises:
        RunError: openvino is missing, a kernel cannot be built, or its result has not the type of its register.
    """
    return _ModelWriter(program, constant, builder()).write(positions, outputs, name)


class _ModelWriter:
    def __init__(self, program: Program, constant: Callable[[int], torch.Tensor | None], g: NodeBuilder) -> None:
        self.program, self.constant, self.g = program, constant, g
        self.nodes: dict[int, Any] = {}
        self.parameters: dict[int, Any] = {}

    def write(self, positions: Sequence[int], outputs: Sequence[int], name: str) -> Built:
        for position in positions:
            instr = self.program.instrs[position]
            if instr.is_copy:
                self.nodes[instr.dsts[0]] = self.read(instr.reads[0])
            else:
                self.add(instr)
        results = []
        for out in outputs:
            result = self.g.opset.result(self.read(out))
            result.set_friendly_name(f"return v{out}")
            results.append(result)
        model = self.g.ov.Model(results, list(self.parameters.values()), name)
        return Built(model, tuple(self.parameters), tuple(outputs), tuple(self.g.kept))

    def read(self, register: int) -> Any:
        """The node that holds a register's value."""
        if register not in self.nodes:
            data = self.constant(register)
            with self.g.instruction(f"v{register}"):
                self.nodes[register] = self.parameter(register) if data is None else self.g.constant(data)
        return self.nodes[register]

    def parameter(self, register: int) -> Any:
        type = self.program.vregs[register].type
        if not isinstance(type, TensorType):
            raise RunError("run", f"v{register}", f"a {type} enters an OpenVINO model", "keep its reader on the host")
        made = self.g.opset.parameter([int(str(d)) for d in type.shape], element_type(type.dtype))
        made.set_friendly_name(f"v{register}")
        self.parameters[register] = made
        return made

    def add(self, instr: Instr) -> None:
        name = describe(self.program, instr)
        if instr.op is None or instr.op.kernel is None:
            raise RunError("run", name, "there is no kernel for it", "keep the instruction on the host")
        operands = [s.value if isinstance(s, Imm) else self.read(s) for s in instr.srcs]
        with self.g.instruction(f"{instr.opcode} v{instr.dsts[0]}"):
            try:
                made = instr.op.kernel.openvino(self.g, *operands, *instr.attrs)
            except RuntimeError as e:
                raise RunError("run", name, f"OpenVINO refuses it: {e}", "keep the instruction on the host") from e
        if instr.op.multi:
            made = list(made) if isinstance(made, tuple | list) else made.outputs()
        else:
            made = [made]
        for dst, node in zip(instr.dsts, made, strict=True):
            self.nodes[dst] = self.checked(dst, node, name)

    def checked(self, register: int, node: Any, name: str) -> Any:
        """The node, if it has the type of the register: a wrong size must not become an overrun of the arena."""
        type = self.program.vregs[register].type
        assert isinstance(type, TensorType)
        if self.g.shape(node) != list(type.shape) or self.g.type(node) != element_type(type.dtype):
            reason = f"its kernel gives {self.g.type(node)} {self.g.shape(node)}, not {type}"
            raise RunError("run", name, reason, "correct the kernel")
        return node


def compile_model(built: Built, threads: int = 0) -> Any:
    """The model compiled by the CPU plugin, which also stands in for an NPU. ``threads`` 0 leaves it to OpenVINO.

    Raises RunError when the plugin refuses the model.
    """
    core = load_openvino().Core()
    config = {**PRECISION, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
    if threads:
        config["INFERENCE_NUM_THREADS"] = str(threads)
    try:
        return core.compile_model(built.model, "CPU", config)
    except RuntimeError as e:
        name, reason = built.model.get_friendly_name(), f"OpenVINO cannot compile the segment: {e}"
        raise RunError("run", name, reason, "compile with the torch target") from e


class ModelSegment:
    """A segment compiled and bound to the arena; :meth:`run` reads and writes it in place.

    ``inside`` is the number of bytes of the values that live only within: OpenVINO owns their buffers and may share or
    avoid them, so it is an upper bound on what it allocates for activations.
    """

    def __init__(self, memory: Memory, segment: Segment, threads: int = 0) -> None:
        program = memory.program
        positions = range(segment.start, segment.stop)
        body = [program.instrs[p] for p in positions]
        # A transfer whose result outlives the segment is a copy into the arena; any other is read where it lies.
        self.copies = [i for i in body if i.is_copy and i.dsts[0] in memory.stored]
        moved = {i.dsts[0] for i in self.copies}
        compute = [p for p in positions if not (program.instrs[p].is_copy and program.instrs[p].dsts[0] in moved)]
        made = [d for p in compute for d in program.instrs[p].dsts]
        outputs = [d for d in made if d in memory.stored and program.vregs[d].alias_of is None]
        self.memory = memory
        self.inside = sum(program.vregs[d].nbytes for d in made if d not in memory.stored)
        self.built: Built | None = None
        if not outputs:
            return
        self.built = build_model(
            program,
            compute,
            outputs,
            lambda r: memory.values[r] if memory.is_constant(r) else None,
            f"{program.name}.{segment.start}",
        )
        self.compiled = compile_model(self.built, threads)
        self.request = self.compiled.create_infer_request()
        for index, register in enumerate(self.built.reads):
            self.request.set_input_tensor(index, shared_tensor(memory.values[register]))
        for index, register in enumerate(self.built.writes):
            self.request.set_output_tensor(index, shared_tensor(memory.values[register]))

    def run(self) -> None:
        """Computes the segment from what the arena holds."""
        for copy in self.copies:
            self.memory.values[copy.dsts[0]].copy_(self.memory.values[copy.reads[0]])
        if self.built is not None:
            self.request.infer()
