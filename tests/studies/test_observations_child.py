"""What the child of the study does with torch: memory on a dry run, a run on a simulated board."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.patience import HANG_S

from stepscope import workloads
from stepscope.analysis.run import Run
from stepscope.experiments.engine.engine import CHILD
from stepscope.experiments.engine.process import run_child
from stepscope.experiments.observations._evidence import gather_evidence, memory_by_batch
from stepscope.footprint.jobs import workload_job


def test_parameters_stay_input_grows_as_the_batch_and_feature_maps_are_the_most() -> None:
    lenet = workloads.find("lenet")
    held = {(row["batch"], row["part"]): row["bytes"] for row in memory_by_batch(workload_job(lenet), (4, 16))}
    assert held[4, "parameters"] == held[16, "parameters"] == held[4, "gradients"] == 4 * 21_840
    assert held[16, "input data"] == 4 * held[4, "input data"]
    assert 3.9 < held[16, "intermediate data"] / held[4, "intermediate data"] <= 4.0
    assert held[16, "intermediate data"] > 4 * held[16, "input data"]


@pytest.mark.slow
def test_a_run_on_a_simulated_board_brings_power_that_says_so(tmp_path: Path) -> None:
    orders = {
        "task": "stepscope.experiments.observations._measurements:train_run",
        "workload": "lenet",
        "batch": 64,
        "device": "cpu",
        "threads": 1,
        "seed": 0,
    }
    on_a_board = {**orders, "simulate": "jetson-tx2", "steps": 12, "seconds": 1.0}
    outcome = run_child(CHILD, on_a_board, tmp_path / "run", HANG_S)
    assert outcome.status == "ok", outcome.reason
    assert outcome.run is not None
    evidence = gather_evidence([Run(outcome.run)], {}, {})
    assert evidence.runs["energy_kind"].to_list() == ["simulated"]
    assert {"total", "cpu", "gpu", "memory"} <= set(evidence.power["component"])
    refused = run_child(CHILD, {**orders, "workload": "lenot", "simulate": None}, tmp_path / "refused", HANG_S)
    assert refused.status == "refused"
    assert "lenet" in str(refused.reason)
