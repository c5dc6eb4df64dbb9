"""When two results are the same, and the inputs on which to ask.

Takes values found, values wanted and, where it helps, the same computed in float64. Gives the reason why they differ, or
None. The criterion is that of PyTorch's accuracy checks: NaN and infinities at the same places; then every element
within the tolerance of its dtype, or else a root-mean-square error against float64 no worse than twice the reference's
own. Integers and bools must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

TOLERANCES: dict[torch.dtype, tuple[float, float]] = {  # relative, absolute
    torch.float64: (1e-7, 1e-8), torch.float32: (1e-4, 1e-5), torch.float16: (1e-2, 1e-3), torch.bfloat16: (2e-2, 1e-2),
}
NO_WORSE_THAN = 2.0  # times the reference's own error against float64

Wide = Callable[[], Sequence[Any] | None]  # the values in float64, worked out only when asked for


def difference(found: Sequence[Any], wanted: Sequence[Any], wide: Wide = lambda: None) -> str | None:
    """Why the values differ (the first place), or None when they are the same."""
    if len(found) != len(wanted):
        return f"{len(found)} values, not {len(wanted)}"
    for index, (a, b) in enumerate(zip(found, wanted, strict=True)):
        reason = _differs(a, b, lambda index=index: _pick(wide(), index))
        if reason is not None:
            return f"value {index}: {reason}"
    return None


def _pick(values: Sequence[Any] | None, index: int) -> Any:
    return None if values is None else values[index]


def _differs(a: Any, b: Any, wide: Callable[[], Any]) -> str | None:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return None if type(a) is type(b) and (a == b or a != a and b != b) else f"{a!r}, not {b!r}"
    if a.dtype is not b.dtype or a.shape != b.shape:
        return f"{a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
    if a.dtype not in TOLERANCES and not a.is_complex():
        count = int((a != b).sum())
        return f"{count} of {a.numel()} elements are unequal" if count else None
    if a.is_complex():
        return None if torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True) else "complex values differ"
    special = ~torch.isfinite(a) | ~torch.isfinite(b)
    if bool((special & ~((a == b) | (a.isnan() & b.isnan()))).any()):
        return "NaN or infinity at other places"
    return _far(a[~special], b[~special], lambda: _finite(wide(), special))


def _finite(wide: Any, special: torch.Tensor) -> torch.Tensor | None:
    fits = isinstance(wide, torch.Tensor) and wide.shape == special.shape
    return wide[~special].double() if fits else None


def _far(a: torch.Tensor, b: torch.Tensor, wide: Callable[[], torch.Tensor | None]) -> str | None:
    rtol, atol = TOLERANCES[a.dtype]
    if torch.allclose(a, b, rtol, atol):
        return None
    a, b = a.double(), b.double()
    largest = f"differs by up to {float((a - b).abs().max()):.3g} (values up to {float(b.abs().max()):.3g})"
    exact = wide()
    if exact is None or not bool(torch.isfinite(exact).all()):
        return largest
    ours, theirs = _rmse(a, exact), _rmse(b, exact)
    # Where the reference happens to be exact, rounding once must still be allowed.
    floor = torch.finfo(torch.float32).eps * _rmse(exact, torch.zeros_like(exact))
    if ours <= NO_WORSE_THAN * theirs + floor:
        return None
    return f"{largest}; error against float64 {ours:.3g}, the reference's {theirs:.3g}"


def _rmse(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.sqrt(float((a - b).square().mean())) if a.numel() else 0.0


# ---------------------------------------------------------------------------------------------- inputs


def probes(examples: Sequence[Any], seed: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """(name, inputs) to compare on, derived from example inputs.

    Floats: standard normal, zeros, and normal of scale 16. Integers stay within the examples' range, where they are
    sure to be indices, positions or masks of the right kind. Host numbers stay as they are.
    """
    yield "the example", list(examples)
    generator = torch.Generator().manual_seed(seed)
    for name, scale in (("random", 1.0), ("zeros", 0.0), ("large", 16.0)):
        yield name, [_like(v, scale, generator) for v in examples]


def _like(value: Any, scale: float, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.is_complex():
        return value
    if value.is_floating_point():
        return (torch.randn(value.shape, generator=generator) * scale).to(value.dtype)
    low, high = int(value.min()), int(value.max())
    if scale == 0.0:
        return torch.full_like(value, low)
    if value.dtype is torch.bool:
        low, high = 0, 1
    return torch.randint(low, high + 1, value.shape, generator=generator).to(value.dtype)
