"""Proposals for one unknown at a time: a shape like those around it, a permutation, a factorisation, a number.

Takes a seeded generator. Gives candidate types and attribute values; whether they fit is for the op's own
shape rule to say. Not here: the search (``samples``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from forge_eq.ir.types import FLOATS, WEAK, Sym, TensorType, Type
from forge_eq.ops.composite import ACTIVATIONS

Shape = tuple[Any, ...]

POOLS: list[Shape] = [(1, 2, 3), (2, 3), (1, 2), (2,), (1, 3), (3,), (2, 4), (1, 2, 4), (0, 1, 2), (0, 2)]
SYMBOLIC: list[Shape] = [(Sym("s0"), 2), (Sym("s0"),), (Sym("s0"), 1, 3), (Sym("s0"), Sym("s1"), 2)]
DTYPES = ("f32", "f32", "f32", "i64", "bool", "f64")
# The last two are what programs write for sqrt(1/2) and sqrt(2/pi), one place off what definitions write.
FLOAT_LITERALS = (1.0, 0.5, 2.0, -2.0, 0.125, 3.0, 0.7, -1.5, 1e-5, 0.0, -0.0, 0.7071067811865475, 0.7978845608)
EXTREME_LITERALS = (math.inf, -math.inf, math.nan, 1e200, 1e200, 1e308, -1e308, 1e-200)
TEXTS = {"empty": ("nan", "zero"), "act": tuple(ACTIVATIONS)}  # what an attribute of kind str may be

WINDOWS = {  # attributes with one number per axis of space -> candidates
    "kernel": (1, 2, 2),
    "strides": (1, 1, 2),
    "begin": (0, 0, 1),
    "end": (0, 1, 2),
    "dilation": (1, 1, 2),
}


class Proposer:
    """One attempt's taste: sizes come from one small pool and ranks lean to one value, so that things meet.

    Args:
        extreme: also propose numbers no ordinary program has (infinities, 1e200).
        symbolic: sizes may be symbols; for types only.
    """

    def __init__(self, rng: random.Random, extreme: bool = False, symbolic: bool = False) -> None:
        self.rng, self.extreme = rng, extreme
        self.pool = rng.choice(SYMBOLIC if symbolic else POOLS)
        self.rank = rng.choice((0, 1, 2, 2, 3, 3, 4, 4))
        self.dtype = rng.choice(DTYPES)
        self.plain = rng.random() < 0.3  # windows of one element, without padding
        self.odd = rng.choice(EXTREME_LITERALS)  # one for the attempt: two of a kind overflow together

    def size(self) -> Any:
        return self.rng.choice(self.pool)

    def fresh(self) -> Shape:
        rank = self.rank if self.rng.random() < 0.7 else self.rng.randrange(5)
        return tuple(self.size() for _ in range(rank))

    def near(self, shapes: Sequence[Shape]) -> Shape:
        """A shape that may well meet one of ``shapes`` in an op."""
        rng = self.rng
        base = rng.choice(shapes) if shapes else ()
        if not base or rng.random() < 0.15:
            return self.fresh()
        last, new = base[-1], self.size()
        at = rng.randrange(len(base))
        edits: list[Shape] = [
            base,
            base,
            base[at:],
            (last,),
            (base[0],),
            (new, *base),
            (*base[:at], new, *base[at + 1 :]),
            (*base[:at], 1, *base[at + 1 :]),
            (*base[:-1], new),
            (last, new),
            (new, last),
        ]
        if len(base) > 1:
            edits += [(*base[:-2], last, base[-2]), (*base[:-2], last, new), (*base[:-2], new, last), (last, base[-2])]
        if len(base) > 2:
            edits.append((new, base[1], *[1] * (len(base) - 2)))  # a kernel of one element
        return rng.choice(edits)

    def type(self, around: Sequence[TensorType]) -> TensorType:
        """A type for a tensor variable; weak for a variable that stands for a number."""
        rng = self.rng
        near = [t.dtype for t in around if t.dtype != WEAK]
        dtype = rng.choice(near) if near and rng.random() < 0.6 else rng.choice((self.dtype, "bool", *DTYPES))
        if around and rng.random() < 0.08:
            return TensorType(WEAK, ())
        return TensorType(dtype, self.near([t.shape for t in around if t.dtype != WEAK]))

    def number(self, around: Sequence[Type]) -> Any:
        """A literal operand beside tensors of these types."""
        rng = self.rng
        near = {t.dtype for t in around if isinstance(t, TensorType) and t.dtype != WEAK}
        if not near & FLOATS:
            return rng.choice((True, False)) if near == {"bool"} else rng.randrange(-2, 4)
        if rng.random() < 0.1:
            return rng.randrange(-1, 4)
        if self.extreme and rng.random() < 0.6:
            return self.odd
        return rng.choice((*FLOAT_LITERALS, round(rng.gauss(0, 2), 4)))

    def attr(self, name: str, kind: str, types: Sequence[Type], around: Sequence[TensorType]) -> Any:
        """A value for an attribute of an op whose operands have ``types``."""
        rng = self.rng
        x = next((t for t in types if isinstance(t, TensorType)), TensorType("f32", ()))
        if kind == "ints":
            return self._ints(name, x, [t.shape for t in around])
        if kind == "int":
            sizes = [d for d in x.shape if isinstance(d, int)]
            return rng.choice((0, 1, 2, 3, max(x.rank - 1, 0), *sizes, *(d // 2 for d in sizes)))
        if kind == "float":
            return self.number([TensorType("f32", ())])
        if kind == "bool":
            return rng.choice((True, False))
        if kind == "dtype":
            return rng.choice((x.dtype, *DTYPES))
        return rng.choice(TEXTS.get(name, ("",))) if kind == "str" else self.number(types)

    def _ints(self, name: str, x: TensorType, shapes: list[Shape]) -> Shape:
        if name in WINDOWS:
            wide = (WINDOWS[name][0],) if self.plain else WINDOWS[name]
            return tuple(self.rng.choice(wide) for _ in range(max(x.rank - 2, 1)))
        makers = {"axes": self._axes, "perm": self._perm, "sizes": self._sizes}
        make = makers.get(name) or self.rng.choice(list(makers.values()))
        return self._shape(x, shapes) if name == "shape" else make(x)

    def _axes(self, x: TensorType) -> Shape:
        if self.rng.random() < 0.4:
            return (x.rank - 1,)
        return tuple(a for a in range(x.rank) if self.rng.random() < 0.4)

    def _perm(self, x: TensorType) -> Shape:
        axes = list(range(x.rank))
        kind = self.rng.randrange(4)
        if kind == 1 and x.rank > 1:
            axes[-1], axes[-2] = axes[-2], axes[-1]
        elif kind > 1:
            self.rng.shuffle(axes)
        return tuple(axes)

    def _sizes(self, x: TensorType) -> Shape:
        """Parts that sum to one of the sizes."""
        left = self.rng.choice([d for d in x.shape if isinstance(d, int)] or [2])
        parts = []
        while left > 0:
            parts.append(self.rng.randint(1, left))
            left -= parts[-1]
        return tuple(parts)

    def _shape(self, x: TensorType, shapes: list[Shape]) -> Shape:
        """A target to reshape or to broadcast to."""
        rng = self.rng
        s: Shape = x.shape
        at = rng.randrange(len(s) + 1)
        options = [s, (*s[:at], 1, *s[at:]), tuple(d for d in s if d != 1), (self.size(), *s), (*s[:-1], 1)]
        options.append(tuple(self.size() if d == 1 else d for d in s))
        options.append(tuple(rng.choice((2, 3)) if d == 1 and rng.random() < 0.5 else d for d in s))
        if len(s) >= 2:
            at = rng.choice((rng.randrange(len(s) - 1), max(len(s) - 4, 0)))
            options.append((*s[:-2], 1, *s[-2:]))
            if isinstance(s[at], int) and isinstance(s[at + 1], int):
                options += [(*s[:at], s[at] * s[at + 1], *s[at + 2 :])] * 2
        if all(isinstance(d, int) for d in s):
            options += [(math.prod(s),), self._factors(math.prod(s))]
        for other in shapes[-4:]:
            options += [other, (*other[:-1], *s[-1:])]
        return rng.choice(options)

    def _factors(self, total: int) -> Shape:
        """A random factorisation."""
        out = []
        while total > 1:
            out.append(self.rng.choice([d for d in range(2, total + 1) if total % d == 0]))
            total //= out[-1]
        return (*out, 0) if total == 0 else tuple(out)
