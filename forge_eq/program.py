"""``compile``: the whole pipeline, and the program that it gives.

A program with symbolic sizes is specialised for each set of concrete shapes at the call, and the few last ones are
kept; or it is compiled once for the largest sizes (``max_size``), and arguments are padded.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree

from forge_eq import cache
from forge_eq.api import Progress, make_job, make_options, settle
from forge_eq.errors import ForgeError, OptionsError, RunError
from forge_eq.extract.fold import Folded, fold
from forge_eq.ir.graph import Builder, Graph, Signature
from forge_eq.ir.types import TensorType
from forge_eq.ops.leaves import input_
from forge_eq.options import Options
from forge_eq.pipeline import Job, Misrecorded, confirm_recording, export_instead, run
from forge_eq.remarks import Remark
from forge_eq.run.differential import Answers, input_batches
from forge_eq.run.heap import give_back, older_left_alone

if TYPE_CHECKING:
    from forge_eq.alloc.plan import Allocation
    from forge_eq.lower.npu import Program
    from forge_eq.run.confirm import OwnResults
    from forge_eq.run.executor import Executable
    from forge_eq.run.padding import Padding
    from forge_eq.schedule.plan import Schedule

KEPT_SHAPES = 4  # specialisations of a dynamic program that are kept
LONG = 50_000  # microseconds of a call, predicted, from which on a recording is not run only to compare it


def lift_state(graph: Graph, only: tuple[str, ...] | None = None) -> tuple[Graph, tuple[str, ...]]:
    """The graph with every buffer that it writes and reads (or ``only`` these) as an argument after the user's; names.

    A device may keep constants as it likes; what changes between calls must be handed over at each.
    """
    written = {w.target.partition(":")[2] for w in graph.signature.write_backs if w.target.startswith("constant:")}
    read = tuple(n.attrs[0] for n in graph.nodes if n.op.leaf == "constant" and n.attrs[0] in written)
    names = read if only is None else only
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

    def __init__(
        self,
        captured: Graph,
        options: Options,
        module: Any,
        first: Specialised | None,
        padding: Padding | None = None,
    ) -> None:
        from forge_eq.run.boundary import deliverer, input_checker

        self.captured, self.options, self.module, self.padding = captured, options, module, padding
        self.counts = {"compiled": 0, "reused": 0, "dropped": 0}  # specialisations of a dynamic program
        self._check, self._deliver = input_checker(captured), deliverer(captured, apart=True)
        self._targets = [w.target.partition(":") for w in captured.signature.write_backs]
        self._ready: OrderedDict[tuple[Any, ...], Specialised] = OrderedDict()
        self._last: Specialised | None = first
        if first is not None and not self.dynamic:
            self._ready[()] = first

    @cached_property
    def dynamic(self) -> bool:
        """Whether some input has a symbolic size."""
        return any(isinstance(n.type, TensorType) and not n.type.static for n in self.captured.inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program. Outputs have the module's structure and are fresh tensors.

        Raises:
            InputError: an argument has another structure, dtype or shape than the program was compiled for.
        """
        inputs = self._check(args, kwargs)
        if self.padding is not None:
            values = self.padding.cut(self.last.run(self.padding.fill(inputs)), inputs)
        else:
            values = self._specialise(args, kwargs, inputs).run(inputs)
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
            self.counts["compiled"] += 1
            if len(self._ready) > KEPT_SHAPES:
                self._ready.popitem(last=False)
                self.counts["dropped"] += 1
        else:
            self.counts["reused"] += 1
        self._ready.move_to_end(key)
        self._last = ready
        return ready

    # ------------------------------------------------------------------------------------------ forms

    @property
    def shapes(self) -> list[tuple[Any, ...]]:
        """The shapes of the inputs that a dynamic program is compiled for at present, the last used last."""
        return list(self._ready) if self.dynamic else []

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
        from forge_eq.run.signature_json import to_json

        last, state = self.last, {w for kind, _, w in self._targets if kind == "constant"}
        kept = {name: self.captured.constants[name] for name in sorted(state)}
        options = {"name": self.captured.name, "alpha": self.options.alpha, "threads": self.options.threads}
        options["inputs"] = len(last.executable.program.inputs) - len(last.state)
        options["state"] = list(last.names)
        if self.padding is not None:
            options["padding"] = {**self.padding.to_json(), "signature": to_json(self.captured.signature)}
        executable = last.executable
        save(path, Saved(self.schedule, executable.allocation, executable.target, executable.pins, options, state=kept))


@older_left_alone()
def specialise(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    options: Options,
    on_stage: Progress | None = None,
) -> Specialised:
    """The pipeline for concrete shapes, from capture to a guarded executable."""
    return finish(make_job(module, args, kwargs, None, options), args, kwargs, on_stage)


def finish(
    job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_stage: Progress | None = None
) -> Specialised:
    """From the forms that a job has to a guarded executable; a form given, such as the chosen program, is kept.

    A recording is compared with the module while OpenVINO compiles what was made of it; one that differs is dropped
    with all that was made of it, and torch.export's program takes its place.
    """
    job.later = True
    try:
        return _finish(job, args, kwargs, on_stage)
    except Misrecorded:
        pass
    except ForgeError:
        if not job.unconfirmed:
            raise
        try:  # a wrong recording explains any failure
            confirm_recording(job, job["capture"])
        except Misrecorded:
            pass
        else:
            raise
    job.forms = {"capture": export_instead(job)}
    return _finish(job, args, kwargs, on_stage)


def _finish(job: Job, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_stage: Progress | None) -> Specialised:
    _choose(job, on_stage)
    batches = input_batches(job["capture"], args, kwargs, job.options.verify)
    # The guard compares what runs with the captured program; the chosen one by torch only tells where a fault lies.
    waits = job.options.verify == "quick" and bool(batches) and not job["capture"].effects
    if not waits:
        settle(job, args, kwargs, on_stage)
    try:
        return _guarded(job, batches, on_stage)
    except RunError as e:
        chosen = job["extract"]
        if not waits or e.stage != "guard":
            raise
        settle(job, args, kwargs, on_stage)
        if job["extract"] is chosen:
            raise
    for name in ("lower", "schedule", "alloc"):
        del job.forms[name]
    return _guarded(job, batches, on_stage)


def _guarded(job: Job, batches: Sequence[tuple[str, list[Any]]], on_stage: Progress | None) -> Specialised:
    graph, names = lift_state(job["extract"])
    job.forms["extract"] = graph
    run(job, "alloc", on_stage)
    if isinstance(graph.constants, Folded):
        graph.constants.forget(job["schedule"].program.data)  # packed weights stand for some of them
        give_back()  # what looking for their parts has left
    state = tuple(graph.constants[n] if n in graph.constants else job["capture"].constants[n] for n in names)
    if on_stage is not None:
        on_stage("build")
    start = time.perf_counter()
    executable, comparing = _build(job, [*batches[0][1], *state] if batches else None, names)
    job.seconds |= {"build": time.perf_counter() - start - comparing, "guard": comparing}
    return Specialised(job, executable, names, state)


def _choose(job: Job, on_stage: Progress | None) -> None:
    """The chosen program: given, found on disk, or searched for."""
    run(job, "capture", on_stage)
    if "extract" in job.forms:
        return
    start = time.perf_counter()
    key = cache.key_of(job["capture"], job.options)
    graph, remark = cache.find(key, job["capture"]) if key is not None else (None, None)
    job.remarks += [remark] if remark is not None else []
    if graph is not None:
        job.forms["extract"], job.found = fold(graph, job.options.limits), True
    job.seconds["cache"] = time.perf_counter() - start
    run(job, "extract", on_stage)
    if key is not None and not job.found:
        kept = cache.keep(key, job["chosen"].graph)
        job.remarks += [kept] if kept is not None else []


def _build(job: Job, examples: list[Any] | None, names: tuple[str, ...]) -> tuple[Executable, float]:
    """The executable, compared with the captured program where that can be run twice; and the seconds of comparing.

    ``names`` are the buffers among the examples: those that the chosen program still reads.
    """
    from forge_eq.run.executor import Executable
    from forge_eq.run.guard import guard

    program, captured = job["schedule"].program, lift_state(job["capture"], names)[0]
    if examples is None or captured.effects:
        why = "there are no example inputs" if job.options.verify != "off" else "verify is off"
        why = "the program has effects, which running it twice would repeat" if captured.effects else why
        job.remarks.append(Remark("missed", "guard", captured.name, f"OpenVINO's results were not compared: {why}"))
        return Executable(program, job.target, (), job.options.threads), 0.0
    answers, own = Answers(captured), _own_results(job)

    def reference(inputs: Sequence[Any]) -> Sequence[Any]:
        if job.unconfirmed:
            if own is not None and (results := own.outputs(inputs)) is not None:
                return results
            confirm_recording(job, job["capture"], own)
        return (job.answers or answers)(inputs)

    def wide(inputs: Sequence[Any]) -> Sequence[Any] | None:
        if job.unconfirmed:  # what is wrong has wrong results in float64
            confirm_recording(job, job["capture"], own)
        return (job.answers or answers).in_float64(inputs)

    start = time.perf_counter()
    found = guard(
        program,
        job.target,
        reference,
        examples,
        wide=wide,
        threads=job.options.threads,
        quick=job.options.verify != "full",
        predicted_us=job["schedule"].predicted_us,
    )
    job.remarks.extend(found.remarks)
    if job.unconfirmed:
        job.unconfirmed = False
        told = "recorded; what was made of it gives the module's own values within the criterion"
        job.remarks.append(Remark("passed", "capture", captured.name, told))
    job.answers = None  # nobody asks any more, and logits are large
    return found.executable, time.perf_counter() - start - found.building


def _own_results(job: Job) -> OwnResults | None:
    """The module's own results, where the guard is to compare with these and not with those of its recording.

    Comparing the two bit by bit takes a run more. What runs is compared with the module in any case, and where a call
    is long only so, unless float64 has to decide: see docs/decisions/0010.
    """
    from forge_eq.run.confirm import OwnResults

    if not job.unconfirmed or job.options.verify != "quick" or job["schedule"].predicted_us < LONG:
        return None
    return OwnResults(job["capture"], job.source[0])


@older_left_alone()
def compile(
    module: Any,
    example_inputs: Sequence[Any] = (),
    example_kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    options: Options | None = None,
    max_size: int | Mapping[str, int] | None = None,
    on_stage: Progress | None = None,
    **changes: Any,
) -> CompiledProgram:
    """The whole pipeline: capture, e-graph, extraction, NPU IR, schedule, allocation, OpenVINO, guard.

    Args: as :func:`forge_eq.optimize`, and
        max_size: of a dynamic program: one static program for the largest sizes, a number for all of them or one per
            ``Dim`` name. Smaller arguments are padded with zeros and results cut; refused where results depend on it.

    Raises:
        ForgeError: typed, with stage, node and remedy. A later call with sizes out of range ends in an InputError.

    Example:
        >>> program = forge_eq.compile(model, (tokens,))
        >>> logits = program(tokens)
        >>> program.save("model.forge")
    """
    chosen = make_options(options, changes)
    job = make_job(module, example_inputs, example_kwargs, dynamic_shapes, chosen)
    job.later = True
    captured: Graph = run(job, "capture", on_stage)["capture"]
    program = CompiledProgram(captured, chosen, None if isinstance(module, Graph) else _callable(module), None)
    if max_size is not None:
        return _padded(program, example_inputs, example_kwargs or {}, dynamic_shapes, max_size)
    if not program.dynamic:
        ready = finish(job, example_inputs, example_kwargs, on_stage)
        return CompiledProgram(job["capture"], chosen, None, ready)
    if example_inputs or example_kwargs:
        program._specialise(example_inputs, example_kwargs or {}, program._check(example_inputs, example_kwargs or {}))
    return program


def _padded(
    dynamic: CompiledProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
    max_size: int | Mapping[str, int],
) -> CompiledProgram:
    """The one program for the largest sizes, compared with the dynamic one at several smaller ones."""
    from forge_eq.run.padding import Padding, bounded, check_padding, dim_names, largest_sizes

    graph, module = dynamic.captured, dynamic.module
    why = "" if dynamic.dynamic else "the program has no dynamic size"
    why = why or ("the program writes or has effects" if graph.effects or graph.signature.write_backs else "")
    why = why or ("there are no example inputs" if not args and not kwargs else "")
    if why:
        raise OptionsError("options", "max_size", why, "leave max_size out")
    inputs = dynamic._check(args, kwargs)
    types = {id(v): n.type for v, n in zip(inputs, graph.inputs, strict=True)}
    largest = largest_sizes(graph, dim_names(module, args, kwargs, dynamic_shapes, types), max_size)
    padding = Padding([n.type for n in graph.inputs], [graph.nodes[i].type for i in graph.outputs], largest)
    whole = _as_call(graph.signature, padding.fill(inputs))
    ready = specialise(module, *whole, dynamic.options)
    tried = check_padding(graph, padding, ready.run, inputs)
    sizes = ", ".join(f"{s} {n}" for s, n in padding.largest.items())
    ready.job.remarks.append(Remark("passed", "padding", graph.name, f"agrees at {tried} sizes up to {sizes}"))
    return CompiledProgram(bounded(graph, padding.largest), dynamic.options, None, ready, padding)


def _as_call(signature: Signature, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Flat inputs as the arguments of a call."""
    if signature.in_spec is None:
        return tuple(inputs), {}
    leaves = list(inputs)
    for position, value in signature.baked:
        leaves.insert(position, value)
    args, kwargs = pytree.tree_unflatten(leaves, signature.in_spec)
    return args, kwargs


def _callable(module: Any) -> Any:
    """What can be captured again at other sizes."""
    if isinstance(module, str | Path):
        module = torch.export.load(module)
    return module.module() if isinstance(module, torch.export.ExportedProgram) else module


def load(path: str | Path) -> CompiledProgram:
    """A program that :meth:`CompiledProgram.save` wrote. Raises FileError when it is corrupt or foreign."""
    from forge_eq.run.executor import Executable
    from forge_eq.run.padding import Padding
    from forge_eq.run.save import load as read
    from forge_eq.run.signature_json import from_json

    saved = read(path)
    program, count, names = saved.schedule.program, saved.options["inputs"], tuple(saved.options["state"])
    kept = saved.options.get("padding")
    padding = Padding.from_json(kept) if kept else None
    signature = from_json(kept["signature"]) if kept else _users_part(program.signature, count)
    types = padding.types if padding else [program.vregs[v].type for v in program.inputs[:count]]
    builder = Builder(Graph(saved.options["name"], (), (), signature=signature))
    for index, type in enumerate(types):
        builder.add(input_, (), (index,), type)
    face = replace(builder.finish((0,) * len(program.outputs)), constants=saved.state)
    options = Options(alpha=saved.options["alpha"], threads=saved.options["threads"])
    job = Job(options, forms={"schedule": saved.schedule, "alloc": saved.allocation})
    executable = Executable(program, saved.target, saved.pins, options.threads)
    ready = Specialised(job, executable, names, tuple(saved.state[n] for n in names))
    return CompiledProgram(face, options, None, ready, padding)


def _users_part(signature: Signature, count: int) -> Signature:
    """The signature without the buffers that were appended to its inputs."""
    return replace(signature, inputs=signature.inputs[:count])
