"""Values as text, and a cursor that reads a line of a text form back.

Every printable form of the compiler uses these, so that a number, a string or a name looks the same in all
of them. Promises: ``Cursor(show(v)).value()`` is ``v`` exactly: ``1``, ``1.0`` and ``True`` stay apart, floats
keep every bit (NaN its kind only), ``-0.0`` its sign.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from forge_eq.errors import CheckError, ParseError
from forge_eq.ir.types import DTYPES, Sym

_WORD = re.compile(r"[A-Za-z_][\w.]*")
_PLAIN = re.compile(r"[\w./:@<>+*-]+")  # a path, a module name, a rule id
_NUMBER = re.compile(r"-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")
_STRING = re.compile(r"""("(?:[^"\\]|\\.)*")|'([^']*)'""")
_SINGLE = re.compile(r"""[ -&(-\[\]-~]*"[ -&(-\[\]-~]*""")  # printable ASCII with ", without ' and backslash
_NAMED = {"True": True, "False": False, "None": None}


def show(value: Any) -> str:
    """A value as text: int, float, bool, None, str, Sym, or a tuple of these. Raises CheckError on others."""
    if value is None or isinstance(value, bool):
        return str(value)
    if type(value) is int or type(value) is float:
        return repr(value)
    if type(value) is str:
        return f"'{value}'" if _SINGLE.fullmatch(value) else json.dumps(value)
    if isinstance(value, Sym):
        return "$" + (value.name if _WORD.fullmatch(value.name) else json.dumps(value.name))
    if type(value) is tuple:
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    raise CheckError("text", repr(value), f"a {type(value).__name__} has no text form", "store plain Python values")


def plain(name: str) -> str:
    """A name as it is when it has no spaces or quotes, else quoted; ``"-"`` and the empty name are quoted."""
    return name if _PLAIN.fullmatch(name) and name != "-" else json.dumps(name)


def ident(name: str) -> str:
    """A name as it is when it is an identifier (dots allowed), else quoted."""
    return name if _WORD.fullmatch(name) else json.dumps(name)


class Cursor:
    """Reads one line from left to right. Errors carry the line's number."""

    def __init__(self, text: str, number: int = 1, what: str = "text") -> None:
        self.text, self.number, self.what, self.at = text, number, what, 0

    def fail(self, reason: str, remedy: str) -> NoReturn:
        place = f"{self.what}:{self.number}:{self.at + 1}"
        raise ParseError("text", place, f"{reason} in {self.text.strip()!r}", remedy)

    def skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    @property
    def done(self) -> bool:
        """Whether only spaces are left."""
        self.skip()
        return self.at == len(self.text)

    def peek(self, token: str) -> bool:
        self.skip()
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        """Steps over ``token`` when it comes next."""
        found = self.peek(token)
        self.at += len(token) if found else 0
        return found

    def need(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"{token!r} is due", f"write {token!r} there")

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """What matches at this place, stepped over; None when nothing does."""
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def until(self, stop: str) -> str:
        """The text before the next ``stop``, or all that is left."""
        self.skip()
        end = self.text.find(stop, self.at)
        start, self.at = self.at, len(self.text) if end < 0 else end
        return self.text[start : self.at].rstrip()

    def end(self) -> None:
        if not self.done:
            self.fail(f"{self.text[self.at :]!r} is left over", "remove it")

    def word(self) -> str:
        """An identifier, dots allowed."""
        found = self.match(_WORD)
        return found if found is not None else self.fail("a name is due", "write an identifier")

    def ident(self) -> str:
        """What :func:`ident` wrote."""
        return self.string() if self.peek('"') else self.word()

    def name(self) -> str:
        """What :func:`plain` wrote."""
        if self.peek('"'):
            return self.string()
        found = self.match(_PLAIN)
        return found if found is not None else self.fail("a name is due", "write a name, in quotes if it has spaces")

    def string(self) -> str:
        found = self.match(_STRING)
        if found is None:
            self.fail("a quoted string is due", "close the quotes")
        if found[0] == "'":  # nothing is escaped inside
            return found[1:-1]
        try:
            return str(json.loads(found))
        except ValueError as e:
            self.fail(f"a bad string ({e})", "use JSON escapes")

    def value(self) -> Any:
        """What :func:`show` wrote. A dtype may stand without quotes."""
        if self.peek('"') or self.peek("'"):
            return self.string()
        if self.take("$"):
            return Sym(self.string() if self.peek('"') else self.word())
        if self.take("("):
            return self._tuple()
        number = self.match(_NUMBER)
        if number is not None:
            return self._number(number)
        word = self.word()
        if word in _NAMED:
            return _NAMED[word]
        return word if word in DTYPES else self.fail(f"{word!r} is no value", "quote it if it is a string")

    def _number(self, text: str) -> int | float:
        if text == "nan":
            return math.nan  # the one object, so that a tuple with it equals itself
        return int(text) if text.lstrip("-").isdigit() else float(text)

    def _tuple(self) -> tuple[Any, ...]:
        items: list[Any] = []
        while not self.take(")"):
            if items:
                self.need(",")
                if self.take(")"):
                    break
            items.append(self.value())
        return tuple(items)
