"""How far results are from references: largest, root mean square, and of logits KL divergence and perplexity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch


@dataclass
class Errors:
    """Sums over everything that one candidate computed; differences are absolute and in float64."""

    to_eager: float = 0.0  # largest
    to_truth: float = 0.0  # largest
    square: float = 0.0
    count: int = 0
    kl_eager: list[float] = field(default_factory=list)  # per position
    kl_truth: list[float] = field(default_factory=list)
    loss: float = 0.0
    predicted: int = 0

    @property
    def rmse(self) -> float:
        return math.sqrt(self.square / self.count)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.predicted)

    def add(self, got: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor) -> None:
        off = (got.double() - truth).abs()
        self.to_eager = max(self.to_eager, float((got.double() - reference.double()).abs().max()))
        self.to_truth = max(self.to_truth, float(off.max()))
        self.square += float(off.square().sum())
        self.count += off.numel()

    def add_logits(self, got: torch.Tensor, reference: torch.Tensor, truth: torch.Tensor, tokens: torch.Tensor) -> None:
        """``got`` is [positions, vocabulary]; the loss is that of the next token, the last position has none."""
        q = got.double().log_softmax(-1)
        for kept, other in ((self.kl_eager, reference), (self.kl_truth, truth)):
            p = other.double().log_softmax(-1)
            kept += (p.exp() * (p - q)).sum(-1).tolist()
        self.loss -= float(q[:-1].gather(1, tokens[1:, None]).sum())
        self.predicted += len(tokens) - 1
