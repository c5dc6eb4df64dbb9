"""Rules that win work, at the level of whole programs: the work is gone, and a wrong twin keeps it.

Each test optimises a program as a user would and looks at the multiplications that are left; ``verify="full"`` compares
the results with the original's.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import forge_eq
from forge_eq.ir.graph import Graph

torch.set_num_threads(1)


class Program(nn.Module):
    """A function of its tensors; ``weights`` become parameters and stand behind the arguments."""

    def __init__(self, fn, *weights: torch.Tensor) -> None:
        super().__init__()
        self.fn = fn
        self.held = nn.ParameterList([nn.Parameter(w, requires_grad=False) for w in weights])

    def forward(self, *args):
        return self.fn(*args, *self.held)


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def optimised(module: nn.Module, *args: torch.Tensor) -> Graph:
    with torch.no_grad():
        return forge_eq.optimize(module.eval(), args, verify="full").graph


def flops(graph: Graph) -> float:
    """Operations that the matrix products of the program take."""
    return sum(
        n.op.cost.flops([graph.nodes[i].type for i in n.inputs], n.attrs, n.type)
        for n in graph.nodes
        if n.op.cost.cost_class in ("matmul", "attention")
    )


def work(fn, args, weights=()) -> float:
    return flops(optimised(Program(fn, *weights), *args))


def names(fn, args, weights=()) -> list[str]:
    return [n.op.name for n in optimised(Program(fn, *weights), *args).nodes if not n.op.leaf]


# ------------------------------------------------------------------------------------------------ order of products


def test_a_chain_of_products_is_taken_from_its_thin_end():
    a, b, c = rand(64, 64), rand(64, 64, seed=1), rand(64, 1)
    assert work(lambda a, b, c: (a @ b) @ c, (a, b, c)) == 2 * 2 * 64 * 64
    assert work(lambda a, b, c: c.T @ (a @ b), (a, b, c)) == 2 * 2 * 64 * 64
    assert work(lambda a, b, c: (a @ b) * c, (a, b, c)) == 2 * 64**3, "no product"


def test_attention_without_softmax_is_linear_in_tokens():
    q, k, v = (rand(1, 2, 256, 8, seed=s) for s in range(3))
    assert work(lambda q, k, v: (q @ k.transpose(-1, -2)) @ v, (q, k, v)) == 2 * 2 * 2 * 256 * 8 * 8
    softened = work(lambda q, k, v: torch.relu(q @ k.transpose(-1, -2)) @ v, (q, k, v))
    assert softened == 2 * 2 * 2 * 256 * 256 * 8, "something stands between"


def test_lora_joins_its_layer():
    x, w, a, b = rand(4, 32), rand(32, 32), rand(4, 32, seed=1), rand(32, 4)

    def lora(x, w, a, b):
        return nn.functional.linear(x, w) + 2.0 * nn.functional.linear(nn.functional.linear(x, a), b)

    def gated(x, w, a, b):
        return nn.functional.linear(x, w) + 2.0 * nn.functional.linear(torch.tanh(nn.functional.linear(x, a)), b)

    assert names(lora, (x,), (w, a, b)) == ["linear"]
    assert len([n for n in names(gated, (x,), (w, a, b)) if n.startswith("linear")]) == 3
    assert len([n for n in names(lora, (x, w, a, b)) if n.startswith("linear")]) == 3, "weights that are arguments"


def test_a_low_rank_pair_stays_when_it_is_cheaper():
    x, a, b = rand(512, 256), rand(2, 256), rand(256, 2)
    pair = lambda x, a, b: nn.functional.linear(nn.functional.linear(x, a), b)  # noqa: E731
    assert work(pair, (x,), (a, b)) == 2 * 512 * 256 * 2 * 2
    wide = (rand(256, 64), rand(8, 256))
    assert work(pair, (rand(512, 64),), wide) == 2 * 512 * 64 * 8


# ------------------------------------------------------------------------------------------------ reductions


def test_a_sum_of_features_needs_one():
    x, w, b = rand(16, 64), rand(128, 64), rand(128)
    layer = nn.functional.linear
    assert work(lambda x, w, b: layer(x, w, b).sum(-1, keepdim=True), (x,), (w, b)) == 2 * 16 * 64
    assert work(lambda x, w, b: layer(x, w, b).mean(-1), (x,), (w, b)) == 2 * 16 * 64
    assert work(lambda x, w, b: layer(x, w, b).amax(-1), (x,), (w, b)) == 2 * 16 * 64 * 128, "a maximum is not linear"
    assert work(lambda x, w, b: layer(x, w, b).relu().sum(-1), (x,), (w, b)) == 2 * 16 * 64 * 128


def test_pooling_over_tokens_comes_before_the_layer():
    x, w, b = rand(2, 32, 16), rand(24, 16), rand(24)
    layer = nn.functional.linear
    assert work(lambda x, w, b: layer(x, w, b).mean(1), (x,), (w, b)) == 2 * 2 * 16 * 24
    assert work(lambda x, w: layer(x, w).sum(1), (x,), (w,)) == 2 * 2 * 16 * 24
    assert work(lambda x, w, b: layer(x, w, b).sum(1), (x,), (w, b)) == 2 * 64 * 16 * 24, "a sum counts the bias"


def test_reductions_of_one_element_go():
    x = rand(4, 1, 8)
    assert names(lambda x: x.sum(1).amax(0), (x,)) == ["reshape", "amax"]
    assert "sum" in names(lambda x: x.sum(2), (x,))


def test_convolutions_of_one_element_are_pooled_first():
    x, w, b = rand(1, 8, 8, 8), rand(16, 8, 1, 1), rand(16)
    conv, pool = nn.functional.conv2d, nn.functional.avg_pool2d
    assert work(lambda x, w, b: pool(conv(x, w, b), 2), (x,), (w, b)) == 2 * 16 * 16 * 8
    assert work(lambda x, w, b: nn.functional.adaptive_avg_pool2d(conv(x, w, b), 1), (x,), (w, b)) == 2 * 16 * 8
    wide = rand(16, 8, 3, 3)
    assert work(lambda x, w, b: pool(conv(x, w, b, padding=1), 2), (x,), (wide, b)) == 2 * 64 * 16 * 8 * 9
    padded = work(lambda x, w, b: pool(conv(x, w, b), 2, padding=1), (x,), (w, b))
    assert padded == 2 * 64 * 16 * 8, "padding would thin the bias out"


def test_pools_meet_and_relu_waits():
    x = rand(1, 2, 16, 16)
    pool = nn.functional.max_pool2d
    assert names(lambda x: pool(pool(x, 2), 2), (x,)) == ["max_pool"]
    assert names(lambda x: pool(pool(x, 2, stride=3), 2), (x,)) == ["max_pool", "max_pool"], "a gap"
    assert names(lambda x: pool(torch.relu(x), 2), (x,)) == ["max_pool", "relu"]
    assert names(lambda x: pool(nn.functional.gelu(x), 2), (x,)) == ["gelu", "max_pool"], "gelu falls first"


def test_batch_norm_folds_after_training_only():
    block = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    image = rand(2, 2, 8, 8)
    assert [n.op.name for n in optimised(block, image).nodes if not n.op.leaf] == ["conv_bias"]
    with torch.no_grad():
        learning = forge_eq.optimize(block.train(), (image,), verify="off").graph
    assert any("batch_norm" in str(n.attrs) for n in learning.nodes), "its statistics are of the batch"
    assert any(n.op.name == "conv_bias" for n in learning.nodes)


def test_convolutions_on_one_value_may_be_one():
    """Two branches of kernel 1: one product, cut in two, where that is cheaper."""
    x, v, w, d, e = rand(1, 64, 14, 14), rand(64, 64, 1, 1), rand(32, 64, 1, 1), rand(64), rand(32)
    conv = nn.functional.conv2d

    def branches(x, v, w, d, e):
        return conv(x, v, d).relu(), conv(x, w, e).sigmoid()

    merged = forge_eq.optimize(Program(branches, v, w, d, e), (x,), verify="off").egraph
    assert any(n.rule == "fusion/merge_two_convs" for c in merged.classes for n in c.nodes)
    other = forge_eq.optimize(
        Program(lambda x, v, w, d, e: (conv(x, v, d), conv(x, w, e, stride=2)), v, w, d, e), (x,), verify="off"
    ).egraph
    assert not any(n.rule == "fusion/merge_two_convs" for c in other.classes for n in c.nodes)


# ------------------------------------------------------------------------------------------------ scales


def test_numbers_go_into_weights_that_are_constants():
    x, w, b = rand(4, 16), rand(8, 16), rand(8)
    layer = nn.functional.linear
    assert names(lambda x, w, b: layer(x, w, b) * 3.0, (x,), (w, b)) == ["linear_bias"]
    assert "mul" in names(lambda x, w, b: layer(x, w, b) * 3.0, (x, w, b))
    image, kernel = rand(1, 2, 8, 8), rand(4, 2, 3, 3)
    assert names(lambda x, w: nn.functional.conv2d(x, w) * 0.5, (image,), (kernel,)) == ["conv"]
    assert names(lambda x: x + x + x * 0.5, (x,)) == ["mul"]


def test_gelu_by_sigmoid_is_gelu():
    x = rand(4, 16)
    written = lambda x: x * torch.sigmoid(1.5957691216 * (x + 0.044715 * x**3))  # noqa: E731
    assert names(written, (x,)) == ["gelu_tanh"]
    assert "gelu_tanh" not in names(lambda x: x * torch.sigmoid(1.702 * x), (x,)), "quick gelu is another function"
    assert "gelu_tanh" not in names(lambda x: x * torch.sigmoid(1.596 * (x + 0.044715 * x**3)), (x,))


# ------------------------------------------------------------------------------------------------ slices


class Decoder(nn.Module):
    """Causal attention and a feed-forward layer, before norm, twice; the head reads what ``cut`` leaves."""

    def __init__(self, cut, layers: int = 2, width: int = 16, causal: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.causal = cut, causal
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "one": nn.LayerNorm(width),
                    **{name: nn.Linear(width, width) for name in ("q", "k", "v", "o")},
                    "two": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = self.block(layer, x)
        return self.cut(self.head(self.norm(x)))

    def block(self, layer, x):
        n = layer["one"](x)
        b, t, w = x.shape
        q, k, v = (layer[p](n).view(b, t, 2, w // 2).transpose(1, 2) for p in "qkv")
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + layer["o"](a.transpose(1, 2).reshape(b, t, w))
        return x + layer["down"](nn.functional.gelu(layer["up"](layer["two"](x))))


TOKENS, WIDTH = 32, 16
LAYER = 2 * TOKENS * WIDTH * WIDTH * 12 + TOKENS * TOKENS * 2 * (2 * 8 + 2 * 8 + 12)
# Of all tokens come keys and values; the rest, queries too, is of one token.
LAST = 2 * TOKENS * WIDTH * WIDTH * 2 + 2 * WIDTH * WIDTH * 10 + TOKENS * 2 * (2 * 8 + 2 * 8 + 12)
HEAD = 2 * WIDTH * 100


@pytest.mark.parametrize("cut", [lambda y: y[:, -1:], lambda y: y[:, -1]], ids=["slice", "select"])
def test_a_last_token_head_shrinks_the_last_layer(cut):
    graph = optimised(Decoder(cut), rand(1, TOKENS, WIDTH))
    assert flops(graph) == LAYER + LAST + HEAD


def test_a_head_on_the_first_token_shrinks_the_last_layer():
    graph = optimised(Decoder(lambda y: y[:, 0], causal=False), rand(1, TOKENS, WIDTH))
    assert flops(graph) == LAYER + LAST + HEAD


def test_other_cuts_of_causal_attention_keep_the_mask():
    """Query 3 of 32 looks at keys 0 to 3: without the mask it would look at all. Rows behind attention shrink."""
    graph = optimised(Decoder(lambda y: y[:, 3]), rand(1, TOKENS, WIDTH))
    assert [n.op.name for n in graph.nodes].count("attention_causal") == 2
    assert flops(graph) < 2 * LAYER


def test_what_is_read_as_a_whole_is_not_cut():
    graph = optimised(Decoder(lambda y: (y[:, -1:], y)), rand(1, TOKENS, WIDTH))
    assert flops(graph) == 2 * LAYER + TOKENS * HEAD


def test_a_cut_that_takes_everything_is_no_cut():
    """Exports write whole slices; once removed, a value is a slice of itself, which no rule may follow for ever."""

    def program(x, w):
        heads = nn.functional.linear(x, w).view(1, TOKENS, 2, 8)[:, :].transpose(1, 2)[:, :, :, :]
        return (heads * 2.0)[:, :, -1:]

    module = Program(program, rand(WIDTH, WIDTH))
    found = forge_eq.optimize(module, (rand(1, TOKENS, WIDTH),), verify="full")
    assert found.egraph.saturation.stop == "saturated"
    assert sum(len(c.nodes) for c in found.egraph.classes) < 60


def test_logits_of_few_words_need_few_columns():
    x, w = rand(4, 16), rand(100, 16)
    layer = nn.functional.linear
    assert work(lambda x, w: layer(x, w)[:, 7:9], (x,), (w,)) == 2 * 4 * 16 * 2
    assert work(lambda x, w: layer(x, w).softmax(-1)[:, 7:9], (x,), (w,)) == 2 * 4 * 16 * 100, "all words share the sum"


def test_slices_compose_and_see_through_joins():
    x, y = rand(4, 16), rand(4, 8)
    assert names(lambda x: x[:, 2:12][:, ::2], (x,)) == ["slice"]
    assert names(lambda x, y: torch.cat([x, y], 1)[:, :16] * 2.0, (x, y)) == ["mul"]
    assert names(lambda x, y: torch.cat([x, y], 1)[:, 16:] * 2.0, (x, y)) == ["mul"]
    assert "concat" in names(lambda x, y: torch.cat([x, y], 1)[:, 15:17] * 2.0, (x, y))
