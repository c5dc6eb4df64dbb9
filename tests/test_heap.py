"""What a compilation does to the process's heaps is undone when it ends."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.errors import ForgeError
from forge_eq.run.heap import older_left_alone


def test_what_was_there_is_left_alone_until_the_end() -> None:
    assert gc.get_freeze_count() == 0
    with older_left_alone():
        assert gc.get_freeze_count() > 0
        with older_left_alone():  # a compilation in a compilation
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() > 0, "the outer one ends it"
    assert gc.get_freeze_count() == 0


def test_what_a_caller_froze_stays_frozen() -> None:
    gc.freeze()
    try:
        with older_left_alone():
            pass
        assert gc.get_freeze_count() > 0  # not the same number: what is frozen may still die
    finally:
        gc.unfreeze()


def test_the_collector_is_as_it_was_after_a_failure() -> None:
    class Refused(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ForgeError):
        forge_eq.optimize(Refused(), (torch.ones(2),))
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()
