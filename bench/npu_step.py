"""One decode step of a family with a cache of fixed size, as the NPU measurements need it.

Takes a causal model of transformers. Gives a module and its example inputs. Promises: one token, ``past`` rows of the
cache in use, the cache among the arguments and written in place; layers of short convolutions (LFM2) have their last
inputs in it. Unlike ``forge_eq.cached`` it takes no runs of tokens, so that such layers can be among them.
"""

from __future__ import annotations

from typing import Any

import torch

from forge_eq.models import random_tokens

ROWS, PAST = 256, 128


class Step(torch.nn.Module):
    """``forward(token: int64[1, 1], past: int64[], *state) -> float[1, 1, vocabulary]``.

    ``state`` has keys and values ``float[1, heads, rows, size]`` of an attention layer, the last inputs
    ``float[1, width, kernel]`` of a convolution. ``returned``: the state is returned beside the logits, as a conversion
    needs it that knows no writes into arguments.
    """

    def __init__(self, model: Any, rows: int = ROWS, returned: bool = False) -> None:
        super().__init__()
        self.model, self.rows, self.returned = model, rows, returned
        config = model.config
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        self.kinds = tuple("conv" if kind == "conv" else "attention" for kind in kinds)

    def forward(self, token: torch.Tensor, past: torch.Tensor, *state: torch.Tensor) -> Any:
        from transformers.cache_utils import Cache, LinearAttentionLayer, StaticLayer

        layers: list[Any] = []
        left = list(state)
        for kind in self.kinds:
            if kind == "conv":
                layer: Any = LinearAttentionLayer()
                layer.conv_states[0], layer.is_conv_states_initialized[0] = left.pop(0), True
                layer.has_previous_state[0] = True
            else:
                layer = StaticLayer(max_cache_len=self.rows)
                layer.keys, layer.values = left.pop(0), left.pop(0)
                layer.device, layer.is_initialized = layer.keys.device, True
                layer.cumulative_length = past.clone()  # the layer counts on, in place
            layers.append(layer)
        positions = past.reshape(1, 1)
        made = self.model(token, position_ids=positions, past_key_values=Cache(layers=layers), use_cache=True)
        return (made.logits, *state) if self.returned else made.logits

    def example(self) -> tuple[torch.Tensor, ...]:
        """A token, the rows in use, and a state that is nowhere zero."""
        config, state = self.model.config, list[torch.Tensor]()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        generator = torch.Generator().manual_seed(0)
        for kind in self.kinds:
            attention = [(1, heads, self.rows, size)] * 2
            shapes = [(1, config.hidden_size, config.conv_L_cache)] if kind == "conv" else attention
            state += [torch.randn(shape, generator=generator) for shape in shapes]
        return random_tokens(1, config.vocab_size), torch.tensor(min(PAST, self.rows - 1)), *state
