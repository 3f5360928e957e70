"""MobileNet v3: inverted residuals with squeeze-and-excitation and hard-swish; many small ops, bound by launching them.

References
  A. Howard et al., "Searching for MobileNetV3", ICCV 2019, arXiv:1905.02244, tables 1 and 2; sizes as in torchvision.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import Tensor, nn

from stepscope.workloads._classification import C224, classifier
from stepscope.workloads._mobile import SqueezeExcite, convolution, eights

REFERENCES = ("Howard et al., Searching for MobileNetV3, ICCV 2019, arXiv:1905.02244",)


@dataclass(frozen=True)
class Block:
    """One row of the tables: kernel, inner channels, channels, squeeze-and-excitation, hard-swish, stride."""

    kernel: int
    inner: int
    out: int
    excited: bool
    hard_swish: bool
    stride: int = 1


SMALL = (
    Block(3, 16, 16, True, False, 2),
    Block(3, 72, 24, False, False, 2),
    Block(3, 88, 24, False, False),
    Block(5, 96, 40, True, True, 2),
    Block(5, 240, 40, True, True),
    Block(5, 240, 40, True, True),
    Block(5, 120, 48, True, True),
    Block(5, 144, 48, True, True),
    Block(5, 288, 96, True, True, 2),
    Block(5, 576, 96, True, True),
    Block(5, 576, 96, True, True),
)
LARGE = (
    Block(3, 16, 16, False, False),
    Block(3, 64, 24, False, False, 2),
    Block(3, 72, 24, False, False),
    Block(5, 72, 40, True, False, 2),
    Block(5, 120, 40, True, False),
    Block(5, 120, 40, True, False),
    Block(3, 240, 80, False, True, 2),
    Block(3, 200, 80, False, True),
    Block(3, 184, 80, False, True),
    Block(3, 184, 80, False, True),
    Block(3, 480, 112, True, True),
    Block(3, 672, 112, True, True),
    Block(5, 672, 160, True, True, 2),
    Block(5, 960, 160, True, True),
    Block(5, 960, 160, True, True),
)


class InvertedResidual(nn.Module):
    """[B, C, H, W] to [B, out, H/stride, W/stride], added to its input where the shapes agree."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        activation = nn.Hardswish if block.hard_swish else nn.ReLU
        inner = block.inner
        parts: list[nn.Module] = [] if inner == channels else [convolution(channels, inner, 1, activation=activation)]
        parts.append(convolution(inner, inner, block.kernel, block.stride, groups=inner, activation=activation))
        if block.excited:
            parts.append(SqueezeExcite(inner, eights(inner / 4), nn.ReLU, nn.Hardsigmoid))
        self.body = nn.Sequential(*parts, convolution(inner, block.out, 1))
        self.adds = block.stride == 1 and channels == block.out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


class MobileNetV3(nn.Module):
    """Images [B, 3, 224, 224] to scores [B, 1000]."""

    def __init__(self, blocks: tuple[Block, ...], hidden: int) -> None:
        super().__init__()
        channels = 16
        parts: list[nn.Module] = [convolution(3, channels, 3, 2, activation=nn.Hardswish)]
        for block in blocks:
            parts.append(InvertedResidual(channels, block))
            channels = block.out
        self.features = nn.Sequential(*parts, convolution(channels, 6 * channels, 1, activation=nn.Hardswish))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(6 * channels, hidden), nn.Hardswish(), nn.Dropout(0.2),
            nn.Linear(hidden, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))  # [B, 576 or 960, 7, 7] -> [B, 1000]
        return scores


_COMMON = functools.partial(
    classifier, shape=C224, classes=1000, references=REFERENCES, dominant_layer="depthwise separable convolution",
    tiers=("edge",),
)  # fmt: skip
WORKLOADS = (
    _COMMON(
        name="mobilenet-v3-small-224",
        build=lambda: MobileNetV3(SMALL, hidden=1024),
        summary="MobileNet v3 small at 224 x 224: 57 million multiply-adds in many small ops",
        tiers=("smoke", "edge"),
    ),
    _COMMON(
        name="mobilenet-v3-large-224",
        build=lambda: MobileNetV3(LARGE, hidden=1280),
        summary="MobileNet v3 large at 224 x 224",
        default_batch=8,
    ),
)
