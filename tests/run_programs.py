"""Programs that the tests of the run layer share."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from forge_eq.capture.export import capture
from forge_eq.ir.graph import Graph
from forge_eq.lower.npu import Program
from forge_eq.lower.select import lower
from forge_eq.schedule.plan import schedule
from forge_eq.targets import Target, load
from random_graphs import random_graph

# Free transfers: the scheduler leaves even small islands on the accelerator.
TARGET = replace(load("openvino-cpu"), transfer_us=0.0, transfer_gbps=1e9)


def scheduled(graph: Graph, target: Target = TARGET) -> Program:
    return schedule(lower(graph, target), target).program


def captured(module: nn.Module, *inputs: Any) -> Program:
    return scheduled(capture(module.eval(), inputs))


class Mlp(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Heads from linear layers, the result in [batch, heads, tokens, size]."""

    def __init__(self, heads: int = 4, size: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.q, self.k, self.v = (nn.Linear(heads * size, heads * size) for _ in range(3))

    def split(self, y: torch.Tensor) -> torch.Tensor:
        return y.view(*y.shape[:2], self.heads, self.size).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return torch.softmax(q @ k.transpose(-1, -2) * self.size**-0.5, -1) @ v + 1.0


class Language(nn.Module):
    """Host and accelerator in turn: embedding, mask arithmetic, a block, a cumulative sum that is opaque, logits."""

    def __init__(self, vocabulary: int = 13, width: int = 8) -> None:
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(vocabulary, width), Mlp(width), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.block(self.table(ids))
        x = torch.where((seen > 0)[..., None], x, -1.0)
        total = torch.cumsum(x, 1)
        return self.head(self.block(total)), total.view(-1)


def language(tokens: int = 5) -> tuple[Language, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    ids = torch.randint(0, 13, (2, tokens))
    return Language().eval(), (ids, torch.ones_like(ids))


def random_inputs(program: Program, rng: random.Random) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rng.randrange(10**6))
    return [torch.randn(program.vregs[r].type.shape, generator=generator) for r in program.inputs]  # type: ignore[union-attr]


def random_program(seed: int) -> Program:
    return scheduled(random_graph(random.Random(seed)))
