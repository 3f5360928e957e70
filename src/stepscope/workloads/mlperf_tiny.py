"""The networks of MLPerf Tiny that only it has: DS-CNN, ResNet8, the autoencoder.

DS-CNN: keyword spotting with depthwise separable convolutions, as MLPerf Tiny has it.

References
  Y. Zhang et al., "Hello edge: keyword spotting on microcontrollers", 2017, arXiv:1711.07128.
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: 90 %), sizes from
    https://github.com/mlcommons/tiny, benchmark/training/keyword_spotting: biases kept, 12 classes, 49 x 10 features.

ResNet8, the image classifier of MLPerf Tiny: three stages of one block, biases kept, no norm in the shortcuts.

References
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: 85 % on CIFAR-10), sizes from
    https://github.com/mlcommons/tiny, benchmark/training/image_classification.

The autoencoder of MLPerf Tiny: it learns how a machine sounds, to hear when it does not.

References
  Y. Koizumi et al., "Description and discussion on DCASE2020 challenge task 2", 2020, arXiv:2006.05822 (baseline).
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: area under curve 0.85).
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads import _classification
from stepscope.workloads._classification import C32, classifier
from stepscope.workloads.contract import Batch, Published, Workload
from stepscope.workloads.data import signals, synthetic

WIDTH = 64


class DSCNN(nn.Module):
    """Features [B, 1, 49, 10] (time, cepstral coefficients) to scores [B, 12]."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [
            nn.ZeroPad2d((1, 1, 4, 5)), nn.Conv2d(1, WIDTH, (10, 4), stride=2), *_norm(), nn.Dropout(0.2),
        ]  # fmt: skip
        for _ in range(4):
            parts += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH), *_norm()]
            parts += [nn.Conv2d(WIDTH, WIDTH, 1), *_norm()]
        self.features = nn.Sequential(*parts, nn.Dropout(0.4))
        self.fc = nn.Linear(WIDTH, len(signals.SPEECH_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean(dim=(2, 3))  # [B, 64, 25, 5] -> [B, 64]
        scores: Tensor = self.fc(x)  # [B, 12]
        return scores


def _norm() -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(WIDTH), nn.ReLU()


RESNET8_WIDTHS = (16, 32, 64)


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
        inputs = (16, *RESNET8_WIDTHS)
        self.blocks = nn.Sequential(
            *(Block(inputs[number], width, 1 if number == 0 else 2) for number, width in enumerate(RESNET8_WIDTHS))
        )
        self.fc = nn.Linear(RESNET8_WIDTHS[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))  # [B, 16, 32, 32] -> [B, 64, 8, 8]
        scores: Tensor = self.fc(x.mean(dim=(2, 3)))  # [B, 10]
        return scores


FEATURES = 640  # 5 frames of 128 mel bands
AUTOENCODER_WIDTHS = (FEATURES, 128, 128, 128, 128, 8, 128, 128, 128, 128)
_MOTIFS = (
    6  # what the made-up spectra are mixed from: fewer than the narrowest layer, so that there is something to learn
)


class Autoencoder(nn.Module):
    """Spectra [B, 640] by way of 8 numbers to spectra [B, 640]."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width, out in itertools.pairwise(AUTOENCODER_WIDTHS):
            parts += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU()]
        self.layers = nn.Sequential(*parts, nn.Linear(AUTOENCODER_WIDTHS[-1], FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of what comes back."""
    return functional.mse_loss(model(batch[0]), batch[0])


def example(samples: int) -> Batch:
    """Empty spectra."""
    return (torch.zeros(samples, FEATURES),)


def _synthetic(size: int, randomness: torch.Generator) -> Batch:
    normal = functools.partial(torch.randn, generator=randomness)
    motifs, shares = normal(_MOTIFS, FEATURES), normal(size, _MOTIFS)
    return (shares @ motifs / _MOTIFS**0.5 + 0.1 * normal(size, FEATURES),)


WORKLOADS = (
    Workload(
        name="ds-cnn-kws",
        domain="audio",
        summary="Keyword spotting of MLPerf Tiny: 24 thousand parameters, bound by launching ops",
        dominant_layer="depthwise separable convolution",
        input_shape=signals.SPEECH_SHAPE,
        default_batch=64,
        default_optimizer="adam",
        references=(
            "Zhang et al., Hello edge: keyword spotting on microcontrollers, 2017, arXiv:1711.07128",
            "https://github.com/mlcommons/tiny",
        ),
        build=DSCNN,
        sources=signals.SPEECH_SOURCES,
        example=_classification.example_maker(signals.SPEECH_SHAPE),
        loss=_classification.loss,
        correct=_classification.count_correct,
        tiers=("smoke", "edge"),
        published=(
            Published("accuracy on Speech Commands", "90 %", "MLPerf Tiny", "the target of its closed division"),
        ),
    ),
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
    Workload(
        name="autoencoder-640",
        domain="sensors",
        summary="Anomaly detection of MLPerf Tiny: linear layers only, bound by launching ops and by the optimizer",
        dominant_layer="linear",
        input_shape=(FEATURES,),
        default_batch=128,
        least_batch=2,
        default_optimizer="adam",
        references=("Banbury et al., MLPerf Tiny, NeurIPS 2021, arXiv:2106.07597", "https://github.com/mlcommons/tiny"),
        build=Autoencoder,
        sources=(synthetic.source(_synthetic),),
        example=example,
        loss=loss,
        loss_name="mean squared error",
        tiers=("smoke", "edge"),
        published=(
            Published("area under the curve on ToyADMOS", "0.85", "MLPerf Tiny", "the target of its closed division"),
        ),
    ),
)
