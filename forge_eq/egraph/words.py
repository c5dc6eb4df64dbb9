"""What the first program of a process made the engine declare, kept for the next process to declare while it captures.

Takes and gives :class:`Words`. Promises: words are a guess, of what is declared early and no more: those that a program
lacks match nothing in it, and a file that does not parse, or cannot be written, is no file. Not here: declaring
(``engine``), when (``worker``).

Half of the engine's time for the first program goes into declarations, of a third of a millisecond each: GPT-2's 175
take 28 ms, without Python's lock, so that nobody waits for them while a program is captured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from forge_eq.files import cache_home, keep_newest, replace_file

KEPT = 8  # files; one for each rule set that was used lately


@dataclass(frozen=True)
class Words:
    """Constructors as (name of an op, number of operands); ids of rules that ask, and of those that have answers."""

    constructors: tuple[tuple[str, int], ...] = ()
    asking: tuple[str, ...] = ()
    firing: tuple[str, ...] = ()


def read(rules: str) -> Words:
    """What was kept for the rule set of this hash; no words when nothing was."""
    try:
        found: Any = json.loads((cache_home() / "words" / f"{rules}.json").read_text(encoding="utf-8"))
        constructors = tuple((str(name), int(arity)) for name, arity in found["constructors"])
        return Words(constructors, *(tuple(map(str, found[kind])) for kind in ("asking", "firing")))
    except (OSError, ValueError, KeyError, TypeError):
        return Words()


def write(rules: str, words: Words) -> None:
    """Keeps words for a rule set. Without a writable cache nothing is kept."""
    try:
        replace_file(cache_home() / "words" / f"{rules}.json", json.dumps(asdict(words)))
        keep_newest(cache_home() / "words", KEPT)
    except OSError:
        return
