"""Xception: depthwise separable convolutions throughout, with residual connections.

References
  F. Chollet, "Xception: deep learning with depthwise separable convolutions", CVPR 2017, arXiv:1610.02357.
"""

from __future__ import annotations

import functools
import itertools

from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, DEEP, classifier, published_2019

REFERENCES = ("Chollet, Xception, CVPR 2017, arXiv:1610.02357",)


class Separable(nn.Module):
    """Depthwise 3 x 3, then 1 x 1, then batch norm: [B, C, H, W] to [B, out, H, W]."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.pointwise = nn.Conv2d(channels, out, 1, bias=False)
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn(self.pointwise(self.depthwise(x)))
        return y


class Block(nn.Module):
    """Separable convolutions around which the input is added; with `halve` it ends in a pooling of stride 2."""

    def __init__(self, widths: tuple[int, ...], halve: bool, relu_first: bool = True) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for channels, out in itertools.pairwise(widths):
            parts += [nn.ReLU(), Separable(channels, out)]
        if not relu_first:
            del parts[0]
        self.shortcut = nn.Sequential()
        if halve:
            parts.append(nn.MaxPool2d(3, stride=2, padding=1))
            self.shortcut = nn.Sequential(
                nn.Conv2d(widths[0], widths[-1], 1, stride=2, bias=False), nn.BatchNorm2d(widths[-1])
            )
        self.body = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


class Xception(nn.Module):
    """Images [B, 3, 299, 299] (or 32 x 32, with the same stem) to scores [B, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, stride=2, bias=False), nn.BatchNorm2d(32), nn.ReLU(),  # [B, 32, 149, 149]
            nn.Conv2d(32, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),  # [B, 64, 147, 147]
        )  # fmt: skip
        self.entry = nn.Sequential(
            Block((64, 128, 128), halve=True, relu_first=False),  # [B, 128, 74, 74]
            Block((128, 256, 256), halve=True),  # [B, 256, 37, 37]
            Block((256, 728, 728), halve=True),  # [B, 728, 19, 19]
        )
        self.middle = nn.Sequential(*(Block((728, 728, 728, 728), halve=False) for _ in range(8)))
        self.exit = nn.Sequential(
            Block((728, 728, 1024), halve=True),  # [B, 1024, 10, 10]
            Separable(1024, 1536), nn.ReLU(), Separable(1536, 2048), nn.ReLU(),
        )  # fmt: skip
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.exit(self.middle(self.entry(self.stem(x))))
        scores: Tensor = self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # [B, classes]
        return scores


_COMMON = functools.partial(
    classifier,
    references=REFERENCES,
    dominant_layer="depthwise separable convolution",
    hyperparameters=DEEP,
    tiers=("paper-2019",),
    published=published_2019("not given", "true at 299 x 299: 8,357M multiply-adds", "23M", "right: 22.86M parameters"),
)
WORKLOADS = (
    _COMMON(
        name="xception-c32",
        build=lambda: Xception(10),
        shape=C32,
        classes=10,
        summary="Xception with its stem for large images at 32 x 32: 21 million weights for 2 x 2 pixels",
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="xception-299",
        build=lambda: Xception(1000),
        shape=(3, 299, 299),
        classes=1000,
        summary="Xception at 299 x 299: depthwise convolutions on large maps, bound by memory",
        default_batch=2,
    ),
)
