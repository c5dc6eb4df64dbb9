"""A generator of spellings: how a composite may be written; nothing here knows how the compiler recognises any.

``spell(composite, seed)`` gives one spelling: its choices along named axes are drawn from the seed, each by itself.
``spell(composite, seed, twin=...)`` gives a near miss: the same, with one mistake or variant that is another
function. ``Batch`` puts several into one module, each with tensors of its own, so that one export serves them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Choices:
    """The choices of one spelling: ``p("axis", *options)`` chooses, the same on every call; ``p.of("axis")`` tells."""

    def __init__(self, composite: str, seed: int, twin: str = "") -> None:
        self.key, self.wrong = f"{composite}/{seed}", twin
        self.made: dict[str, Any] = {}  # axis -> the option, or its number where the option is a value

    def __call__(self, axis: str, *options: Any) -> Any:
        index = random.Random(f"{self.key}/{axis}").randrange(len(options))
        plain = isinstance(options[index], str | int | float | tuple | torch.dtype | None)
        self.made[axis] = options[index] if plain else index
        return options[index]

    def of(self, axis: str) -> Any:
        """What was chosen before; None where nothing was."""
        return self.made.get(axis)

    def twin(self, name: str) -> bool:
        return self.wrong == name

    def times(self, axis: str, a: Any, b: Any) -> Any:
        """A product in either order."""
        return a * b if self(axis, "ab", "ba") == "ab" else b * a

    def plus(self, axis: str, a: Any, b: Any) -> Any:
        return a + b if self(axis, "ab", "ba") == "ab" else b + a


@dataclass
class Composite:
    """``write(p, *inputs, *weights)`` computes it; ``shapes(p)`` gives the shapes of inputs and of weights."""

    write: Callable[..., Tensor]
    shapes: Callable[[Choices], tuple[list[Any], list[Any]]]
    twins: tuple[str, ...] = ()


COMPOSITES: dict[str, Composite] = {}


def composite(shapes: Any, *twins: str) -> Callable[[Any], Any]:
    def enter(write: Any) -> Any:
        COMPOSITES[write.__name__] = Composite(write, shapes, twins)
        return write

    return enter


# ---------------------------------------------------------------------------------------------- many at once


@dataclass
class Spelling:
    """One spelling: its choices, operands, and the function of them."""

    composite: str
    seed: int
    choices: Choices
    inputs: list[Tensor]
    weights: list[Tensor]

    def __call__(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
        return COMPOSITES[self.composite].write(self.choices, *inputs, *weights)

    def __str__(self) -> str:
        made = ", ".join(f"{k}={v}" for k, v in self.choices.made.items())
        return f"{self.composite} {self.seed} {self.choices.wrong or 'true'}: {made}"


def _operand(shape: Any, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """A shape gives numbers; ("mask", *shape) bools, with a key left for every query."""
    if shape[0] == "mask":
        mask = torch.rand(shape[1:], generator=generator) < 0.6
        mask[..., 0] = True
        return mask
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def spell(name: str, seed: int, twin: str = "") -> Spelling:
    """One spelling; ``twin`` names the near miss, one of ``COMPOSITES[name].twins``."""
    p = Choices(name, seed, twin)
    dtype = p("dtype", torch.float32, torch.float32, torch.float32, torch.float64)
    generator = torch.Generator().manual_seed(seed)
    inputs, weights = COMPOSITES[name].shapes(p)
    made = [[_operand(s, dtype, generator) for s in group] for group in (inputs, weights)]
    return Spelling(name, seed, p, *made)


class Batch(nn.Module):
    """Several spellings side by side: result k is spelling k on its own inputs and weights."""

    def __init__(self, spellings: Sequence[Spelling]) -> None:
        super().__init__()
        self.spellings = list(spellings)
        for i, one in enumerate(self.spellings):
            for j, w in enumerate(one.weights):
                self.register_buffer(f"w{i}_{j}", w)

    @property
    def args(self) -> tuple[Tensor, ...]:
        return tuple(t for one in self.spellings for t in one.inputs)

    def forward(self, *args: Tensor) -> tuple[Tensor, ...]:
        left, results = list(args), []
        for i, one in enumerate(self.spellings):
            inputs = [left.pop(0) for _ in one.inputs]
            results.append(one(inputs, [getattr(self, f"w{i}_{j}") for j in range(len(one.weights))]))
        return tuple(results)
