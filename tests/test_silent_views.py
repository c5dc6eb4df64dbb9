"""Calls that give their operand, or a view of it, without saying so: what is written into either is seen by both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph
from forge_eq.errors import CaptureError

# Each gives a vector of three: the operand itself, a view of it, or a copy.
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "nothing to drop": lambda x: F.dropout(x, 0.0, True),
    "two dropouts": lambda x: F.dropout(F.dropout(x, 0.1, False), 0.3, False),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.5, False),
    "dropout1d": lambda x: F.dropout1d(x[None], 0.5, False)[0],
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32),
    "float": lambda x: x.float(),
    "type_as": lambda x: x.type_as(x),
    "detach": lambda x: x.detach(),
    "reshape": lambda x: x.reshape(x.shape),
    "flatten": lambda x: x.flatten(),
    "expand_as": lambda x: x.expand_as(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0],
    "atleast_1d": lambda x: torch.atleast_1d(x),
    "cartesian_prod": lambda x: torch.cartesian_prod(x),
    "sum_to_size": lambda x: x.sum_to_size(3),
    "chunk": lambda x: x.chunk(1)[0],
    "identity": nn.Identity(),
    "no padding": lambda x: F.pad(x, (0, 0)),
    "roll by none": lambda x: x.roll(0),
    "one tile": lambda x: x.tile(1),
    "same size": lambda x: F.interpolate(x[None, None], 3)[0, 0],
}
REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "einsum of one": lambda x: torch.einsum("i->i", x),
    "einsum as transposition": lambda x: torch.einsum("ij->ji", x[None])[:, 0],
    "meshgrid": lambda x: torch.meshgrid(x, x, indexing="ij")[0][:, 0],
}


class WritesTheArgument(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        y = self.call(x)
        x.neg_()
        return y * 1.5


class WritesTheResult(WritesTheArgument):
    def forward(self, x: Tensor) -> Tensor:
        a = x + 0.5
        self.call(a).add_(1)
        return a * 1.5


class WritesABuffer(WritesTheArgument):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__(call)
        self.register_buffer("held", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.call(self.held)
        self.held.mul_(3)
        return y * x


class GivesTheResult(WritesTheArgument):
    def forward(self, x: Tensor) -> Tensor:
        y = self.call(x)
        x.neg_()
        return y


KINDS = (WritesTheArgument, WritesTheResult, WritesABuffer, GivesTheResult)


def given() -> Tensor:
    return torch.tensor([1.0, 2.0, 3.0])


def captured(kind: Any, call: Callable[[Tensor], Tensor]) -> Any:
    return capture(kind(call).eval(), (given(),))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_a_write_is_seen_through_the_result(name: str, kind: Any) -> None:
    want = kind(CALLS[name]).eval()(given())
    assert torch.equal(run_graph(captured(kind, CALLS[name]), [given()])[0], want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_would_lose_is_refused(name: str, kind: Any) -> None:
    with pytest.raises(CaptureError, match="without saying so"):
        captured(kind, REFUSED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_without_a_write_nothing_is_refused(name: str) -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return REFUSED[name](x) * 1.5

    assert torch.equal(run_graph(capture(Reads(), (given(),)), [given()])[0], Reads()(given()))
