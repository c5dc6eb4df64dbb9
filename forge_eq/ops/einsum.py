"""Einstein sums of one operand or two, as permutations around a matrix product.

Takes the call of an export. Gives nodes of the vocabulary. A sum that no product of two matrices computes (a label
twice in one operand, a label that only one operand has and the result lacks) stays opaque.
"""

from __future__ import annotations

from math import prod
from typing import Any

from forge_eq.ops import aten
from forge_eq.ops.linalg import matmul
from forge_eq.ops.movement import permute, reshape
from forge_eq.ops.spec import ATEN, Op

_SPARE = "αβγδεζηθ"  # labels of the axes that an ellipsis stands for; no equation can name them


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, with every ellipsis written out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    parts = left.split(",")
    aten.need(bool(arrow) and len(parts) == len(ranks), "an einsum without a result")
    named = [len(p.replace("...", "")) for p in parts]
    hidden = {r - n for p, r, n in zip(parts, ranks, named, strict=True) if "..." in p}
    aten.need(len(hidden) <= 1 and all(0 <= h <= len(_SPARE) for h in hidden), "ellipses of several ranks")
    dots = _SPARE[: hidden.pop()] if hidden else ""
    parts, right = [p.replace("...", dots) for p in parts], right.replace("...", dots)
    aten.need(all(len(p) == r == len(set(p)) for p, r in zip(parts, ranks, strict=True)), "a label twice")
    aten.need(len(right) == len(set(right)) and set(right) <= set("".join(parts)), "labels of the result")
    return parts, right


def _order(imp: aten.Importer, x: aten.Ref, have: str, want: str) -> aten.Ref:
    """x with its axes in another order."""
    return x if have == want else imp.emit(permute, [x], [tuple(have.index(c) for c in want)])


def _shaped(imp: aten.Importer, x: aten.Ref, shape: tuple[Any, ...]) -> aten.Ref:
    return x if aten.tensor(imp, x).shape == shape else imp.emit(reshape, [x], [shape])


def _einsum(imp: aten.Importer, op: Op, equation: str, operands: Any, *, path: Any = None) -> aten.Ref:
    types = [aten.tensor(imp, x) for x in operands]
    aten.need(all(t.static and t.dtype == imp.out.dtype for t in types), "symbolic sizes or several dtypes")
    parts, out = _labels(equation, [t.rank for t in types])
    if len(parts) == 1:
        aten.need(len(out) == len(parts[0]), "a sum over one operand")
        return imp.emit(permute, operands, [tuple(parts[0].index(c) for c in out)])
    aten.need(len(parts) == 2 and types[0].dtype in ("f32", "f64"), "this einsum")
    (a, b) = parts
    sizes: dict[str, Any] = {}
    for labels, t in zip(parts, types, strict=True):
        for label, size in zip(labels, t.shape, strict=True):
            aten.need(sizes.setdefault(label, size) == size, "an axis of size 1 that broadcasts")
    batch = "".join(c for c in out if c in a and c in b)
    rows, columns = ("".join(c for c in out if c in one and c not in batch) for one in (a, b))
    inner = "".join(c for c in a if c in b and c not in out)
    aten.need(len(inner) >= 1 and set(a) == {*batch, *rows, *inner} and set(b) == {*batch, *columns, *inner}, "sums")
    return _product(imp, operands, (a, b), (batch, rows, columns, inner), out, sizes)


def _product(
    imp: aten.Importer, operands: Any, parts: tuple[str, str], kinds: tuple[str, ...], out: str, sizes: dict[str, Any]
) -> aten.Ref:
    """[batch, rows, inner] times [batch, inner, columns]; rows stay apart where there is no batch to keep in step."""
    (a, b), (batch, rows, columns, inner) = parts, kinds

    def many(labels: str) -> int:
        return prod(sizes[c] for c in labels)

    lead = tuple(sizes[c] for c in batch)
    apart = tuple(sizes[c] for c in rows) if not batch and rows else (many(rows),)
    left = _shaped(imp, _order(imp, operands[0], a, batch + rows + inner), (*lead, *apart, many(inner)))
    # The columns first, then the matrix transpose: that is the form which a transposed product is recognised by.
    right = _shaped(imp, _order(imp, operands[1], b, batch + columns + inner), (*lead, many(columns), many(inner)))
    n = len(lead)
    product = imp.emit(matmul, [left, imp.emit(permute, [right], [(*range(n), n + 1, n)])])
    whole = _shaped(imp, product, tuple(sizes[c] for c in batch + rows + columns))
    return _order(imp, whole, batch + rows + columns, out)


ATEN["aten.einsum.default"] = (matmul, _einsum)
