"""Commands on the NPU compiler: ``npu setup``, ``npu check``, ``npu remove``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from forge_eq.cli.programs import Spec, Tokens
from forge_eq.cli.screen import REFUSED, Group, Stages, err, say
from forge_eq.errors import FileError

app = typer.Typer(cls=Group, no_args_is_help=True, help="Ask Intel's NPU compiler; no device is needed.")


def enter(parent: typer.Typer) -> None:
    """Enters the group of commands."""
    parent.add_typer(app, name="npu")


@app.command()
def setup() -> None:
    """Install the NPU compiler of OpenVINO's Windows wheel, run by Wine, in the user's cache folder."""
    from forge_eq.npu.compiler import native
    from forge_eq.npu.setup import install

    if native() is not None:
        say("the installed openvino has the NPU compiler: nothing to do")
        return
    install(say)


@app.command()
def remove(
    system: Annotated[bool, typer.Option("--system", help="also the Debian packages that setup installed")] = False,
) -> None:
    """Undo setup."""
    from forge_eq.npu.setup import remove as run

    run(say, system)


@app.command()
def check(
    spec: Spec,
    tokens: Tokens = None,
    platform: Annotated[str, typer.Option(help="3720, 4000, 5010 or 5020")] = "4000",
    most: Annotated[int, typer.Option(help="instructions to list for each segment", min=1)] = 12,
    out: Annotated[str, typer.Option(help="folder for a Chrome trace and a picture of each segment")] = "",
    search: Annotated[bool, typer.Option("--search", help="compile other forms of the products too")] = False,
) -> None:
    """Compile every NPU segment of a model for a platform; say how long it would take, or what is refused."""
    from forge_eq import models
    from forge_eq.npu.check import check as run
    from forge_eq.npu.compiler import running, target_of
    from forge_eq.npu.search import search as fastest
    from forge_eq.options import Options
    from forge_eq.pipeline import Job
    from forge_eq.pipeline import run as stages

    target, folder = target_of(platform), Path(out) if out else None
    if folder is not None and not folder.is_dir():
        raise FileError("save", out, "is no folder", "make it first")
    with Stages() as on_stage, running() as compiler:
        on_stage("load")
        model = models.load(spec, tokens)
        source = (model.module, model.args, model.kwargs or None, None)
        job = stages(Job(Options(target=target), source=source), "extract" if search else "schedule", on_stage)
        on_stage("check")
        if search:
            found = fastest(job["extract"], job.target, compiler, platform)
            report, tried = found.report, found.times
        else:
            report, tried = run(job["schedule"].program, job.target, compiler, platform), {}
    say(report.text(most))
    for form, us in sorted(tried.items(), key=lambda item: item[1]):
        say(f"form {form!r}: {'refused' if math.isinf(us) else f'{us / 1e3:.3f} ms'}")
    if folder is not None:
        _draw(report, folder)
    if not report.accepted:
        raise typer.Exit(REFUSED)


def _draw(report: object, folder: Path) -> None:
    from forge_eq.npu.check import Report
    from forge_eq.npu.compiler import SIMULATED, Compiled
    from forge_eq.npu.picture import chrome_trace, timeline

    assert isinstance(report, Report)
    for number, checked in enumerate(report.segments):
        answer = checked.answer
        if isinstance(answer, Compiled) and answer.simulation is not None:
            title = f"{report.program.name}, segment {number}, NPU {report.platform}, {SIMULATED}"
            for suffix, text in (("json", chrome_trace), ("svg", timeline)):
                path = folder / f"segment{number}.{suffix}"
                path.write_text(text(answer.simulation, title), encoding="utf-8")
                err().print(f"wrote {path}")
