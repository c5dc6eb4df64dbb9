"""When two results agree: PyTorch's own criterion, used wherever a program is compared with another.

Equal types and shapes; NaN and infinities at the same places; then either every element within the dtype's
tolerance (``torch.testing.assert_close``'s defaults), or a root-mean-square error against float64 that is at
most twice that of the reference plus the absolute tolerance: TorchBench's criterion for reassociated float
arithmetic (``torch._dynamo.utils.same``), with its factor of 3 for outputs of few elements. See docs/decisions/0005
for where this one is narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCES = {  # dtype -> (relative to the element, absolute where the largest value is 1 or more)
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1.3e-6, 1e-5),
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
RMSE_FACTOR, RMSE_FACTOR_OF_FEW = 2.0, 3.0
BLOCK = 32_000  # elements compared at a time: they stay in the cache, and torch shares no so small work among threads
FEW = 1000  # elements: of fewer, the ratio of two errors says little
Oracle = Callable[[], Sequence[Any] | None]  # the outputs in float64, or None when nobody can compute them


@dataclass(frozen=True)
class Parts:
    """An exact result that is made in parts whenever it is read: all of a large model's logits are more than its rest.

    ``read`` gives (part of the last axis, the values there in float64).
    """

    read: Callable[[], Iterator[tuple[slice, torch.Tensor]]]

    def whole(self) -> torch.Tensor:
        return torch.cat([values for _, values in self.read()], -1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason`` is empty when the results agree. ``difference`` is the largest absolute one over all outputs."""

    reason: str
    difference: float

    def __bool__(self) -> bool:
        return not self.reason


def compare(got: Sequence[Any], want: Sequence[Any], oracle: Oracle | None = None) -> Verdict:
    """Whether ``got`` may stand for ``want`` (flat outputs; the oracle is asked only when it is needed)."""
    if len(got) != len(want):
        return Verdict(f"{len(got)} outputs where {len(want)} are due", math.inf)
    worst, exact = 0.0, None
    for index, (g, w) in enumerate(zip(got, want, strict=True)):
        if not isinstance(w, torch.Tensor):
            if type(g) is not type(w) or not (g == w or (g != g and w != w)):
                return Verdict(f"output {index}: {g!r} where {w!r} is due", math.inf)
            continue
        reason, difference, close = _tensors(g, w)
        worst = max(worst, difference)
        if not reason and not close and not _near(g, w):
            exact = exact if exact is not None else (oracle() if oracle is not None else None)
            reason = _against(g, w, None if exact is None else exact[index], difference)
        if reason:
            return Verdict(f"output {index}: {reason}", difference)
    return Verdict("", worst)


def _tensors(g: Any, w: torch.Tensor) -> tuple[str, float, bool]:
    """(complaint, largest difference, within tolerance)."""
    if not isinstance(g, torch.Tensor) or g.shape != w.shape or g.dtype != w.dtype:
        shown = f"{g.dtype} {list(g.shape)}" if isinstance(g, torch.Tensor) else repr(g)
        return f"{shown} where {w.dtype} {list(w.shape)} is due", math.inf, False
    if w.numel() == 0:
        return "", 0.0, True
    if w.dtype not in TOLERANCES:
        wrong = int((g != w).sum())
        return (f"{wrong} of {w.numel()} values differ" if wrong else ""), float(wrong), not wrong
    if not w.is_complex() and (found := _finite(g, w)) is not None:
        return "", *found
    finite = w.isfinite()
    if not torch.equal(g.isfinite(), finite) or not torch.equal(g.isnan(), w.isnan()):
        return "NaN or infinity at other places", math.inf, False
    if not torch.equal(g[~finite].nan_to_num(), w[~finite].nan_to_num()):
        return "infinities of another sign", math.inf, False
    wide = torch.complex128 if w.is_complex() else torch.float64
    off = (g[finite].to(wide) - w[finite].to(wide)).abs()
    if off.numel() == 0:
        return "", 0.0, True
    relative, absolute = TOLERANCES[w.dtype]
    size = w[finite].to(wide).abs()
    # A program whose values are all tiny is not right because it gives zeros: the absolute part shrinks with them.
    close = bool((off <= absolute * min(1.0, float(size.max())) + relative * size).all())
    return "", float(off.max()), close


def _finite(g: torch.Tensor, w: torch.Tensor) -> tuple[float, bool] | None:
    """(largest difference, within tolerance) of real values; None where some are not finite.

    The difference of two near numbers of a type is exact in it, or in float32 where that is wider.
    """
    worst = largest = 0.0
    for a, b in _blocks(g, w):
        if b.element_size() < 4:
            a, b = a.float(), b.float()
        (low, high), (least, most) = torch.aminmax(a - b), torch.aminmax(b)
        off, size = max(-float(low), float(high)), max(-float(least), float(most))
        if not (math.isfinite(off) and math.isfinite(size)):
            return None
        worst, largest = max(worst, off), max(largest, size)
    relative, absolute = TOLERANCES[w.dtype]
    allowed = absolute * min(1.0, largest)
    if worst <= allowed:
        return worst, True
    if worst > allowed + relative * largest:
        return worst, False
    wide = ((a.double(), b.double()) for a, b in _blocks(g, w))
    return worst, all(bool(((a - b).abs() <= allowed + relative * b.abs()).all()) for a, b in wide)


def _blocks(*values: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same elements of each, a few at a time: copies of all of them in float64 would not stay in the caches."""
    flat = [v.detach().reshape(-1) for v in values]
    return (tuple(v[k : k + BLOCK] for v in flat) for k in range(0, flat[0].numel(), BLOCK))


def _near(g: torch.Tensor, w: torch.Tensor) -> bool:
    """Whether two results are so near to each other that :func:`_against` lets them pass, whatever the exact ones are.

    Let r be the RMS difference over the D elements that differ, n the number of all elements, and d the RMSE of the
    reference over the elements that are judged, which are those D and perhaps others. The RMSE of the result is at
    most d + r, over more than D elements even less. If d >= r, that is at most 2 d. Else it is at most 2 d + r, so it
    passes if r is within the absolute part: the exact values' RMS over D is at least w's less sqrt(n / D) r.
    """
    if w.is_complex() or not w.is_floating_point():
        return False
    count, apart, exact = 0, 0.0, 0.0  # elements that differ, and over these the squares of difference and reference
    for a, b in _blocks(g, w):
        differ, wide = a != b, b.double()
        count += int(differ.sum())
        apart += float((a.double() - wide).square_().sum())
        exact += float((wide * differ).square_().sum())
    if not count or not math.isfinite(apart + exact):
        return False
    share = math.sqrt(count / w.numel())
    apart = math.sqrt(apart / count)
    exact = math.sqrt(exact / count) - apart / share
    return apart <= max(TOLERANCES[w.dtype][1] * min(1.0, exact), torch.finfo(w.dtype).eps * share * exact)


@dataclass(slots=True)
class _Errors:
    """What the criterion asks of the elements that are judged: sums of squares, in float64."""

    count: int = 0
    got: float = 0.0  # the result's differences from the exact values
    due: float = 0.0  # the reference's
    exact: float = 0.0
    largest: float = 0.0

    def add(self, g: torch.Tensor, w: torch.Tensor, truth: torch.Tensor) -> None:
        # What both have exactly, as rows of a cache that a step leaves alone, must not dilute the error of the rest.
        judged = w.isfinite() & truth.isfinite() & ((w != truth) | (g != truth))
        if not judged.all():
            g, w, truth = g[judged], w[judged], truth[judged]
        if truth.numel():
            self.count += truth.numel()
            self.got, self.due = self.got + _square(g - truth), self.due + _square(w - truth)
            self.exact, self.largest = self.exact + _square(truth), max(self.largest, float(truth.abs().max()))

    def rms(self, squares: float) -> float:
        return math.sqrt(squares / self.count)


def _square(off: torch.Tensor) -> float:
    return float(off.abs().square_().sum())


def _against(g: torch.Tensor, w: torch.Tensor, exact: Any, difference: float) -> str:
    if exact is None:
        return f"off by {difference:.3g}, and there is no float64 result to judge by"
    wide, errors = torch.complex128 if w.is_complex() else torch.float64, _Errors()
    whole = [(g, w, exact)] if not isinstance(exact, Parts) else ((g[..., p], w[..., p], v) for p, v in exact.read())
    for part in whole:
        for block in _blocks(*map(torch.as_tensor, part)):
            errors.add(*(v.to(wide) for v in block))
    if not errors.count:
        return ""
    got, due = errors.rms(errors.got), errors.rms(errors.due)
    factor = RMSE_FACTOR if errors.count >= FEW else RMSE_FACTOR_OF_FEW
    # Where the reference happens to be exact, rounding once must still be allowed.
    once = torch.finfo(w.dtype).eps * errors.rms(errors.exact)
    if got <= factor * due + max(once, TOLERANCES[w.dtype][1] * min(1.0, errors.largest)):
        return ""
    return f"off by {difference:.3g}; RMSE to float64 {got:.3g} where the original has {due:.3g}"


def difference(got: Sequence[Any], want: Sequence[Any], oracle: Oracle | None = None) -> str | None:
    """Why the results do not agree, or None."""
    return compare(got, want, oracle).reason or None
