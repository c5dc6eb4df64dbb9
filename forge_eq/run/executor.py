"""The executor: a scheduled program over its arena, OpenVINO segments and host instructions in turn.

Takes a scheduled program and its target. Gives an :class:`Executable`: flat inputs in, flat outputs out. Promises:
outputs are memory that nobody else sees, save those that are written back in place, which are the inputs' own; inputs
are not copied unless they must be, and neither looked at nor held after the call; calls may come from several threads
(they run one after the other); a pinned instruction is computed by torch, and with every instruction pinned the same
program runs on torch alone: the reference, and the fallback.
Not here: the call signature (``run.boundary``), whether the results are right (``run.guard``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch

from forge_eq.alloc.host import allocate_on_host, without_transfers
from forge_eq.errors import InputError, RunError
from forge_eq.ir.types import TensorType
from forge_eq.lower.npu import Imm, Instr, Program, Segment
from forge_eq.run.arena import Memory
from forge_eq.run.borders import borders
from forge_eq.run.cuts import cut
from forge_eq.run.handover import Extent, Input, Output, extent
from forge_eq.run.repeats import alike
from forge_eq.run.segments import ModelSegment, compiled
from forge_eq.run.values import describe, fits, runner
from forge_eq.targets import Target

OPENVINO = "openvino"


def pin(program: Program, target: Target, pins: Iterable[int]) -> Program:
    """The program with the instructions at these positions given to the host.

    Their registers stay where they are: on this executor every arena is host memory. A transfer is never computed, so
    a pin on it changes nothing. For the same reason its result is a view.
    """
    chosen = set(pins)
    instrs = tuple(
        replace(i, device=target.host) if p in chosen and not i.is_copy else i for p, i in enumerate(program.instrs)
    )
    return without_transfers(replace(program, instrs=instrs))


def divided(program: Program, target: Target, pins: Iterable[int]) -> Program:
    """The program as it is run, with these pins: long segments are cut."""
    return cut(pin(program, target, pins), target)


def accelerated(program: Program, target: Target) -> frozenset[int]:
    """Positions of the instructions that OpenVINO computes."""
    return frozenset(
        p for p, i in enumerate(program.instrs) if not i.is_copy and target.device(i.device).kind == OPENVINO
    )


def to_compile(program: Program, target: Target, pins: Iterable[int]) -> int:
    """The number of instructions in the models that OpenVINO compiles: segments that are alike share one."""
    whole = divided(program, target, pins)
    models = _models(whole, target)
    groups = {id(g): g for g in alike(whole, models, borders(whole, models)).values()}
    return sum(s.stop - s.start for s in models) - sum(len(g[0].positions) * (len(g) - 1) for g in groups.values())


def _models(program: Program, target: Target) -> list[Segment]:
    return [s for s in program.segments if target.device(s.device).kind == OPENVINO]


def unbuildable(program: Program, target: Target) -> frozenset[int]:
    """Positions that no OpenVINO model can hold: an operand or result without elements."""
    return frozenset(
        p
        for p in accelerated(program, target)
        if any(program.vregs[r].nbytes == 0 for r in (*program.instrs[p].reads, *program.instrs[p].dsts))
    )


@dataclass(frozen=True)
class Ownership:
    """Who owns which bytes.

    ``arenas`` are ours and hold the values at segment boundaries and those of host instructions, but for inputs, which
    are the caller's, and for results, which become so; ``shared`` are constants used where torch keeps them. ``inside``
    bounds the activations that live in OpenVINO's own buffers. What OpenVINO packs for its matrix products (up to once
    more the size of the weights) cannot be asked of it.
    """

    arenas: dict[str, int]
    shared: int
    inside: int

    def __str__(self) -> str:
        ours = ", ".join(f"{device} {size}" for device, size in self.arenas.items()) or "none"
        return (
            f"arena bytes: {ours}; constant bytes shared with torch: {self.shared}; "
            f"activation bytes inside OpenVINO segments: at most {self.inside}"
        )


class HostSegment:
    """Instructions that torch computes, each result written where its register lies. Views are there already."""

    def __init__(self, memory: Memory, segment: Segment) -> None:
        self.memory, program = memory, memory.program
        self.steps = tuple(
            (i, None if program.in_place(i) else runner(program, i))  # None writes over its operand
            for i in program.instrs[segment.start : segment.stop]
            if program.in_place(i) or any(program.vregs[d].alias_of is None for d in i.dsts)
        )

    def run(self) -> None:
        for instr, compute in self.steps:
            if compute is None:
                self.update(instr)
                continue
            results = compute(self.memory.values)
            for dst, result in zip(instr.dsts, results, strict=True):
                self.write(instr, dst, result)

    def update(self, instr: Instr) -> None:
        """Writes over the operand, which is the caller's memory."""
        assert instr.op is not None
        assert instr.op.update is not None
        try:
            instr.op.update(
                *(s.value if isinstance(s, Imm) else self.memory.values[s] for s in instr.srcs), *instr.attrs
            )
        except (RuntimeError, IndexError) as e:
            name, remedy = describe(self.memory.program, instr), "pass places that the cache has"
            raise RunError("run", name, f"torch refuses it: {e}", remedy) from e

    def write(self, instr: Instr, dst: int, result: Any) -> None:
        vreg, program = self.memory.program.vregs[dst], self.memory.program
        if not isinstance(vreg.type, TensorType):
            self.memory.values[dst] = result
            return
        if not fits(vreg.type, result):
            shown = f"{result.dtype} {list(result.shape)}" if isinstance(result, torch.Tensor) else repr(result)
            reason = f"torch gives {shown}, not {vreg.type}"
            raise RunError("run", describe(program, instr), reason, "correct the op's torch=")
        if vreg.alias_of is None:
            # The result is complete before it is stored: it may lie over an operand, which dies here.
            self.memory.values[dst].copy_(result)


class Executable:
    """A program ready to run. ``program`` carries the pins, ``allocation`` is that of this very division."""

    def __init__(self, program: Program, target: Target, pins: Iterable[int] = (), threads: int = 0) -> None:
        """Builds the segments.

        Args:
            program: scheduled, with its constants' data.
            pins: positions of instructions that torch computes instead of OpenVINO.
            threads: of OpenVINO's kernels; 0 leaves the number to OpenVINO. torch keeps its own setting.

        Raises:
            RunError: openvino is missing, or a segment cannot be built.
            AllocError: an arena exceeds its device.
        """
        self.target, self.threads = target, threads
        self.pins = frozenset(pins) | unbuildable(program, target)
        self.program = divided(program, target, self.pins)
        self.allocation = allocate_on_host(self.program, target)
        self.memory = Memory(self.program, self.allocation)
        self.segments = compiled(self._built())[::-1]
        self._inputs = [Input(self.memory, k) for k in range(len(self.program.inputs))]
        self._outputs = self._made()
        state, outputs = self.program.state, self.program.outputs
        self._kept = {p: i for p, i in self.program.writes if self.program.root(outputs[p]) in state}
        self._lock = Lock()

    def _made(self) -> dict[int, Output]:
        """Position of an output -> where it is made: the first of those that share memory, unless that is an input."""
        program, found = self.program, dict[int, Output]()
        for position, register in enumerate(program.outputs):
            root = program.root(register)
            taken = {*program.inputs, *(o.root for o in found.values())}
            if root in self.memory.outside and root not in taken:
                found[position] = Output(self.memory, register)
        return found

    def _built(self) -> Iterator[ModelSegment | HostSegment]:
        """The segments from the last one on, as the model with the vocabulary compiles longest; those that are alike
        share the model of the first that comes."""
        models = _models(self.program, self.target)
        layouts = borders(self.program, models)
        groups = alike(self.program, models[::-1], layouts)
        patterns: dict[int, ModelSegment] = {}
        for segment in reversed(self.program.segments):
            if self.target.device(segment.device).kind != OPENVINO:
                yield HostSegment(self.memory, segment)
                continue
            group = groups.get(segment, [])
            made = ModelSegment(self.memory, segment, self.threads, layouts, group, patterns.get(id(group)))
            if group:
                patterns.setdefault(id(group), made)
            yield made

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs, user results first, then write-backs; tensors are fresh.

        An input that the program writes in place (``program.state``) is written, and stands for its write-back.

        Raises:
            InputError: a value has not the type of its input.
            RunError: a kernel fails on these values, e.g. an index out of range.
        """
        if len(inputs) != len(self._inputs):
            reason = f"{len(inputs)} values for {len(self._inputs)} inputs"
            raise InputError("run", "inputs", reason, "pass one for each")
        with self._lock, torch.no_grad():
            try:
                written = self._written(inputs) if self.program.state else ()
                for due, value in zip(self._inputs, inputs, strict=True):
                    due.take(value, written)
                for made in self._outputs.values():
                    made.offer()
                for segment in self.segments:
                    segment.run()
                return self._results(inputs)
            finally:
                self.memory.release()

    def _written(self, inputs: Sequence[Any]) -> list[Extent]:
        """The memory that is written in place."""
        return [extent(v) for i, v in zip(self._inputs, inputs, strict=True) if i.state and isinstance(v, torch.Tensor)]

    def _results(self, inputs: Sequence[Any]) -> list[Any]:
        found = []
        for position, register in enumerate(self.program.outputs):
            value = self.memory.values[register]
            if position in self._outputs:
                found.append(self._outputs[position].result())
            elif position in self._kept:
                given = inputs[self._kept[position]]
                if not given.is_contiguous():  # then the run had a dense copy
                    given.copy_(value)
                found.append(given)
            elif isinstance(value, torch.Tensor):
                found.append(value.clone(memory_format=torch.contiguous_format))
            else:
                found.append(value)
        return found

    @property
    def models(self) -> list[ModelSegment]:
        """The segments that OpenVINO runs."""
        return [s for s in self.segments if isinstance(s, ModelSegment) and s.built is not None]

    def ownership(self) -> Ownership:
        """Who owns which bytes while the program runs."""
        program = self.program
        names = {n for r, n in program.constants}
        shared = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for n, t in program.data.items() if n in names
        }
        inside = sum(s.inside for s in self.segments if isinstance(s, ModelSegment))
        return Ownership({a.device: a.peak for a in self.allocation.arenas}, sum(shared.values()), inside)


def torch_executable(program: Program, target: Target) -> Executable:
    """The same program with every instruction on torch, over the same arenas: reference and last resort."""
    return Executable(program, target, accelerated(program, target))
