"""Decode steps of transformers over a growing cache, as people export them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from forge_eq import families


class GrowingStep(nn.Module):
    """One token over a DynamicCache filled from the arguments; gives the logits and the grown cache, flat."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, *state: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers import DynamicCache

        cache, left = DynamicCache(config=self.model.config), list(state)
        for index, layer in enumerate(cache.layers):
            if hasattr(layer, "conv_states"):
                cache.update_conv_state(left.pop(0), index)
            else:
                cache.update(left.pop(0), left.pop(0), index)
        logits = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return logits, *state_of(cache)


def state_of(cache: Any) -> list[torch.Tensor]:
    """Keys and values of each layer, or the inputs that a short convolution keeps."""
    found: list[torch.Tensor] = []
    for layer in cache.layers:
        found += [layer.conv_states[0]] if hasattr(layer, "conv_states") else [layer.keys, layer.values]
    return found


def growing_step(family: str, past: int, attention: str = "sdpa") -> tuple[GrowingStep, tuple[torch.Tensor, ...]]:
    """A small model of the family with ``past`` tokens in its cache, and the arguments of the next step."""
    model = families.build(family, past + 1, attention, tiny=True)
    (tokens,) = model.args
    inner = model.module.model
    with torch.no_grad():
        cache = inner(input_ids=tokens[:, :past], use_cache=True).past_key_values
    return GrowingStep(inner).eval(), (tokens[:, past:], *(t.clone() for t in state_of(cache)))
