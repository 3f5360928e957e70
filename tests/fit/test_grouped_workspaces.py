"""Workspaces of grouped convolutions on x86: blocks where a group has them, else products of patches."""

from __future__ import annotations

import pytest
import torch
from tests.fit.measured import predicted_and_measured
from torch import Tensor, nn

from stepscope.record.dry.platform import Platform, this_platform
from stepscope.record.dry.workspaces import Workspaces


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


def convolution(inputs: int, outputs: int, groups: int, kernel: int) -> set[str]:
    """Return the calls of a layer that the rules do not cover on a processor with blocks of eight channels."""
    layer, rules = nn.Conv2d(inputs, outputs, kernel, groups=groups), Workspaces(Platform(block=8))
    x = torch.rand(4, inputs, 16, 16)
    args = (x, layer.weight, layer.bias, [1, 1], [0, 0], [1, 1], False, [0, 0], groups)
    rules(torch.ops.aten.convolution.default, args, {}, layer(x))
    return rules.uncovered


@pytest.mark.parametrize(("inputs", "outputs", "groups", "kernel"), [(48, 32, 2, 3), (64, 64, 64, 5), (1, 16, 1, 5)])
def test_a_convolution_that_avx2_runs_otherwise_is_run_alone(
    inputs: int, outputs: int, groups: int, kernel: int
) -> None:
    assert convolution(inputs, outputs, groups, kernel)


def test_a_convolution_that_runs_alike_on_avx2_has_its_rule() -> None:
    assert not convolution(64, 64, 64, 3)
    assert not convolution(3, 64, 1, 7)


@pytest.mark.skipif(this_platform().block != 8, reason="what AVX2 does")
def test_a_pixels_kernel_with_a_stride_collects_what_it_reads() -> None:
    predicted, measured = predicted_and_measured(Grouped(nn.Conv2d(96, 128, 1, 2)), torch.rand(8, 96, 28, 28))
    assert predicted == pytest.approx(measured, rel=1e-3)
