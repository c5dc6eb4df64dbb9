"""Commands on what the compiler knows: ``rules``, ``ops``, ``verify``."""

from __future__ import annotations

import textwrap
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from forge_eq.cli.flags import select
from forge_eq.cli.screen import REFUSED, err, say, width
from forge_eq.errors import OptionsError
from forge_eq.ops.spec import Op
from forge_eq.rules.dsl import Rule

Which = Annotated[str, typer.Argument(help="FAMILY or FAMILY/RULE; all when left out", show_default=False)]


def enter(app: typer.Typer) -> None:
    """Enters the commands."""
    rules = typer.Typer(help="List the rules, or show one with its evidence.")
    rules.callback(invoke_without_command=True)(_default(list_rules))
    rules.command("list")(list_rules)
    rules.command("show")(show_rule)
    ops = typer.Typer(help="List, show or check operations.")
    ops.callback(invoke_without_command=True)(_default(list_ops))
    ops.command("list")(list_ops)
    ops.command("show")(show_op)
    ops.command("check")(check_op)
    app.add_typer(rules, name="rules")
    app.add_typer(ops, name="ops")
    app.command()(verify)


def _default(command: Any) -> Any:
    """What a group does when no command is given."""

    def run(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            command()

    run.__annotations__ = {"ctx": typer.Context, "return": None}
    return run


# ------------------------------------------------------------------------------------------------ rules


def list_rules(which: Which = "") -> None:
    """One line a rule: name, exactness (bit, real, approx), equation."""
    from forge_eq.report import plural

    found = _rules(which)
    broad = width()
    names = max(len(r.name) for r in found)
    for family, members in groupby(found, key=lambda r: r.family):
        rules = list(members)
        say(f"{family} ({len(rules)})")
        for r in rules:
            line = f"  {r.name:{names}}  {r.exact:6}  {r.equation}"
            say(line if len(line) <= broad else line[: broad - 3] + "...")
    counts = Counter(r.exact for r in found)
    say(f"{plural(len(found), 'rule')}: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))


def show_rule(which: Annotated[str, typer.Argument(metavar="FAMILY/RULE")]) -> None:
    """Everything about a rule, or about each rule of a family."""
    for n, r in enumerate(_rules(which)):
        say(("\n" if n else "") + r.id)
        fields = [
            *_equations(r),
            ("why", r.doc),
            ("source", r.source),
            ("exact", _EXACT[r.exact]),
            ("at", _place(r.where)),
        ]
        for name, text in [*fields, ("evidence", _evidence(r))]:
            _field(name, text)


def _equations(rule: Rule) -> list[tuple[str, str]]:
    from forge_eq.rules.dsl import show

    lines = [("equation" if not n else "", f"{show(a)}  ->  {show(b)}") for n, (a, b) in enumerate(rule.pairs)]
    sound = [str(g) for g in rule.guards if g.soundness]
    tidy = [str(g) for g in rule.guards if not g.soundness]
    lines += [("when", ", ".join(sound))] if sound else []
    return lines + ([("only if", f"{', '.join(tidy)} (keeps the e-graph small)")] if tidy else [])


_EXACT = {
    "bit": "bit: the same bits",
    "real": "real: equal over the reals, at the same accumulator precision",
    "approx": "approx: within its tolerance",
}


def _evidence(rule: Rule) -> str:
    from forge_eq.verify import evidence

    found = evidence(rule)
    if found is None:
        return f"none for this version ({rule.hash}); run forge-eq verify {rule.id}"
    return f"{found.verdict} ({found.hash}): " + ", ".join(f"{k} {v}" for k, v in found.counts.items())


def _place(where: str) -> str:
    """The rule's file and line; a file of the package from the package on."""
    import forge_eq

    root = Path(forge_eq.__file__).parents[1]
    return str(Path(where).relative_to(root)) if where and Path(where).is_relative_to(root) else where or "derived"


def _rules(which: str) -> list[Rule]:
    from forge_eq.rules import default

    chosen = select(default, which, "") if which else default
    return sorted(chosen, key=lambda r: (r.family, r.name))


def _field(name: str, text: str) -> None:
    head = f"  {name:9} "
    say(
        "\n".join(textwrap.wrap(text, max(width(), 40), initial_indent=head, subsequent_indent=" " * len(head)))
        or head.rstrip()
    )


# ------------------------------------------------------------------------------------------------ ops


def list_ops() -> None:
    """One line an operation: signature and meaning."""
    ops = sorted(_ops().values(), key=lambda o: o.name)
    for o in ops:
        line = f"{o.signature:38}  {o.doc}"
        say(line if len(line) <= width() else line[: width() - 3] + "...")
    say(f"{len(ops)} operations, {sum(o.fused for o in ops)} of them by definition")


def show_op(name: str) -> None:
    """Everything about an operation."""
    from forge_eq.ops.spec import AttrVar, Var
    from forge_eq.rules.dsl import show

    o = _op(name)
    say(o.signature)
    _field("is", o.doc)
    if o.define is not None:
        terms = o.define(*map(Var, o.inputs), *(AttrVar(n) for n, _ in o.attrs)) if _plain(o) else None
        for term in terms if isinstance(terms, tuple) else (terms,):
            _field("defined", show(term) if term is not None else "by cases on its attributes, see ops/")
    traits = [n for n in o.traits.__slots__ if getattr(o.traits, n)]
    _field("traits", ", ".join(traits) or "none")
    _field("cost", o.cost.cost_class)
    _field("kernel", f"unit {o.kernel.unit}" if o.kernel else "none: the host runs it through torch")
    _field("from", ", ".join(o.aten) or "no call of torch is this operation: rules make it")


def _plain(o: Op) -> bool:
    """Whether the definition can be shown without knowing attributes."""
    from forge_eq.ops.spec import AttrVar, Var

    try:
        assert o.define is not None
        o.define(*map(Var, o.inputs), *(AttrVar(n) for n, _ in o.attrs))
    except Exception:  # a definition may compute with its attributes, which are variables here
        return False
    return True


def check_op(name: str) -> None:
    """Check an operation on random instances: shape rule, reference and torch must agree."""
    from forge_eq.verify.ops import check

    found = check(_op(name))
    say(f"{name}: {found}")
    if found.faults:
        for fault in found.faults:
            say(f"  {fault}")
        raise typer.Exit(REFUSED)


def _ops() -> dict[str, Op]:
    from forge_eq.ops import REGISTRY

    return REGISTRY


def _op(name: str) -> Op:
    if name not in _ops():
        near = [n for n in sorted(_ops()) if name in n or n in name] or sorted(_ops())
        raise OptionsError("ops", name, "is not an operation", f"use one of {', '.join(near[:24])}")
    return _ops()[name]


# ------------------------------------------------------------------------------------------------ verify


def verify(
    which: Which = "",
    write: Annotated[
        bool, typer.Option("--write", help="enter the evidence in the ledger; without it only look")
    ] = False,
    level: Annotated[str, typer.Option(help="quick or full; the ledger takes full only")] = "full",
    cached: Annotated[
        bool, typer.Option("--cached", help="take what the ledger says of rules that have not changed since")
    ] = False,
    jobs: Annotated[int, typer.Option(help="processes that share the work; 0: one for each core")] = 0,
) -> None:
    """Verify rules by shapes, numbers and proof.

    The exit status is 1 when one is refused.
    """
    import os
    import time

    from forge_eq.verify import LEVELS, evidence, ledger

    if level not in LEVELS:
        raise OptionsError("verify", f"--level {level}", "is unknown", f"use {' or '.join(LEVELS)}")
    if write and level != "full":
        raise OptionsError("verify", "--write", "takes evidence of level full only", "leave --level out")
    begun = time.perf_counter()
    rules = _rules(which)
    known = {r.id: e for r in rules if (e := evidence(r)) is not None} if cached else {}
    fresh = _verified([r for r in rules if r.id not in known], level, jobs or os.cpu_count() or 1)
    found = sorted([*known.values(), *fresh], key=lambda e: e.rule)
    say(_verdicts(found))
    say(f"{len(fresh)} verified, {len(known)} from the ledger, in {time.perf_counter() - begun:.1f} s")
    refused = [e for e in found if not e.accepted]
    for e in refused:
        say(f"\n{e.counterexample or e.reason}")
    if refused:
        raise typer.Exit(REFUSED)
    if write:
        ledger.write({**{k: v for k, v in ledger.read().items() if which}, **{e.rule: e for e in found}}.values())
        err().print(f"wrote {ledger.LEDGER}")


def _verified(rules: list[Rule], level: str, jobs: int) -> list[Any]:
    """Evidence found now, with progress on the screen."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from forge_eq.verify import verify_rules

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True, disable=not err().is_terminal) as bar:
        task = bar.add_task("verifying", total=len(rules))
        return verify_rules(rules, level, lambda e: bar.update(task, advance=1, description=e.rule), jobs)


def _verdicts(found: list[Any]) -> str:
    """A table per family, and one of all families."""
    from forge_eq.report import plural, table

    parts, families = [], []
    for family, members in groupby(found, key=lambda e: e.rule.partition("/")[0]):
        group = list(members)
        keys = list(dict.fromkeys(k for e in group for k in e.counts))
        body = [
            (e.rule.partition("/")[2], e.exact, e.verdict, *(e.counts.get(k, "") for k in keys), _seconds(e.seconds))
            for e in group
        ]
        parts.append("\n".join([family, *table(("rule", "exact", "verdict", *keys, "s"), body)]))
        parts[-1] += "".join(f"\n   {e.rule}: guard {g} was not needed" for e in group for g in e.idle)
        families.append(_family(family, group))
    head = ("family", "rules", "bit", "real", "approx", "proved", "tested-only", "refused", "s")
    parts.append("\n".join(table(head, families)))
    counts = Counter(e.verdict for e in found)
    parts.append(
        f"{plural(len(found), 'rule')}: " + ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    )
    return "\n\n".join(parts)


def _family(name: str, group: list[Any]) -> tuple[Any, ...]:
    """One line of the table of all families: classes, evidence, time."""
    exact, verdicts = Counter(e.exact for e in group), Counter(e.verdict for e in group)
    shown = [str(exact[k] or "") for k in ("bit", "real", "approx")]
    shown += [str(verdicts[v] or "") for v in ("proved", "tested-only", "refused")]
    return (name, str(len(group)), *shown, _seconds(sum(e.seconds for e in group)))


def _seconds(value: float) -> str:
    """Processor time of one process; what was read took none."""
    return f"{value:.1f}" if value else ""
