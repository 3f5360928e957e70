"""ResNet8, the image classifier of MLPerf Tiny: three stages of one block, biases kept, no norm in the shortcuts.

References
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: 85 % on CIFAR-10), sizes from
    https://github.com/mlcommons/tiny, benchmark/training/image_classification.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, classifier
from stepscope.workloads.contract import Published

WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3 x 3 convolutions around which the input is added: [B, C, H, W] to [B, out, H/stride, W/stride]."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Conv2d(channels, out, 1, stride=stride) if stride != 1 else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet8(nn.Module):
    """Images [B, 3, 32, 32] to scores [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        inputs = (16, *WIDTHS)
        self.blocks = nn.Sequential(
            *(Block(inputs[number], width, 1 if number == 0 else 2) for number, width in enumerate(WIDTHS))
        )
        self.fc = nn.Linear(WIDTHS[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))  # [B, 16, 32, 32] -> [B, 64, 8, 8]
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))  # [B, 10]
        return scores


WORKLOADS = (
    classifier(
        name="resnet8-c32",
        build=ResNet8,
        shape=C32,
        classes=10,
        summary="ResNet8 at 32 x 32: image classification of MLPerf Tiny",
        references=("Banbury et al., MLPerf Tiny, 2021, arXiv:2106.07597", "https://github.com/mlcommons/tiny"),
        default_batch=32,
        tiers=("smoke", "edge"),
        published=(Published("accuracy on CIFAR-10", "85 %", "MLPerf Tiny", "the target of its closed division"),),
    ),
)
