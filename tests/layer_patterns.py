"""What was recognised in which layer of a chosen program.

A layer is a module path up to its first number. A value counts for the layer of the module that computes it, so the
norm that comes out of a fused residual sum counts for its own layer and not for the layer of the sum.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from forge_eq.families import FAMILIES, layers_of
from forge_eq.ir.graph import Graph, Node
from forge_eq.ops.attention import attention, attention_bias, attention_causal, attention_mask
from forge_eq.ops.cache import attention_parts_bias, attention_parts_mask
from forge_eq.ops.composite import (
    add_layer_norm,
    add_rms_norm,
    geglu,
    gelu,
    gelu_tanh,
    layer_norm,
    linear_act,
    linear_bias_act,
    repeat_heads,
    rms_norm,
    rope,
    silu,
    swiglu,
)
from forge_eq.ops.convolution import batch_norm, conv, conv_bias
from forge_eq.ops.elementwise import relu
from forge_eq.ops.movement import broadcast_to, project
from forge_eq.report.match import calls

_LAYER = re.compile(r"^(.*?(?<![^.])\d+)(?![^.])")

KINDS = {
    "attention": (
        attention,
        attention_bias,
        attention_causal,
        attention_mask,
        attention_parts_mask,
        attention_parts_bias,
    ),
    "norm": (layer_norm, rms_norm, batch_norm),
    "convolution": (conv, conv_bias),
    "rotary": (rope,),
    "activation": (gelu, gelu_tanh, silu, swiglu, geglu, relu, linear_act, linear_bias_act),
}
FUSED_NORMS = (add_layer_norm, add_rms_norm)
REPEATS = (repeat_heads, broadcast_to)


@dataclass(frozen=True)
class Architecture:
    """What each layer of a model must show, exactly; ``each`` says it layer by layer where they differ."""

    layers: int
    expected: Mapping[str, int]
    each: tuple[Mapping[str, int], ...] = ()

    def due(self, index: int) -> Mapping[str, int]:
        return self.each[index] if index < len(self.each) else self.expected


def gpt2(layers: int) -> Architecture:
    return Architecture(layers, {"attention": 1, "norm": 2, "rotary": 0, "activation": 1, "repeat": 0})


def llama(layers: int) -> Architecture:
    return Architecture(layers, {"attention": 1, "norm": 2, "rotary": 2, "activation": 1, "repeat": 0})


def bert(layers: int) -> Architecture:
    return gpt2(layers)


def family(name: str, tiny: bool = False, layers: int | None = None) -> Architecture:
    """What the layers of a family of ``forge_eq.families`` must show."""
    found = FAMILIES[name]
    config = {**found.config, **(found.tiny if tiny else {})}
    count = layers or layers_of(name, tiny)
    if found.kind == "ResNet":  # batch norm is in the weights; the first block of a stage convolves its shortcut, too
        firsts = {sum(config["depths"][:i]) for i in range(len(config["depths"]))}
        each = tuple({"convolution": 3 + (i in firsts), "norm": 0, "activation": 3} for i in range(count))
        return Architecture(count, each[0], each)
    if found.kind in ("GPT2", "Bert", "ViT", "Whisper"):
        return gpt2(count)
    norms = {"Qwen3": 4, "Gemma3": 6, "Lfm2": 4}.get(found.kind, 2)  # of queries and keys; after each part, too
    layer = {**llama(count).expected, "norm": norms, "convolution": 0}
    short = {"attention": 0, "norm": 2, "rotary": 0, "activation": 1, "repeat": 0, "convolution": 1}
    kinds = config["layer_types"][:count] if found.kind == "Lfm2" else ()
    return Architecture(count, layer, tuple(short if k == "conv" else layer for k in kinds))


def layer_of(node: Node) -> str | None:
    """``model.layers.3``, or None outside the layers."""
    found = _LAYER.match(node.origin.module)
    return found[1] if found else None


def kind_of(graph: Graph, node: Node) -> str | None:
    """The pattern that the node is."""
    if node.op is project and node.attrs[0] == 1 and graph.nodes[node.inputs[0]].op in FUSED_NORMS:
        return "norm"
    if node.op in REPEATS:
        return "repeat"
    return next((kind for kind, ops in KINDS.items() if node.op in ops), None)


def patterns(graph: Graph) -> dict[str, Counter[str]]:
    """Counts of patterns per layer, in order of first appearance."""
    alive = {n.id for n in calls(graph)}
    found: dict[str, Counter[str]] = {}
    for node in graph.nodes:
        layer = layer_of(node)
        if layer is None or (node.id not in alive and node.op is not project):
            continue
        counts = found.setdefault(layer, Counter())
        kind = kind_of(graph, node)
        if kind is not None:
            counts[kind] += 1
    return found


def faults(graph: Graph, due: Architecture) -> list[str]:
    """What is missing or too much, layer by layer; empty when every layer is as expected."""
    found = patterns(graph)
    wrong = [] if len(found) == due.layers else [f"{len(found)} layers where {due.layers} are due"]
    for index, (layer, counts) in enumerate(found.items()):
        wrong += [f"{layer}: {counts[k]} {k}, not {n}" for k, n in due.due(index).items() if counts[k] != n]
    return wrong
