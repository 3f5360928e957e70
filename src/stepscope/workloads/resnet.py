"""Residual networks for 32 x 32 images: 3 x 3 stem without pooling, so that the first stage sees every pixel.

References
  K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016, arXiv:1512.03385.
  The CIFAR stem: https://github.com/kuangliu/pytorch-cifar, models/resnet.py.
  The second paper trains ResNet18 at 224 x 224 (https://github.com/dereklh4/project_744); this is its small sibling.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads import _classification
from stepscope.workloads.contract import Workload
from stepscope.workloads.data import digits


@dataclass(frozen=True)
class Variant:
    """The shape of one network: blocks a stage, channels a stage, classes."""

    blocks: tuple[int, ...]
    widths: tuple[int, ...] = (64, 128, 256, 512)
    classes: int = 10


RESNET18 = Variant(blocks=(2, 2, 2, 2))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions around which the input is added: [B, C, H, W] to [B, width, H/stride, W/stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images [B, 3, 32, 32] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        channels = variant.widths[0]
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        stages = []
        for number, (blocks, width) in enumerate(zip(variant.blocks, variant.widths, strict=True)):
            strides = [1 if number == 0 else 2] + [1] * (blocks - 1)
            inputs = [channels] + [width] * (blocks - 1)
            stages.append(nn.Sequential(*(BasicBlock(c, width, s) for c, s in zip(inputs, strides, strict=True))))
            channels = width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, variant.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))  # [B, 64, 32, 32]
        x = self.stages(x)  # [B, 64, 32, 32] -> [B, 128, 16, 16] -> [B, 256, 8, 8] -> [B, 512, 4, 4]
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))  # [B, classes]
        return scores


def resnet18() -> ResNet:
    """ResNet18 with the stem for 32 x 32 images, 11,173,962 parameters."""
    return ResNet(RESNET18)


SHAPE = (3, 32, 32)
WORKLOADS = (
    Workload(
        name="resnet18-c32",
        domain="vision",
        summary="ResNet18 at 32 x 32 on handwritten digits: deep 3 x 3 convolutions, bound by arithmetic",
        dominant_layer="convolution",
        input_shape=SHAPE,
        default_batch=16,
        default_optimizer="momentum",
        references=(
            "He, Zhang, Ren, Sun, Deep residual learning for image recognition, CVPR 2016, arXiv:1512.03385",
            "https://github.com/dereklh4/project_744",
        ),
        data=digits.FACTS,
        build=resnet18,
        load=digits.digits32,
        example=_classification.example_of(SHAPE),
        loss=_classification.loss,
        correct=_classification.correct,
    ),
)
