"""The inputs on which two programs are compared.

Takes example inputs. Gives them and variations of them of the same types. Not here: when two results agree
(``verify.criterion``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch


def probes(examples: Sequence[Any], seed: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """(name, inputs) to compare on, derived from example inputs.

    Floats: standard normal, zeros, and normal of scale 16. Integers stay within the examples' range, where they are
    sure to be indices, positions or masks of the right kind. Host numbers stay as they are.
    """
    yield "the example", list(examples)
    generator = torch.Generator().manual_seed(seed)
    for name, scale in (("random", 1.0), ("zeros", 0.0), ("large", 16.0)):
        yield name, [_like(v, scale, generator) for v in examples]


def quick(examples: Sequence[Any], seed: int = 0) -> Iterator[tuple[str, list[Any]]]:
    """The example, and a random variation where that is another kind of input.

    A variation of integers and booleans stays within their range, so that of an example such as the tokens of a text,
    of more than one value each, it would be one more of the same kind.
    """
    return islice(probes(examples, seed), 1 if all(_varies(v) for v in examples) else 2)


def _varies(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.numel() == 0 or value.is_complex():
        return True  # no variation changes it
    return not value.is_floating_point() and bool(value.min() != value.max())


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
