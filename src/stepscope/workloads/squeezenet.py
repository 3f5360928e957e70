"""SqueezeNet 1.0: fire modules of 1 x 1 and 3 x 3 convolutions, few parameters and large activations.

References
  F. Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and < 0.5 MB model size", 2016,
    arXiv:1602.07360; sizes of version 1.0 as in torchvision.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, classifier, published_2019
from stepscope.workloads.contract import rates

REFERENCES = ("Iandola et al., SqueezeNet, 2016, arXiv:1602.07360",)
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


_COMMON = functools.partial(
    classifier,
    references=REFERENCES,
    tiers=("paper-2019",),
    hyperparameters=rates(sgd=0.01, momentum=0.002, adam=2e-4, rmsprop=5e-5),
    published=published_2019(
        "837M", "multiply-adds at 224 x 224 (true: 819M)", "5M", "megabytes of weights (true: 1.25M parameters)"
    ),
)
WORKLOADS = (
    _COMMON(
        name="squeezenet-c32",
        build=lambda: SqueezeNet(small_input=True, classes=10),
        shape=C32,
        classes=10,
        summary="SqueezeNet 1.0 at 32 x 32: 0.73 million parameters, many small ops",
        default_batch=32,
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="squeezenet-224",
        build=lambda: SqueezeNet(small_input=False, classes=1000),
        shape=C224,
        classes=1000,
        summary="SqueezeNet 1.0 at 224 x 224: 1.25 million parameters, 34 MiB of activations an image",
        default_batch=8,
    ),
)
