"""Which layers of a module are alike, and the numbers by which like ones differ.

Takes a module. Gives groups of layers. Promises: the layers of a group have the same classes, settings, types of
tensors and ties, compared by value where a value says all and by identity elsewhere; plain numbers may differ, and then
a :class:`Watched` stands for each during the recording and tells when anything depends on it. Not here: calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

LEAST = 4  # layers of a group: three are traced
PLAIN = (int, float, bool, str, type(None), complex, torch.dtype, torch.device, torch.Size)
_OWN = frozenset({"_parameters", "_buffers", "_modules", "training"})


class Watched:
    """A number that tells when anything depends on it. No int itself: C code would read its value unseen."""

    def __init__(self, value: int, used: list[str]) -> None:
        self.__dict__["_watched"] = (value, used)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int


def _watching(name: str) -> Callable[..., Any]:
    function = getattr(int, name)

    def method(self: Any, *args: Any) -> Any:
        value, used = self.__dict__["_watched"]
        used.append(name)
        return function(value, *[a.__dict__["_watched"][0] if type(a) is Watched else a for a in args])

    return method


for _name in dir(int):
    if callable(getattr(int, _name)) and _name not in [
        "__class__",
        "__new__",
        "__init__",
        "__init_subclass__",
        "__subclasshook__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__dir__",
    ]:
        setattr(Watched, _name, _watching(_name))


def _fingerprint(layer: torch.nn.Module) -> tuple[Any, list[tuple[str, str]]]:
    """(what must be equal in two layers that are alike, the plain numbers in them: (module, attribute))."""
    key: list[Any] = []
    numbers: list[tuple[str, str]] = []
    ties: dict[int, int] = {}
    for path, part in layer.named_modules(remove_duplicate=False):
        key.append((path, type(part), part.training))
        for kind, tensors in (("p", part._parameters), ("b", part._buffers)):
            for name, t in tensors.items():
                key.append((kind, name, None if t is None else (*_type(t), ties.setdefault(id(t), len(ties)))))
        for name, value in part.__dict__.items():
            if name in _OWN:
                continue
            if type(value) is int:
                numbers.append((path, name))
                key.append((name, int))
            else:
                key.append((name, _setting(value)))
    return tuple(key), numbers


def _type(t: torch.Tensor) -> tuple[Any, ...]:
    return type(t), tuple(t.shape), t.dtype, t.stride(), t.requires_grad


def _setting(value: Any) -> Any:
    """A setting by its value where that says all, else by identity."""
    kind = type(value)
    if kind in (float, complex):
        return kind, repr(value)
    if kind in PLAIN:
        return kind, value
    if kind in (tuple, list):
        return kind, tuple(_setting(v) for v in value)
    if kind in (dict, set) or kind.__name__ == "OrderedDict":
        return (kind, "empty") if not value else (kind, id(value))
    return kind, id(value)


def groups(module: torch.nn.Module) -> Iterator[tuple[list[torch.nn.Module], list[tuple[str, str]]]]:
    """The groups of like children, outermost containers first; nothing inside a grouped layer is grouped again."""
    if torch.nn.modules.module._has_any_global_hook():  # type: ignore[no-untyped-call]
        return
    inside: set[int] = set()
    for holder in module.modules():
        if id(holder) in inside or not isinstance(holder, torch.nn.ModuleList | torch.nn.Sequential):
            continue
        alike: dict[Any, tuple[list[torch.nn.Module], list[tuple[str, str]]]] = {}
        for child in holder.children():
            key, numbers = _fingerprint(child)
            if "forward" not in child.__dict__ and any(True for _ in child.children()):
                alike.setdefault(key, ([], numbers))[0].append(child)
        for layers, numbers in alike.values():
            if len(layers) >= LEAST and not any(id(m) in inside for layer in layers for m in layer.modules()):
                inside.update(id(m) for layer in layers for m in layer.modules())
                yield layers, numbers
