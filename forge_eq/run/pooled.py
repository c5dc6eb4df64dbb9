"""A second look at a difference: the same criterion over several inputs at once.

Takes the inputs on which two programs differ, and both programs. Gives the verdict over these inputs and others made of
the same elements in another order. Promises: nothing but the number of samples differs from the first look. It is for
outputs of few elements, such as one token's logits, where the ratio of two root-mean-square errors of one sample often
passes the limit by chance: a program that is really worse is so on average too. See docs/decisions/0005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from forge_eq.verify.criterion import Verdict, compare

Run = Callable[[list[Any]], Sequence[Any]]
Wide = Callable[[Sequence[Any]], Sequence[Any] | None]  # the outputs in float64, or None
MORE = 5  # further inputs
FEW = 1 << 18  # elements of an output; of more, one sample says enough


def look_again(first: Verdict, inputs: Sequence[Any], run: Run, reference: Run, wide: Wide) -> Verdict:
    """The verdict over more inputs; ``first`` where there is nothing more to learn."""
    got, want, exact = list[Any](), list[Any](), list[Any]()
    for given in _arrangements(inputs):
        try:
            outputs, truth = [_own(v) for v in reference([_own(v) for v in given])], wide(given)
            found = [_own(v) for v in run([_own(v) for v in given])]
        except Exception:  # whatever a user's program raises on inputs that we made up
            if not got:
                return first
            continue
        if truth is None or not all(isinstance(v, torch.Tensor) for v in outputs):
            return first
        if any(v.numel() > FEW for v in _changed(outputs, given)):
            return first
        got.append(found)
        want.append(outputs)
        exact.append([torch.as_tensor(v) for v in truth])
    return compare(_stacked(got), _stacked(want), lambda: _stacked(exact))


def _changed(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The outputs that are no new state of an input: those are large, and mostly as they were."""
    shapes = [v.shape for v in inputs if isinstance(v, torch.Tensor)]
    return [v for v in outputs if v.shape not in shapes]


def _stacked(samples: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(list(values)) for values in zip(*samples, strict=True)]


def _arrangements(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    yield list(inputs)
    generator = torch.Generator().manual_seed(0)
    for _ in range(MORE):
        yield [_shuffled(v, generator) for v in inputs]


def _shuffled(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    order = torch.randperm(value.numel(), generator=generator)
    return value.reshape(-1)[order].reshape(value.shape)


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
