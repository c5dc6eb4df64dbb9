"""Python state around a recording: what a forward pass changed besides its result.

Takes a module. Gives what differs afterwards, and puts it back. Promises: seen are the attributes of every module (in
containers as well, and in plain objects), its class, and the globals of its forward function, each by identity. What
else Python can reach is not seen; comparing values with the module is for that.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import torch

_PLAIN = (int, float, str, bool, type(None), complex, bytes)
_CONTAINERS = (list, dict, OrderedDict, set, deque)
_DEPTH = 3  # nested containers that are looked into


class State:
    """The state at the moment of construction."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.spaces: list[tuple[str, Any, dict[str, Any]]] = []  # (name, owner, its names as they were)
        self._seen: set[int] = set()
        for path, part in module.named_modules():
            self._add(path or type(module).__name__, part)
            for kind in type(part).__mro__:
                if kind is torch.nn.Module:
                    break
                self._add(kind.__name__, kind)
                self._function(vars(kind).get("forward"))
        self.draws = _draws()

    def _function(self, function: Any) -> None:
        """The globals of a function's file, and what it encloses."""
        names, file = getattr(function, "__globals__", None), getattr(function, "__module__", None) or ""
        if names is None or file.startswith("torch."):
            return
        self._add(file, names)
        for name, value in list(names.items()):
            if type(value) is SimpleNamespace or (type(value).__module__ == file and _is_object(value)):
                self._add(f"{file}.{name}", value)
        for cell in function.__closure__ or ():
            self._add(f"{file}.{function.__name__}", cell)

    def _add(self, name: str, owner: Any) -> None:
        if id(owner) in self._seen:
            return
        self._seen.add(id(owner))
        names = _names(owner)
        self.spaces.append((name, owner, {k: _freeze(v) for k, v in names.items()}))
        if isinstance(owner, torch.nn.Module):
            for key, value in names.items():
                if type(value) is FunctionType:
                    self._function(value)
                elif type(value) not in _PLAIN and type(value) not in _CONTAINERS and _is_object(value):
                    self._add(f"{name}.{key}", value)

    def changes(self) -> list[tuple[str, Callable[[], None]]]:
        """(what changed, how to undo it)."""
        found: list[tuple[str, Callable[[], None]]] = []
        for name, owner, before in self.spaces:
            names = _names(owner)
            for key, was in before.items():
                now = names.get(key, self)  # this object is nobody's value
                if now is not was and (now is self or not _unchanged(was, now)):
                    found.append((f"{name}.{key}", partial(_put_back, owner, key, was)))
            if len(names) != len(before) or found:
                found += [(f"{name}.{k}", partial(_remove, owner, k)) for k in list(names) if k not in before]
        if not _equal_draws(self.draws, _draws()):
            found.append(("the state of Python's or numpy's random numbers", self._reset_draws))
        return found

    def _reset_draws(self) -> None:
        random.setstate(self.draws[0])
        if self.draws[1] is not None:
            sys.modules["numpy"].random.set_state(self.draws[1])


def _is_object(value: Any) -> bool:
    plain = isinstance(value, torch.Tensor | torch.nn.Module | type) or callable(value)
    return not plain and isinstance(getattr(value, "__dict__", None), dict)


def _names(owner: Any) -> Any:
    """The names that an owner holds: a module's or object's attributes, globals, a variable that is enclosed."""
    if type(owner) is CellType:
        try:
            return {"cell_contents": owner.cell_contents}
        except ValueError:  # not bound yet
            return {}
    return owner if isinstance(owner, dict) else vars(owner)


class _Frozen:
    """A container's identity and content."""

    __slots__ = ("content", "original")

    def __init__(self, original: Any, content: list[tuple[Any, Any]]) -> None:
        self.original, self.content = original, content


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items()) if isinstance(value, dict) else ((None, v) for v in value)


def _freeze(value: Any, depth: int = _DEPTH) -> Any:
    if type(value) not in _CONTAINERS or not depth:
        return value
    return _Frozen(value, [(k, _freeze(v, depth - 1)) for k, v in _items(value)] if value else [])


def _unchanged(before: Any, now: Any) -> bool:
    if type(before) is _Frozen:
        if before.original is not now or len(now) != len(before.content):
            return False
        if not before.content:
            return True
        if type(now) is set:
            return all(v in now for _, v in before.content)
        return all(
            (k is a or k == a) and _unchanged(v, b) for (k, v), (a, b) in zip(before.content, _items(now), strict=True)
        )
    return before is now or (type(before) is type(now) and type(before) in _PLAIN and before == now)


def _thaw(before: Any) -> Any:
    """The container itself with its content as it was."""
    if type(before) is not _Frozen:
        return before
    values = [(k, _thaw(v)) for k, v in before.content]
    found = before.original
    found.clear()
    if isinstance(found, dict | set):
        found.update(values if isinstance(found, dict) else [v for _, v in values])
    else:
        found.extend(v for _, v in values)
    return found


def _put_back(owner: Any, key: str, before: Any) -> None:
    value = _thaw(before)
    if isinstance(owner, dict):
        owner[key] = value
    elif isinstance(owner, type | CellType):
        setattr(owner, key, value)
    else:
        vars(owner)[key] = value


def _remove(owner: Any, key: str) -> None:
    if isinstance(owner, dict):
        owner.pop(key, None)
    elif isinstance(owner, type | CellType):
        delattr(owner, key)
    else:
        vars(owner).pop(key, None)


def _draws() -> tuple[Any, Any]:
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def _equal_draws(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    if a[0] != b[0] or (a[1] is None) != (b[1] is None):
        return False
    return a[1] is None or (a[1][2:] == b[1][2:] and bool((a[1][1] == b[1][1]).all()))
