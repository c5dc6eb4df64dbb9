"""The predicted time of one kernel: the one formula that extraction, orientation and scheduling share.

Takes a target, an op with its types, and how its result is stored. Gives microseconds. Promises: strictly positive for
an op with a kernel; a linear layer is priced from the target's table of kernels where it has one, everything else by
the roofline ``launch + max(flops / peak, bytes / bandwidth)``, both times the weight of the op's cost class.
Not here: views, leaves and fusion (``extract.cost``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forge_eq.ir.types import WEAK, TensorType, TupleType, Type
from forge_eq.ops.spec import Op
from forge_eq.targets import Target

CACHE = 2 << 20  # bytes of a value whose two copies are about what a core's second-level cache holds
REORDER = "movement.reorder"  # the part of a prediction that storing values in another order takes


def nbytes(type: Type) -> float:
    """Bytes of a value; literals and host numbers have none."""
    if isinstance(type, TupleType):
        return sum(nbytes(t) for t in type.items)
    return float(type.nbytes or 0) if isinstance(type, TensorType) and type.dtype != WEAK else 0.0


def elements(type: Type) -> float:
    if isinstance(type, TupleType):
        return sum(elements(t) for t in type.items)
    return float(type.elements or 1) if isinstance(type, TensorType) else 1.0


def roofline(target: Target, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float:
    """Predicted microseconds from the op's work and the target's rates."""
    flops = op.cost.flops(types, attrs, out) if op.cost.flops else elements(out)
    moved = op.cost.bytes(types, attrs, out) if op.cost.bytes else nbytes(out) + sum(map(nbytes, types))
    return target.weight(op.cost.cost_class) * target.kernel_time(flops, moved)


def row_time(target: Target, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float:
    """Predicted microseconds with operands and result in row-major order."""
    size = layer(op, types, out)
    found = None if size is None else target.kernels.time(op.cost.form, *size)
    if found is None:
        return roofline(target, op, types, attrs, out)
    return target.weight(row_part(target, op, types, out)) * found


def left_times(
    target: Target, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type
) -> dict[str, float] | None:
    """The same of a linear layer with its weight on the left, by part; None where the target does not know that kernel.

    The plugin runs bias and activation as a kernel of their own behind it.
    """
    size = layer(op, types, out)
    found = None if size is None else target.kernels.time("left", *size)
    if found is None:
        return None
    part = f"{op.cost.cost_class}.left"
    times = {part: target.weight(part) * found}
    if behind := _behind(target, op, types, out):
        times["elementwise"] = behind
    return times


def left_time(target: Target, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float | None:
    """The sum of :func:`left_times`."""
    times = left_times(target, op, types, attrs, out)
    return None if times is None else sum(times.values())


def row_part(target: Target, op: Op, types: Sequence[Type], out: Type) -> str:
    """What :func:`row_time` is time of: the op's cost class, or that and the kernel's form where the table knows it."""
    known = layer(op, types, out) is not None and target.kernels.has(op.cost.form)
    return f"{op.cost.cost_class}.{op.cost.form}" if known else op.cost.cost_class


def packed_time(target: Target, op: Op, types: Sequence[Type], out: Type) -> float | None:
    """The same with its weight packed as small integers (``ops.packed``), by the kernel that unpacks on the way."""
    size = layer(op, types, out)
    found = None if size is None else target.kernels.time("packed", *size)
    weight = target.weight(f"{op.cost.cost_class}.packed")
    return None if found is None else weight * found + _behind(target, op, types, out)


def _behind(target: Target, op: Op, types: Sequence[Type], out: Type) -> float:
    """Bias and activation as a kernel of their own."""
    if len(types) < 3 and op.cost.form != "act":
        return 0.0
    return target.weight("elementwise") * target.kernel_time(elements(out), 2 * nbytes(out))


def best_time(target: Target, op: Op, types: Sequence[Type], attrs: tuple[Any, ...], out: Type) -> float:
    """The lesser of the two: a value is transposed at the border of a region, not at each op."""
    row, left = row_time(target, op, types, attrs, out), left_time(target, op, types, attrs, out)
    return row if left is None else min(row, left)


def move_time(target: Target, size: float) -> float:
    """Predicted microseconds to store a value of ``size`` bytes in another order.

    A transposition writes with strides: what fits a core's cache is done at its speed, the rest many times slower.
    """
    near = target.weight(REORDER) * target.kernel_time(0.0, 2.0 * size)
    if not target.reorder_gbps or size <= CACHE:
        return near
    return max(near, target.launch_us + 2.0 * size / (target.reorder_gbps * 1e3))


def layer(op: Op, types: Sequence[Type], out: Type) -> tuple[int, int, int] | None:
    """(tokens, k, n) of a linear layer over f32; None for anything else."""
    x = types[0] if op.cost.form else None
    if not isinstance(x, TensorType) or not isinstance(out, TensorType) or x.dtype != "f32" or not out.static:
        return None
    k, n, count = x.shape[-1], out.shape[-1], out.elements
    if not isinstance(k, int) or not isinstance(n, int) or not count or k < 1:
        return None
    return count // n, k, n
