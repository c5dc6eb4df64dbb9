"""``compile``: the whole pipeline, and the program that it gives.

A program with symbolic sizes is specialised for each set of concrete shapes at the call; the few last ones are kept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from forge_eq.api import Progress, make_job, make_options, settle
from forge_eq.capture.execute import run_graph
from forge_eq.errors import RunError
from forge_eq.ir.graph import Builder, Graph, Signature
from forge_eq.ir.types import TensorType
from forge_eq.ops.leaves import input_
from forge_eq.options import Options
from forge_eq.pipeline import Job, run
from forge_eq.remarks import Remark

if TYPE_CHECKING:
    from forge_eq.alloc.plan import Allocation
    from forge_eq.lower.npu import Program
    from forge_eq.run.executor import Executable
    from forge_eq.schedule.plan import Schedule

KEPT_SHAPES = 4  # specialisations of a dynamic program that are kept


def lift_state(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with every buffer that it writes as an argument after the user's, and the buffers' names.

    A device may keep constants as it likes; what changes between calls must be handed over at each.
    """
    written = {w.target.partition(":")[2] for w in graph.signature.write_backs if w.target.startswith("constant:")}
    names = tuple(n.attrs[0] for n in graph.nodes if n.op.leaf == "constant" and n.attrs[0] in written)
    if not names:
        return graph, ()
    first, builder, ids = len(graph.inputs), Builder(graph), dict[int, int]()
    for node in graph.nodes:
        op, attrs = node.op, node.attrs
        if node.op.leaf == "constant" and attrs[0] in names:
            op, attrs = input_, (first + names.index(attrs[0]),)
        ids[node.id] = builder.add(op, tuple(ids[i] for i in node.inputs), attrs, node.type, node.origin)
    signature = replace(graph.signature, inputs=(*graph.signature.inputs, *names))
    return builder.finish(tuple(ids[i] for i in graph.outputs), signature=signature), names


@dataclass
class Specialised:
    """A program for one set of shapes: the job that made it and what runs it."""

    job: Job
    executable: Executable
    names: tuple[str, ...] = ()  # of the buffers that the program writes, in the order of its extra inputs
    state: tuple[torch.Tensor, ...] = ()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        return self.executable([*inputs, *self.state])


class CompiledProgram:
    """A compiled program: call it as the module. Printable forms: ``npuir``, ``schedule``, ``allocation``."""

    def __init__(self, captured: Graph, options: Options, module: Any, first: Specialised | None) -> None:
        from forge_eq.run.boundary import deliverer, input_checker

        self.captured, self.options, self.module = captured, options, module
        self._check, self._deliver = input_checker(captured), deliverer(captured)
        self._targets = [w.target.partition(":") for w in captured.signature.write_backs]
        self._ready: OrderedDict[tuple[Any, ...], Specialised] = OrderedDict()
        self._last: Specialised | None = first
        if first is not None and not self.dynamic:
            self._ready[()] = first

    @property
    def dynamic(self) -> bool:
        """Whether some input has a symbolic size."""
        return any(isinstance(n.type, TensorType) and not n.type.static for n in self.captured.inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program. Outputs have the module's structure and are fresh tensors.

        Raises:
            InputError: an argument has another structure, dtype or shape than the program was compiled for.
        """
        inputs = self._check(args, kwargs)
        ready = self._specialise(args, kwargs, inputs)
        values = ready.run(inputs)
        targets = [inputs[int(w)] if kind == "input" else self.captured.constants[w] for kind, _, w in self._targets]
        return self._deliver(values, (), targets, inputs)

    def _specialise(self, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: Sequence[Any]) -> Specialised:
        key = tuple(tuple(v.shape) if isinstance(v, torch.Tensor) else v for v in inputs) if self.dynamic else ()
        ready = self._ready.get(key)
        if ready is None:
            if self.module is None:
                raise RunError(
                    "run", self.captured.name, f"was not compiled for shapes {key}", "compile it again for these sizes"
                )
            example = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, dict(kwargs)))
            ready = self._ready[key] = specialise(self.module, example[0], example[1], self.options)
            if len(self._ready) > KEPT_SHAPES:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        self._last = ready
        return ready

    # ------------------------------------------------------------------------------------------ forms

    @property
    def last(self) -> Specialised:
        """The specialisation that ran last (of a static program: the only one)."""
        if self._last is None:
            raise RunError("run", self.captured.name, "has no compiled form yet", "call it once: its sizes are dynamic")
        return self._last

    @property
    def job(self) -> Job:
        return self.last.job

    @property
    def npuir(self) -> Program:
        """The scheduled NPU IR."""
        return self.last.executable.program

    @property
    def schedule(self) -> Schedule:
        schedule: Schedule = self.job["schedule"]
        return schedule

    @property
    def allocation(self) -> Allocation:
        """The arena that the executor really uses."""
        return self.last.executable.allocation

    @property
    def remarks(self) -> list[Remark]:
        return self.job.remarks

    def report(self) -> str:
        """Stages, buffers, transitions, fidelity and remarks, as text."""
        from forge_eq.report import program_report

        return program_report(self)

    def save(self, path: str | Path) -> None:
        """Writes the program, for the shapes that ran last, to one ``.forge`` file (no pickle). Raises FileError."""
        from forge_eq.run.save import Saved, save

        last, state = self.last, {w for kind, _, w in self._targets if kind == "constant"}
        kept = {name: self.captured.constants[name] for name in sorted(state)}
        options = {"name": self.captured.name, "alpha": self.options.alpha, "threads": self.options.threads}
        options["inputs"] = len(last.executable.program.inputs) - len(last.state)
        options["state"] = list(last.names)
        executable = last.executable
        save(path, Saved(self.schedule, executable.allocation, executable.target, executable.pins, options, state=kept))


def specialise(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Options,
    on_stage: Progress | None = None,
    captured: Graph | None = None,
) -> Specialised:
    """The pipeline for concrete shapes, from capture to a guarded executable."""
    job = make_job(module, args, kwargs, None, options)
    if captured is not None:
        job.forms["capture"] = captured
    return finish(job, args, kwargs, on_stage)


def finish(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_stage: Progress | None = None
) -> Specialised:
    """From the forms that a job has to a guarded executable; a form given, such as the chosen program, is kept."""
    run(job, "extract", on_stage)
    batches = settle(job, args, kwargs, on_stage)
    graph, names = lift_state(job["extract"])
    job.forms["extract"] = graph
    run(job, "alloc", on_stage)
    state = tuple(graph.constants[n] if n in graph.constants else job["capture"].constants[n] for n in names)
    if on_stage is not None:
        on_stage("build")
    start = time.perf_counter()
    executable, comparing = _build(job, [*batches[0][1], *state] if batches else None)
    job.seconds |= {"build": time.perf_counter() - start - comparing, "guard": comparing}
    return Specialised(job, executable, names, state)


def _build(job: Job, examples: list[Any] | None) -> tuple[Executable, float]:
    """The executable, compared with the captured program where that can be run twice; and the seconds of comparing."""
    from forge_eq.run.executor import Executable
    from forge_eq.run.guard import guard
    from forge_eq.run.values import in_float64

    program, captured = job["schedule"].program, lift_state(job["capture"])[0]
    if examples is None or captured.effects:
        why = "there are no example inputs" if job.options.verify != "off" else "verify is off"
        why = "the program has effects, which running it twice would repeat" if captured.effects else why
        job.remarks.append(Remark("missed", "guard", captured.name, f"OpenVINO's results were not compared: {why}"))
        return Executable(program, job.target, (), job.options.threads), 0.0
    start = time.perf_counter()
    found = guard(
        program,
        job.target,
        lambda inputs: run_graph(captured, inputs),
        examples,
        wide=in_float64(captured),
        threads=job.options.threads,
        quick=job.options.verify != "full",
    )
    job.remarks.extend(found.remarks)
    return found.executable, time.perf_counter() - start - found.building


def compile(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    on_stage: Progress | None = None,
    **changes: Any,
) -> CompiledProgram:
    """The whole pipeline: capture, e-graph, extraction, NPU IR, schedule, allocation, OpenVINO, guard.

    Args: as :func:`forge_eq.optimize`.

    Raises:
        ForgeError: typed, with stage, node and remedy.

    Example:
        >>> program = forge_eq.compile(model, (tokens,))
        >>> logits = program(tokens)
        >>> program.save("model.forge")
    """
    chosen = make_options(options, changes)
    job = make_job(module, example_inputs, example_kwargs, dynamic_shapes, chosen)
    captured: Graph = run(job, "capture", on_stage)["capture"]
    program = CompiledProgram(captured, chosen, None if isinstance(module, Graph) else _callable(module), None)
    if not program.dynamic:
        first = specialise(module, example_inputs, example_kwargs, chosen, on_stage, captured)
        first.job.seconds = {**job.seconds, **first.job.seconds}
        return CompiledProgram(captured, chosen, None, first)
    if example_inputs or example_kwargs:
        program._specialise(example_inputs, example_kwargs or {}, program._check(example_inputs, example_kwargs or {}))
    return program


def _callable(module: Any) -> Any:
    """What can be captured again at other sizes."""
    if isinstance(module, str | Path):
        module = torch.export.load(module)
    return module.module() if isinstance(module, torch.export.ExportedProgram) else module


def load(path: str | Path) -> CompiledProgram:
    """A program that :meth:`CompiledProgram.save` wrote. Raises FileError when it is corrupt or foreign."""
    from forge_eq.run.executor import Executable
    from forge_eq.run.save import load as read

    saved = read(path)
    program, count, names = saved.schedule.program, saved.options["inputs"], tuple(saved.options["state"])
    builder = Builder(Graph(saved.options["name"], (), (), signature=_users_part(program.signature, count)))
    for index, vreg in enumerate(program.inputs[:count]):
        builder.add(input_, (), (index,), program.vregs[vreg].type)
    face = replace(builder.finish((0,) * len(program.outputs)), constants=saved.state)
    options = Options(alpha=saved.options["alpha"], threads=saved.options["threads"])
    job = Job(options, forms={"schedule": saved.schedule, "alloc": saved.allocation})
    executable = Executable(program, saved.target, saved.pins, options.threads)
    ready = Specialised(job, executable, names, tuple(saved.state[n] for n in names))
    return CompiledProgram(face, options, None, ready)


def _users_part(signature: Signature, count: int) -> Signature:
    """The signature without the buffers that were appended to its inputs."""
    return replace(signature, inputs=signature.inputs[:count])
