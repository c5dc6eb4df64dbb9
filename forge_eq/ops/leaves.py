"""Leaves: what a program starts from."""

from __future__ import annotations

from forge_eq.ir.types import WEAK, TensorType
from forge_eq.ops.shapes import given
from forge_eq.ops.spec import op

input_ = op("input(; index: int) -> y", "The argument number index.", shape=given, leaf="input")

constant = op("constant(; name: str) -> y", "A weight, buffer or folded value, by name.", shape=given, leaf="constant")

literal = op(
    "literal(; value: any) -> y",
    "A number as an operand; it takes the dtype of the operand beside it.",
    shape=lambda types, attrs: TensorType(WEAK, ()),
    ref=lambda xp, value: value,
    torch=lambda value: value,
    leaf="literal",
)
