"""A second look at a difference: the same criterion over several inputs at once.

Takes the inputs on which two programs differ, and both programs. Gives the verdict over these inputs and others made of
the same elements in another order. Promises: the criterion is as it was, only over more samples; so a program that is
worse on all of them is found, and on one of them alone by at most the root of their number times the limit; one that
fails, or puts NaN elsewhere, on any of them is found. It is for outputs of few elements, such as one token's logits:
these share the error of one vector, so that the ratio of two errors is one sample and passes 2 by chance.
See docs/decisions/0005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from forge_eq.run.values import copied
from forge_eq.verify.criterion import Parts, Verdict, compare

Run = Callable[[list[Any]], Sequence[Any]]
Wide = Callable[[Sequence[Any]], Sequence[Any] | None]  # the outputs in float64, or None
MORE = 5  # further inputs
MANY = 1 << 18  # elements of an output; of more, one sample says enough


def look_again(first: Verdict, inputs: Sequence[Any], run: Run, reference: Run, wide: Wide) -> Verdict:
    """The verdict over more inputs; ``first`` where there is nothing more to learn."""
    got, want, exact = list[Any](), list[Any](), list[Any]()
    for given in _arrangements(inputs):
        try:
            outputs, truth = [copied(v) for v in reference([copied(v) for v in given])], wide(given)
        except Exception:  # whatever a user's program raises on inputs that we made up
            continue
        try:
            found = [copied(v) for v in run([copied(v) for v in given])]
        except Exception as e:
            return Verdict(f"fails on inputs of the same elements in another order: {e}", math.inf)
        if truth is None or not _alike(found, outputs, *want[:1]):
            return first
        if any(v.numel() > MANY for v in _changed(outputs, given)):
            return first
        got.append(found)
        want.append(outputs)
        exact.append([v.whole() if isinstance(v, Parts) else torch.as_tensor(v) for v in truth])
    return compare(_stacked(got), _stacked(want), lambda: _stacked(exact)) if got else first


def _changed(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The outputs that are no new state of an input: those are large, and mostly as they were."""
    shapes = [v.shape for v in inputs if isinstance(v, torch.Tensor)]
    return [v for v in outputs if v.shape not in shapes]


def _alike(*samples: Sequence[Any]) -> bool:
    """Whether these are tensors of the same shapes."""
    shapes = [[v.shape if isinstance(v, torch.Tensor) else None for v in outputs] for outputs in samples]
    return None not in shapes[0] and all(found == shapes[0] for found in shapes)


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
