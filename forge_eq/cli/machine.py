"""Commands on this machine: ``calibrate``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from forge_eq.cli.screen import err, say
from forge_eq.errors import FileError, OptionsError
from forge_eq.files import replace_file
from forge_eq.report import table

TARGET = "openvino-cpu"  # the target whose kernels can be measured here


def enter(app: typer.Typer) -> None:
    """Enters the commands."""
    app.command()(calibrate)


def calibrate(
    threads: Annotated[int, typer.Option(help="threads of the kernels that are timed", min=1)] = 1,
    processes: Annotated[int, typer.Option(help="fresh processes, of which the median counts", min=1)] = 3,
    show: Annotated[bool, typer.Option("--show", help="only show the figures in use, and which are measured")] = False,
) -> None:
    """Measure this machine's kernels; later runs use them."""
    from rich.progress import Progress

    from forge_eq.run.calibrate import calibrate as run
    from forge_eq.targets import host, load

    if not show:
        where = host.path(TARGET)
        if where is None:
            raise OptionsError("options", host.SWITCH, "is off", "unset it, or set it to a folder")
        with Progress(console=err(), transient=True, disable=not err().is_terminal) as bar:
            task = bar.add_task("processes", total=processes)
            found = run(threads, processes, lambda number: bar.update(task, completed=number))
        try:
            replace_file(where, json.dumps({"identity": host.identity(), "threads": threads, **found}))
        except OSError as e:
            raise FileError("save", str(where), f"cannot be written: {e.strerror}", f"set {host.SWITCH}") from None
        err().print(f"wrote {where}")
    say("\n".join(figures(load(TARGET))))


def figures(target: object) -> list[str]:
    """The figures of a target, and where each comes from."""
    from forge_eq.targets import Target, shipped
    from forge_eq.targets.kernels import FORMS

    assert isinstance(target, Target)
    names = ("peak_gflops", "bandwidth_gbps", "launch_us", "transfer_us", "transfer_gbps", "reorder_gbps")
    file = shipped(target.name)
    rows = [(n, f"{getattr(file, n):.4g}", f"{getattr(target, n):.4g}", source(target, n)) for n in names]
    rows += [
        (f"weights.{c}", f"{file.weight(c):.4g}", f"{target.weight(c):.4g}", source(target, f"weights.{c}"))
        for c in sorted(target.weights)
    ]
    lines = table(("figure", "shipped", "in use", "source"), rows)
    points = {(p.k, p.n, p.tokens, p.form): p.us for p in target.kernels.points}
    sizes = sorted({key[:3] for key in points})
    body = []
    for k, n, tokens in sizes:
        plain, *others = (points.get((k, n, tokens, form)) for form in FORMS)
        if plain:
            ratios = (f"{us / plain:.2f}" if us else "" for us in others)
            body.append((f"{k} x {n}", f"{tokens}", f"{plain:.0f}", *ratios))
    head = ("weight", "tokens", f"{FORMS[0]} us", *(f"{form} / {FORMS[0]}" for form in FORMS[1:]))
    return [*lines, "", f"matrix kernels: {source(target, 'kernels')}", *table(head, body)]


def source(target: object, name: str) -> str:
    return "measured here" if name in getattr(target, "measured", ()) else "shipped estimate"
