"""AlexNet: the one-column form and the grouped original at 224 x 224, and a small one for 32 x 32.

References
  A. Krizhevsky, I. Sutskever, G. Hinton, "ImageNet classification with deep convolutional neural networks", NIPS 2012:
    convolutions 2, 4 and 5 in two groups, input 227 x 227.
  A. Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, arXiv:1404.5997: one column,
    sizes as in torchvision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import nn

from stepscope.workloads._classification import C32, C224, classifier, published_2019
from stepscope.workloads.contract import rates

REFERENCES = (
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


def one_column() -> nn.Sequential:
    """Images [B, 3, 224, 224] to scores [B, 1000]."""
    return nn.Sequential(*_convolutions(2, _pool), *_linear(256 * 6 * 6))


def grouped() -> nn.Sequential:
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


def small() -> nn.Sequential:
    """Images [B, 3, 32, 32] to scores [B, 10]: the same convolutions, a narrower pooling and one linear layer."""
    return nn.Sequential(*_convolutions(5, functools.partial(nn.MaxPool2d, 2)), nn.Flatten(), nn.Linear(256, 10))


_COMMON = functools.partial(
    classifier,
    references=REFERENCES,
    default_optimizer="adam",  # without norms, it gets nowhere with momentum in the first hundred steps
    tiers=("paper-2019",),
    published=published_2019(
        "727M", "multiply-adds of the grouped original (true: 724M)", "60M", "right for the grouped original: 60.97M"
    ),
    hyperparameters=rates(sgd=0.02, momentum=0.01, adam=3e-4, rmsprop=5e-5),
)
WORKLOADS = (
    _COMMON(
        name="alexnet-c32",
        build=small,
        shape=C32,
        classes=10,
        summary="AlexNet in its form for CIFAR (https://github.com/bearpaw/pytorch-classification): few, cheap ops",
        default_batch=64,
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="alexnet-224",
        build=one_column,
        shape=C224,
        classes=1000,
        summary="AlexNet in one column at 224 x 224: 61 million parameters, bound by moving weights",
    ),
    _COMMON(
        name="alexnet-grouped-227",
        build=grouped,
        shape=(3, 227, 227),
        classes=1000,
        summary="AlexNet of 2012 at 227 x 227: grouped convolutions and local response normalisation",
        dominant_layer="grouped convolution",
    ),
)
