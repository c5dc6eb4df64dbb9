"""A residual network of He et al. 2015 (bottleneck blocks, the stride on the 3x3 convolution), in torch alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each with batch norm, and a shortcut: ``[n, cin, h, w] -> [n, 4 width, ..]``."""

    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        out: torch.Tensor = self.relu(self.bn3(self.conv3(y)) + self.shortcut(x))
        return out


class ResNet(nn.Module):
    """Images to class scores: ``float[n, 3, size, size] -> float[n, classes]``; the defaults are ResNet-50."""

    def __init__(self, depths: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        cin = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                inner = width << stage
                blocks.append(Bottleneck(cin, inner, 2 if stage and not index else 1))
                cin = 4 * inner
        self.blocks = nn.Sequential(*blocks)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(cin, classes)
        self._settle()

    def _settle(self) -> None:
        """Weights of He et al., and running statistics that are not the trivial ones: folding must use them."""
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            elif isinstance(m, nn.BatchNorm2d):
                for tensor, low, high in ((m.running_mean, -0.2, 0.2), (m.running_var, 0.5, 1.5)):
                    assert tensor is not None
                    nn.init.uniform_(tensor, low, high)
                nn.init.uniform_(m.weight, 0.5, 1.0)
                nn.init.uniform_(m.bias, -0.2, 0.2)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.mean(self.blocks(self.pool(self.relu(self.norm(self.stem(pixels))))))
        out: torch.Tensor = self.head(torch.flatten(x, 1))
        return out
