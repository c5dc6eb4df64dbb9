"""The loop that runs the stages."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from forge_eq.errors import ForgeError
from forge_eq.options import Options
from forge_eq.pipeline import STAGES, Job, run


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Whatever a test does, the next one finds the collector on."""
    yield
    gc.enable()


def job(**options: object) -> Job:
    return Job(Options(**options), (nn.Linear(2, 2), (torch.ones(1, 2),), None, None))


def test_the_collector_is_off_after_capture_and_on_again_at_the_end() -> None:
    seen: dict[str, bool] = {}
    run(job(), on_stage=lambda name: seen.__setitem__(name, gc.isenabled()))
    # A stage is announced before it holds the collector, so the first own stage still finds it on.
    assert list(seen.values()) == [True, True, *([False] * (len(STAGES) - 2))]
    assert gc.isenabled()


def test_the_collector_is_on_again_after_a_refusal() -> None:
    with pytest.raises(ForgeError):
        run(job(target="toaster"))
    assert gc.isenabled()


def test_a_collector_that_the_user_switched_off_stays_off() -> None:
    gc.disable()
    run(job())
    assert not gc.isenabled()
