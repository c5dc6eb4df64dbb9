"""What a recording writes down: calls in order, and repeats of a layer.

Takes nothing. Gives :class:`Call`, which the importer reads as it reads an fx node, and :class:`Repeat`, a layer whose
calls are those of an earlier one under other names. Not here: who records (``capture.record``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from forge_eq.ir.graph import NOWHERE, Origin


class Refused(Exception):
    """The recorder cannot be sure of this module; ``str`` says why. Nothing was guessed."""


class Unlike(Refused):
    """Layers that look alike do not compute alike: record them all."""


class Call:
    """One recorded call, or a leaf (``target`` is None). Has what the importer reads of an fx node."""

    __slots__ = ("args", "constant", "kwargs", "meta", "name", "op", "target", "users")

    def __init__(
        self, target: Any, args: Any, kwargs: Any, value: Any, origin: Origin = NOWHERE, name: str = ""
    ) -> None:
        self.op = "placeholder" if target is None else "call_function"
        self.target, self.args, self.kwargs, self.name = target, args, kwargs, name
        self.meta = {"val": value, "origin": origin}
        self.constant: torch.Tensor | None = None  # of a leaf that the program made or found, not of a parameter
        self.users: list[Any] = []  # who reads the value; only how they do and whether there are any matters


@dataclass(frozen=True, slots=True)
class Body:
    """The calls of a traced layer; ``reads`` are what it may read from outside: its arguments, then its weights.

    ``used`` is what its calls do read, of these and of constants.
    """

    calls: tuple[Call, ...]
    reads: tuple[Call, ...]
    used: frozenset[Call]
    prefix: str  # path of the layer's module


@dataclass(frozen=True, slots=True)
class Repeat:
    """``body`` once more with other ``reads``; ``results`` pairs those of the body's calls that leave it with what
    stands for them here."""

    body: Body
    reads: tuple[Call, ...]
    results: tuple[tuple[Call, Call], ...]
    prefix: str


Item = Call | Repeat


def operands(value: Any, found: list[Call]) -> list[Call]:
    """The calls in an argument tree, in order, appended to ``found``."""
    kind = type(value)
    if kind is Call:
        found.append(value)
    elif kind is list or kind is tuple:
        for part in value:
            operands(part, found)
    elif kind is dict:
        for part in value.values():
            operands(part, found)
    return found


def inputs_of(call: Call) -> list[Call]:
    """What the call reads, in order."""
    return operands(call.kwargs, operands(call.args, []))


def unlike(first: Body, second: Body) -> tuple[str, dict[Call, Call]]:
    """(why the two do not compute the same function of what they read, or nothing; which call is which)."""
    pairs = dict(zip(first.reads, second.reads, strict=True))
    if len(first.calls) != len(second.calls):
        return f"{len(second.calls)} calls instead of {len(first.calls)}", pairs
    for a, b in zip(first.calls, second.calls, strict=True):
        if a.target is not b.target:
            return f"{b.target} instead of {a.target}", pairs
        if not (_same(a.args, b.args, pairs) and _same(a.kwargs, b.kwargs, pairs)):
            return f"{b.target} has other arguments", pairs
        pairs[a] = b
    return "", pairs


def _same(a: Any, b: Any, pairs: dict[Call, Call]) -> bool:
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is Call:
        return pairs[a] is b if a in pairs else same_constant(a, b)
    if kind is list or kind is tuple:
        return len(a) == len(b) and all(_same(x, y, pairs) for x, y in zip(a, b, strict=True))
    if kind is dict:
        return list(a) == list(b) and all(_same(a[k], b[k], pairs) for k in a)
    return repr(a) == repr(b) if kind is float else bool(a == b)  # 0.0 is not -0.0, and nan is nan


def same_constant(a: Call, b: Call) -> bool:
    """Whether two leaves are one constant, or two whose data is at hand and equal bit by bit."""
    if a is b:
        return a.constant is not None
    x, y = a.constant, b.constant
    if x is None or y is None or x.is_meta or y.is_meta or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return bool(torch.equal(_bits(x), _bits(y)))


def _bits(value: torch.Tensor) -> torch.Tensor:
    """The bytes: nan equals itself, and zero is not minus zero."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8)
