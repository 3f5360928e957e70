"""VGG: 3 x 3 convolutions in a row; at 224 x 224 with the three large linear layers, at 32 x 32 with batch norm.

References
  K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
    arXiv:1409.1556, configurations D (16 layers) and E (19).
  The form for 32 x 32: https://github.com/kuangliu/pytorch-cifar, models/vgg.py (batch norm, one linear layer).
"""

from __future__ import annotations

import functools

from torch import Tensor, nn

from stepscope.workloads._classification import C32, C224, DEEP, classifier, published_2019
from stepscope.workloads.contract import rates

REFERENCES = ("Simonyan, Zisserman, Very deep convolutional networks, ICLR 2015, arXiv:1409.1556",)
WIDTHS = (64, 128, 256, 512, 512)  # of the five stages; each ends with a pooling that halves height and width
DEPTHS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # convolutions a stage


def _features(depth: int, norm: bool) -> nn.Sequential:
    parts: list[nn.Module] = []
    channels = 3
    for convolutions, width in zip(DEPTHS[depth], WIDTHS, strict=True):
        for _ in range(convolutions):
            parts += [nn.Conv2d(channels, width, 3, padding=1), *([nn.BatchNorm2d(width)] if norm else []), nn.ReLU()]
            channels = width
        parts.append(nn.MaxPool2d(2))
    for part in parts:
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(*parts)


class SmallVGG(nn.Module):
    """Images [B, 3, 32, 32] to scores [B, 10]."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.features = _features(depth, norm=True)
        self.fc = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.features(x).flatten(1))  # [B, 512, 1, 1] -> [B, 10]
        return scores


class VGG(nn.Module):
    """Images [B, 3, 224, 224] to scores [B, 1000]; 9 of 10 parameters are in the linear layers."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.features = _features(depth, norm=False)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x).flatten(1))  # [B, 512, 7, 7] -> [B, 1000]
        return scores


_16 = published_2019(
    "4G",
    "3,956M at 112 x 112, or the value of ResNet50 (true at 224: 15,470M multiply-adds)",
    "134M",
    "right for 10 classes with the linear layers for 224 x 224",
)
_19 = published_2019("20G", "multiply-adds at 224 x 224", "548M", "megabytes of weights (true: 143.67M parameters)")
_SMALL = functools.partial(
    classifier, shape=C32, classes=10, references=REFERENCES, tiers=("paper-2019",), hyperparameters=DEEP
)
_LARGE = functools.partial(
    classifier,
    shape=C224,
    classes=1000,
    references=REFERENCES,
    tiers=("paper-2019",),
    default_batch=4,
    hyperparameters=rates(sgd=0.01, momentum=0.005, adam=1e-4, rmsprop=5e-5),
)
WORKLOADS = (
    _SMALL(
        name="vgg16-c32",
        build=lambda: SmallVGG(16),
        summary="VGG16 with batch norm at 32 x 32: large weights for small images",
        tiers=("smoke", "paper-2019"),
        published=_16,
    ),
    _LARGE(
        name="vgg16-224",
        build=lambda: VGG(16),
        summary="VGG16 at 224 x 224: 138 million parameters, the optimizer alone moves 1.6 GB a step",
        published=_16,
    ),
    _SMALL(
        name="vgg19-c32",
        build=lambda: SmallVGG(19),
        summary="VGG19 with batch norm at 32 x 32",
        published=_19,
    ),
    _LARGE(
        name="vgg19-224",
        build=lambda: VGG(19),
        summary="VGG19 at 224 x 224: 144 million parameters; the paper of 2019 could not train it",
        default_batch=2,
        published=_19,
    ),
)
