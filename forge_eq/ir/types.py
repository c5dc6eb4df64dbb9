"""Types of the graph: what a value is, before any layout or device is chosen.

A dimension is an ``int`` or a :class:`Sym`. Symbols compare by name; arithmetic on them is not done
here, so a fact that would need it is simply unknown.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

DTYPES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "bool": 1,
    "c64": 8,
    "c128": 16,
}  # name -> bytes per element
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})
WEAK = "lit"  # dtype of a literal operand: it takes the dtype of the operand beside it


@dataclass(frozen=True, slots=True)
class Sym:
    """A dimension known only by name, e.g. ``s0`` or ``2*s0 + 1``."""

    name: str

    def __str__(self) -> str:
        return self.name


Dim = int | Sym


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: element type and shape.

    ``elements`` is the number of elements and ``nbytes`` the size in bytes when stored densely, both None when a
    dimension is symbolic. They are asked for many times as often as types are made.
    """

    dtype: str
    shape: tuple[Dim, ...]
    elements: int | None = field(init=False, repr=False, compare=False)
    nbytes: int | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = math.prod(self.shape) if Sym not in map(type, self.shape) else None  # type: ignore[arg-type]
        object.__setattr__(self, "elements", count)
        object.__setattr__(self, "nbytes", None if count is None else count * DTYPES.get(self.dtype, 8))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        return self.elements is not None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A host number (an export's SymInt, SymFloat or SymBool): ``int``, ``float`` or ``bool``."""

    kind: str

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class NoneType:
    """The result of a node that only has an effect."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class TupleType:
    """The result of a multi-output op; its parts are reached through ``project``."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.items))})"


Type = TensorType | ScalarType | NoneType | TupleType

_TENSOR = re.compile(r"([a-z]+\d*)\[([^\]]*)\]")


def parse_type(text: str) -> Type:
    """Reads what ``str(type)`` wrote. Raises ValueError on anything else."""
    text = text.strip()
    if text == "none":
        return NoneType()
    if text in ("int", "float", "bool"):
        return ScalarType(text)
    if text.startswith("(") and text.endswith(")"):
        return TupleType(tuple(parse_type(part) for part in _split_top(text[1:-1])))
    found = _TENSOR.fullmatch(text)
    if not found or (found[1] not in DTYPES and found[1] != WEAK):
        raise ValueError(f"not a type: {text!r}")
    dims = [d.strip() for d in _split_top(found[2])]
    return TensorType(found[1], tuple(int(d) if d.isdigit() else Sym(d) for d in dims))


def _split_top(text: str) -> list[str]:
    """Splits at the commas that stand outside every bracket."""
    parts, depth, start = [], 0, 0
    for i, ch in enumerate(text):
        depth += ch in "(["
        depth -= ch in ")]"
        if ch == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]] if text.strip() else []
