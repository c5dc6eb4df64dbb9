"""Weights kept as small integers with a scale, and perhaps an offset, for each group."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from forge_eq.ir.types import FLOATS, TensorType
from forge_eq.ops import shapes
from forge_eq.ops.linalg import INEXACT, linear
from forge_eq.ops.spec import Cost, Kernel, op


def _unpacked(types: Any, attrs: Any) -> TensorType:
    q, s, *z = types
    shapes.require(q.rank == 2 and q.dtype == ("u8" if z else "i8"), "integers of eight bits are due")
    shapes.require(s.rank == 2 and s.dtype in FLOATS and all(t == s for t in z), "a float scale and offset are due")
    shapes.require(all(isinstance(d, int) and d > 0 for d in (*q.shape, *s.shape)), "known sizes are due")
    shapes.require(q.shape[0] == s.shape[0] and q.shape[1] % s.shape[1] == 0, "groups of equal length are due")
    return TensorType(s.dtype, q.shape)


def _product(types: Any, attrs: Any) -> TensorType:
    found = shapes.linear([types[0], _unpacked(types[1:], ())], (True,))
    assert isinstance(found, TensorType)
    return found


def _unpack(q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    groups = q.reshape(*s.shape, -1).to(s.dtype)
    return (groups * s.unsqueeze(-1)).reshape(q.shape)


def _unpack_offset(q: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    groups = q.reshape(*s.shape, -1).to(s.dtype)
    return ((groups - z.unsqueeze(-1)) * s.unsqueeze(-1)).reshape(q.shape)


def _spread(xp: Any, q: Any, s: Any) -> Any:
    return xp.repeat(s, q.shape[1] // s.shape[1], axis=1)


def _flops(types: Any, attrs: Any, out: Any) -> float:
    return 2.0 * (out.elements or 1) * float(types[0].shape[-1])


COST = Cost(flops=_flops, cost_class="matmul", form="packed")

unpack = op(
    "unpack(q, s) -> w",
    "q s: integers [n, k] times the scale of their group, s[n, groups]; the groups of a row are equally long.",
    shape=_unpacked,
    ref=lambda xp, q, s: xp.multiply(q, _spread(xp, q, s)),
    torch=_unpack,
)
unpack_offset = op(
    "unpack_offset(q, s, z) -> w",
    "(q - z) s, with scale and offset of the group.",
    shape=_unpacked,
    ref=lambda xp, q, s, z: xp.multiply(xp.subtract(q, _spread(xp, q, z)), _spread(xp, q, s)),
    torch=_unpack_offset,
)
linear_packed = op(
    "linear_packed(x, q, s) -> y",
    "x times a packed weight [n, k]; the kernel unpacks it on the way, so that far fewer bytes are read.",
    shape=_product,
    define=lambda x, q, s: linear(x, unpack(q, s), True),
    torch=lambda x, q, s: F.linear(x, _unpack(q, s)),
    traits=INEXACT,
    cost=COST,
    kernel=Kernel("matmul", lambda g, x, q, s: g.matmul_packed(x, q, s), reads=("i8",)),
)
linear_packed_offset = op(
    "linear_packed_offset(x, q, s, z) -> y",
    "The same with an offset.",
    shape=_product,
    define=lambda x, q, s, z: linear(x, unpack_offset(q, s, z), True),
    torch=lambda x, q, s, z: F.linear(x, _unpack_offset(q, s, z)),
    traits=INEXACT,
    cost=COST,
    kernel=Kernel("matmul", lambda g, x, q, s, z: g.matmul_packed(x, q, s, z), reads=("u8",)),
)
