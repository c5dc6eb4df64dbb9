"""The argument structure of an opaque call as text, and back.

Takes a call's positional and keyword arguments, graph values as :class:`~forge_eq.ops.aten.Ref`.
Gives one line of strict JSON in which every graph value is a numbered hole ``{"%": k}``, and the operands
in the order of the holes. Promises: :func:`decode` is the exact inverse: ints, bools and floats stay
apart, so do lists and tuples; signed zeros, infinities, dtypes, devices and layouts survive; equal calls
give equal texts. Not here: what a call means.

What JSON has no word for is an object with one key: ``%`` hole, ``float`` inf or nan, ``tuple``, ``size``,
``dict`` (pairs), ``slice``, ``dtype``, ``device``, ``layout``, ``memory_format``, ``complex``, ``op``
(another call target), ``module`` (a submodule of the graph), ``ellipsis``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from forge_eq.capture.targets import resolve, target_name
from forge_eq.errors import ParseError
from forge_eq.ops.aten import Ref, Unsupported


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """A submodule that a higher-order call calls, by its name in ``Graph.submodules``."""

    name: str


def encode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, list[Ref]]:
    """(text, operands). Raises Unsupported on an argument that has no text."""
    holes: list[Ref] = []
    body = [[_write(a, holes) for a in args], {k: _write(kwargs[k], holes) for k in sorted(kwargs)}]
    return json.dumps(body, separators=(",", ":"), allow_nan=False), holes


def decode(
    text: str, operands: Sequence[Any], submodules: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) with the operands in the holes. Raises ParseError on foreign text."""
    args, kwargs = _parse(text)
    modules = {} if submodules is None else submodules
    try:
        named = {k: _read(v, operands, modules) for k, v in kwargs.items()}
        return tuple(_read(a, operands, modules) for a in args), named
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise ParseError("capture", text, f"the template does not fit its operands: {e!r}", "capture again") from None


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        args, kwargs = json.loads(text)
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    except (ValueError, TypeError):
        pass
    raise ParseError("capture", text, "is not an argument template", "write [[args], {kwargs}] as encode does")


def _write(value: Any, holes: list[Ref]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is Ref:
        holes.append(value)
        return {"%": len(holes) - 1}
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    writer = _WRITERS.get(kind)
    if writer is not None:
        return writer(value)
    if isinstance(value, torch.Size):
        return {"size": [_write(v, holes) for v in value]}
    if isinstance(value, list):
        return [_write(v, holes) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_write(v, holes) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_write(k, holes), _write(v, holes)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_write(v, holes) for v in (value.start, value.stop, value.step)]}
    if isinstance(value, torch._ops.OperatorBase):
        return {"op": target_name(value)}
    raise Unsupported(f"an argument of type {kind.__name__}, which has no text form")


_WRITERS: dict[type, Any] = {
    ModuleRef: lambda v: {"module": v.name},
    torch.dtype: lambda v: {"dtype": str(v).removeprefix("torch.")},
    torch.device: lambda v: {"device": str(v)},
    torch.layout: lambda v: {"layout": str(v).removeprefix("torch.")},
    torch.memory_format: lambda v: {"memory_format": str(v).removeprefix("torch.")},
    complex: lambda v: {"complex": [repr(v.real), repr(v.imag)]},
    type(...): lambda v: {"ellipsis": True},
}


def _read(form: Any, operands: Sequence[Any], modules: Mapping[str, Any]) -> Any:
    if isinstance(form, list):
        return [_read(v, operands, modules) for v in form]
    if not isinstance(form, dict):
        return form
    ((key, body),) = form.items()
    if key == "%":
        return operands[body]
    if key == "module":
        return modules[body]
    if key in ("tuple", "size"):
        parts = [_read(v, operands, modules) for v in body]
        return tuple(parts) if key == "tuple" else torch.Size(parts)
    if key == "dict":
        return {_read(k, operands, modules): _read(v, operands, modules) for k, v in body}
    if key == "slice":
        return slice(*(_read(v, operands, modules) for v in body))
    return _READERS[key](body)


def _torch_constant(kind: type) -> Any:
    def read(name: str) -> Any:
        found = getattr(torch, name)
        if not isinstance(found, kind):
            raise ValueError(f"torch.{name} is no {kind.__name__}")
        return found

    return read


_READERS: dict[str, Any] = {
    "float": float,
    "complex": lambda body: complex(float(body[0]), float(body[1])),
    "dtype": _torch_constant(torch.dtype),
    "layout": _torch_constant(torch.layout),
    "memory_format": _torch_constant(torch.memory_format),
    "device": torch.device,
    "op": resolve,
    "ellipsis": lambda body: ...,
}
