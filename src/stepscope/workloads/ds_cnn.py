"""DS-CNN: keyword spotting with depthwise separable convolutions, as MLPerf Tiny has it.

References
  Y. Zhang et al., "Hello edge: keyword spotting on microcontrollers", 2017, arXiv:1711.07128.
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: 90 %), sizes from
    https://github.com/mlcommons/tiny, benchmark/training/keyword_spotting: biases kept, 12 classes, 49 x 10 features.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepscope.workloads import _classification
from stepscope.workloads.contract import Published, Workload
from stepscope.workloads.data import speech

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
        self.fc = nn.Linear(WIDTH, len(speech.CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean(dim=(2, 3))  # [B, 64, 25, 5] -> [B, 64]
        scores: Tensor = self.fc(x)  # [B, 12]
        return scores


def _norm() -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(WIDTH), nn.ReLU()


WORKLOADS = (
    Workload(
        name="ds-cnn-kws",
        domain="audio",
        summary="Keyword spotting of MLPerf Tiny: 24 thousand parameters, bound by launching ops",
        dominant_layer="depthwise separable convolution",
        input_shape=speech.SHAPE,
        default_batch=64,
        default_optimizer="adam",
        references=(
            "Zhang et al., Hello edge: keyword spotting on microcontrollers, 2017, arXiv:1711.07128",
            "https://github.com/mlcommons/tiny",
        ),
        build=DSCNN,
        sources=speech.SOURCES,
        example=_classification.example_of(speech.SHAPE),
        loss=_classification.loss,
        correct=_classification.correct,
        tiers=("smoke", "edge"),
        published=(
            Published("accuracy on Speech Commands", "90 %", "MLPerf Tiny", "the target of its closed division"),
        ),
    ),
)
