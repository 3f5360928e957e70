"""Networks with shortcuts around their blocks: residual and densely connected ones.

Residual networks, for 32 x 32 images (3 x 3 stem without pooling) and for 224 x 224 (7 x 7 stem, pooled).

References
  K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016, arXiv:1512.03385.
  The stride of a bottleneck sits in its 3 x 3 convolution, as in torchvision ("v1.5").
  The CIFAR stem: https://github.com/kuangliu/pytorch-cifar, models/resnet.py.
  The second paper trains ResNet18 at 224 x 224 on 23 materials (https://github.com/dereklh4/project_744).

Densely connected networks for 32 x 32 images: every layer sees the outputs of all before it in its block.

References
  G. Huang, Z. Liu, L. van der Maaten, K. Q. Weinberger, "Densely connected convolutional networks", CVPR 2017,
    arXiv:1608.06993: DenseNet (L = 40, k = 12), (L = 100, k = 12) and DenseNet-BC (L = 100, k = 12).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, DEEP, classifier, published_2019
from stepscope.workloads.contract import Published, Workload

REFERENCES = (
    "He, Zhang, Ren, Sun, Deep residual learning for image recognition, CVPR 2016, arXiv:1512.03385",
    "https://github.com/dereklh4/project_744",
)


@dataclass(frozen=True)
class Variant:
    """The shape of one network: blocks a stage, channels a stage, classes."""

    blocks: tuple[int, ...]
    bottleneck: bool = True
    small_input: bool = True
    classes: int = 10
    widths: tuple[int, ...] = (64, 128, 256, 512)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around which the input is added: [B, C, H, W] to [B, width, H/stride, W/stride]."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1 x 1 to fewer channels, 3 x 3, 1 x 1 to four times as many: [B, C, H, W] to [B, 4 width, H/stride, W/stride]."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.shortcut = _shortcut(channels, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def _shortcut(channels: int, out: int, stride: int) -> nn.Sequential:
    if stride == 1 and channels == out:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride=stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    """Images [B, 3, 32, 32] or [B, 3, 224, 224] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        channels = variant.widths[0]
        if variant.small_input:
            self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
            self.pool = nn.Sequential()
        else:
            self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
            self.pool = nn.Sequential(nn.MaxPool2d(3, stride=2, padding=1))
        self.bn1 = nn.BatchNorm2d(channels)
        block = Bottleneck if variant.bottleneck else BasicBlock
        stages = []
        for number, (blocks, width) in enumerate(zip(variant.blocks, variant.widths, strict=True)):
            strides = [1 if number == 0 else 2] + [1] * (blocks - 1)
            inputs = [channels] + [block.expansion * width] * (blocks - 1)
            stages.append(nn.Sequential(*(block(c, width, s) for c, s in zip(inputs, strides, strict=True))))
            channels = block.expansion * width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.bn1(self.conv1(x))))  # [B, 64, 32, 32] or [B, 64, 56, 56]
        x = self.stages(x)  # [B, C, 4, 4] or [B, C, 7, 7]; C is 512, with bottlenecks 2048
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))  # [B, classes]
        return scores


_18 = (2, 2, 2, 2)
_SMALL = functools.partial(classifier, shape=C32, classes=10, references=REFERENCES, hyperparameters=DEEP)
_LARGE = functools.partial(classifier, shape=C224, references=REFERENCES, hyperparameters=DEEP)


def _workloads_of_2019(
    depth: int,
    blocks: tuple[int, ...],
    batches: tuple[int, int],
    remarks: tuple[str, str],
    figures: tuple[Published, ...],
) -> tuple[Workload, Workload]:
    """A network of the paper of 2019 at 32 x 32 and at 224 x 224, with the default batch and what is said of each."""
    small, large = Variant(blocks), Variant(blocks, small_input=False, classes=1000)
    return (
        _SMALL(
            name=f"resnet{depth}-c32",
            build=functools.partial(ResNet, small),
            summary=f"ResNet{depth} at 32 x 32: {remarks[0]}",
            default_batch=batches[0],
            tiers=("paper-2019",),
            published=figures,
        ),
        _LARGE(
            name=f"resnet{depth}-224",
            build=functools.partial(ResNet, large),
            classes=large.classes,
            summary=f"ResNet{depth} at 224 x 224: {remarks[1]}",
            default_batch=batches[1],
            tiers=("paper-2019",),
            published=figures,
        ),
    )


DENSENET_REFERENCES = ("Huang et al., Densely connected convolutional networks, CVPR 2017, arXiv:1608.06993",)


@dataclass(frozen=True)
class DenseVariant:
    """Depth L (all convolutions and the linear layer), growth k, and whether bottlenecks and compression are used."""

    depth: int
    growth: int = 12
    compressed: bool = False
    classes: int = 10

    @property
    def layers(self) -> int:
        """Layers in each of the three blocks: L less stem, transitions and linear layer; a bottleneck is two."""
        return (self.depth - 4) // (6 if self.compressed else 3)


class Layer(nn.Module):
    """Adds k channels: [B, C, H, W] to [B, C + k, H, W]."""

    def __init__(self, channels: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        inner = 4 * growth if bottleneck else channels
        self.squeeze = nn.Sequential()
        if bottleneck:
            self.squeeze = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, inner, 1, bias=False))
        self.bn = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv(functional.relu(self.bn(self.squeeze(x))))
        return torch.cat([x, new], dim=1)


class Transition(nn.Module):
    """Between two blocks: 1 x 1 convolution and 2 x 2 mean, [B, C, H, W] to [B, out, H/2, W/2]."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(self.conv(functional.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """Images [B, 3, 32, 32] to scores [B, classes]."""

    def __init__(self, variant: DenseVariant) -> None:
        super().__init__()
        channels = 2 * variant.growth if variant.compressed else 16
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        parts: list[nn.Module] = []
        for block in range(3):
            for _ in range(variant.layers):
                parts.append(Layer(channels, variant.growth, variant.compressed))
                channels += variant.growth
            if block < 2:
                out = channels // 2 if variant.compressed else channels
                parts.append(Transition(channels, out))
                channels = out
        self.blocks = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))  # [B, 16, 32, 32] -> [B, C, 8, 8]
        x = functional.relu(self.bn(x)).mean(dim=(2, 3))  # [B, C]
        scores: Tensor = self.fc(x)  # [B, classes]
        return scores


_DENSENET_SMALL = functools.partial(
    classifier, shape=C32, classes=10, references=DENSENET_REFERENCES, dominant_layer="convolution and concatenation"
)
WORKLOADS = (
    _SMALL(
        name="resnet18-c32",
        build=functools.partial(ResNet, Variant(_18, bottleneck=False)),
        summary="ResNet18 at 32 x 32: deep 3 x 3 convolutions, bound by arithmetic",
        tiers=("smoke", "paper-low-power"),
    ),
    _LARGE(
        name="resnet18-224",
        build=functools.partial(ResNet, Variant(_18, bottleneck=False, small_input=False, classes=23)),
        classes=23,
        summary="ResNet18 at 224 x 224 for the 23 materials of MINC, as the second paper trained it",
        default_batch=8,
        tiers=("paper-low-power",),
    ),
    *_workloads_of_2019(
        50,
        (3, 4, 6, 3),
        batches=(16, 4),
        remarks=("bottlenecks, bound by arithmetic", "the yardstick of vision benchmarks"),
        figures=published_2019(
            "4G", "multiply-adds at 224 x 224 (true: 4,089M)", "98M", "megabytes of weights (true: 25.56M parameters)"
        ),
    ),
    *_workloads_of_2019(
        101,
        (3, 4, 23, 3),
        batches=(8, 2),
        remarks=("the paper of 2019 could not train it on its board", "121 MiB of activations an image"),
        figures=published_2019(
            "8G", "multiply-adds at 224 x 224", "155M", "megabytes of activations (true: 44.55M parameters)"
        ),
    ),
    *_workloads_of_2019(
        152,
        (3, 8, 36, 3),
        batches=(8, 2),
        remarks=("the deepest network of the suite", "170 MiB of activations an image"),
        figures=published_2019(
            "11G", "multiply-adds at 224 x 224", "220M", "megabytes of activations (true: 60.19M parameters)"
        ),
    ),
    _DENSENET_SMALL(
        name="densenet40-12-c32",
        build=lambda: DenseNet(DenseVariant(40)),
        summary="DenseNet40 at 32 x 32: a million parameters and 18 MiB of activations an image, bound by memory",
        tiers=("smoke", "paper-2019"),
        published=published_2019(
            "30M", "not matched by any variant (true: 265M multiply-adds)", "1M", "right: 1.02M parameters"
        ),
    ),
    _DENSENET_SMALL(
        name="densenet40-4-c32",
        build=lambda: DenseNet(DenseVariant(40, growth=4)),
        summary="DenseNet40 with a third of its growth: as deep, for daily training on a CPU; its weights ship",
        tiers=("edge",),
    ),
    _DENSENET_SMALL(
        name="densenet100-12-c32",
        build=lambda: DenseNet(DenseVariant(100)),
        summary="DenseNet100 at 32 x 32: 110 MiB of activations an image; the paper of 2019 could not train it",
        default_batch=4,
        tiers=("paper-2019",),
        published=published_2019(
            "31M", "megabytes of weights of another network, DenseNet121", "7M", "right: 6.98M parameters"
        ),
    ),
    _DENSENET_SMALL(
        name="densenet-bc100-12-c32",
        build=lambda: DenseNet(DenseVariant(100, compressed=True)),
        summary="DenseNet-BC 100 at 32 x 32: with bottlenecks and compression, a ninth of the parameters",
        default_batch=8,
        tiers=("edge",),
    ),
)
