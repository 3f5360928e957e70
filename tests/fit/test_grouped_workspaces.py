"""Workspaces of grouped convolutions on x86: blocks where a group has them, else products of patches."""

from __future__ import annotations

import pytest
import torch
from tests.fit.measured import measured
from torch import Tensor, nn

from stepscope.footprint.jobs import job_of
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.workspaces import Workspaces, this_platform


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
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.rand(8, inputs, 24, 24)
    job = job_of(model, optimizer, lambda n: x[:n], lambda model, batch: model(batch).square().mean())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        said = dry_run(job, 8, Workspaces(this_platform())).peak_bytes

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        step()
        optimizer.zero_grad()  # torch would report the end of what an earlier profile had at its place
        held = x.nbytes + sum(p.nbytes for p in model.parameters())
        took = measured(step) + held
    finally:
        torch.set_num_threads(threads)
    assert said == pytest.approx(took, rel=5e-3)
