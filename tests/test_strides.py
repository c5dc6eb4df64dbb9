"""A captured graph run by torch has the module's strides, and so its bits: torch adds up in the order of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from forge_eq.capture import capture
from forge_eq.capture.execute import run_graph
from recordings import Fn, agrees, bits, recorded

Call = Callable[[Any], Any]
X = torch.randn(2, 6, 40, generator=torch.Generator().manual_seed(3))
W = torch.randn(40, 40, generator=torch.Generator().manual_seed(4))

LAYOUTS: dict[str, Call] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "outer axes swapped": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "expanded": lambda x: x[:1].expand(2, 6, 40),
    "sliced": lambda x: torch.cat([x, x], -1)[..., :40],
    "every second": lambda x: torch.cat([x, x], -1)[..., ::2],
}
KEPT: dict[str, Call] = {
    "contiguous": lambda x: x.contiguous(),
    "clone": lambda x: x.clone(),
    "dense clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "detach": lambda x: x.detach(),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "repeat": lambda x: x[:1].repeat(3, 1, 1),
    "expand": lambda x: x[:, :1].expand(2, 4, 40),
    "permute": lambda x: x.permute(2, 0, 1),
    "reshape": lambda x: x.reshape(-1, 8),
    "unbind": lambda x: x.unbind(1)[2],
    "split": lambda x: x.split(10, -1)[1],
    "cat": lambda x: torch.cat([x, x], 1),
    "stack": lambda x: torch.stack([x, x], 1),
    "cast": lambda x: x.double(),
    "sum": lambda x: x.sum(1),
    "relu": lambda x: x.relu(),
    "add": lambda x: x + x.contiguous(),
    "layer_norm": lambda x: F.layer_norm(x, (40,)),
    "softmax": lambda x: x.softmax(1),
    "linear": lambda x: F.linear(x, W),
    "matmul": lambda x: x @ x.mT,
    "attention of few keys": lambda x: F.scaled_dot_product_attention(*3 * [heads(x)]),
    "causal attention of few keys": lambda x: F.scaled_dot_product_attention(*3 * [heads(x)], is_causal=True),
    "attention of grouped heads": lambda x: F.scaled_dot_product_attention(
        heads(x), heads(x)[:, :2], heads(x)[:, :2], enable_gqa=True
    ),
}  # fmt: skip
# Their last bits were seen to differ between strides of equal values (torch 2.13, AVX-512).
SENSITIVE: dict[str, Call] = {
    "linear": lambda x: F.linear(x, W),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "rms_norm": lambda x: F.rms_norm(x, (40,)),
    "gelu": F.gelu,
    "sigmoid": lambda x: x.sigmoid(),
    "attention": lambda x: F.scaled_dot_product_attention(*3 * [heads(x)]),
}


def heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (4, 10)).transpose(1, 2)


def strides(value: torch.Tensor) -> tuple[int, ...]:
    """Those that matter: of an axis with one place, it is anything."""
    return tuple(s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1)


@pytest.mark.parametrize("call", KEPT)
def test_a_call_leaves_the_strides_that_it_leaves_in_the_module(call: str) -> None:
    for layout, stored in LAYOUTS.items():
        module = Fn(lambda m, x, stored=stored: KEPT[call](stored(x)))
        graph, _ = recorded(module, X)
        with torch.no_grad():
            due = module(X)
            (got,) = run_graph(graph, [X]) or (X,)
        assert strides(got) == strides(due), layout
        assert bits(got) == bits(due), layout


@pytest.mark.parametrize("kernel", SENSITIVE)
@pytest.mark.parametrize("copy", ["contiguous", "clone", "dense clone"])
def test_a_kernel_reads_what_the_module_gives_it(kernel: str, copy: str) -> None:
    def run(m: Any, x: torch.Tensor) -> list[torch.Tensor]:
        return [SENSITIVE[kernel](KEPT[copy](stored(x))) for stored in LAYOUTS.values()]

    agrees(Fn(run), X)


def test_strides_decide_the_last_bits() -> None:
    """Else this file would test nothing on this machine."""
    turned = X.mT.contiguous().mT
    assert any(bits(run(X)) != bits(run(turned)) for run in SENSITIVE.values())


@pytest.mark.parametrize("keys", [1, 7, 10, 15, 16, 33])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_bits_of_torch_s_kernel(keys: int, causal: bool) -> None:
    q, k, v = (torch.randn(2, 4, n, 8, generator=torch.Generator().manual_seed(n)) for n in (9, keys, keys))
    module = Fn(lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3))
    graph = capture(module, (q, k, v))
    assert bits(run_graph(graph, [q, k, v])) == bits([module(q, k, v)])
