"""What the first programs of the last processes needed, kept for the next process to declare while it captures.

Takes and gives :class:`Words`. Promises: words are a guess, of what is declared early and no more: those that a program
lacks match nothing in it, and a file that does not parse, or cannot be written, is no file. Not here: declaring
(``engine``), when (``worker``).

Half of the engine's time for the first program goes into declarations, of a third of a millisecond each: GPT-2's 175
take 28 ms, without Python's lock, so that nobody waits for them while a program is captured. Only the last few programs
count: the words of every program that tests had compiled, 364, took 128 ms to declare, longer than a recording takes,
and the first program 5 ms more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forge_eq.files import cache_home, keep_newest, replace_file

KEPT = 8  # files; one for each rule set that was used lately
PROGRAMS = 3  # words of so many different ones are declared


@dataclass(frozen=True)
class Words:
    """Constructors as (name of an op, number of operands); ids of rules that ask, and of those that have answers."""

    constructors: tuple[tuple[str, int], ...] = ()
    asking: tuple[str, ...] = ()
    firing: tuple[str, ...] = ()


KINDS = ("asking", "firing")


def read(rules: str) -> Words:
    """All that was kept for the rule set of this hash; no words when nothing was."""
    programs = _programs(rules)
    parts = [sorted({word for p in programs for word in getattr(p, kind)}) for kind in ("constructors", *KINDS)]
    return Words(*map(tuple, parts))


def keep(rules: str, words: Words) -> None:
    """Keeps a program's words for a rule set, the newest first. Without a writable cache nothing is kept."""
    before = _programs(rules)
    programs = [words, *(p for p in before if p != words)][:PROGRAMS]
    if programs == before:
        return
    try:
        replace_file(_file(rules), json.dumps([asdict(p) for p in programs]))
        keep_newest(cache_home() / "words", KEPT)
    except OSError:
        return


def _programs(rules: str) -> list[Words]:
    try:
        found: Any = json.loads(_file(rules).read_text(encoding="utf-8"))
        return [
            Words(
                tuple((str(name), int(arity)) for name, arity in program["constructors"]),
                *(tuple(map(str, program[kind])) for kind in KINDS),
            )
            for program in found
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _file(rules: str) -> Path:
    return cache_home() / "words" / f"{rules}.json"
