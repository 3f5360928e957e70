"""Base of the mobile networks after the first: channel counts in eights, convolution with norm and activation."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional


def eights(channels: float) -> int:
    """The nearest multiple of 8, not below 8, nor more than a tenth below what was asked for."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def convolution(
    channels: int,
    out: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = None,
) -> nn.Sequential:
    """Convolution without bias, batch norm, activation: [B, channels, H, W] to [B, out, H/stride, W/stride]."""
    parts: list[nn.Module] = [
        nn.Conv2d(channels, out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*parts, *([activation()] if activation else []))


class SqueezeExcite(nn.Module):
    """Each channel times a weight that its mean over the picture decides: [B, C, H, W] to the same."""

    def __init__(
        self, channels: int, inner: int, activation: Callable[[], nn.Module], gate: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, inner, 1)
        self.activation = activation()
        self.excite = nn.Conv2d(inner, channels, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        mean = functional.adaptive_avg_pool2d(x, 1)  # [B, C, 1, 1]
        weights: Tensor = self.gate(self.excite(self.activation(self.squeeze(mean))))
        return x * weights


def head(channels: int, classes: int, dropout: float) -> nn.Sequential:
    """[B, C, H, W] to scores [B, classes]."""
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*pooled, nn.Dropout(dropout), nn.Linear(channels, classes))
