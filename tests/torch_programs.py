"""Small torch modules that tests capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Fn(nn.Module):
    """A module around ``function(self, *args, **kwargs)``; tensors given by name become buffers."""

    def __init__(self, function: Callable[..., Any], **named: Any) -> None:
        super().__init__()
        for name, value in named.items():
            if isinstance(value, nn.Module | nn.Parameter):
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def seeded(seed: int, module: nn.Module) -> nn.Module:
    """The module in eval mode, with repeatable weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return module.eval()


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Repeatable normal values; the global generator is left alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
