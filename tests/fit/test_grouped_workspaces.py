"""Workspaces of grouped convolutions on x86: blocks where a group has them, else products of patches."""

from __future__ import annotations

import pytest
import torch
from tests.fit.measured import predicted_and_measured
from torch import Tensor, nn

from stepscope.record.dry.platform import this_platform


class Grouped(nn.Module):
    """A convolution after a parameter, so that its input has a gradient."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(1)), layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layer(x * self.scale))


@pytest.mark.skipif(this_platform().block != 16, reason="the rules were fitted with AVX-512")
@pytest.mark.parametrize(
    ("inputs", "outputs", "groups", "kernel", "stride"),
    [(40, 4, 4, 3, 2), (32, 64, 32, 5, 2), (44, 28, 4, 1, 2), (60, 60, 6, 3, 1), (32, 64, 4, 3, 1), (48, 48, 2, 3, 1)],
)
def test_the_peak_of_a_step_is_right(inputs: int, outputs: int, groups: int, kernel: int, stride: int) -> None:
    model = Grouped(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        predicted, measured = predicted_and_measured(model, torch.rand(8, inputs, 24, 24))
    finally:
        torch.set_num_threads(threads)
    assert predicted == pytest.approx(measured, rel=5e-3)
