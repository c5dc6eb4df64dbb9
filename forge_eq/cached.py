"""A language model of transformers as one step over a cache of fixed size.

Takes a causal model. Gives :class:`CachedLogits`, a module that torch.export takes, with its example inputs. Promises:
the cache is among the arguments and is written in place; how much of it is in use is a number known at the call, so one
program serves every step; rows that are not in use are never attended to.
Not here: which tokens to pass and to pick (``generation``).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from forge_eq.errors import InputError
from forge_eq.models import Logits, Model, random_tokens, require

_ATTENTIVE = frozenset({"full_attention", "sliding_attention"})  # kinds of layers whose memory is keys and values


class CachedLogits(torch.nn.Module):
    """Logits of one position, given a cache of keys and values.

    ``forward(tokens: int64[1, n], past: int64[], row: int64[1], *cache) -> float[1, 1, vocabulary]`` are the logits
    after token ``row`` of the ``n`` that follow the ``past`` rows in use. ``cache`` has keys and values of each layer
    in turn, ``float[1, heads, rows, size]``; rows ``past`` to ``past + n`` of them are written.
    """

    def __init__(self, model: torch.nn.Module, rows: int) -> None:
        super().__init__()
        self.model, self.rows = model, rows
        self.heads, self.size, self.layers = _geometry(model)

    def forward(
        self, tokens: torch.Tensor, past: torch.Tensor, row: torch.Tensor, *cache: torch.Tensor
    ) -> torch.Tensor:
        from transformers.cache_utils import Cache, StaticLayer

        layers: list[Any] = []
        for keys, values in zip(cache[::2], cache[1::2], strict=True):
            # A layer with a window gets all rows as well: its mask knows the window.
            layer = StaticLayer(max_cache_len=self.rows)
            layer.keys, layer.values, layer.device, layer.is_initialized = keys, values, keys.device, True
            layer.cumulative_length = past.clone()  # the layer counts on, in place
            layers.append(layer)
        made = self.model(input_ids=tokens, past_key_values=Cache(layers=layers), use_cache=True, logits_to_keep=row)
        logits: torch.Tensor = made.logits
        return logits

    def empty(self) -> list[torch.Tensor]:
        """A cache with no row in use."""
        heads = self.heads if isinstance(self.heads, list) else [self.heads] * self.layers
        sizes = self.size if isinstance(self.size, list) else [self.size] * self.layers
        weight = next(self.model.parameters())
        shapes = [(1, h, self.rows, s) for h, s in zip(heads, sizes, strict=True) for _ in range(2)]
        return [torch.zeros(shape, dtype=weight.dtype) for shape in shapes]

    def example(self, tokens: int) -> tuple[torch.Tensor, ...]:
        """Inputs to capture and to compare on: a cache half in use whose other rows are not zero, as after a rewind."""
        generator = torch.Generator().manual_seed(0)
        past = torch.tensor(min(self.rows // 2, self.rows - tokens))
        cache = [torch.randn(c.shape, generator=generator, dtype=c.dtype) for c in self.empty()]
        ids = random_tokens(tokens, self.model.get_input_embeddings().num_embeddings)  # type: ignore[operator]
        return ids, past, torch.tensor([tokens - 1]), *cache


def _geometry(model: Any) -> tuple[int | list[int], int | list[int], int]:
    """(key heads, head size, layers), numbers or one for each layer. Raises InputError for a model without a cache."""
    transformers = require("transformers")
    name = type(model).__name__
    if not isinstance(model, transformers.PreTrainedModel) or not model.can_generate():
        raise InputError(
            "generate", name, "is not a causal language model of transformers", "pass an AutoModelForCausalLM"
        )
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ()) - _ATTENTIVE
    if kinds:
        what = f"has layers of kind {', '.join(sorted(kinds))}, whose memory is not keys and values"
        raise InputError("generate", name, what, "run it without a cache, through compile")
    heads, size = importlib.import_module("transformers.integrations.executorch").get_head_shapes(config)
    return heads, size, config.num_hidden_layers


def causal(model: Model) -> Any:
    """The language model itself. Raises InputError for a model that is none."""
    found = model.module.model if isinstance(model.module, Logits) else model.module
    if not hasattr(found, "generate"):
        remedy = "name one that gives logits for the next token"
        raise InputError("generate", model.name, "is not a causal language model of transformers", remedy)
    return found
