"""Two stages that the tests of the case runner compile with: ``upper``, then ``count``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SECTIONS = ("after upper", "after count")


def compile(source: str, options: Mapping[str, Any], reparse: bool) -> dict[str, str]:
    """Upper case, then the number of each word; ``keep`` limits the words."""
    upper = source.upper()
    words = upper.split()[: options.get("keep", 99)]
    return {"after upper": upper, "after count": "".join(f"{w} {words.count(w)}\n" for w in sorted(set(words)))}


def hashed(source: str, options: Mapping[str, Any], reparse: bool) -> dict[str, str]:
    """A stage that forgets to sort: its text depends on the hash seed."""
    return {"after upper": "\n".join(str(hash(w)) for w in source.split()) + "\n"}


def forgetful(source: str, options: Mapping[str, Any], reparse: bool) -> dict[str, str]:
    """A stage whose text loses something on the way back."""
    return {"after upper": source.upper()[: -3 if reparse else None]}


def silent(source: str, options: Mapping[str, Any], reparse: bool) -> dict[str, str]:
    """A run that gives nothing."""
    return {}
