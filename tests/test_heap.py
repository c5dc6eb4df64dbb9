"""What a compilation does to the process's heaps is undone when it ends."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.errors import ForgeError
from forge_eq.run.heap import collector_held, older_left_alone


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


def test_a_pass_that_was_due_does_not_fall_behind_the_block() -> None:
    """A full pass over what the process had before."""
    full: list[dict[str, int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            full.append(info)

    def passes(block: Any) -> int:
        """Full passes behind the block, one being due before it."""
        gc.disable()
        old = [[] for _ in range(len(gc.get_objects()))]  # more than a quarter of what the oldest generation has
        for _ in range(gc.get_threshold()[2] + 2):
            gc.collect(1)
        gc.enable()
        full.clear()
        with block():
            within = [[] for _ in range(50_000)]
        after = [[] for _ in range(2_000)]
        assert len(within) + len(after) == 52_000 < len(old)
        return len(full)

    gc.callbacks.append(note)
    try:
        assert passes(nullcontext) == 1
        assert passes(collector_held) == 0
    finally:
        gc.callbacks.remove(note)
