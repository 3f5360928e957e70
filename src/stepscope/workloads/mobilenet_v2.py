"""MobileNet v2: inverted residuals, narrow between blocks and six times wider within.

References
  M. Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", CVPR 2018, arXiv:1801.04381, table 2.
"""

from __future__ import annotations

import functools

from torch import Tensor, nn

from stepscope.workloads._classification import C32, C224, classifier
from stepscope.workloads._mobile import convolution, eights, head

REFERENCES = ("Sandler et al., MobileNetV2, CVPR 2018, arXiv:1801.04381",)
# Expansion, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class InvertedResidual(nn.Module):
    """1 x 1 to more channels, depthwise 3 x 3, 1 x 1 to few: [B, C, H, W] to [B, out, H/stride, W/stride]."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        parts = [] if expansion == 1 else [convolution(channels, inner, 1, activation=nn.ReLU6)]
        parts.append(convolution(inner, inner, 3, stride, groups=inner, activation=nn.ReLU6))
        self.body = nn.Sequential(*parts, convolution(inner, out, 1))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


class MobileNetV2(nn.Module):
    """Images [B, 3, H, W] to scores [B, classes]; small images are halved three times and not five."""

    def __init__(self, classes: int, width: float = 1.0, small_input: bool = False) -> None:
        super().__init__()
        channels = eights(32 * width)
        parts: list[nn.Module] = [convolution(3, channels, 3, 1 if small_input else 2, activation=nn.ReLU6)]
        for expansion, full, blocks, first_stride in STAGES:
            out = eights(full * width)
            stride = 1 if small_input and full == 24 else first_stride
            for number in range(blocks):
                parts.append(InvertedResidual(channels, out, stride if number == 0 else 1, expansion))
                channels = out
        last = eights(1280 * max(1.0, width))
        self.features = nn.Sequential(*parts, convolution(channels, last, 1, activation=nn.ReLU6))
        self.head = head(last, classes, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))  # [B, 1280, H/32, W/32] -> [B, classes]
        return scores


_COMMON = functools.partial(
    classifier, references=REFERENCES, dominant_layer="depthwise separable convolution", tiers=("edge",)
)
WORKLOADS = (
    _COMMON(
        name="mobilenet-v2-224",
        build=lambda: MobileNetV2(1000),
        shape=C224,
        classes=1000,
        summary="MobileNet v2 at 224 x 224: the usual start of transfer learning, 75 MiB of activations an image",
        default_batch=8,
    ),
    _COMMON(
        name="mobilenet-v2-035-224",
        build=lambda: MobileNetV2(1000, width=0.35),
        shape=C224,
        classes=1000,
        summary="MobileNet v2 at 35 % of its width, as microcontroller studies train it",
    ),
    _COMMON(
        name="mobilenet-v2-c32",
        build=lambda: MobileNetV2(10, small_input=True),
        shape=C32,
        classes=10,
        summary="MobileNet v2 at 32 x 32",
        tiers=("smoke", "edge"),
        default_batch=32,
    ),
)
