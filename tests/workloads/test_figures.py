"""Parameters and FLOPs of the workloads, against the figures counted by hand for the suite; 1 MAC = 2 FLOPs."""

from __future__ import annotations

import pytest

from stepscope import workloads
from stepscope.record.flops import count_flops


@pytest.mark.parametrize(
    ("name", "parameters", "forward_macs", "training_macs"),
    [("lenet", 21_840, 0.48e6, 1.3e6), ("resnet18-c32", 11_173_962, 555.4e6, 1_664e6)],
)
def test_a_workload_has_the_size_that_the_literature_gives(
    name: str, parameters: int, forward_macs: float, training_macs: float
) -> None:
    workload = workloads.find(name)
    model = workload.build()
    counted = count_flops(model, workload.loss, workload.example(2))
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert counted.total_forward is not None
    assert counted.total_backward is not None
    assert counted.total_forward / 2 == pytest.approx(forward_macs, rel=0.003)
    assert (counted.total_forward + counted.total_backward) / 2 == pytest.approx(training_macs, rel=0.003)
