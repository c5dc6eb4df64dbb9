"""What a rule means, as text to be hashed: everything that evidence for the rule rests on.

Takes values a rule is made of: terms, guards, helper functions. Gives one text. It covers the functions' bytecode
with what they close over and the Python functions and constants they name, and, for every op the rule mentions,
its shape rule, reference, torch function and definition, and so on inside these. Promises: independent of the hash
seed and of line numbers. Not here: libraries, whose functions count by name.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from forge_eq.ops import spec
from forge_eq.ops.spec import App, Computed, Op

LIBRARIES = frozenset({"torch", "numpy", "z3", "egglog", *sys.stdlib_module_names})


Pieces = list["str | Op | FunctionType"]  # text, and what is to be told in its place, where it is not told already


class Fingerprints:
    """Texts of many values: an op or a function that several of them reach is looked at once.

    What a function names and closes over is what it was when it was first met, so an instance is for one sitting.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Pieces]] = {}  # by id; the object is kept, lest another take its id

    def of(self, *values: Any) -> str:
        """The text of the values and of all they reach."""
        text: list[str] = []
        seen: set[int] = set()
        waiting = [iter(self._read(values))]
        while waiting:
            piece = next(waiting[-1], None)
            if piece is None:
                waiting.pop()
            elif isinstance(piece, str):
                text.append(piece)
            elif id(piece) not in seen:
                seen.add(id(piece))
                waiting.append(iter(self._pieces(piece)))
        return "\n".join(text)

    def _pieces(self, value: Op | FunctionType) -> Pieces:
        if id(value) not in self._known:
            self._known[id(value)] = value, self._read(value, inside=True)
        return self._known[id(value)][1]

    def _read(self, value: Any, inside: bool = False) -> Pieces:
        """What a value says itself, with neighbouring lines of text made one piece."""
        pieces: Pieces = []
        lines: list[str] = []
        walk = _Walk()
        for piece in walk.inside(value) if inside else walk.visit(value):
            if isinstance(piece, str):
                lines.append(piece)
                continue
            pieces += ["\n".join(lines), piece] if lines else [piece]
            lines = []
        return [*pieces, "\n".join(lines)] if lines else pieces


class _Walk:
    """One value's own pieces; ops and functions stand for themselves."""

    def visit(self, value: Any) -> Iterator[str | Op | FunctionType]:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            yield repr(value)
        elif isinstance(value, Op | FunctionType):
            yield value
        elif isinstance(value, App | Computed):
            yield from self._term(value)
        elif isinstance(value, tuple | list):
            for part in value:
                yield from self.visit(part)
        elif isinstance(value, set | frozenset):
            yield repr(sorted(map(repr, value)))
        elif isinstance(value, functools.partial):
            yield from self.visit((value.func, value.args, tuple(sorted(value.keywords.items()))))
        elif isinstance(value, Mapping) and value is not spec.REGISTRY and value is not spec.ATEN:
            for key, part in value.items():
                yield repr(key)
                yield from self.visit(part)
        else:
            yield str(getattr(value, "__qualname__", None) or getattr(value, "__name__", type(value).__qualname__))

    def inside(self, value: Op | FunctionType) -> Iterator[str | Op | FunctionType]:
        return self._op(value) if isinstance(value, Op) else self._function(value)

    def _op(self, op: Op) -> Iterator[str | Op | FunctionType]:
        yield op.signature
        yield from self.visit((op.shape, op.ref, op.torch, op.define))

    def _term(self, term: App | Computed) -> Iterator[str | Op | FunctionType]:
        if isinstance(term, Computed):
            yield from self.visit((term.fn, term.args))
        else:
            yield from self.visit((term.op, term.args, term.attrs))

    def _function(self, fn: FunctionType) -> Iterator[str | Op | FunctionType]:
        if fn.__module__.partition(".")[0] in LIBRARIES:
            yield f"{fn.__module__}.{fn.__qualname__}"
            return
        names: list[str] = []
        yield from self._code(fn.__code__, names)
        yield from self.visit((fn.__defaults__, tuple(sorted((fn.__kwdefaults__ or {}).items()))))
        for cell in fn.__closure__ or ():
            yield from self.visit(_contents(cell))
        for name in sorted(set(names)):
            if name in fn.__globals__:
                yield name
                yield from self.visit(fn.__globals__[name])

    def _code(self, code: CodeType, names: list[str]) -> Iterator[str | Op | FunctionType]:
        """Bytecode, names and constants, those of inner functions and comprehensions included."""
        names += code.co_names
        yield f"{code.co_code.hex()} {code.co_names!r} {code.co_varnames!r}"
        for const in code.co_consts:
            yield from self._code(const, names) if inspect.iscode(const) else self.visit(const)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None
