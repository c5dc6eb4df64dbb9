"""Finished measurements in a folder, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


class Kept:
    """Measurements by name. One that depended on anything else than ``depends`` is not there.

    ``folder`` None keeps nothing. A file is whole or absent.
    """

    def __init__(self, folder: Path | None, depends: Mapping[str, Any]) -> None:
        self.folder, self.depends = folder, json.loads(json.dumps(depends))

    def get(self, name: str) -> Any:
        """What was found; None to measure it."""
        path = self.folder / f"{name}.json" if self.folder else None
        if path is None or not path.is_file():
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return kept["found"] if kept["depends"] == self.depends else None
        except (ValueError, KeyError, TypeError):
            return None

    def put(self, name: str, found: Any) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f".{name}.part"
            text = json.dumps({"depends": self.depends, "found": found}, indent=1, default=str)
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.folder / f"{name}.json")


def sources(root: Path, leave: Collection[str] = ()) -> str:
    """The Python and TOML files below a folder as one hash; ``leave``: files and folders that cannot matter."""
    import hashlib

    found = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in (".py", ".toml") and not any(name == one or name.startswith(f"{one}/") for one in leave):
            found.update(name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
