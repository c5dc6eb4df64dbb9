"""Attributes and types as small integers, the only thing that the e-graph stores beside terms.

Ids are given in the order of first use, so they differ between processes; nothing may depend on them.
Equal-looking values are kept apart (1, 1.0 and True; 0.0 and -0.0), since Python's equality is not enough.
"""

from __future__ import annotations

from typing import Any

from forge_eq.ir.sizes import is_symbolic
from forge_eq.ir.types import NoneType, ScalarType, TensorType, TupleType

EXACT = (str, TensorType, TupleType, ScalarType, NoneType)  # types whose equality tells all values apart


class Interner:
    """A two-way table between values and integers; an attribute that only a call decides has a negative one."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {}
        self._values: list[Any] = []

    def id(self, value: Any) -> int:
        """The integer of a value; the same value always gives the same one."""
        key = (type(value), value if isinstance(value, EXACT) else repr(value))
        found = self._ids.get(key)
        if found is None:
            count = len(self._values)
            found = self._ids[key] = ~count if is_symbolic(value) else count
            self._values.append(value)
        return found

    def value(self, id: int) -> Any:
        return self._values[id if id >= 0 else ~id]


INTERNER = Interner()
