"""Networks of branches side by side and of separable convolutions: Inception, Xception, SqueezeNet.

Inception v1 (GoogLeNet): four branches side by side, joined; here with batch norm and without side classifiers.

References
  C. Szegedy et al., "Going deeper with convolutions", CVPR 2015, arXiv:1409.4842, table 1.
  Batch norm as in S. Ioffe, C. Szegedy, 2015, arXiv:1502.03167. "Narrow" takes 3 x 3 for the paper's 5 x 5, as
    torchvision does: with the stem for large images at 32 x 32 it has the 30M multiply-adds of the paper of 2019.

Xception: depthwise separable convolutions throughout, with residual connections.

References
  F. Chollet, "Xception: deep learning with depthwise separable convolutions", CVPR 2017, arXiv:1610.02357.

SqueezeNet 1.0: fire modules of 1 x 1 and 3 x 3 convolutions, few parameters and large activations.

References
  F. Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB model size", 2016,
    arXiv:1602.07360; sizes of version 1.0 as in torchvision.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, DEEP, classifier, published_2019
from stepscope.workloads.contract import rates

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


XCEPTION_REFERENCES = ("Chollet, Xception, CVPR 2017, arXiv:1610.02357",)


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


_XCEPTION_COMMON = functools.partial(
    classifier,
    references=XCEPTION_REFERENCES,
    dominant_layer="depthwise separable convolution",
    hyperparameters=DEEP,
    tiers=("paper-2019",),
    published=published_2019("not given", "true at 299 x 299: 8,357M multiply-adds", "23M", "right: 22.86M parameters"),
)


SQUEEZENET_REFERENCES = ("Iandola et al., SqueezeNet, 2016, arXiv:1602.07360",)
# Channels of each fire module: squeezed, then expanded by 1 x 1 and as many by 3 x 3; "pool" halves height and width.
FIRES: tuple[tuple[int, int] | str, ...] = (
    (16, 64), (16, 64), (32, 128), "pool", (32, 128), (48, 192), (48, 192), (64, 256), "pool", (64, 256),
)  # fmt: skip


class Fire(nn.Module):
    """[B, C, H, W] to [B, 2 expand, H, W] by way of `squeeze` channels."""

    def __init__(self, channels: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.expand1(x)), functional.relu(self.expand3(x))], dim=1)


class SqueezeNet(nn.Module):
    """Images [B, 3, 32, 32] or [B, 3, 224, 224] to scores [B, classes]; small images get a 3 x 3 stem."""

    def __init__(self, small_input: bool, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 96, 3, padding=1) if small_input else nn.Conv2d(3, 96, 7, stride=2)
        parts: list[nn.Module] = [nn.MaxPool2d(3, stride=2, ceil_mode=True)]
        channels = 96
        for fire in FIRES:
            if isinstance(fire, str):
                parts.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
            else:
                parts.append(Fire(channels, *fire))
                channels = 2 * fire[1]
        self.fires = nn.Sequential(*parts)
        self.drop = nn.Dropout()
        self.classifier = nn.Conv2d(channels, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
        nn.init.normal_(self.classifier.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fires(functional.relu(self.stem(x)))  # [B, 512, 4, 4] or [B, 512, 13, 13]
        x = functional.relu(self.classifier(self.drop(x)))  # [B, classes, H, W]
        return x.mean(dim=(2, 3))  # [B, classes]


_SQUEEZENET_COMMON = functools.partial(
    classifier,
    references=SQUEEZENET_REFERENCES,
    tiers=("paper-2019",),
    hyperparameters=rates(sgd=0.01, momentum=0.002, adam=2e-4, rmsprop=5e-5),
    published=published_2019(
        "837M", "multiply-adds at 224 x 224 (true: 819M)", "5M", "megabytes of weights (true: 1.25M parameters)"
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
        least_batch=2,
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
    _XCEPTION_COMMON(
        name="xception-c32",
        build=lambda: Xception(10),
        shape=C32,
        classes=10,
        summary="Xception with its stem for large images at 32 x 32: 21 million weights for 2 x 2 pixels",
        least_batch=2,
        tiers=("smoke", "paper-2019"),
    ),
    _XCEPTION_COMMON(
        name="xception-299",
        build=lambda: Xception(1000),
        shape=(3, 299, 299),
        classes=1000,
        summary="Xception at 299 x 299: depthwise convolutions on large maps, bound by memory",
        default_batch=2,
    ),
    _SQUEEZENET_COMMON(
        name="squeezenet-c32",
        build=lambda: SqueezeNet(small_input=True, classes=10),
        shape=C32,
        classes=10,
        summary="SqueezeNet 1.0 at 32 x 32: 0.73 million parameters, many small ops",
        default_batch=32,
        tiers=("smoke", "paper-2019"),
    ),
    _SQUEEZENET_COMMON(
        name="squeezenet-224",
        build=lambda: SqueezeNet(small_input=False, classes=1000),
        shape=C224,
        classes=1000,
        summary="SqueezeNet 1.0 at 224 x 224: 1.25 million parameters, 34 MiB of activations an image",
        default_batch=8,
    ),
)
