"""What the measurements share beside the sheet itself: where the data lies and what every command takes."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from forge_eq.paper import data
from forge_eq.paper.data import PAPER
from forge_eq.report.sheet import Criterion, Sheet, Table, finish, progress, show, shown, tell, where

__all__ = [
    "PAPER",
    "SHARED",
    "Criterion",
    "Sheet",
    "Table",
    "arguments",
    "finish",
    "one_of",
    "paper",
    "progress",
    "show",
    "shown",
    "tell",
    "where",
]

os.environ["FORGE_EQ_CACHE"] = "0"  # a program that is found on disk is no measurement of a search

ROOT = Path(__file__).resolve().parents[1]
SHARED = data.folder()


def one_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """For argparse: names with commas, each of them known."""
    names = list(known)

    def read(text: str) -> list[str]:
        found = [t.strip() for t in text.split(",")]
        wrong = [t for t in found if t not in names]
        if wrong:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(names)}")
        return found

    return read


def arguments(doc: str | None, name: str) -> argparse.ArgumentParser:
    """A parser with what every command takes: ``--out`` and ``--threads``."""
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=(doc or "").partition("\n\n")[0])
    parser.add_argument("--out", type=Path, help=f"folder for {name}.json and {name}.md; made when absent")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and OpenVINO (default 1)")
    return parser


def paper() -> dict[str, Any]:
    """The tables of the Forge-UGC paper, or nothing when the data is not there."""
    return data.tables() if data.path().is_file() else {}
