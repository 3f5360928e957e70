"""Accelerate: the steps of real loops, recorded by block and by tracker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.trainings import BATCH, RefusedError, library, loader
from torch import nn

from stepscope.integrations import accelerate as ours

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Accelerate keeps one state a process."""
    library("accelerate").state.AcceleratorState._reset_state(reset_partial_state=True)
    library("accelerate").state.GradientState._reset_state()
    yield
    library("accelerate").state.AcceleratorState._reset_state(reset_partial_state=True)
    library("accelerate").state.GradientState._reset_state()


def _prepared(accelerator: Any, batches: int) -> tuple[Any, Any, Any]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared: tuple[Any, Any, Any] = accelerator.prepare(model, optimizer, loader(batches))
    return prepared


def _train(accelerator: Any, model: Any, optimizer: Any, batches: Any) -> None:
    for inputs, labels in batches:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()


def test_a_step_is_all_the_batches_whose_gradients_add_up(tmp_path: Path) -> None:
    accelerator = library("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=3)
    parts = _prepared(accelerator, 10)
    with ours.profile(accelerator, out=tmp_path, record="none") as recording:
        _train(accelerator, *parts)
    run = recording.run
    assert (run.status, run.meta["trainer"]["accumulate"]) == ("ok", 3)
    assert run.steps["samples"].to_list() == [3 * BATCH, 3 * BATCH, 3 * BATCH, BATCH]
    assert (run.steps["t1_ns"] > run.steps["t0_ns"]).all()
    assert run.meta["workload"]["optimizer"] == "SGD"


def test_an_exception_of_the_loop_passes_untouched_and_the_run_says_failed(tmp_path: Path) -> None:
    accelerator, error = library("accelerate").Accelerator(cpu=True), RefusedError("no more")
    with pytest.raises(RefusedError) as caught, ours.profile(accelerator, out=tmp_path) as recording:
        raise error
    assert caught.value is error
    assert recording.run.status == "failed"


def test_a_tracker_records_from_init_trackers_to_end_training(tmp_path: Path) -> None:
    library("accelerate")
    tracker = ours.StepscopeTracker(out=tmp_path, record="none")
    accelerator = library("accelerate").Accelerator(cpu=True, log_with=tracker)
    parts = _prepared(accelerator, 4)
    accelerator.init_trackers("project", config={"lr": 0.1, "shape": (1, 2)})
    _train(accelerator, *parts)
    accelerator.log({"loss": 1.0}, step=1)
    accelerator.end_training()
    run = tracker.recording.run
    assert (run.status, len(run.steps)) == ("ok", 4)
    assert run.meta["config"] == {"lr": 0.1, "shape": "(1, 2)"}
    assert accelerator.get_tracker("stepscope", unwrap=True) is tracker.recording
