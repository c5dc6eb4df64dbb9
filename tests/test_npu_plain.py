"""The changes that are asked where the plain conversion is refused: the same function, really spelled otherwise."""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from forge_eq.families import build
from forge_eq.models import Model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from npu_plain import MASK, ROTATED, ROUNDS, SPELLED, beside, changed, nearest

TINY = partial(build, "qwen2-0.5b", 8, tiny=True)


def ops(model: Model) -> list[str]:
    """The ops of the exported program, in order."""
    exported = torch.export.export(model.module, model.args, strict=False)
    return [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("change", [name for names in ROUNDS for name in names])
def test_a_change_is_the_same_function_in_another_spelling(change: str) -> None:
    plain, other = TINY(), changed(TINY, change)
    with torch.no_grad():
        torch.testing.assert_close(other.module(*other.args), plain.module(*plain.args), rtol=1e-4, atol=1e-4)
    before, after = ops(plain), ops(other)
    fused = "aten.scaled_dot_product_attention.default"
    assert (fused in after) == (SPELLED not in change)
    moved = [made.count("aten.transpose.int") for made in (before, after)]
    assert (moved[1] - moved[0] >= 4 * plain.module.model.config.num_hidden_layers) == (ROTATED in change)
    assert ("mask" in dict(other.module.named_buffers()) or ROTATED in change) or MASK not in change


def test_rotating_first_leaves_the_library_as_it_was() -> None:
    from transformers.models.qwen2 import modeling_qwen2

    rotate = modeling_qwen2.apply_rotary_pos_emb
    other = changed(TINY, f"{MASK}, {ROTATED}")
    other.module(*other.args)
    assert modeling_qwen2.apply_rotary_pos_emb is rotate


def test_the_fastest_accepted_change_of_the_first_round_that_has_one() -> None:
    times = iter([None, None, 12.0, 11.0])

    def ask(_: Model) -> dict[str, Any]:
        us = next(times)
        return {"refused": "no"} if us is None else {"total": us}

    found = nearest(TINY, ask)
    assert (found["total"], found["form"]) == (11.0, f"{SPELLED}, {ROTATED}")
    times = iter([9.0, None])
    assert nearest(TINY, ask)["forms"] == {MASK: 9.0, SPELLED: math.inf}
    refused = nearest(TINY, lambda _: {"refused": "no"})
    assert refused["refused"] == "no"
    row = {"plain": {"refused": "no"}, "plain, changed": refused}
    assert beside(row, "plain") == "plain"
    assert beside({**row, "plain, changed": {"total": 1.0}}, "plain") == "plain, changed"
    assert beside({"plain": {"total": 1.0}}, "plain") == "plain"
