"""What the measurements share beside the sheet itself: where data lies, what every command takes, runs in pieces."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
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
    "few",
    "finish",
    "one_of",
    "paper",
    "pieces",
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


FEW = {"llama-3.1-8b": 1, "lfm2-2.6b": 3}  # what several programs have room for; the third is LFM2's first attention


def few(family: str) -> int:
    """The layers of a family that is cut down to be run: two, as far as there is no reason for another number."""
    from forge_eq.families import layers_of

    return FEW.get(family, min(2, layers_of(family)))


def paper() -> dict[str, Any]:
    """The tables of the Forge-UGC paper, or nothing when the data is not there."""
    return data.tables() if data.path().is_file() else {}


def pieces(
    file: Path | None,
    wanted: Sequence[str],
    make: Callable[[str], dict[str, Any]],
    label: str,
    seconds: float = math.inf,
) -> dict[str, Any]:
    """What ``make`` gives for each key wanted, kept in ``file`` as it comes: what is there already is not made again.

    None is begun after ``seconds``; the rest is missing then, and the same call goes on with it.
    """
    kept = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    start = time.perf_counter()
    for key in progress([k for k in wanted if k not in kept], label):
        if time.perf_counter() - start > seconds:
            tell("out of time: run the command again for the rest")
            break
        kept[key] = make(key)
        keep(file, kept)
    return kept


def keep(file: Path | None, kept: dict[str, Any]) -> None:
    """Writes what was made so far."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
