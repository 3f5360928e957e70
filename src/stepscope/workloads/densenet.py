"""Densely connected networks for 32 x 32 images: every layer sees the outputs of all before it in its block.

References
  G. Huang, Z. Liu, L. van der Maaten, K. Q. Weinberger, "Densely connected convolutional networks", CVPR 2017,
    arXiv:1608.06993: DenseNet (L = 40, k = 12), (L = 100, k = 12) and DenseNet-BC (L = 100, k = 12).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, classifier, published_2019

REFERENCES = ("Huang et al., Densely connected convolutional networks, CVPR 2017, arXiv:1608.06993",)


@dataclass(frozen=True)
class Variant:
    """Depth L (all convolutions and the linear layer), growth k, and whether bottlenecks and compression are used."""

    depth: int
    growth: int = 12
    compressed: bool = False
    classes: int = 10

    @property
    def layers(self) -> int:
        """Layers in each of the three blocks: L less stem, transitions and linear layer; a bottleneck is two."""
        return (self.depth - 4) // (6 if self.compressed else 3)


class Layer(nn.Module):
    """Adds k channels: [B, C, H, W] to [B, C + k, H, W]."""

    def __init__(self, channels: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        inner = 4 * growth if bottleneck else channels
        self.squeeze = nn.Sequential()
        if bottleneck:
            self.squeeze = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, inner, 1, bias=False))
        self.bn = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv(functional.relu(self.bn(self.squeeze(x))))
        return torch.cat([x, new], dim=1)


class Transition(nn.Module):
    """Between two blocks: 1 x 1 convolution and 2 x 2 mean, [B, C, H, W] to [B, out, H/2, W/2]."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(functional.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """Images [B, 3, 32, 32] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        channels = 2 * variant.growth if variant.compressed else 16
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        parts: list[nn.Module] = []
        for block in range(3):
            for _ in range(variant.layers):
                parts.append(Layer(channels, variant.growth, variant.compressed))
                channels += variant.growth
            if block < 2:
                out = channels // 2 if variant.compressed else channels
                parts.append(Transition(channels, out))
                channels = out
        self.blocks = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))  # [B, 16, 32, 32] -> [B, C, 8, 8]
        x = functional.relu(self.bn(x)).mean(dim=(2, 3))  # [B, C]
        scores: Tensor = self.fc(x)  # [B, classes]
        return scores


_SMALL = functools.partial(
    classifier, shape=C32, classes=10, references=REFERENCES, dominant_layer="convolution and concatenation"
)
WORKLOADS = (
    _SMALL(
        name="densenet40-12-c32",
        build=lambda: DenseNet(Variant(40)),
        summary="DenseNet40 at 32 x 32: a million parameters and 18 MiB of activations an image, bound by memory",
        tiers=("smoke", "paper-2019"),
        published=published_2019(
            "30M", "not matched by any variant (true: 265M multiply-adds)", "1M", "right: 1.02M parameters"
        ),
    ),
    _SMALL(
        name="densenet100-12-c32",
        build=lambda: DenseNet(Variant(100)),
        summary="DenseNet100 at 32 x 32: 110 MiB of activations an image; the paper of 2019 could not train it",
        default_batch=4,
        tiers=("paper-2019",),
        published=published_2019(
            "31M", "megabytes of weights of another network, DenseNet121", "7M", "right: 6.98M parameters"
        ),
    ),
    _SMALL(
        name="densenet-bc100-12-c32",
        build=lambda: DenseNet(Variant(100, compressed=True)),
        summary="DenseNet-BC 100 at 32 x 32: with bottlenecks and compression, a ninth of the parameters",
        default_batch=8,
        tiers=("edge",),
    ),
)
