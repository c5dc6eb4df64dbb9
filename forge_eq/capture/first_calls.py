"""The first call of each of torch's functions that the math library computes, made by one thread.

The vector math library that torch bundles for x86 chooses a kernel when a function is first called. Where two threads
make that call at once, one of them may get a kernel of low accuracy for its share (pytorch/pytorch issue 188792, torch
2.13): in one of five fresh processes half of SmolLM2's table of cosines, 8,192 elements, was off by up to 1.5e-4. From
the second call on all is well, so that what was computed first and kept, a folded constant, is wrong for good.
"""

from __future__ import annotations

import torch

REAL = ("erf", "erfc", "erfinv", "trunc", "log1p", "expm1", "lgamma", "rsqrt", "ceil", "floor", "round")
EITHER = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp", "log", "log2", "log10", "sqrt", "abs"),
)  # complex too


def settle_kernels() -> None:
    """Calls each function on one element, which torch gives to one thread."""
    with torch.no_grad():
        for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
            one = torch.ones(1, dtype=dtype)
            for name in EITHER if dtype.is_complex else (*EITHER, *REAL):
                getattr(torch, name)(one)
