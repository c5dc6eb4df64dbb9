"""Files that outlast a process: where this package keeps its own, and how one is written.

Takes paths and text. Promises: a reader never sees half a file, and a failed write leaves nothing behind. What cannot
be written is an OSError; what that means is the caller's to say.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """The folder of everything that can be made again: ``$XDG_CACHE_HOME/forge_eq``, else ``~/.cache/forge_eq``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forge_eq"


def replace_file(path: Path, text: str) -> None:
    """Writes a file whole, in place of what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def keep_newest(folder: Path, count: int) -> None:
    """Deletes all JSON files of a folder but the ``count`` that were changed last."""
    entries = sorted(folder.glob("*.json"), key=lambda p: (p.stat().st_mtime, p.name))
    for old in entries[: max(0, len(entries) - count)]:
        old.unlink(missing_ok=True)
