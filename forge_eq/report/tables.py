"""Tables: time and form sizes per stage, storage and transitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_eq.egraph.view import EGraphView
from forge_eq.ir.graph import Graph
from forge_eq.lower.npu import Program
from forge_eq.pipeline import Job
from forge_eq.report.match import calls
from forge_eq.schedule.plan import Schedule


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Lines of aligned columns, the first to the left and figures to the right; nothing when there is no row."""
    if not body:
        return []
    rows = [head, *body]
    widths = [max(len(r[c]) for r in rows) for c in range(len(head))]
    figures = [all(r[c][:1] in "+-0123456789" for r in body if r[c]) for c in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [f"{v:>{w}}" if f else f"{v:{w}}" for v, w, f in zip(row, widths, figures, strict=True)]
        return "   " + "  ".join(cells).rstrip()

    return [line(head), *map(line, body)]


def plural(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def size_of(form: Any) -> str:
    """The size of a form in a few words."""
    if isinstance(form, Graph):
        return plural(len(calls(form)), "call")
    if isinstance(form, EGraphView):
        return f"{form.nodes} e-nodes in {len(form.classes)} classes, {form.saturation.stop}"
    if isinstance(form, Program):
        return plural(len(form.instrs), "instruction")
    if isinstance(form, Schedule):
        return f"{plural(len(form.segments), 'segment')}, {plural(form.program.transitions, 'transition')}"
    if hasattr(form, "physical"):
        return f"{plural(form.physical, 'buffer')}, {nbytes(form.peak)}"
    return ""


def stage_table(job: Job) -> str:
    """Seconds and result of each stage that ran, in order, and the sum of the compiler's own stages."""
    body = [(name, f"{seconds:.3f} s", size_of(job.forms.get(name))) for name, seconds in job.seconds.items()]
    own = sum(seconds for name, seconds in job.seconds.items() if name not in _FOREIGN)
    outside = [name for name in job.seconds if name in _FOREIGN]
    body.append(("own stages", f"{own:.3f} s", f"without {', '.join(outside)}" if outside else ""))
    return "\n".join(table(("stage", "time", "result"), body)) + "\n"


_FOREIGN = ("capture", "confirm", "build", "guard", "verify")  # capture, OpenVINO and comparisons with torch


def allocation_table(job: Job) -> str:
    """Registers, buffers, bytes and transitions, and what the executor owns of them.

    The column ``per instruction`` is the storage of a device that runs the program itself; ``as run here`` treats a
    segment that OpenVINO runs as one step: what lives only inside it belongs to OpenVINO.
    """
    from forge_eq.alloc.linear_scan import allocate

    plan: Schedule = job["schedule"]
    each, run = allocate(plan.program, job.target, "instr"), job["alloc"]
    rows = [
        ("virtual registers", f"{each.virtual}", f"{run.virtual}"),
        ("physical buffers", f"{each.physical}", f"{run.physical}"),
        ("peak bytes", f"{each.peak}", f"{run.peak}"),
        ("max-live bound", f"{each.bound}", f"{run.bound}"),
        ("peak / bound", *(f"{a.peak / a.bound:.3f}" if a.bound else "-" for a in (each, run))),
    ]
    f = plan.figures
    weights = sum(t.untyped_storage().nbytes() for t in _storages(plan.program))
    lines = table(("storage", "per instruction", "as run here"), rows)
    before, least = f.transitions_before, f.transitions_least
    copies = "1 copy" if f.copies == 1 else f"{f.copies} copies"
    loose = sum(plan.program.vregs[v].nbytes for v in run.outside)
    lines += [
        "",
        f"   transitions {before} in captured order -> {f.transitions} scheduled (least possible {least})",
        f"   {copies} between devices, {nbytes(f.copy_bytes)}",
        f"   the executor owns {nbytes(run.peak)} of arena and shares {nbytes(weights)} of constants with torch",
        f"   inputs and results lie outside of it: {plural(len(run.outside), 'register')}, {nbytes(loose)}",
        f"   {_inside(job, plan)}",
    ]
    return "\n".join(lines) + "\n"


def _inside(job: Job, plan: Schedule) -> str:
    foreign = sum(job.target.device(s.device).kind == "openvino" for s in plan.segments)
    if not foreign:
        return "nothing is left to a backend"
    return f"what lives only inside {plural(foreign, 'OpenVINO segment')} is OpenVINO's"


def _storages(program: Program) -> list[Any]:
    """The constants, one per piece of storage."""
    return list({t.untyped_storage().data_ptr(): t for t in program.data.values()}.values())


def nbytes(count: int) -> str:
    """A number of bytes for reading."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def duration(microseconds: float) -> str:
    """A predicted time for reading: four digits."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.4g} {unit}"
    return f"{microseconds:.4g} us"
