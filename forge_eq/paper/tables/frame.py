"""What tables share: the measurements, the paper's rows, and a row that holds both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_eq.errors import ForgeError
from forge_eq.paper.data import PAPER
from forge_eq.paper.gather import Found
from forge_eq.paper.plan import Plan, Unit, paper_row
from forge_eq.report.sheet import Table

NONE = "-"
NO_NPU = "absent: no NPU"


@dataclass(frozen=True)
class Context:
    """``theirs`` holds every table of the paper by key."""

    plan: Plan
    found: Found
    theirs: Mapping[str, Any]

    def paper(self, key: str, row: str, column: str) -> Any:
        """A figure of the paper; a dash where it has none."""
        table = self.theirs.get(key, {})
        values, columns = table.get("rows", {}).get(row), table.get("cols", [])
        return values[columns.index(column)] if values is not None and column in columns else NONE


@dataclass(frozen=True)
class Spec:
    """A table: its key in the paper's data, the measurements that it needs, and how it is made."""

    key: str
    needs: Callable[[Plan], Sequence[Unit]]
    make: Callable[[Context], Table]


def each(kind: str, *more: Callable[[Plan], str]) -> Callable[[Plan], list[Unit]]:
    """Needs of a table with a row for each model."""
    return lambda plan: [Unit(kind, m, f(plan)) for m in plan.models for f in (more or (lambda _: "",))]


def beside(
    context: Context,
    key: str,
    title: str,
    columns: Sequence[tuple[str, str]],
    ours: Callable[[str], tuple[str, Sequence[Any]]],
    note: str = "",
) -> Table:
    """A row for each model: each column here, and the paper's right of it where it has one.

    Args:
        columns: (name, the paper's column or empty).
        ours: the model's name as it was measured and a value for each column; a ForgeError becomes the row's text.
    """
    head = ["model", *(h for name, theirs in columns for h in (name, *([f"paper: {name}"] if theirs else [])))]
    rows = []
    for spec in context.plan.models:
        try:
            name, values = ours(spec)
        except ForgeError as e:
            name, values = spec, [f"failed: {e.reason}", *[""] * (len(columns) - 1)]
        row: list[Any] = [name]
        for (_, theirs), value in zip(columns, values, strict=True):
            row += [value, *([context.paper(key, paper_row(spec), theirs)] if theirs else [])]
        rows.append(tuple(row))
    return Table(f"{key}: {title}", tuple(head), tuple(rows), f"{note} Paper: {PAPER}.".strip())


def fewer(before: float, after: float) -> float:
    """Per cent less."""
    return 100.0 * (before - after) / before if before else 0.0


def change(before: float, after: float) -> float:
    """Per cent; 0 from nothing to nothing."""
    return 100.0 * (after - before) / before if before else 0.0
