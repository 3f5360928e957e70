"""Networks made for phones: MobileNet v1 to v3 and EfficientNet.

Base of the mobile networks after the first: channel counts in eights, convolution with norm and activation.

MobileNet v1: depthwise separable convolutions, wide and cheap in sums, dear in memory.

References
  A. Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017,
    arXiv:1704.04861, table 1. The second paper trains it at 224 x 224.
  A quarter of the width at 96 x 96 for two classes: visual wake words of MLPerf Tiny, C. Banbury et al., 2021,
    arXiv:2106.07597 (target there: 80 %).

MobileNet v2: inverted residuals, narrow between blocks and six times wider within.

References
  M. Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", CVPR 2018, arXiv:1801.04381, table 2.

MobileNet v3: inverted residuals with squeeze-and-excitation and hard-swish; many small ops, bound by launching them.

References
  A. Howard et al., "Searching for MobileNetV3", ICCV 2019, arXiv:1905.02244, tables 1 and 2; sizes as in torchvision.

EfficientNet-B0: inverted residuals with squeeze-and-excitation, swish, and whole blocks dropped at random.

References
  M. Tan, Q. Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML 2019,
    arXiv:1905.11946, table 1. Dropped blocks: G. Huang et al., "Deep networks with stochastic depth", ECCV 2016.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, classifier


def round_to_eights(channels: float) -> int:
    """The nearest multiple of 8, not below 8, nor more than a tenth below what was asked for."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def convolution(
    channels: int,
    out: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = None,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation: [B, channels, H, W] to [B, out, H/stride, W/stride]."""
    parts: list[nn.Module] = [
        nn.Conv2d(channels, out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*parts, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Each channel times a weight that its mean over the picture decides: [B, C, H, W] to the same."""

    def __init__(
        self, channels: int, inner: int, activation: Callable[[], nn.Module], gate: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, inner, 1)
        self.activation = activation()
        self.excite = nn.Conv2d(inner, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        mean = functional.adaptive_avg_pool2d(x, 1)  # [B, C, 1, 1]
        weights: Tensor = self.gate(self.excite(self.activation(self.squeeze(mean))))
        return x * weights


def head(channels: int, classes: int, dropout: float) -> nn.Sequential:
    """[B, C, H, W] to scores [B, classes]."""
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*pooled, nn.Dropout(dropout), nn.Linear(channels, classes))


MOBILENET_V1_REFERENCES = ("Howard et al., MobileNets, 2017, arXiv:1704.04861",)
# Channels and stride of each depthwise separable pair, at full width.
PAIRS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """Classes, share of the channels, and the stride of the stem (1 for small images)."""

    classes: int
    width: float = 1.0
    stem_stride: int = 2


def _norm(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU()


class MobileNetV1(nn.Module):
    """Images [B, 3, H, W] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        channels = int(32 * variant.width)
        parts: list[nn.Module] = [
            nn.Conv2d(3, channels, 3, stride=variant.stem_stride, padding=1, bias=False), *_norm(channels),
        ]  # fmt: skip
        for full, stride in PAIRS:
            out = int(full * variant.width)
            parts += [
                nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False),
                *_norm(channels),
                nn.Conv2d(channels, out, 1, bias=False),
                *_norm(out),
            ]
            channels = out
        self.features = nn.Sequential(*parts)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean(dim=(2, 3))  # [B, 1024, H/32, W/32] -> [B, 1024]
        scores: Tensor = self.fc(x)  # [B, classes]
        return scores


MOBILENET_V2_REFERENCES = ("Sandler et al., MobileNetV2, CVPR 2018, arXiv:1801.04381",)
# Expansion, channels, blocks, stride of the first block.
MOBILENET_V2_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


class InvertedResidualV2(nn.Module):
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
        channels = round_to_eights(32 * width)
        parts: list[nn.Module] = [convolution(3, channels, 3, 1 if small_input else 2, activation=nn.ReLU6)]
        for expansion, full, blocks, first_stride in MOBILENET_V2_STAGES:
            out = round_to_eights(full * width)
            stride = 1 if small_input and full == 24 else first_stride
            for number in range(blocks):
                parts.append(InvertedResidualV2(channels, out, stride if number == 0 else 1, expansion))
                channels = out
        last = round_to_eights(1280 * max(1.0, width))
        self.features = nn.Sequential(*parts, convolution(channels, last, 1, activation=nn.ReLU6))
        self.head = head(last, classes, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(x))  # [B, 1280, H/32, W/32] -> [B, classes]
        return scores


_MOBILENET_V2_COMMON = functools.partial(
    classifier, references=MOBILENET_V2_REFERENCES, dominant_layer="depthwise separable convolution", tiers=("edge",)
)


MOBILENET_V3_REFERENCES = ("Howard et al., Searching for MobileNetV3, ICCV 2019, arXiv:1905.02244",)


@dataclass(frozen=True)
class BlockConfig:
    """One row of the tables: kernel, inner channels, channels, squeeze-and-excitation, hard-swish, stride."""

    kernel: int
    inner: int
    out: int
    excited: bool
    hard_swish: bool
    stride: int = 1


SMALL = (
    BlockConfig(3, 16, 16, True, False, 2),
    BlockConfig(3, 72, 24, False, False, 2),
    BlockConfig(3, 88, 24, False, False),
    BlockConfig(5, 96, 40, True, True, 2),
    BlockConfig(5, 240, 40, True, True),
    BlockConfig(5, 240, 40, True, True),
    BlockConfig(5, 120, 48, True, True),
    BlockConfig(5, 144, 48, True, True),
    BlockConfig(5, 288, 96, True, True, 2),
    BlockConfig(5, 576, 96, True, True),
    BlockConfig(5, 576, 96, True, True),
)
LARGE = (
    BlockConfig(3, 16, 16, False, False),
    BlockConfig(3, 64, 24, False, False, 2),
    BlockConfig(3, 72, 24, False, False),
    BlockConfig(5, 72, 40, True, False, 2),
    BlockConfig(5, 120, 40, True, False),
    BlockConfig(5, 120, 40, True, False),
    BlockConfig(3, 240, 80, False, True, 2),
    BlockConfig(3, 200, 80, False, True),
    BlockConfig(3, 184, 80, False, True),
    BlockConfig(3, 184, 80, False, True),
    BlockConfig(3, 480, 112, True, True),
    BlockConfig(3, 672, 112, True, True),
    BlockConfig(5, 672, 160, True, True, 2),
    BlockConfig(5, 960, 160, True, True),
    BlockConfig(5, 960, 160, True, True),
)


class InvertedResidualV3(nn.Module):
    """[B, C, H, W] to [B, out, H/stride, W/stride], added to its input where the shapes agree."""

    def __init__(self, channels: int, block: BlockConfig) -> None:
        super().__init__()
        activation = nn.Hardswish if block.hard_swish else nn.ReLU
        inner = block.inner
        parts: list[nn.Module] = [] if inner == channels else [convolution(channels, inner, 1, activation=activation)]
        parts.append(convolution(inner, inner, block.kernel, block.stride, groups=inner, activation=activation))
        if block.excited:
            parts.append(SqueezeExcite(inner, round_to_eights(inner / 4), nn.ReLU, nn.Hardsigmoid))
        self.body = nn.Sequential(*parts, convolution(inner, block.out, 1))
        self.adds = block.stride == 1 and channels == block.out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


class MobileNetV3(nn.Module):
    """Images [B, 3, 224, 224] to scores [B, 1000]."""

    def __init__(self, blocks: tuple[BlockConfig, ...], hidden: int) -> None:
        super().__init__()
        channels = 16
        parts: list[nn.Module] = [convolution(3, channels, 3, 2, activation=nn.Hardswish)]
        for block in blocks:
            parts.append(InvertedResidualV3(channels, block))
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


_MOBILENET_V3_COMMON = functools.partial(
    classifier, shape=C224, classes=1000, references=MOBILENET_V3_REFERENCES, tiers=("edge",),
    dominant_layer="depthwise separable convolution",
)  # fmt: skip


# Expansion, kernel, stride of the first block, channels, blocks.
EFFICIENTNET_STAGES = (
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
        total = sum(stage[-1] for stage in EFFICIENTNET_STAGES)
        for expansion, kernel, first_stride, out, blocks in EFFICIENTNET_STAGES:
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
        name="mobilenet-v1-224",
        build=lambda: MobileNetV1(Variant(1000)),
        shape=C224,
        classes=1000,
        summary="MobileNet v1 at 224 x 224: a third of ResNet18's sums and 1.8 times its activations",
        references=MOBILENET_V1_REFERENCES,
        dominant_layer="depthwise separable convolution",
        default_batch=8,
        tiers=("paper-low-power",),
    ),
    classifier(
        name="mobilenet-v1-c32",
        build=lambda: MobileNetV1(Variant(10, stem_stride=1)),
        shape=C32,
        classes=10,
        summary="MobileNet v1 at 32 x 32",
        references=MOBILENET_V1_REFERENCES,
        dominant_layer="depthwise separable convolution",
        default_batch=32,
        tiers=("smoke", "paper-low-power"),
    ),
    classifier(
        name="mobilenet-v1-025-96",
        build=lambda: MobileNetV1(Variant(2, width=0.25)),
        shape=(3, 96, 96),
        classes=2,
        summary="MobileNet v1 at a quarter of its width: visual wake words of MLPerf Tiny, on classes odd or even",
        references=(*MOBILENET_V1_REFERENCES, "Banbury et al., MLPerf Tiny, 2021, arXiv:2106.07597"),
        dominant_layer="depthwise separable convolution",
        default_batch=32,
        tiers=("edge",),
    ),
    _MOBILENET_V2_COMMON(
        name="mobilenet-v2-224",
        build=lambda: MobileNetV2(1000),
        shape=C224,
        classes=1000,
        summary="MobileNet v2 at 224 x 224: the usual start of transfer learning, 75 MiB of activations an image",
        default_batch=8,
    ),
    _MOBILENET_V2_COMMON(
        name="mobilenet-v2-035-224",
        build=lambda: MobileNetV2(1000, width=0.35),
        shape=C224,
        classes=1000,
        summary="MobileNet v2 at 35 % of its width, as microcontroller studies train it",
    ),
    _MOBILENET_V2_COMMON(
        name="mobilenet-v2-c32",
        build=lambda: MobileNetV2(10, small_input=True),
        shape=C32,
        classes=10,
        summary="MobileNet v2 at 32 x 32",
        tiers=("smoke", "edge"),
        default_batch=32,
    ),
    _MOBILENET_V3_COMMON(
        name="mobilenet-v3-small-224",
        build=lambda: MobileNetV3(SMALL, hidden=1024),
        summary="MobileNet v3 small at 224 x 224: 57 million multiply-adds in many small ops",
        tiers=("smoke", "edge"),
    ),
    _MOBILENET_V3_COMMON(
        name="mobilenet-v3-large-224",
        build=lambda: MobileNetV3(LARGE, hidden=1280),
        summary="MobileNet v3 large at 224 x 224",
        default_batch=8,
    ),
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
