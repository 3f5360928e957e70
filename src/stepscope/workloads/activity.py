"""Activity of a wrist from six axes: accelerometer and gyroscope of a watch, by convolution or a recurrent network.

References
  F. Ordonez, D. Roggen, "Deep convolutional and LSTM recurrent neural networks for multimodal wearable activity
    recognition", Sensors 16(1), 2016: convolutions of 5 steps with 64 channels, two recurrent layers of 128.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from stepscope.workloads import _classification
from stepscope.workloads.contract import Tier, Workload
from stepscope.workloads.data import signals

AXES, STEPS = signals.MOTION_SHAPE
CLASSES = len(signals.MOTION_CLASSES)


class ActivityCNN(nn.Module):
    """Axes [B, 6, 100] to scores [B, 4]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for channels in (AXES, width, width, width):
            parts += [nn.Conv1d(channels, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU()]
        self.features = nn.Sequential(*parts)
        self.fc = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.features(x).mean(dim=2))  # [B, 64, 100] -> [B, 4]
        return scores


class ActivityGRU(nn.Module):
    """Axes [B, 6, 100] to scores [B, 4]."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.gru = nn.GRU(AXES, hidden, num_layers=2, batch_first=True)
        self.fc = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x.transpose(1, 2))  # [B, 100, 128]
        scores: Tensor = self.fc(states[:, -1])  # [B, 4]
        return scores


def _workload(
    name: str, build: Callable[[], nn.Module], layer: str, summary: str, tiers: tuple[Tier, ...] = ("edge",)
) -> Workload:
    return Workload(
        name=name,
        domain="sensors",
        summary=summary,
        dominant_layer=layer,
        input_shape=signals.MOTION_SHAPE,
        default_batch=8,
        default_optimizer="adam",
        references=("Ordonez, Roggen, Deep convolutional and LSTM recurrent networks, Sensors 16(1), 2016",),
        build=build,
        sources=signals.MOTION_SOURCES,
        example=_classification.example_maker(signals.MOTION_SHAPE),
        loss=_classification.loss,
        correct=_classification.count_correct,
        tiers=tiers,
    )


WORKLOADS = (
    _workload(
        "activity-cnn-6x100",
        ActivityCNN,
        "convolution",
        "Activity from six axes: one-dimensional convolutions",
        tiers=("smoke", "edge"),
    ),
    _workload("activity-gru-6x100", ActivityGRU, "GRU", "Activity from six axes: a GRU of 100 steps in a row"),
)
