"""Segments: a run of instructions on an OpenVINO device as one compiled model.

Takes a scheduled program and a range of its instructions. Gives a compiled model whose inputs and outputs are bound to
the memory of their registers (:class:`ModelSegment`). Promises: an intermediate is a plugin's buffer, a boundary value
is read and written where it lies, so nothing is copied at either end; no tensor is held from call to call.
Not here: the model (``run.model``), host instructions (``run.executor``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from forge_eq.errors import RunError
from forge_eq.lower.npu import Segment
from forge_eq.run.arena import Memory
from forge_eq.run.model import Built, build_model
from forge_eq.run.openvino_builder import PRECISION, load_openvino, shared_tensor
from forge_eq.run.openvino_cpu import CpuBuilder

S = TypeVar("S")


def compile_model(built: Built, threads: int = 0) -> Any:
    """The model compiled by the CPU plugin, which also stands in for an NPU. ``threads`` 0 leaves it to OpenVINO.

    Raises RunError when the plugin refuses the model.
    """
    core = load_openvino().Core()
    # A thread that is bound to a core waits for whoever else runs there: the slowest of 100 calls took 1.7 times the
    # median with pinning, which is the plugin's default, and 1.3 times without; the medians were equal.
    config = {**PRECISION, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO"}
    if threads:
        config["INFERENCE_NUM_THREADS"] = str(threads)
    try:
        return core.compile_model(built.model, "CPU", config)
    except RuntimeError as e:
        name, reason = built.model.get_friendly_name(), f"OpenVINO cannot compile the segment: {e}"
        raise RunError("run", name, reason, "compile with the torch target") from e


def compiled(segments: Iterable[S]) -> list[S]:
    """The segments, their models compiled. The plugin gives way to other threads and mostly works on one itself, so
    models are compiled side by side, and while the next one is built."""
    with ThreadPoolExecutor(os.cpu_count(), "forge_eq-segment") as pool:
        found = list[S]()
        begun = []
        for segment in segments:
            found.append(segment)
            if isinstance(segment, ModelSegment):
                begun.append(pool.submit(segment.compile))
        for done in begun:
            done.result()
    return found


class ModelSegment:
    """A segment as a model; once :meth:`compile` has bound it to the arena, :meth:`run` reads and writes it in place.

    ``inside`` is the number of bytes of the values that live only within: OpenVINO owns their buffers and may share or
    avoid them, so it is an upper bound on what it allocates for activations.
    """

    def __init__(self, memory: Memory, segment: Segment, threads: int = 0) -> None:
        program = memory.program
        positions = range(segment.start, segment.stop)
        made = [d for p in positions for d in program.instrs[p].dsts]
        outputs = [d for d in made if d in memory.stored and program.vregs[d].alias_of is None]
        self.memory, self.threads = memory, threads
        self.inside = sum(program.vregs[d].nbytes for d in made if d not in memory.stored)
        self.built: Built | None = None
        if not outputs:
            return
        self.built = build_model(
            program,
            positions,
            outputs,
            lambda r: memory.values[r] if memory.is_constant(r) else None,
            f"{program.name}.{segment.start}",
            lambda: CpuBuilder(threads),
        )

    def compile(self) -> None:
        """Compiles the model, if there is one, and binds it. Raises RunError when the plugin refuses it."""
        if self.built is None:
            return
        self.compiled = compile_model(self.built, self.threads)
        self.built = replace(self.built, model=None)  # the plugin has its own
        self.request = self.compiled.create_infer_request()
        ends = (self.built.reads, self.request.set_input_tensor), (self.built.writes, self.request.set_output_tensor)
        self.moving: list[_Moving] = []
        for registers, bind in ends:
            for index, register in enumerate(registers):
                if self.memory.is_outside(register):
                    self.moving.append(_Moving(index, register, bind))
                else:
                    bind(index, shared_tensor(self.memory.values[register]))

    def run(self) -> None:
        """Computes the segment from what its registers hold."""
        if self.built is None:
            return
        values = self.memory.values
        for end in self.moving:
            value = values[end.register]
            address = value.data_ptr()
            if address != end.address:
                end.bind(end.index, shared_tensor(value))
                end.address = address
        self.request.infer(share_outputs=True)  # else every output is copied once more, for a dict that nobody reads


@dataclass
class _Moving:
    """An input or output of a model whose memory may change: where the request believes it, an address and no more.

    What lay there may be gone. The request looks only while it runs, and then the register's value of that very call
    lies there.
    """

    index: int
    register: int
    bind: Callable[[int, Any], None]
    address: int = 0
