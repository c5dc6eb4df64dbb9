"""Recorder and torch.export on every supported architecture: one program, one set of bits.

The fast tier has a few; the slow one all of them, with enough layers that most are written down as repeats.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from forge_eq import families
from forge_eq.capture import capture
from forge_eq.capture.export import captured
from forge_eq.families import FAMILIES, build
from forge_eq.run.torch_module import to_module
from recordings import bits, same_program

pytest.importorskip("transformers", reason="the models are those of transformers")

CASES = [(n, a) for n in FAMILIES for a in ("sdpa", "eager") if (n, a) != ("resnet-50", "eager")]
QUICK = {("gpt2-124m", "sdpa"), ("llama-3.2-1b", "eager")}
LAYERS = 6


def deep(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Gives the family's small model more layers."""
    family = FAMILIES[name]
    more: dict[str, Any] = {family.depth: LAYERS} if family.depth else {"depths": (LAYERS, 1)}
    if "layer_types" in family.tiny:
        more["layer_types"] = [family.tiny["layer_types"][k % 2] for k in range(LAYERS)]
    monkeypatch.setitem(families.FAMILIES, name, replace(family, tiny={**family.tiny, **more}))


@pytest.mark.parametrize(
    ("name", "attention"), [pytest.param(*c, marks=() if c in QUICK else pytest.mark.slow) for c in CASES]
)
def test_the_recorder_gives_torch_export_s_program(monkeypatch: pytest.MonkeyPatch, name: str, attention: str) -> None:
    torch.set_num_threads(1)
    deep(monkeypatch, name)
    model = build(name, 16, attention, tiny=True)
    found = captured(model.module, model.args, None, None, "record")
    due = capture(model.module, model.args)
    same_program(found.graph, due)
    assert found.graph.signature.in_spec == due.signature.in_spec
    told = " ".join(r.reason for r in found.remarks)
    mixed = "layer_types" in FAMILIES[name].tiny or not FAMILIES[name].depth
    assert mixed or f"{LAYERS - 3} layers written down as repeats" in told
    with torch.no_grad():
        results = [bits(run(*model.args)) for run in (to_module(found.graph), to_module(due), model.module)]
    assert results[0] == results[1] == results[2]


def test_a_mask_and_keyword_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4
    )
    torch.manual_seed(0)
    module = transformers.BertModel(config).eval()
    ids = torch.arange(16).reshape(2, 8)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    kwargs = {"input_ids": ids, "attention_mask": mask}
    graph = capture(module, (), kwargs, how="record")
    same_program(graph, capture(module, (), kwargs))
    with torch.no_grad():
        got, due = to_module(graph)(**kwargs), module(**kwargs)
    assert type(got) is type(due)
    assert bits(got.to_tuple()) == bits(due.to_tuple())


class Cached(torch.nn.Module):
    """A language model that fills a cache and drops it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=True).logits
        return logits


def test_a_cache_between_layers_has_every_layer_traced() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=4
    )
    torch.manual_seed(0)
    module, ids = Cached(transformers.LlamaForCausalLM(config)).eval(), torch.arange(8)[None]
    found = captured(module, (ids,), None, None, "auto")
    assert "repeats" not in " ".join(r.reason for r in found.remarks)
    with torch.no_grad():  # the caches' code asks whether a tensor is torch.export's, so the programs differ
        assert bits(to_module(found.graph)(ids)) == bits(module(ids))
