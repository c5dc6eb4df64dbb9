"""The compiler on one page: the stages as data, and the loop that runs them.

Every stage states Takes / Gives / Promises in its package, and its form prints, parses and checks. A form
is kept under its stage's name in a :class:`Job`, so that a later stage (and a test) may read any of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forge_eq.errors import CheckError
from forge_eq.options import Options
from forge_eq.remarks import Remark
from forge_eq.run.heap import collector_held

if TYPE_CHECKING:
    from forge_eq.run.confirm import OwnResults


@dataclass
class Job:
    """One compilation: options, what the user gave, and the form that each stage made."""

    options: Options
    source: Any = None  # (module or program, args, kwargs, dynamic_shapes)
    forms: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    answers: Any = None  # run.differential.Answers of the captured program, where it was compared with the module
    later: bool = False  # whoever runs the job confirms a recording itself, see :func:`confirm_recording`
    unconfirmed: bool = False  # the captured program is a recording that was not compared with the module yet
    found: bool = False  # the chosen program comes from the cache

    def __getitem__(self, stage: str) -> Any:
        if self.found and stage in ("saturate", "chosen") and stage not in self.forms:
            self._search()
        if stage not in self.forms:
            raise CheckError("pipeline", stage, "has not run", "run the stages in order")
        return self.forms[stage]

    def _search(self) -> None:
        """What led to a program that was found, for whoever asks: the same again, as it is deterministic."""
        again = run(Job(self.options, forms={"capture": self.forms["capture"]}), "extract")
        self.forms |= {name: again.forms[name] for name in ("saturate", "chosen")}

    @property
    def target(self) -> Any:
        from forge_eq.targets import load

        return load(self.options.target)


@dataclass(frozen=True)
class Stage:
    """One step. ``run(job)`` gives the form; ``module`` has the form's ``text``, ``parse`` and ``check``."""

    name: str
    takes: str
    gives: str
    run: Callable[[Job], Any]
    module: str  # of text and parse; empty when the form is not printed
    check: Callable[[Job], None] | None = None

    def text(self, job: Job) -> str:
        made: str = import_module(self.module).text(job[self.name])
        return made

    def reparse(self, job: Job) -> None:
        """Replaces the form by what its text reads as. Constant data, which text only names, is kept."""
        form, module = job[self.name], import_module(self.module)
        if hasattr(module, "reparse"):
            job.forms[self.name] = module.reparse(form)
            return
        kept = {"constants": form.constants, "submodules": form.submodules} if hasattr(form, "submodules") else {}
        job.forms[self.name] = module.parse(self.text(job), **kept)


# ------------------------------------------------------------------------------------------- what stages do


class Misrecorded(Exception):
    """The recording does not give the module's values: everything made from it is void."""


def _capture(job: Job) -> Any:
    """The recorder's graph stands only after it gave the module's own values; else torch.export's does."""
    from forge_eq.capture.export import captured
    from forge_eq.egraph.worker import prepare

    options = job.options
    how = "export" if options.capture == "auto" and options.verify == "off" else options.capture
    prepare(_rules(job))
    module, args, kwargs, dynamic = job.source
    found = captured(module, args, kwargs, dynamic, how)
    job.remarks += found.remarks
    job.unconfirmed = found.recorded
    if job.unconfirmed and not job.later:
        start = time.perf_counter()
        try:
            confirm_recording(job, found.graph)
        except Misrecorded:
            return export_instead(job)
        finally:
            job.seconds["confirm"] = time.perf_counter() - start
    return found.graph


def confirm_recording(job: Job, graph: Any, own: OwnResults | None = None) -> None:
    """Compares a recorded graph with the module, of which ``own`` knows results already.

    Raises Misrecorded when it does not give the module's values.
    """
    from forge_eq.run.confirm import confirm

    module, args, kwargs, _ = job.source
    found = confirm(graph, module, args, kwargs or {}, job.options.verify, own)
    job.unconfirmed = False
    job.remarks += found.remarks
    if found.reason:
        told = f"the recording {found.reason}; torch.export is used"
        job.remarks.append(Remark("failed", "capture", graph.name, told))
        raise Misrecorded(found.reason)
    job.answers = found.answers


def export_instead(job: Job) -> Any:
    """What torch.export gives for the job's module."""
    from forge_eq.capture.export import captured

    module, args, kwargs, dynamic = job.source
    return captured(module, args, kwargs, dynamic, "export").graph


def _rules(job: Job) -> Any:
    from forge_eq.rules import chosen

    return chosen(job.options)


def _saturate(job: Job) -> Any:
    from forge_eq.egraph.worker import saturate

    return saturate(job["capture"], _rules(job), job.options.limits)


def _extract(job: Job) -> Any:
    from forge_eq.extract.cost import cost_of
    from forge_eq.extract.fold import fold
    from forge_eq.extract.program import choose

    graph = job["capture"]
    cost = cost_of(graph, job.target, job.options)
    chosen = choose(job["saturate"], graph, cost, job.options.limits, job.options.extractor)
    job.forms["chosen"] = chosen
    job.remarks += [Remark("missed", "extract", graph.name, note) for note in chosen.extraction.notes]
    return fold(chosen.graph, job.options.limits)


def _lower(job: Job) -> Any:
    from forge_eq.lower.orient import orient
    from forge_eq.lower.select import lower

    return orient(lower(job["extract"], job.target), job.target)


def _schedule(job: Job) -> Any:
    from forge_eq.schedule.plan import schedule

    return schedule(job["lower"], job.target)


def _alloc(job: Job) -> Any:
    from forge_eq.alloc.host import allocate_on_host, without_transfers

    return allocate_on_host(without_transfers(job["schedule"].program), job.target)


def _check_graph(stage: str) -> Callable[[Job], None]:
    def check(job: Job) -> None:
        import_module("forge_eq.ir.check").check(job[stage])

    return check


def _check_lower(job: Job) -> None:
    import_module("forge_eq.lower.check").check(job["lower"], job.target)


def _check_schedule(job: Job) -> None:
    import_module("forge_eq.schedule.check").check(job["schedule"], job["lower"], job.target)


def _check_alloc(job: Job) -> None:
    program = import_module("forge_eq.alloc.host").without_transfers(job["schedule"].program)
    import_module("forge_eq.alloc.checker").check(program, job.target, job["alloc"])


STAGES: tuple[Stage, ...] = (
    Stage("capture", "a torch module", "Graph", _capture, "forge_eq.ir.text", _check_graph("capture")),
    Stage("saturate", "Graph, rules", "EGraphView", _saturate, "forge_eq.egraph.text"),
    Stage("extract", "EGraphView, cost", "Graph", _extract, "forge_eq.ir.text", _check_graph("extract")),
    Stage("lower", "Graph, target", "Program", _lower, "forge_eq.lower.text", _check_lower),
    Stage("schedule", "Program, target", "Schedule", _schedule, "forge_eq.schedule.text", _check_schedule),
    Stage("alloc", "Schedule, target", "Allocation", _alloc, "forge_eq.alloc.text", _check_alloc),
)  # execution (run/) builds from Schedule and Allocation; it is not a form


def run(job: Job, last: str = "alloc", on_stage: Callable[[str], None] | None = None, reparse: bool = False) -> Job:
    """Runs the stages up to ``last`` that come after the last one whose form is given.

    ``on_stage`` hears each stage's name before it starts; ``reparse`` prints and parses every form on the way.
    """
    given = max((k for k, stage in enumerate(STAGES) if stage.name in job.forms), default=-1)
    with ExitStack() as held:
        for number, stage in enumerate(STAGES):
            if number < given and stage.name not in job.forms:
                continue
            if stage.name not in job.forms:
                if on_stage is not None:
                    on_stage(stage.name)
                if stage is not STAGES[0]:
                    held.enter_context(collector_held())
                start, inner = time.perf_counter(), sum(job.seconds.values())
                job.forms[stage.name] = stage.run(job)
                inner = sum(job.seconds.values()) - inner  # what the stage books under another name
                job.seconds[stage.name] = time.perf_counter() - start - inner
            if reparse:
                stage.reparse(job)
            if job.options.check and stage.check is not None:
                stage.check(job)
            if stage.name == last:
                break
    return job
