"""The vocabulary: the only place that knows an operation.

Reading order: ``spec`` (how an op is declared), then the families. Importing the package declares all.
"""

from __future__ import annotations

from forge_eq.ops import (  # noqa: F401
    attention,
    cache,
    composite,
    convolution,
    effects,
    einsum,
    elementwise,
    leaves,
    linalg,
    movement,
    packed,
    pooling,
    reduction,
)
from forge_eq.ops.spec import ATEN, REGISTRY, Op, Term, lit

__all__ = ["ATEN", "REGISTRY", "Op", "Term", "lit"]
