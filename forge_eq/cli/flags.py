"""Flags made from the Options dataclass, so that the command line cannot drift from the API."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

from forge_eq.errors import OptionsError
from forge_eq.options import Limits, Options
from forge_eq.rules.dsl import RuleSet


@dataclass(frozen=True)
class Flag:
    """A flag that sets ``field`` of Options, or of Limits when ``limit``."""

    field: str
    limit: bool
    kind: type
    default: Any
    help: str

    @property
    def name(self) -> str:
        return f"limit_{self.field}" if self.limit else self.field


def flags() -> list[Flag]:
    """One for each field that has a help text."""
    found = []
    for owner, limit in ((Options, False), (Limits, True)):
        kinds = get_type_hints(owner)
        found += [Flag(f.name, limit, kinds[f.name], f.default, f.metadata["help"]) for f in _told(owner)]
    return found


def _told(owner: Any) -> list[Field[Any]]:
    return [f for f in fields(owner) if "help" in f.metadata]


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces the parameter ``options`` of a command by a flag for each option, ``--only`` and ``--without``."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
    made = [_parameter(f.name, f.kind, f.default, f.help) for f in flags()]
    made += [
        _parameter("only", str, "", "rules to use, FAMILY or FAMILY/RULE, with commas"),
        _parameter("without", str, "", "rules to leave out, likewise"),
    ]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        limits: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for flag in flags():
            (limits if flag.limit else values)[flag.field] = given.pop(flag.name)
        rules = choose(given.pop("only"), given.pop("without"))
        return command(**given, options=Options(rules=rules, limits=Limits(**limits), **values))

    parameters = [*own, *made]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _parameter(name: str, kind: Any, default: Any, help: str) -> inspect.Parameter:
    shown = "--" + name.replace("_", "-")
    option = typer.Option(f"{shown}/--no-{shown[2:]}" if kind is bool else shown, help=help, show_default=default != "")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def choose(only: str, without: str) -> RuleSet | None:
    """The default rules cut down, or None for all of them. Raises OptionsError for a pattern that fits no rule."""
    if not only and not without:
        return None
    from forge_eq.rules import default

    kept = RuleSet(r for p in split(only) for r in select(default, p, "--only")) if only else default
    for pattern in split(without):
        kept = kept - select(default, pattern, "--without")
    return kept


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def select(rules: RuleSet, pattern: str, where: str) -> RuleSet:
    """The rules of a family or of an id."""
    found = rules.select(pattern)
    if not len(found):
        near = sorted({r.family for r in rules} | {r.id for r in rules if pattern.rpartition("/")[2] in r.id})
        node = f"{where} {pattern}".strip()
        raise OptionsError("rules", node, "is no rule and no family", f"use one of {', '.join(near[:24])}")
    return found
