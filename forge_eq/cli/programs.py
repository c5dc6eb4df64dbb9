"""Commands on programs: ``optimize``, ``compile``, ``explain``, ``generate``, ``tune``, ``demo``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_eq.cli.flags import split, with_options
from forge_eq.cli.screen import Stages, err, say, width
from forge_eq.errors import FileError, OptionsError
from forge_eq.files import replace_file
from forge_eq.options import Options
from forge_eq.pipeline import STAGES, Job

_SPEC = (
    "FILE.py:ATTR (a pair (module, example_inputs) or a function that gives one), a .pt2 file, a built-in model, or a "
    "family such as qwen2-0.5b (qwen2-0.5b-tiny: small; qwen2-0.5b:2: two layers)"
)
Spec = Annotated[str, typer.Argument(metavar="MODEL", help=_SPEC, show_default=False)]
Tokens = Annotated[int | None, typer.Option(help="length of the example input of a built-in model", show_default=False)]
Show = Annotated[str, typer.Option(help="print forms: stages with commas, or 'changed' for what each stage changed")]
Stats = Annotated[bool, typer.Option("--stats", help="print time and size of each stage, and how often rules matched")]
CHANGED = "changed"


def enter(app: typer.Typer) -> None:
    """Enters the commands."""
    app.command()(with_options(optimize))
    app.command(name="compile")(with_options(compile_))
    app.command()(with_options(explain))
    app.command()(with_options(generate))
    app.command()(with_options(tune))
    app.command()(demo)


def optimize(
    spec: Spec,
    tokens: Tokens = None,
    show: Show = "",
    stats: Stats = False,
    out: Annotated[str, typer.Option(help="write the chosen program as text (.txt); compile keeps what runs")] = "",
    *,
    options: Options,
) -> None:
    """Find the cheapest equal program."""
    from forge_eq.ir.text import text

    _forms(show, "extract")
    path = _target(out, ".txt")
    result = _optimized(spec, tokens, options)
    _report(result.job, show, stats)
    if path is not None:
        _write(path, text(result.graph))


def compile_(
    spec: Spec,
    tokens: Tokens = None,
    show: Show = "",
    stats: Stats = False,
    out: Annotated[str, typer.Option(help="write the compiled program (.forge); read it with forge_eq.load")] = "",
    *,
    options: Options,
) -> None:
    """Compile for the target and compare with the original."""
    from forge_eq import models
    from forge_eq.program import compile as build
    from forge_eq.report import allocation_table

    _forms(show, "alloc")
    path = _target(out, ".forge")
    model = models.load(spec, tokens)
    with Stages() as on_stage:
        program = build(model.module, model.args, model.kwargs or None, options=options, on_stage=on_stage)
    _report(program.job, show, stats)
    if not show:
        say("\n" + allocation_table(program.job).rstrip())
    if path is not None:
        program.save(path)
        err().print(f"wrote {path}")


def explain(
    spec: Spec,
    tokens: Tokens = None,
    why: Annotated[bool, typer.Option("--why", help="find the rules that were needed (slow)")] = False,
    *,
    options: Options,
) -> None:
    """Show before and after, the cost, and the rules."""
    from rich.progress import Progress

    from forge_eq import report

    result = _optimized(spec, tokens, options)
    if not why:
        say(report.explain(result.job, width()).rstrip())
        return
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as bar:
        task = bar.add_task("without one rule", total=None)
        text = report.explain(
            result.job,
            width(),
            True,
            lambda rule, step, total: bar.update(task, description=f"without {rule}", completed=step - 1, total=total),
        )
    say(text.rstrip())


def generate(
    spec: Spec,
    prompt: Annotated[str, typer.Option(help="text to continue; token numbers for a model without tokenizer")],
    new: Annotated[int, typer.Option(help="tokens to add at most", min=1)] = 40,
    max_tokens: Annotated[int, typer.Option(help="rows of the cache, prompt included", min=2)] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token, more draws", min=0)] = 0.0,
    top_k: Annotated[int, typer.Option(help="draw from the k most likely tokens; 0: from all", min=0)] = 0,
    top_p: Annotated[float, typer.Option(help="draw from the likeliest tokens of this probability together")] = 1.0,
    seed: Annotated[int, typer.Option(help="of the draws")] = 0,
    *,
    options: Options,
) -> None:
    """Continue a text with a cache of keys and values."""
    from rich.progress import Progress

    from forge_eq import models
    from forge_eq.cached import causal
    from forge_eq.generation import Generator, Sampling, token_numbers

    Sampling(temperature, top_k, top_p, seed)  # refused before any work
    with Stages() as on_stage:
        on_stage("load")
        model = models.load(spec)
        tokenizer = model.tokenizer
        ids = list(tokenizer(prompt)["input_ids"]) if tokenizer else token_numbers(prompt)
        generator = Generator(causal(model), max_tokens, options=options, on_stage=on_stage)
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as bar:
        task = bar.add_task("tokens", total=new)
        how = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        found = generator(ids, new, on_token=lambda _: bar.advance(task), **how)  # type: ignore[arg-type]
    whole = [*ids, *found.tokens]
    say(tokenizer.decode(whole, skip_special_tokens=True) if tokenizer else " ".join(map(str, whole)))
    steps = max(len(found.tokens) - 1, 1)
    each = found.decode_seconds / steps * 1e3
    err().print(f"  {len(ids)} tokens read in {found.prefill_seconds:.2f} s, {each:.1f} ms for each of {steps} steps")


def tune(
    spec: Spec,
    tokens: Tokens = None,
    trials: Annotated[int, typer.Option(help="extractions to try", min=1)] = 50,
    storage: Annotated[str, typer.Option(help="keep and share trials: a .db or .journal file, or a URL")] = "",
    seed: Annotated[int, typer.Option(help="of the sampler")] = 0,
    measure: Annotated[bool, typer.Option("--measure", help="time the best programs against the unoptimised")] = False,
    top: Annotated[int, typer.Option(help="programs to time", min=1)] = 4,
    report: Annotated[str, typer.Option(help="write history and importance as a page (.html)")] = "",
    out: Annotated[str, typer.Option(help="with --measure: write the program that won (.forge)")] = "",
    *,
    options: Options,
) -> None:
    """Search for better settings of the cost model."""
    from rich.progress import Progress

    from forge_eq import models
    from forge_eq.report import tuning_text
    from forge_eq.tune import tune as run

    if out and not measure:
        raise OptionsError("options", f"--out {out}", "needs a measured program", "add --measure")
    page, saved = _target(report, ".html"), _target(out, ".forge")
    model = models.load(spec, tokens)
    with Progress(console=err(), transient=True, disable=not err().is_terminal) as bar, Stages() as on_stage:
        task = bar.add_task("trials", total=trials, visible=False)
        found = run(
            model.module,
            model.args,
            model.kwargs or None,
            trials=trials,
            storage=storage or None,
            seed=seed,
            measure=measure,
            top=top,
            options=options,
            on_stage=on_stage,
            on_trial=lambda done, of, best: bar.update(
                task, completed=done, visible=done < of, description=f"trial {done} of {of}, best {best:.5g}"
            ),
        )
    say(tuning_text(found))
    if page is not None:
        _write(page, found.html())
    if saved is not None and found.timing is not None:
        found.timing.program.save(saved)
        err().print(f"wrote {saved}")


def demo(
    prompt: Annotated[str, typer.Option(help="text to continue")] = "Once upon a time, there was a little",
    new: Annotated[int, typer.Option(help="tokens to add", min=1)] = 12,
    tokens: Annotated[int, typer.Option(help="length that the model is compiled for", min=8)] = 64,
    exact: Annotated[bool, typer.Option(help="also compare with float64")] = True,
) -> None:
    """Compile a trained model and continue a text, offline."""
    from forge_eq.demo import run

    with Stages() as on_stage:
        run(say, prompt, new, tokens, exact, on_stage)


# ------------------------------------------------------------------------------------------------ parts


def _optimized(spec: str, tokens: int | None, options: Options) -> Any:
    from forge_eq import models
    from forge_eq.api import optimize as run

    with Stages() as on_stage:
        on_stage("load")
        model = models.load(spec, tokens)
        return run(model.module, model.args, model.kwargs or None, options=options, on_stage=on_stage)


def _forms(show: str, last: str) -> None:
    """Refuses what cannot be shown, before any work."""
    names = [s.name for s in STAGES]
    possible = [*names[: names.index(last) + 1], CHANGED]
    for part in split(show):
        if part not in possible:
            raise OptionsError("options", f"--show {part}", "is no form of this command", f"use {', '.join(possible)}")


def _report(job: Job, show: str, stats: bool) -> None:
    from forge_eq.report import stage_table, summary

    for part in split(show):
        say(_changed(job) if part == CHANGED else next(s for s in STAGES if s.name == part).text(job).rstrip())
    if not show:
        say(summary(job, width()).rstrip())
    if stats:
        say("\n" + stage_table(job))
        say(_matches(job))


def _matches(job: Job) -> str:
    from forge_eq.report import rule_counts, table

    saturation, made = job["saturate"].saturation, rule_counts(job["extract"])
    body = [
        (name, f"{count}", f"{made[name]}")
        for name, count in sorted(saturation.matches.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "\n".join(table(("rule", "matches", "calls it made"), body))


def _changed(job: Job) -> str:
    """What each stage changed: calls side by side, instructions as a difference."""
    from forge_eq.lower.text import text
    from forge_eq.report import changes

    parts = [f"capture -> extract\n{changes(job, width())}"]
    if "schedule" in job.forms:
        before, after = text(job["lower"]).splitlines(), text(job["schedule"].program).splitlines()
        lines = difflib.unified_diff(before, after, "lower", "schedule", lineterm="", n=1)
        parts.append("lower -> schedule\n" + ("\n".join(lines) or "nothing changed"))
    return "\n\n".join(parts)


def _target(out: str, suffix: str) -> Path | None:
    """Where to write, checked before any work."""
    if not out:
        return None
    path = Path(out)
    if path.suffix != suffix:
        raise OptionsError("options", f"--out {out}", f"does not end in {suffix}", f"write {path.with_suffix(suffix)}")
    if not path.parent.is_dir():
        raise FileError("save", str(path.parent), "is no folder", "make it first")
    return path


def _write(path: Path, text: str) -> None:
    """All or nothing: the file appears when it is complete."""
    try:
        replace_file(path, text)
    except OSError as e:
        raise FileError("save", str(path), f"cannot be written: {e.strerror}", "write to another place") from None
    err().print(f"wrote {path}")
