"""OpenVINO's own conversion of a model, and what a user would change next in one that the NPU compiler refuses.

Takes a model; to change it a causal one of transformers. Gives an ``ov.Model``, or the same function in another
spelling. Promises: equal outputs; nothing is made slower on purpose, for every change of a round is asked and the
fastest accepted one stands for plain. The second round is asked where all of the first is refused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from forge_eq.models import Model
from npu_step import Step

MASK, SPELLED, ROTATED = "mask added", "attention spelled out", "rotated first"
ROUNDS = ((MASK, SPELLED), (f"{MASK}, {ROTATED}", f"{SPELLED}, {ROTATED}"))
HIDDEN = torch.finfo(torch.float16).min  # an infinite one is refused as well


def returning(model: Any) -> Any:
    """A step that returns its state; any other model as it is."""
    if not isinstance(model.module, Step):
        return model
    return replace(model, module=Step(model.module.model, returned=True).eval())


def lookups(made: Any) -> list[Any]:
    """Reads of rows of tables: words, and positions where they depend on an input."""
    rows = (n for n in made.get_ordered_ops() if n.get_type_name() == "Gather" and len(n.get_output_shape(0)) == 3)
    return [n for n in rows if len(n.input_value(0).get_shape()) == 2]


def plain(model: Any, host: bool) -> Any:
    """OpenVINO's own conversion with static shapes; with ``host`` the looked-up rows are an input."""
    import openvino as ov
    import torch

    made = ov.convert_model(torch.export.export(model.module, model.args, strict=False))
    made.reshape({port: list(arg.shape) for port, arg in zip(made.inputs, model.args, strict=True)})
    if host:
        for lookup in lookups(made):
            rows = ov.opset16.parameter(list(lookup.get_output_shape(0)), lookup.get_output_element_type(0), "rows")
            lookup.output(0).replace(rows.output(0))
            made.add_parameters([rows])
        for parameter in made.get_parameters():
            if not parameter.output(0).get_target_inputs():
                made.remove_parameter(parameter)
        made.validate_nodes_and_infer_types()
    return made


# ----------------------------------------------------------------------------------------------- changes


class Masked(torch.nn.Module):
    """The causal mask as numbers that are added, not as a flag of attention: ``int64[1, tokens] -> logits``."""

    mask: torch.Tensor

    def __init__(self, model: torch.nn.Module, tokens: int) -> None:
        super().__init__()
        self.model = model
        later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        self.register_buffer("mask", torch.zeros(1, 1, tokens, tokens).masked_fill(later, HIDDEN))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=self.mask, use_cache=False).logits
        return logits


class Rotated(torch.nn.Module):
    """Positions rotated before the heads are moved before the tokens: on 3720 two key heads are refused after it."""

    def __init__(self, inner: torch.nn.Module, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.place = inner, sys.modules[type(model).__module__]

    def forward(self, input_ids: torch.Tensor) -> Any:
        rotate = self.place.apply_rotary_pos_emb

        def first(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
            rows = rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
            return tuple(x.transpose(1, 2) for x in rows)

        with patch.object(self.place, "apply_rotary_pos_emb", first):
            return self.inner(input_ids)


def changed(build: Callable[[str], Model], change: str) -> Model:
    """The model with a change; ``build`` makes it with a kind of attention, "sdpa" or "eager"."""
    model = build("eager" if SPELLED in change else "sdpa")
    inner = model.module.model
    module = Masked(inner, model.args[0].shape[1]) if MASK in change else model.module
    return replace(model, module=(Rotated(module, inner) if ROTATED in change else module).eval())


def nearest(build: Callable[[str], Model], ask: Callable[[Model], dict[str, Any]]) -> dict[str, Any]:
    """The answer for the fastest accepted change, with ``form`` and the times of all, or the last refusal."""
    answer: dict[str, Any] = {}
    for names in ROUNDS:
        answers = {name: ask(changed(build, name)) for name in names}
        times = {name: a.get("total", math.inf) for name, a in answers.items()}
        best = min(times, key=lambda name: times[name])
        answer = {**answers[best], "form": best, "forms": times}
        if "total" in answer:
            break
    return answer


def beside(found: Mapping[str, Any], name: str) -> str:
    """What stands for plain: the plain conversion, or where that is refused the nearest accepted one, if there is."""
    other = f"{name}, changed"
    return other if "refused" in found[name] and "total" in found.get(other, {}) else name
