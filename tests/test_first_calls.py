"""The first call of a function of torch gives what the second does, also where two threads share it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import forge_eq.capture.first_calls as first_calls
from forge_eq.ops.spec import REGISTRY

FIRST = """
import sys
import torch
torch.set_num_threads(2)
if sys.argv[1] == "settled":
    import forge_eq.capture.execute
angles = (torch.arange(128.0)[:, None] * torch.logspace(0, -5, 32)[None]).repeat(1, 1, 2)
print(int((angles.cos() != angles.cos()).sum()))
"""


def test_every_function_is_called() -> None:
    first_calls.settle_kernels()
    for name in (*first_calls.REAL, *first_calls.EITHER):
        assert isinstance(getattr(torch, name)(torch.ones(1)), torch.Tensor)


def test_every_function_of_one_operand_is_settled_or_computed_otherwise() -> None:
    otherwise = {"neg", "relu", "sigmoid", "silu", "gelu", "gelu_tanh", "reciprocal", "square", "logical_not", "sign"}
    copied = {"alias", "clone", "contiguous", "device_move"}
    known = {*first_calls.REAL, *first_calls.EITHER, *otherwise, *copied}
    unary = [o for o in REGISTRY.values() if o.traits.elementwise and len(o.inputs) == 1 and not o.attrs]
    assert len(unary) > 10
    assert {o.name for o in unary} <= known


@pytest.mark.slow
def test_a_fresh_process_computes_alike_at_once() -> None:
    """Without the calls ahead, one process of five here has 4,096 of 8,192 cosines wrong (on a quiet machine)."""
    for _ in range(12):
        done = subprocess.run([sys.executable, "-c", FIRST, "settled"], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "0"
