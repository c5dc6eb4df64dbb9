"""What every test shares: no network, one torch thread, repeatable property tests, and the way to golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before any import of transformers
os.environ["FORGE_EQ_CACHE"] = "0"  # no test depends on what another one or the user compiled
os.environ["FORGE_EQ_CALIBRATION"] = "off"  # results must not depend on what was measured on this machine

import hypothesis
import pytest
import torch

from shared import SHARED

torch.set_num_threads(1)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden files with what the code gives now")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--bless") and os.environ.get("CI"):
        raise pytest.UsageError("--bless is for people, who read the difference; CI only compares")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SHARED.is_dir():
        return
    missing = pytest.mark.skip(reason=f"no data at {SHARED}; set FORGE_EQ_SHARED")
    for item in items:
        if item.get_closest_marker("shared"):
            item.add_marker(missing)


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten in place of compared."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def shared() -> Path:
    """The data beside the checkout; skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip(f"no data at {SHARED}; set FORGE_EQ_SHARED")
    return SHARED


@pytest.fixture(scope="session")
def npu() -> Iterator[Any]:
    """Intel's NPU compiler, running; skips with the reason where it is not set up."""
    from forge_eq.errors import NpuError
    from forge_eq.npu.compiler import Compiler, provider

    try:
        source = provider()
    except NpuError as e:
        pytest.skip(f"{e.reason}; {e.remedy}")
    with Compiler(source) as compiler:
        yield compiler
