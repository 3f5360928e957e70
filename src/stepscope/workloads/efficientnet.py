"""EfficientNet-B0: inverted residuals with squeeze-and-excitation, swish, and whole blocks dropped at random.

References
  M. Tan, Q. Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML 2019,
    arXiv:1905.11946, table 1. Dropped blocks: G. Huang et al., "Deep networks with stochastic depth", ECCV 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stepscope.workloads._classification import C224, classifier
from stepscope.workloads._mobile import SqueezeExcite, convolution, head

# Expansion, kernel, stride of the first block, channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip
DROPPED = 0.2  # share of the last block's images that skip it; from the first block on it grows evenly


class MBConv(nn.Module):
    """[B, C, H, W] to [B, out, H/stride, W/stride]."""

    def __init__(self, channels: int, out: int, expansion: int, kernel: int, stride: int, dropped: float) -> None:
        super().__init__()
        inner = channels * expansion
        parts: list[nn.Module] = [] if expansion == 1 else [convolution(channels, inner, 1, activation=nn.SiLU)]
        self.body = nn.Sequential(
            *parts,
            convolution(inner, inner, kernel, stride, groups=inner, activation=nn.SiLU),
            SqueezeExcite(inner, max(1, channels // 4), nn.SiLU, nn.Sigmoid),
            convolution(inner, out, 1),
        )
        self.adds = stride == 1 and channels == out
        self.kept = 1 - dropped

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        if not self.adds:
            return y
        if self.training:  # the block of some images counts for nothing, the others' for more
            y = y * torch.empty(len(y), 1, 1, 1, device=y.device).bernoulli_(self.kept) / self.kept
        return x + y


class EfficientNetB0(nn.Module):
    """Images [B, 3, 224, 224] to scores [B, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        channels = 32
        parts: list[nn.Module] = [convolution(3, channels, 3, 2, activation=nn.SiLU)]
        total = sum(stage[-1] for stage in STAGES)
        for expansion, kernel, first_stride, out, blocks in STAGES:
            for number in range(blocks):
                dropped = DROPPED * (len(parts) - 1) / total
                stride = first_stride if number == 0 else 1
                parts.append(MBConv(channels, out, expansion, kernel, stride, dropped))
                channels = out
        self.features = nn.Sequential(*parts, convolution(channels, 1280, 1, activation=nn.SiLU))
        self.head = head(1280, 1000, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))  # [B, 1280, 7, 7] -> [B, 1000]
        return scores


WORKLOADS = (
    classifier(
        name="efficientnet-b0-224",
        build=EfficientNetB0,
        shape=C224,
        classes=1000,
        summary="EfficientNet-B0 at 224 x 224: depthwise convolutions with squeeze-and-excitation",
        references=("Tan, Le, EfficientNet, ICML 2019, arXiv:1905.11946",),
        dominant_layer="depthwise separable convolution",
        default_batch=8,
        tiers=("smoke", "edge"),
    ),
)
