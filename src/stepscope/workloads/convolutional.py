"""The first convolutional networks: LeNet, AlexNet, VGG.

LeNet: two convolutions and two linear layers, 21,840 parameters, bound by the cost of launching its ops.

References
  The network: Y. LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 86(11), 1998,
    in the smaller form of https://github.com/pytorch/examples/tree/main/mnist (before 2019).
  The second paper's code: https://github.com/dereklh4/project_744 (there one convolution a filter, 10 + 20 of them,
    so that filters can be frozen; here one convolution a layer: the same parameters and the same sums).

AlexNet: the one-column form and the grouped original at 224 x 224, and a small one for 32 x 32.

References
  A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet classification with deep convolutional neural networks", NIPS 2012:
    convolutions 2, 4 and 5 in two groups, input 227 x 227.
  A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, arXiv:1404.5997: one column,
    sizes as in torchvision.

VGG: 3 x 3 convolutions in a row; at 224 x 224 with the three large linear layers, at 32 x 32 with batch norm.

References
  K. Simonyan, A. Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015,
    arXiv:1409.1556, configurations D (16 layers) and E (19).
  The form for 32 x 32: https://github.com/kuangliu/pytorch-cifar, models/vgg.py (batch norm, one linear layer).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, DEEP, classifier, published_2019
from stepscope.workloads.contract import Published, rates


class LeNet(nn.Module):
    """Digits [B, 1, 28, 28] to scores [B, classes]."""

    def __init__(self, filters: tuple[int, int] = (10, 20), hidden: int = 50, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, filters[0], kernel_size=5)
        self.conv2 = nn.Conv2d(filters[0], filters[1], kernel_size=5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(filters[1] * 4 * 4, hidden)
        self.fc1_drop = nn.Dropout()
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))  # [B, 10, 12, 12]
        x = functional.relu(functional.max_pool2d(self.conv2_drop(self.conv2(x)), 2))  # [B, 20, 4, 4]
        x = self.fc1_drop(functional.relu(self.fc1(x.flatten(1))))  # [B, 50]
        scores: Tensor = self.fc2(x)  # [B, 10]
        return scores


ALEXNET_REFERENCES = (
    "Krizhevsky, Sutskever, Hinton, ImageNet classification with deep convolutional neural networks, NIPS 2012",
    "Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014, arXiv:1404.5997",
)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2)


def _linear(features: int) -> list[nn.Module]:
    return [
        nn.Flatten(),
        nn.Dropout(), nn.Linear(features, 4096), nn.ReLU(),
        nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 1000),
    ]  # fmt: skip


def _convolutions(padding: int, pool: Callable[[], nn.MaxPool2d]) -> list[nn.Module]:
    """Images [B, 3, 224, 224] to [B, 256, 6, 6]; with more padding and less pooling, 32 x 32 to 1 x 1."""
    return [
        nn.Conv2d(3, 64, 11, stride=4, padding=padding), nn.ReLU(), pool(),  # [B, 64, 27, 27] or [B, 64, 4, 4]
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), pool(),  # [B, 192, 13, 13] or [B, 192, 2, 2]
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), pool(),
    ]  # fmt: skip


def alexnet_one_column() -> nn.Sequential:
    """Images [B, 3, 224, 224] to scores [B, 1000]."""
    return nn.Sequential(*_convolutions(2, _pool), *_linear(256 * 6 * 6))


def alexnet_grouped() -> nn.Sequential:
    """Images [B, 3, 227, 227] to scores [B, 1000]; what two graphics cards computed then is two groups here."""
    return nn.Sequential(
        nn.Conv2d(3, 96, 11, stride=4),
        nn.ReLU(),
        nn.LocalResponseNorm(5, 1e-4, 0.75, 2),
        _pool(),  # [B, 96, 27, 27]
        nn.Conv2d(96, 256, 5, padding=2, groups=2),
        nn.ReLU(),
        nn.LocalResponseNorm(5, 1e-4, 0.75, 2),
        _pool(),
        nn.Conv2d(256, 384, 3, padding=1),
        nn.ReLU(),  # [B, 384, 13, 13]
        nn.Conv2d(384, 384, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1, groups=2),
        nn.ReLU(),
        _pool(),  # [B, 256, 6, 6]
        *_linear(256 * 6 * 6),
    )


def alexnet_small() -> nn.Sequential:
    """Images [B, 3, 32, 32] to scores [B, 10]: the same convolutions, a narrower pooling and one linear layer."""
    return nn.Sequential(*_convolutions(5, functools.partial(nn.MaxPool2d, 2)), nn.Flatten(), nn.Linear(256, 10))


_COMMON = functools.partial(
    classifier,
    references=ALEXNET_REFERENCES,
    default_optimizer="adam",  # without norms, it gets nowhere with momentum in the first hundred steps
    tiers=("paper-2019",),
    published=published_2019(
        "727M", "multiply-adds of the grouped original (true: 724M)", "60M", "right for the grouped original: 60.97M"
    ),
    hyperparameters=rates(sgd=0.02, momentum=0.01, adam=3e-4, rmsprop=5e-5),
)


VGG_REFERENCES = ("Simonyan, Zisserman, Very deep convolutional networks, ICLR 2015, arXiv:1409.1556",)
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
    classifier, shape=C32, classes=10, references=VGG_REFERENCES, tiers=("paper-2019",), hyperparameters=DEEP
)
_LARGE = functools.partial(
    classifier,
    shape=C224,
    classes=1000,
    references=VGG_REFERENCES,
    tiers=("paper-2019",),
    default_batch=4,
    hyperparameters=rates(sgd=0.01, momentum=0.005, adam=1e-4, rmsprop=5e-5),
)
WORKLOADS = (
    classifier(
        name="lenet",
        build=LeNet,
        shape=(1, 28, 28),
        classes=10,
        summary="LeNet on handwritten digits: the smallest network of the suite, done in seconds",
        references=(
            "LeCun et al., Gradient-based learning applied to document recognition, Proc. IEEE 86(11), 1998",
            "https://github.com/dereklh4/project_744",
        ),
        default_batch=64,
        tiers=("smoke", "paper-low-power"),
        published=(
            Published(
                quantity="training time with 60 % of the filters trained",
                value="more than 50 % less",
                source="second paper",
                remark="its stored code never thaws a frozen filter: what was timed trains almost none of them",
            ),
        ),
    ),
    _COMMON(
        name="alexnet-c32",
        build=alexnet_small,
        shape=C32,
        classes=10,
        summary="AlexNet in its form for CIFAR (https://github.com/bearpaw/pytorch-classification): few, cheap ops",
        default_batch=64,
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="alexnet-224",
        build=alexnet_one_column,
        shape=C224,
        classes=1000,
        summary="AlexNet in one column at 224 x 224: 61 million parameters, bound by moving weights",
    ),
    _COMMON(
        name="alexnet-grouped-227",
        build=alexnet_grouped,
        shape=(3, 227, 227),
        classes=1000,
        summary="AlexNet of 2012 at 227 x 227: grouped convolutions and local response normalisation",
        dominant_layer="grouped convolution",
    ),
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
