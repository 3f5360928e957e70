"""Inception v1 (GoogLeNet): four branches side by side, joined; here with batch norm and without side classifiers.

References
  C. Szegedy et al., "Going deeper with convolutions", CVPR 2015, arXiv:1409.4842, table 1.
  Batch norm as in S. Ioffe, C. Szegedy, 2015, arXiv:1502.03167. "Narrow" takes 3 x 3 for the paper's 5 x 5, as
    torchvision does: with the stem for large images at 32 x 32 it has the 30M multiply-adds of the paper of 2019.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stepscope.workloads._classification import C32, C224, classifier, published_2019

REFERENCES = ("Szegedy et al., Going deeper with convolutions, CVPR 2015, arXiv:1409.4842",)
# 1 x 1 | before 3 x 3, 3 x 3 | before 5 x 5, 5 x 5 | after the pooling; "pool" halves height and width.
BLOCKS: tuple[tuple[int, ...] | str, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    "pool",
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    "pool",
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


@dataclass(frozen=True)
class Variant:
    """Classes, whether images are small (no pooling before the blocks), and the size of the larger convolution."""

    classes: int
    small_input: bool = False
    large_kernel: int = 5


def _convolution(channels: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(),
    )


class Inception(nn.Module):
    """[B, C, H, W] to [B, sum of the four branches, H, W]."""

    def __init__(self, channels: int, widths: tuple[int, ...], large_kernel: int) -> None:
        super().__init__()
        one, before3, three, before5, five, pooled = widths
        self.one = _convolution(channels, one, 1)
        self.three = nn.Sequential(_convolution(channels, before3, 1), _convolution(before3, three, 3))
        self.five = nn.Sequential(_convolution(channels, before5, 1), _convolution(before5, five, large_kernel))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolution(channels, pooled, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


class GoogLeNet(nn.Module):
    """Images [B, 3, 224, 224] or [B, 3, 32, 32] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        if variant.small_input:
            self.stem = _convolution(3, 192, 3)  # [B, 192, 32, 32]
        else:
            self.stem = nn.Sequential(
                _convolution(3, 64, 7, stride=2), _pool(),  # [B, 64, 56, 56]
                _convolution(64, 64, 1), _convolution(64, 192, 3), _pool(),  # [B, 192, 28, 28]
            )  # fmt: skip
        parts: list[nn.Module] = []
        channels = 192
        for block in BLOCKS:
            if isinstance(block, str):
                parts.append(_pool())
            else:
                parts.append(Inception(channels, block, variant.large_kernel))
                channels = block[0] + block[2] + block[4] + block[5]
        self.blocks = nn.Sequential(*parts)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x)).mean(dim=(2, 3))  # [B, 1024]
        scores: Tensor = self.fc(self.drop(x))  # [B, classes]
        return scores


_COMMON = functools.partial(
    classifier,
    references=REFERENCES,
    default_optimizer="adam",
    tiers=("paper-2019",),
    published=published_2019(
        "30M",
        "right for 3 x 3 convolutions and the stem for large images at 32 x 32: 30.6M multiply-adds",
        "5M",
        "right for 10 classes: 5.61M",
    ),
)
WORKLOADS = (
    _COMMON(
        name="inception-v1-narrow-c32",
        build=lambda: GoogLeNet(Variant(10, large_kernel=3)),
        shape=C32,
        classes=10,
        summary="GoogLeNet with its stem for large images at 32 x 32, as the paper of 2019 printed it: tiny maps",
        default_batch=32,
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="inception-v1-c32",
        build=lambda: GoogLeNet(Variant(10, small_input=True)),
        shape=C32,
        classes=10,
        summary="GoogLeNet with a stem for 32 x 32: four branches a block",
    ),
    _COMMON(
        name="inception-v1-224",
        build=lambda: GoogLeNet(Variant(1000)),
        shape=C224,
        classes=1000,
        summary="GoogLeNet at 224 x 224",
        default_batch=8,
    ),
)
