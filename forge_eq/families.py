"""The model families that the compiler is measured on, by name: the paper's six and a breadth beside them.

Takes a family's name. Gives a :class:`~forge_eq.models.Model` with random weights, or none on the meta device, whose
sizes are written out here; nothing is downloaded. Promises: ``tiny`` keeps an architecture's every feature and is
small; a model of fewer layers says so in its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from forge_eq.errors import InputError
from forge_eq.models import Logits, Model, random_tokens, require, seeded
from forge_eq.resnet import ResNet


@dataclass(frozen=True)
class Family:
    """An architecture and the sizes of one published model.

    ``config`` and ``tiny`` are arguments of the transformers class ``kind + "Config"``; ``tiny`` overrides some.
    ``paper`` is the model's row in the tables of the Forge-UGC paper, or empty; ``depth`` is the field with the layers.
    """

    kind: str  # prefix of the transformers classes; "ResNet" is our own
    head: str  # suffix of the model class
    config: Mapping[str, Any]
    tiny: Mapping[str, Any]
    inputs: Callable[[Mapping[str, Any], int], torch.Tensor]  # (config, tokens) -> example input
    wrap: Callable[[torch.nn.Module], torch.nn.Module]
    paper: str = ""
    depth: str = "num_hidden_layers"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model class


class Hidden(torch.nn.Module):
    """The last hidden state of an encoder: ``float[batch, positions, width]``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(x).last_hidden_state
        return hidden


def _tokens(config: Mapping[str, Any], tokens: int) -> torch.Tensor:
    return random_tokens(tokens, config.get("vocab_size", 50257))


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator(device="cpu").manual_seed(0), device="cpu")


def _pixels(config: Mapping[str, Any], tokens: int) -> torch.Tensor:
    size = config["image_size"]
    return _noise(1, 3, size, size)


def _sound(config: Mapping[str, Any], tokens: int) -> torch.Tensor:
    """Log-mel frames: the encoder takes just as many as it has positions for, two each."""
    return _noise(1, config["num_mel_bins"], 2 * config["max_source_positions"])


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def _lfm2_layers(count: int, attention: tuple[int, ...]) -> list[str]:
    return ["full_attention" if i in attention else "conv" for i in range(count)]


_NO_TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)  # special ones within any vocabulary
_TINY = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_TINY_HEADS = {**_TINY, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}

# fmt: off
FAMILIES: dict[str, Family] = {
    "gpt2-124m": Family(
        "GPT2",
        "LMHeadModel",
        {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12},
        {"vocab_size": 97, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, **_NO_TOKENS},
        _tokens,
        Logits,
        "GPT-2 (125M)",
        "n_layer",
    ),
    # Granite 4.0 350M: dense, with the multipliers of the Granite family. The paper's table says 24 layers.
    "granite-350m": Family(
        "Granite",
        "ForCausalLM",
        {"vocab_size": 100352, "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
         "tie_word_embeddings": True, "rope_parameters": _rope(10000000.0), "embedding_multiplier": 12.0,
         "attention_multiplier": 0.015625, "residual_multiplier": 0.246, "logits_scaling": 4.0},
        {**_TINY_HEADS, "attention_multiplier": 0.3},
        _tokens,
        Logits,
        "Granite-350M",
    ),
    "qwen2-0.5b": Family(
        "Qwen2",
        "ForCausalLM",
        {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": True, "rope_parameters": _rope(1000000.0)},
        _TINY_HEADS,
        _tokens,
        Logits,
        "Qwen2-0.5B",
    ),
    "llama-3.2-1b": Family(
        "Llama",
        "ForCausalLM",
        {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
         "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_parameters": _llama3(32.0)},
        {**_TINY_HEADS, "head_dim": 8, "max_position_embeddings": 16384},
        _tokens,
        Logits,
        "Llama-3.2-1B",
    ),
    # As published: 30 layers of width 2048, eight of them attention. The paper's table says 32 of width 2560.
    "lfm2-2.6b": Family(
        "Lfm2",
        "ForCausalLM",
        {"vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 10752, "block_auto_adjust_ff_dim": False,
         "num_hidden_layers": 30, "num_attention_heads": 32, "num_key_value_heads": 8,
         "max_position_embeddings": 128000, "norm_eps": 1e-5, "conv_L_cache": 3, "conv_bias": False,
         "tie_word_embeddings": True, "rope_parameters": _rope(1000000.0),
         "layer_types": _lfm2_layers(30, (2, 5, 9, 13, 17, 21, 24, 27))},
        {**_TINY_HEADS, "layer_types": ["conv", "full_attention"]},
        _tokens,
        Logits,
        "LFM2-2.6B",
    ),
    "llama-3.1-8b": Family(
        "Llama",
        "ForCausalLM",
        {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
         "tie_word_embeddings": False, "rope_parameters": _llama3(8.0)},
        {**_TINY_HEADS, "max_position_embeddings": 16384},
        _tokens,
        Logits,
        "Llama-3.1-8B",
    ),
    "bert-base": Family(
        "Bert",
        "Model",
        {"vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
         "num_attention_heads": 12, "max_position_embeddings": 512},
        {**_TINY, "num_attention_heads": 4, "max_position_embeddings": 64},
        _tokens,
        Hidden,
        options={"add_pooling_layer": False},
    ),
    "qwen3-0.6b": Family(
        "Qwen3",
        "ForCausalLM",
        {"vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
         "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_parameters": _rope(1000000.0)},
        {**_TINY_HEADS, "head_dim": 16},
        _tokens,
        Logits,
    ),
    "gemma3-1b": Family(
        "Gemma3",
        "ForCausalLM",
        {"vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
         "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "max_position_embeddings": 32768,
         "sliding_window": 512, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
         "rope_parameters": {"sliding_attention": _rope(10000.0), "full_attention": _rope(1000000.0)}},
        {**_TINY_HEADS, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5,
         "final_logit_softcapping": 30.0, "layer_types": ["sliding_attention", "full_attention"]},
        _tokens,
        Logits,
    ),
    "phi3-mini": Family(
        "Phi3",
        "ForCausalLM",
        {"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
         "sliding_window": 2047, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
        {**_TINY_HEADS, "sliding_window": 5, **_NO_TOKENS},
        _tokens,
        Logits,
    ),
    "vit-small": Family(
        "ViT",
        "Model",
        {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6,
         "image_size": 224, "patch_size": 16},
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "image_size": 16, "patch_size": 4},
        _pixels,
        Hidden,
        options={"add_pooling_layer": False},
    ),
    "whisper-base": Family(
        "Whisper",
        "Encoder",
        {"num_mel_bins": 80, "d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8,
         "encoder_ffn_dim": 2048, "max_source_positions": 1500},
        {"num_mel_bins": 12, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
         "max_source_positions": 10, "vocab_size": 97, "decoder_start_token_id": 0, **_NO_TOKENS},
        _sound,
        Hidden,
        depth="encoder_layers",
    ),
    "resnet-50": Family(
        "ResNet",
        "",
        {"depths": (3, 4, 6, 3), "width": 64, "classes": 1000, "image_size": 224},
        {"depths": (1, 1), "width": 8, "classes": 7, "image_size": 32},
        _pixels,
        lambda model: model,
        depth="",
    ),
}
# fmt: on
PAPER = tuple(n for n, f in FAMILIES.items() if f.paper)


def layers_of(name: str, tiny: bool = False) -> int:
    """The layers of a family's full (or tiny) model."""
    family = FAMILIES[name]
    config = {**family.config, **(family.tiny if tiny else {})}
    return int(config[family.depth]) if family.depth else sum(config["depths"])


def build(
    name: str,
    tokens: int = 128,
    attention: str = "sdpa",
    *,
    layers: int | None = None,
    vocabulary: int | None = None,
    tiny: bool = False,
    meta: bool = False,
) -> Model:
    """The model of a family, random weights.

    Args:
        tokens: length of the example input of a text model.
        attention: ``"sdpa"`` or ``"eager"``.
        layers: keep only the first so many; the model's name then says so.
        vocabulary: keep only so many tokens of a text model's; the name then says so.
        tiny: small sizes, two layers.
        meta: no weights at all: capture it under ``torch.device("meta")``.

    Raises:
        InputError: no such family, or more layers than it has.
    """
    if name not in FAMILIES:
        raise InputError("families", name, "is not a family", f"use one of {', '.join(FAMILIES)}")
    family, whole = FAMILIES[name], layers_of(name, tiny)
    config = {**family.config, **(family.tiny if tiny else {})}
    called, cut = f"{name}-tiny" if tiny else name, list[str]()
    if layers is not None and layers != whole:
        if not 0 < layers < whole or not family.depth:
            raise InputError("families", name, f"cannot have {layers} of its {whole} layers", "ask for fewer layers")
        config |= {family.depth: layers}
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:layers]
        cut.append(f"{layers} of {whole} layers")
    if vocabulary is not None and vocabulary < config.get("vocab_size", 0):
        cut.append(f"{vocabulary} of {config['vocab_size']} tokens")
        config |= {"vocab_size": vocabulary, **_NO_TOKENS}
    if cut:
        called = f"{called} ({', '.join(cut)})"
    with torch.device("meta") if meta else contextlib.nullcontext(), seeded():
        module = _module(family, config, attention)
        _disturb(module)
    x = family.inputs(config, tokens)
    return Model(called, family.wrap(module).eval(), (x.to("meta") if meta else x,))


def is_spec(spec: str) -> bool:
    """Whether the text names a family's model: ``NAME``, ``NAME-tiny``, either with ``:LAYERS``."""
    return spec.partition(":")[0].removesuffix("-tiny") in FAMILIES


def load(spec: str, tokens: int | None = None) -> Model:
    """The model that such a text names, for 128 tokens (a tiny one for 16) unless told otherwise.

    Raises InputError for a number of layers that it cannot have.
    """
    called, colon, depth = spec.partition(":")
    if colon and not depth.isdecimal():
        raise InputError("families", spec, f"{depth!r} is no number of layers", f"write {called}:2")
    name, tiny = called.removesuffix("-tiny"), called.endswith("-tiny")
    length = tokens if tokens is not None else 16 if tiny else 128
    return build(name, length, layers=int(depth) if colon else None, tiny=tiny)


def _module(family: Family, config: Mapping[str, Any], attention: str) -> torch.nn.Module:
    if family.kind == "ResNet":
        return ResNet(config["depths"], config["width"], config["classes"])
    transformers = require("transformers")
    made = getattr(transformers, _CONFIGS.get(family.kind, f"{family.kind}Config"))(**config)
    made._attn_implementation = attention
    place = transformers.models.whisper.modeling_whisper if family.kind == "Whisper" else transformers
    model: torch.nn.Module = getattr(place, family.kind + family.head)(made, **family.options)
    return model


def _disturb(module: torch.nn.Module) -> None:
    """Gains and biases that are not all one or zero: else a program that drops them would still be right."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1 and not parameter.is_meta:
                parameter.add_(0.1 * torch.randn_like(parameter))


_CONFIGS = {"Gemma3": "Gemma3TextConfig"}
