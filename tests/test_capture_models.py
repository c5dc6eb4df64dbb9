"""Real architectures at toy size: captured calls, what stays outside the vocabulary, results equal to eager's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from forge_eq.capture import capture
from forge_eq.ir.check import check
from forge_eq.ops import attention, composite, effects, linalg
from forge_eq.run.torch_module import to_module

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL: dict[str, Any] = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
# What the vocabulary leaves to torch: index arithmetic over constants, and the lookups that use it.
OUTSIDE = {
    "aten.arange.default",
    "aten.cumsum.default",
    "aten.diff.default",
    "aten.gather.default",
    "aten.index.Tensor",
    "aten.new_ones.default",
    "aten.zeros.default",
}
LAYERS = 2


def model(family: str, implementation: str) -> nn.Module:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_hidden_layers": LAYERS, "hidden_size": 32, "intermediate_size": 48}
    if family == "gpt2":
        made = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                n_layer=LAYERS, n_embd=32, n_head=4, n_positions=32, attn_implementation=implementation, **SMALL
            )
        )
    elif family == "llama":
        config = transformers.LlamaConfig(num_key_value_heads=2, attn_implementation=implementation, **heads, **SMALL)
        made = transformers.LlamaForCausalLM(config)
    else:
        made = transformers.BertModel(transformers.BertConfig(attn_implementation=implementation, **heads, **SMALL))
    return made.eval()


def inputs(family: str, batch: int = 2, length: int = 8) -> dict[str, Any]:
    ids = torch.arange(batch * length).reshape(batch, length) % 64
    mask = torch.ones_like(ids)
    mask[1, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, **({} if family == "bert" else {"use_cache": False})}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_models_give_eager_s_bits(family, implementation, record_property):
    m, kwargs = model(family, implementation), inputs(family)
    graph = capture(m, (), kwargs)
    check(graph)
    opaque = Counter(n.attrs[0] for n in graph.nodes if n.op in (effects.opaque, effects.opaque_effect))
    print(f"{family} {implementation}: {graph.calls} calls, {opaque.total()} outside the vocabulary: {dict(opaque)}")
    record_property("outside", dict(opaque))
    assert set(opaque) <= OUTSIDE
    assert opaque.total() <= 10
    assert not graph.effects

    counts = Counter(n.op for n in graph.nodes)
    fused = counts[attention.attention_mask] + counts[attention.attention_bias]
    assert fused == (LAYERS if implementation == "sdpa" else 0)
    assert counts[composite.softmax] == (0 if implementation == "sdpa" else LAYERS)
    assert counts[linalg.linear] + counts[linalg.linear_bias] >= 4 * LAYERS

    with torch.no_grad():
        due, got = m(**kwargs), to_module(graph)(**kwargs)
    assert type(got) is type(due)
    assert all(torch.equal(a, b) for a, b in zip(got.to_tuple(), due.to_tuple(), strict=True))


def test_a_model_with_a_dynamic_length_runs_at_other_lengths():
    from torch.export import Dim

    m, kwargs = model("bert", "sdpa"), inputs("bert")
    length = {1: Dim("length", min=2, max=32)}
    module = to_module(capture(m, (), kwargs, {"input_ids": length, "attention_mask": length}))
    for size in (8, 5, 16):
        other = inputs("bert", length=size)
        with torch.no_grad():
            due, got = m(**other), module(**other)
        torch.testing.assert_close(got.last_hidden_state, due.last_hidden_state, rtol=0, atol=1e-6)


def test_a_model_on_the_meta_device_is_captured():
    with torch.device("meta"):
        m = model("llama", "sdpa")
        graph = capture(m, (), inputs("llama"))
    check(graph)
    assert all(t.is_meta for t in graph.constants.values())
    assert sum(n.op is attention.attention_mask or n.op is attention.attention_bias for n in graph.nodes) == LAYERS
