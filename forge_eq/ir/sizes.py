"""Sizes that only a call knows: expressions over symbols, what the symbols stand for, attributes with numbers put in.

Takes text such as ``2*s0 + 1``, or types and attributes that hold such symbols. Gives numbers. Promises: text is
never executed: only integer arithmetic, comparison, and, or, not are understood; what is not understood is None.
Not here: what a program assumes about its sizes (``capture.sizes``).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from forge_eq.ir.types import Sym, TensorType, Type

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: dict[str, Callable[..., Any]] = {"FloorDiv": operator.floordiv, "Mod": operator.mod, "max": max, "min": min}


def evaluate(text: str, sizes: Mapping[str, int]) -> int | bool | None:
    """The value of a size expression or condition, or None when a part of it is unknown here."""
    try:
        found: int | bool | None = _value(_parsed(text), sizes)
        return found
    except (SyntaxError, ZeroDivisionError, LookupError, TypeError):
        return None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text.strip(), mode="eval").body


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Any:
    """Raises LookupError at the first part that is not understood."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        inner = _value(node.operand, sizes)
        return -inner if isinstance(node.op, ast.USub) else not inner
    if isinstance(node, ast.BoolOp):
        parts = [_value(v, sizes) for v in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.Compare):
        values = [_value(v, sizes) for v in (node.left, *node.comparators)]
        return all(_BINARY[type(o)](a, b) for o, a, b in zip(node.ops, values, values[1:], strict=False))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _CALLS[node.func.id](*(_value(a, sizes) for a in node.args))
    raise LookupError(ast.dump(node))


def symbols(type: Type) -> list[tuple[int, str]]:
    """(axis, name) of each size that is a symbol of its own; a size such as ``2*s0`` follows from others."""
    shape = type.shape if isinstance(type, TensorType) else ()
    return [(a, d.name) for a, d in enumerate(shape) if isinstance(d, Sym) and d.name.isidentifier()]


def bind(types: Iterable[Type], shapes: Iterable[Any]) -> dict[str, int]:
    """What the symbols in the types stand for in values of these shapes (None for what is no tensor)."""
    sizes: dict[str, int] = {}
    for type, shape in zip(types, shapes, strict=True):
        for axis, name in symbols(type):
            if shape is not None and axis < len(shape):
                sizes.setdefault(name, shape[axis])
    return sizes


def is_symbolic(attr: Any) -> bool:
    """Whether an attribute (or a tuple of them) holds a symbol."""
    return isinstance(attr, Sym) or (isinstance(attr, tuple) and any(is_symbolic(a) for a in attr))


def sized(attr: Any, size: Callable[[Sym], Any]) -> Any:
    """The attribute with ``size(symbol)`` for each symbol."""
    if isinstance(attr, tuple):
        return tuple(sized(a, size) for a in attr)
    return size(attr) if isinstance(attr, Sym) else attr
