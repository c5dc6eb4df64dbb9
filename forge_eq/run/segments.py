"""Segments: a run of instructions on an OpenVINO device as one compiled model.

Takes a scheduled program and a range of its instructions. Gives a compiled model whose inputs and outputs are bound to
the arena (:class:`ModelSegment`). Promises: an intermediate is a plugin's buffer, a boundary value is the arena's, so
nothing is copied between segments.
Not here: the model (``run.model``), host instructions (``run.executor``).
"""

from __future__ import annotations

from typing import Any

import torch

from forge_eq.errors import RunError
from forge_eq.lower.npu import Segment
from forge_eq.run.arena import Memory
from forge_eq.run.model import Built, build_model
from forge_eq.run.openvino_builder import PRECISION, load_openvino, shared_tensor


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
        self.state = {index: register for index, register in enumerate(self.built.reads) if memory.is_state(register)}
        self.seen: dict[int, torch.Tensor] = {}  # what the state's inputs are bound to, kept alive
        for index, register in enumerate(self.built.reads):
            if index not in self.state:
                self.request.set_input_tensor(index, shared_tensor(memory.values[register]))
        for index, register in enumerate(self.built.writes):
            self.request.set_output_tensor(index, shared_tensor(memory.values[register]))

    def run(self) -> None:
        """Computes the segment from what the arena holds."""
        for copy in self.copies:
            self.memory.values[copy.dsts[0]].copy_(self.memory.values[copy.reads[0]])
        if self.built is None:
            return
        for index, register in self.state.items():
            value = self.memory.values[register]
            if index not in self.seen or self.seen[index].data_ptr() != value.data_ptr():
                self.seen[index] = value
                self.request.set_input_tensor(index, shared_tensor(value))
        self.request.infer()
