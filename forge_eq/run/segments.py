"""Segments: a run of instructions on an OpenVINO device as one compiled model.

Takes a scheduled program and a range of its instructions. Gives a compiled model whose inputs and outputs are bound to
the memory of their registers (:class:`ModelSegment`). Promises: an intermediate is a plugin's buffer, a boundary value
is read and written where it lies, so nothing is copied at either end; no tensor is held from call to call.
Not here: the model (``run.model``), host instructions (``run.executor``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from forge_eq.errors import RunError
from forge_eq.lower.layouts import stored_shape
from forge_eq.lower.npu import Segment
from forge_eq.run.arena import Memory
from forge_eq.run.borders import Layouts
from forge_eq.run.heap import give_back
from forge_eq.run.model import Built, build_model, transposed
from forge_eq.run.openvino_builder import PRECISION, load_openvino, shared_tensor
from forge_eq.run.openvino_cpu import CpuBuilder
from forge_eq.run.repeats import Outline, differing

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
                begun += [pool.submit(task) for task in segment.tasks()]
        for done in begun:
            done.result()
    for segment in found:
        if isinstance(segment, ModelSegment):
            segment.bind()
    return found


class ModelSegment:
    """A segment as a model; once :meth:`bind` has bound it to the arena, :meth:`run` reads and writes it in place.

    ``layouts`` are those of values between models. ``outlines`` are those of all segments that share its model, the
    first of which is the ``pattern``. ``inside`` is the number of bytes of the values that live only within: OpenVINO
    owns their buffers and may share or avoid them, so it is an upper bound on what it allocates for activations.
    """

    def __init__(
        self,
        memory: Memory,
        segment: Segment,
        threads: int = 0,
        layouts: Layouts = MappingProxyType({}),
        outlines: Sequence[Outline] = (),
        pattern: ModelSegment | None = None,
    ) -> None:
        program = memory.program
        positions = range(segment.start, segment.stop)
        made = [d for p in positions for d in program.instrs[p].dsts]
        outputs = tuple(d for d in made if d in memory.stored and program.vregs[d].alias_of is None)
        self.memory, self.threads, self.layouts = memory, threads, layouts
        self.outline = next((o for o in outlines if o.positions == positions), None)
        self.inside = sum(program.vregs[d].nbytes for d in made if d not in memory.stored)
        self.turned: dict[int, torch.Tensor] = {}  # register of a weight -> its copy, stored the other way
        self.weights: list[torch.Tensor] = []  # the memory that the request reads them from
        self.pattern: ModelSegment | None = None
        self.built: Built | None = None
        if pattern is not None and pattern.built is not None:
            theirs = self._corresponding(pattern)
            if tuple(theirs[w] for w in pattern.built.writes) == outputs:
                self.pattern, self.built = pattern, _renamed(pattern.built, theirs)
        if self.built is None and outputs:
            self.built = build_model(
                program,
                positions,
                outputs,
                lambda r: memory.values[r] if memory.is_constant(r) else None,
                f"{program.name}.{segment.start}",
                lambda: CpuBuilder(threads),
                frozenset(differing(program, outlines)) if pattern is None and outlines else (),
                layouts,
            )

    def _corresponding(self, pattern: ModelSegment) -> dict[int, int]:
        """The pattern's register -> ours."""
        assert self.outline is not None
        assert pattern.outline is not None
        return dict(zip(pattern.outline.registers, self.outline.registers, strict=True))

    def tasks(self) -> Iterator[Callable[[], None]]:
        """What is to be done before :meth:`bind`, in any order, side by side."""
        if self.built is None:
            return
        if self.pattern is None:
            yield self.compile
        for weight in self.built.weights:
            if weight.turned:
                yield partial(self._turn, weight.register)

    def compile(self) -> None:
        """Compiles the model. Raises RunError when the plugin refuses it."""
        assert self.built is not None
        self.compiled = compile_model(self.built, self.threads)
        self.built = replace(self.built, model=None)  # the plugin has its own
        give_back()  # what it freed on the way, before the next model's copies stand beside

    def _turn(self, register: int) -> None:
        self.turned[register] = transposed(self.memory.values[register])

    def bind(self) -> None:
        """Binds the compiled model, if there is one, to the memory of its registers and to its weights."""
        if self.built is None:
            return
        self.request = (self.pattern or self).compiled.create_infer_request()
        ends = (self.built.reads, self.request.set_input_tensor), (self.built.writes, self.request.set_output_tensor)
        self.moving: list[_Moving] = []
        for registers, bind in ends:
            for index, register in enumerate(registers):
                if self.memory.is_outside(register):
                    self.moving.append(_Moving(index, register, bind))
                else:
                    bind(index, shared_tensor(self._stored(register)))
        for index, weight in enumerate(self.built.weights, len(self.built.reads)):
            value = (self.turned if weight.turned else self.memory.values)[weight.register]
            self.weights.append(value.contiguous().view(weight.shape))
            self.request.set_input_tensor(index, shared_tensor(self.weights[-1]))

    def _stored(self, register: int) -> torch.Tensor:
        """A register's memory in the shape in which its value is stored there."""
        value: torch.Tensor = self.memory.values[register]
        layout = self.layouts.get(register)
        return value if layout is None else value.view(stored_shape(self.memory.program.vregs[register].type, layout))

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


def _renamed(built: Built, registers: Mapping[int, int]) -> Built:
    """What a segment alike binds to the same model."""
    weights = tuple(replace(w, register=registers[w.register]) for w in built.weights)
    reads, writes = (tuple(registers[r] for r in ends) for ends in (built.reads, built.writes))
    return replace(built, model=None, reads=reads, writes=writes, weights=weights)


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
