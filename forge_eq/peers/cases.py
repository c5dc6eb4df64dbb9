"""What is compared: models at token counts, and one decode step over a past, written to files that workers map.

Takes a model's name and a case. Gives a file with the module and its inputs, and one with eager's answer. Promises:
every worker gets the same weights, shared between processes by the page cache; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forge_eq import families, models
from forge_eq.errors import InputError

PAST = 128  # positions in the cache of a decode step
DECODE = "decode"
CASES = (DECODE, "1", "16", "64", "128", "512")


@dataclass(frozen=True)
class Cell:
    """One model at one case: ``decode``, or a number of tokens. ``layers`` truncates, 0 does not."""

    model: str
    case: str
    layers: int = 0

    @property
    def name(self) -> str:
        cut = f" ({self.layers} layers)" if self.layers else ""
        return f"{self.model}{cut}, {f'one token, {PAST} past' if self.case == DECODE else f'{self.case} tokens'}"

    @property
    def key(self) -> str:
        """A name for files."""
        return f"{self.model}-{self.layers or 'all'}-{self.case}".replace("/", "_")


def cell(text: str, case: str) -> Cell:
    """``MODEL``, ``FAMILY:LAYERS`` or ``FAMILY-tiny`` at a case. Raises InputError for another form."""
    model, colon, layers = text.partition(":")
    family = families.is_spec(model)
    if not family and model not in models.BUILT_IN:
        known = ", ".join([*families.FAMILIES, *models.BUILT_IN])
        raise InputError("bench", model, "is no model", f"use one of {known}, with :LAYERS to truncate a family")
    if (colon and not layers.isdigit()) or (layers and not family):
        raise InputError("bench", text, "is not of the form FAMILY:LAYERS", "for example llama-3.2-1b:4")
    if case != DECODE and not (case.isdigit() and int(case) > 0):
        raise InputError("bench", case, "is no case", f"use {DECODE} or a number of tokens")
    return Cell(model, case, int(layers or 0))


class DecodeStep(torch.nn.Module):
    """One step of a causal model whose cache is handed in.

    ``(int64[1, 1], keys and values of each layer: float[1, heads, past, width]) -> (logits[1, 1, vocabulary], the new
    row of each)``. The cache is filled before the model sees it, so that no backend meets a cat with an empty tensor,
    and only the new rows come out, so that no backend has to return the whole cache.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        from transformers.cache_utils import DynamicCache, DynamicLayer

        made: Any = DynamicLayer  # untyped
        cache: Any = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer = made()
            layer.dtype, layer.device = keys.dtype, keys.device
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            cache.layers.append(layer)
        logits = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True).logits
        rows = [t[:, :, -1:] for layer in cache.layers for t in (layer.keys, layer.values)]
        return (logits, *rows)


def build(cell: Cell) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """The module in evaluation mode and its example inputs, float32. Raises InputError for a case that it lacks."""
    tokens = 1 if cell.case == DECODE else int(cell.case)
    if families.is_spec(cell.model):
        made = families.load(f"{cell.model}:{cell.layers}" if cell.layers else cell.model, tokens)
    else:
        made = models.load(cell.model, tokens)
    if cell.case != DECODE:
        return made.module, tuple(made.args)
    inner: Any = getattr(made.module, "model", None)
    config: Any = getattr(inner, "config", None)
    if inner is None or not getattr(config, "use_cache", False) or not hasattr(inner, "lm_head"):
        raise InputError("bench", cell.name, "the model keeps no cache of keys and values", "ask for token counts only")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    noise = torch.Generator().manual_seed(1)
    shape = (1, heads, PAST, width)
    past = [torch.randn(shape, generator=noise) for _ in range(2 * config.num_hidden_layers)]
    return DecodeStep(inner).eval(), (made.args[0][:, :1], *past)


def prepare(cell: Cell, path: Path) -> dict[str, Any]:
    """Writes the module with its inputs to ``path``, eager's flat answer beside it; gives the weights' bytes."""
    module, args = build(cell)
    with torch.no_grad():
        answer = flat(module(*args))
    torch.save({"module": module, "args": args}, path)
    torch.save(answer, answer_path(path))
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in module.state_dict().values()}
    return {"weights": sum(held.values()), "inputs": sum(a.nbytes for a in args)}


def read(path: Path) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """What :func:`prepare` wrote, its weights mapped from the file. Our own file: it holds pickled classes."""
    found = torch.load(path, mmap=True, weights_only=False)
    return found["module"], found["args"]


def answer_path(path: Path) -> Path:
    return path.with_suffix(".answer.pt")


def flat(outputs: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, Sequence):
        return [t for o in outputs for t in flat(o)]
    raise InputError("bench", type(outputs).__name__, "is not a tensor or a tuple of tensors", "wrap the module")
