"""The tables of the Forge-UGC paper as data, which users have not: where they lie and how they are read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from forge_eq.errors import FileError

PAPER = "the paper's own figure, other hardware, not reproduced here"
ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """The data folder: ``$FORGE_EQ_SHARED``, else ``shared`` beside the checkout."""
    return Path(os.environ.get("FORGE_EQ_SHARED") or ROOT.parent / "shared")


def path() -> Path:
    return folder() / "data" / "paper_tables.json"


def tables() -> dict[str, Any]:
    """Every table by its key. Raises FileError where the file is absent or is no such file."""
    where, remedy = path(), "set FORGE_EQ_SHARED to the folder that holds data/paper_tables.json"
    try:
        found = json.loads(where.read_text(encoding="utf-8"))
    except OSError as e:
        raise FileError("bench", str(where), "the paper's tables are not there", remedy) from e
    except ValueError as e:
        raise FileError("bench", str(where), f"is no JSON: {e}", remedy) from e
    if not isinstance(found, dict):
        raise FileError("bench", str(where), "holds no tables by name", remedy)
    return found
