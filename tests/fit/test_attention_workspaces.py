"""Workspaces of fused attention: what a real step asks for beyond what the dispatcher sees."""

from __future__ import annotations

import pytest
import torch
from tests.fit.measured import predicted_and_measured
from torch import Tensor, nn
from torch.nn import functional

from stepscope.footprint.jobs import job_of
from stepscope.record.dry.dry_run import dry_run
from stepscope.record.dry.platform import Platform
from stepscope.record.dry.workspaces import Workspaces


class Attention(nn.Module):
    """Attention of a tensor with itself, after a parameter."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.scale, self.causal = nn.Parameter(torch.ones(1)), causal

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        return functional.scaled_dot_product_attention(x, x, x, is_causal=self.causal)


@pytest.mark.parametrize(
    ("heads", "length", "depth", "causal"), [(8, 57, 16, False), (2, 200, 24, True), (1, 800, 16, False)]
)
def test_the_peak_of_a_step_is_right_to_a_thousandth(heads: int, length: int, depth: int, causal: bool) -> None:
    predicted, measured = predicted_and_measured(Attention(causal), torch.rand(2, heads, length, depth))
    assert predicted == pytest.approx(measured, rel=1e-3)


def test_each_thread_has_a_block_of_its_own() -> None:
    one, two = (_peak(Platform(block=0, threads=threads)) for threads in (1, 2))
    assert two - one == 2 * 4 * 32 * 57


def _peak(platform: Platform) -> int:
    model = Attention(False)
    job = job_of(
        model, torch.optim.SGD(model.parameters()), lambda n: torch.rand(n, 8, 57, 16),
        lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    return dry_run(job, 2, Workspaces(platform)).peak_bytes
