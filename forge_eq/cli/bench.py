"""Commands that measure: ``bench peers``, ``bench paper``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_eq.cli.flags import split
from forge_eq.cli.screen import err
from forge_eq.errors import InputError, OptionsError


def enter(app: typer.Typer) -> None:
    """Enters the commands."""
    bench = typer.Typer(help="Measure beside what people run today.", no_args_is_help=True)
    bench.callback()(_group)
    bench.command()(peers)
    bench.command()(paper)
    app.add_typer(bench, name="bench")


def _group() -> None:
    """Measure beside what people run today."""


Out = Annotated[Path, typer.Option(help="folder for JSON, Markdown and HTML; a run goes on where it stopped")]
Threads = Annotated[int, typer.Option(help="threads of every backend; 0 for all cores")]
Blocks = Annotated[int, typer.Option(min=1, help="turns of each backend in a round")]
Seconds = Annotated[float, typer.Option(min=0.0, help="about how long a turn is")]


def peers(
    models: Annotated[str, typer.Option(help="models with commas; FAMILY:LAYERS truncates")] = "gpt2-124m",
    cases: Annotated[
        str, typer.Option(help="decode (one token after 128) and token counts, with commas")
    ] = "decode,16,128",
    backends: Annotated[str, typer.Option(help="some of the backends, with commas; all when left out")] = "",
    out: Out = Path("peers"),
    threads: Threads = 0,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of fresh processes")] = 3,
    blocks: Blocks = 8,
    seconds: Seconds = 0.5,
) -> None:
    """Set-up, latency, tail, memory and difference of every backend, in turn, in float32 on the same threads.

    The exit status is 1 when a criterion is missed.
    """
    from dataclasses import asdict

    from forge_eq.peers import measure, picture, sheets
    from forge_eq.peers.backends import BACKENDS, OURS
    from forge_eq.peers.cases import cell
    from forge_eq.peers.table import data, from_data, rows
    from forge_eq.report.kept import Kept
    from forge_eq.report.sheet import finish

    chosen = split(backends) or list(BACKENDS)
    wrong = [b for b in chosen if b not in BACKENDS]
    if wrong or OURS not in chosen:
        known = ", ".join(BACKENDS)
        raise OptionsError("bench", f"--backends {backends}", "must be known and hold forge_eq", f"use some of {known}")
    needs(("plotly", "psutil", *(p for b in chosen for p in BACKENDS[b].packages)))
    cells = [cell(m, c) for m in split(models) for c in split(cases)]
    plan = measure.Plan(threads or os.cpu_count() or 1, rounds, blocks, seconds, tuple(chosen))
    out.mkdir(parents=True, exist_ok=True)
    kept = Kept(out, {"plan": asdict(plan), "stamp": measure.stamp(plan.threads)})
    tell = err().print
    found: dict[Any, Any] = {}
    with measure.scratch() as folder:
        for one in cells:
            earlier = kept.get(one.key)
            if earlier is not None:
                tell(f"{one.name}: taken from {out / one.key}.json")
                found[one] = [from_data(r) for r in earlier]
                continue
            path, size = measure.prepared(one, Path(folder))
            found[one] = rows(measure.measure(one, plan, size["weights"], path, out, tell), size["weights"])
            kept.put(one.key, [data(r) for r in found[one]])
            path.unlink()
    made = sheets.sheet(found, plan)
    picture.write(out / "peers.html", made, found)
    raise typer.Exit(finish(made, "peers", out))


def paper(
    tables: Annotated[str, typer.Option(help="keys of the paper's tables, with commas; all when left out")] = "",
    models: Annotated[
        str, typer.Option(help="models of the paper, with commas; FAMILY:LAYERS truncates; all when left out")
    ] = "",
    out: Out = Path("paper"),
    threads: Threads = 0,
    tokens: Annotated[int, typer.Option(min=2, help="tokens of a window of text")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="rounds of fresh processes where backends are compared")] = 3,
    blocks: Blocks = 4,
    seconds: Seconds = 0.5,
    runs: Annotated[int, typer.Option(min=1, help="fresh processes of the table of variation")] = 10,
    trials: Annotated[int, typer.Option(min=1, help="trials of tuning")] = 50,
) -> None:
    """Every table of the Forge-UGC paper with this machine's figures beside the paper's.

    Needs the paper's tables as data (``$FORGE_EQ_SHARED``). Models of random weights at their published sizes, with
    fewer layers where memory does not hold them. What fails is a row with its reason.
    """
    from forge_eq.paper import data, gather
    from forge_eq.paper import plan as plans
    from forge_eq.paper.picture import figures
    from forge_eq.paper.tables import sheet as sheets
    from forge_eq.paper.tables.frame import Context
    from forge_eq.peers.backends import BACKENDS
    from forge_eq.peers.measure import stamp
    from forge_eq.report import page
    from forge_eq.report.kept import Kept
    from forge_eq.report.sheet import finish

    needs(("plotly", "psutil", "transformers", "optuna", *(p for b in gather.BACKENDS for p in BACKENDS[b].packages)))
    import psutil

    theirs, chosen = data.tables(), sheets.chosen(split(tables))
    named = plans.subjects(split(models)) or plans.Plan.models
    plan = plans.Plan(named, threads or os.cpu_count() or 1, tokens, rounds, blocks, seconds, runs, trials=trials)
    memory = int(psutil.virtual_memory().total)
    kept = Kept(out, {**plan.settings(), "memory GiB": memory >> 30, "stamp": stamp(plan.threads)})
    tell = err().print
    found = gather.gather(sheets.units(chosen, plan), kept, gather.measurer(plan, out / "logs", tell), memory, tell)
    made = sheets.sheet(chosen, plan, found, theirs)
    status = finish(made, "paper", out)
    page.write(out / "paper.html", made, figures(Context(plan, found, theirs)))
    raise typer.Exit(status)


def needs(packages: tuple[str, ...]) -> None:
    """Raises InputError with the line that installs what is missing."""
    from importlib.util import find_spec

    missing = [p for p in dict.fromkeys(packages) if find_spec(p.partition(".")[0]) is None]
    if missing:
        raise InputError(
            "bench", ", ".join(missing), "is not installed", "pip install 'forge_eq[openvino,demo,peers,tune]'"
        )
