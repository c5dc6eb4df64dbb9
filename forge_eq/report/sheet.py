"""What the measurements share: a sheet of tables and criteria, where it was measured, and how far it has come.

A command fills a :class:`Sheet` and calls :func:`finish`: tables on the screen, JSON and Markdown with ``--out``,
and the exit status, which is 1 when a criterion fails.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "egglog", "openvino", "transformers", "numpy", "onnxruntime")


@dataclass(frozen=True)
class Criterion:
    """One demand: ``value`` must be at most ``limit`` (or, with ``equal``, the same)."""

    name: str
    value: float
    limit: float
    equal: bool = False

    @property
    def passed(self) -> bool:
        """NaN never passes."""
        return self.value == self.limit if self.equal else self.value <= self.limit

    def row(self) -> tuple[str, str, str, str]:
        sign = "=" if self.equal else "<="
        return self.name, shown(self.value), f"{sign} {shown(self.limit)}", "pass" if self.passed else "FAIL"


@dataclass(frozen=True)
class Table:
    """Rows of values under a head; ``note`` is printed below."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


@dataclass
class Sheet:
    """All that one command found. ``figures`` are kept in the JSON only: raw samples, settings."""

    title: str
    where: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    criteria: list[Criterion] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> None:
        self.tables.append(Table(title, tuple(head), tuple(tuple(r) for r in rows), note))

    def demand(self, name: str, value: float, limit: float, equal: bool = False) -> None:
        self.criteria.append(Criterion(name, value, limit, equal))

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.criteria)

    def all_tables(self) -> list[Table]:
        if not self.criteria:
            return self.tables
        rows = tuple(c.row() for c in self.criteria)
        return [*self.tables, Table("criteria", ("criterion", "measured", "limit", "result"), rows)]

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", *(f"- {k}: {v}" for k, v in self.where.items()), ""]
        return "\n".join([*lines, *(line for table in self.all_tables() for line in markdown(table))])

    def data(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "where": self.where,
            "figures": self.figures,
            "tables": [{"title": t.title, "head": t.head, "rows": t.rows, "note": t.note} for t in self.tables],
            "criteria": [
                {"name": c.name, "value": c.value, "limit": c.limit, "equal": c.equal, "passed": c.passed}
                for c in self.criteria
            ],
        }


def markdown(table: Table, level: str = "##") -> list[str]:
    """The table's lines, title and note included."""
    lines = [f"{level} {table.title}", "", _bars(table.head), _bars(["---"] * len(table.head))]
    lines += [_bars([shown(v) for v in row]) for row in table.rows]
    return [*lines, "", *([table.note, ""] if table.note else [])]


def _bars(cells: Iterable[str]) -> str:
    return f"| {' | '.join(c.replace('|', chr(92) + '|') for c in cells)} |"


def shown(value: Any) -> str:
    """A value for reading: three or four digits of a float."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4g}"


def where(threads: int, precision: str = "float32", **more: Any) -> dict[str, Any]:
    """The machine and the versions: a figure means nothing without them."""
    found: dict[str, Any] = {
        "machine": f"{_processor()}, {os.cpu_count()} logical cores, {platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    load = f"{os.getloadavg()[0]:.1f} when the run began" if hasattr(os, "getloadavg") else "unknown"
    return {**found, "precision": precision, "threads": threads, "load average": load, **more}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


# ---------------------------------------------------------------------------------------------- screen


def progress(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items, telling on stderr how far it is: a bar on a terminal, else a line each, with an item that is words."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, description=what, console=console, transient=True)
        return
    start = time.perf_counter()
    for index, item in enumerate(items):
        words = item if isinstance(item, tuple) and all(isinstance(p, str) for p in item) else ()
        tell(" ".join([f"{what} {index + 1}/{len(items)}", *words, f"({time.perf_counter() - start:.0f} s so far)"]))
        yield item


def tell(text: str) -> None:
    """A step that has begun, on stderr."""
    print(text, file=sys.stderr, flush=True)


def show(sheet: Sheet) -> None:
    """The sheet on stdout: rich tables on a terminal, aligned plain text elsewhere."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    console.print(sheet.title)
    for key, value in sheet.where.items():
        console.print(f"  {key}: {value}", soft_wrap=True)
    for table in sheet.all_tables():
        console.print()
        if console.is_terminal:
            console.print(_rich(table))
        else:
            from forge_eq.report.tables import table as aligned

            body = [[shown(v) for v in row] for row in table.rows]
            print("\n".join([table.title, *aligned(table.head, body)]))
        if table.note:
            console.print(f"   {table.note}", soft_wrap=not console.is_terminal)


def _rich(table: Table) -> Any:
    from rich.table import Table as RichTable

    made = RichTable(title=table.title, title_justify="left")
    for index, name in enumerate(table.head):
        made.add_column(name, justify="left" if index == 0 else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*(shown(v) for v in row), style="red" if "FAIL" in map(str, row) else None)
    return made


def finish(sheet: Sheet, name: str, out: Path | None) -> int:
    """Shows and writes the sheet; gives the exit status."""
    show(sheet)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.json").write_text(json.dumps(sheet.data(), indent=1, default=str) + "\n", encoding="utf-8")
        (out / f"{name}.md").write_text(sheet.markdown(), encoding="utf-8")
        tell(f"wrote {out / name}.json and .md")
    return 0 if sheet.passed else 1
