"""MobileNet v1: depthwise separable convolutions, wide and cheap in sums, dear in memory.

References
  A. Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017,
    arXiv:1704.04861, table 1. The second paper trains it at 224 x 224.
  A quarter of the width at 96 x 96 for two classes: visual wake words of MLPerf Tiny, C. Banbury et al., 2021,
    arXiv:2106.07597 (target there: 80 %).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from stepscope.workloads._classification import C32, C224, classifier

REFERENCES = ("Howard et al., MobileNets, 2017, arXiv:1704.04861",)
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


WORKLOADS = (
    classifier(
        name="mobilenet-v1-224",
        build=lambda: MobileNetV1(Variant(1000)),
        shape=C224,
        classes=1000,
        summary="MobileNet v1 at 224 x 224: a third of ResNet18's sums and 1.8 times its activations",
        references=REFERENCES,
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
        references=REFERENCES,
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
        references=(*REFERENCES, "Banbury et al., MLPerf Tiny, 2021, arXiv:2106.07597"),
        dominant_layer="depthwise separable convolution",
        default_batch=32,
        tiers=("edge",),
    ),
)
