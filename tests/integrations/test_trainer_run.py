"""A run of somebody else's trainer, whatever the trainer leaves out or gets wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
import torch
from tests.patience import HANG_S
from torch import nn

import stepscope
from stepscope.errors import UsageError
from stepscope.integrations import _training
from stepscope.integrations._library_hooks import guard_hook
from stepscope.integrations._training import TrainingRun

LIBRARY = {"library": "test"}


def _begun(tmp_path: Path) -> TrainingRun:
    recording = TrainingRun(out=tmp_path, record="none")
    recording.begin(nn.Linear(2, 2), trainer=LIBRARY)
    return recording


def test_an_option_that_cannot_be_meant_is_refused_when_the_callback_is_made() -> None:
    with pytest.raises(UsageError):
        TrainingRun(record="sometimes")
    with pytest.raises(TypeError):
        TrainingRun(recrod="all")


def test_what_comes_before_the_beginning_or_after_the_end_does_nothing(tmp_path: Path) -> None:
    recording = TrainingRun(out=tmp_path)
    for call in (recording.batch, recording.step, recording.pause, recording.resume, recording.end, recording.end):
        call()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError):
        _ = recording.run


def test_a_training_that_never_ended_is_interrupted_when_the_next_begins(tmp_path: Path) -> None:
    recording = _begun(tmp_path)
    recording.step()
    first = recording.path
    recording.begin(nn.Linear(2, 2), trainer=LIBRARY)
    recording.step()
    recording.end()
    assert first is not None
    assert stepscope.Run(first).status == "interrupted"
    assert "before the trainer said" in stepscope.Run(first).meta["reason"]
    assert recording.run.status == "ok"


def test_a_training_that_is_not_recorded_has_no_run_although_one_before_it_was(tmp_path: Path) -> None:
    recording = _begun(tmp_path / "runs")
    recording.end()
    (tmp_path / "runs").rename(tmp_path / "moved")
    (tmp_path / "runs").write_text("", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="not recorded"):
        recording.begin(nn.Linear(2, 2), trainer=LIBRARY)
    assert recording.path is None


def test_what_fails_in_a_hook_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    hook = Mock(side_effect=AttributeError("the trainer has changed"))
    hook.__name__ = "on_batch"
    callback = SimpleNamespace(recording=_begun(tmp_path))
    with pytest.warns(RuntimeWarning, match="the training goes on"):
        guard_hook(hook)(callback)
    guard_hook(hook)(callback)
    run = callback.recording.run
    assert hook.call_count == 1
    assert run.status == "interrupted"
    assert run.events[0]["kind"] == "recording-lost"


def test_an_exception_that_a_signal_handler_raises_in_a_hook_is_the_trainings_own(tmp_path: Path) -> None:
    def alarm(*_: Any) -> None:
        raise TimeoutError("too long")

    def hook(_self: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)

    callback, before = SimpleNamespace(recording=_begun(tmp_path)), signal.signal(signal.SIGUSR1, alarm)
    try:
        with pytest.raises(TimeoutError):
            guard_hook(hook)(callback)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert callback.recording.open
    callback.recording.end()


def test_a_forked_child_hears_of_nothing(tmp_path: Path) -> None:
    recording, hook = _begun(tmp_path), Mock()
    hook.__name__ = "on_batch"
    child = os.fork()
    if child == 0:
        guard_hook(hook)(SimpleNamespace(recording=recording))
        os._exit(hook.call_count)
    assert os.waitpid(child, 0)[1] == 0
    recording.step()
    recording.end()
    assert len(recording.run.steps) == 1


def test_losses_on_an_accelerator_are_summed_there_and_read_later() -> None:
    loss = torch.ones((), device="meta", dtype=torch.float16)
    with pytest.raises(RuntimeError):
        float(loss)
    summed = _training._sum([loss, loss], 0.5)
    assert (summed.device.type, summed.dtype, summed.requires_grad) == ("meta", torch.float32, False)
    assert float(_training._sum_on_device([torch.ones(1), torch.tensor(3.0)], 0.5)) == 2.0


def test_a_loss_that_is_spread_over_ranks_is_not_read_by_one_alone(tmp_path: Path) -> None:
    class Spread(torch.Tensor):
        device_mesh = "four ranks"

    recording = _begun(tmp_path)
    recording.loss(torch.ones(()).as_subclass(Spread))
    assert recording._losses == []
    recording.end()


def test_a_checkpoint_is_no_part_of_a_step_unless_it_lies_within(tmp_path: Path) -> None:
    recording = _begun(tmp_path)
    for inside in (False, True):
        if inside:
            recording.begin_batch()
        with recording.checkpoint(), recording.checkpoint():
            time.sleep(0.05)
        recording.batch()
        recording.step()
    recording.end()
    spans = recording.run.steps.select(t_ns=pl.col("t1_ns") - pl.col("t0_ns"))["t_ns"].to_list()
    assert spans[0] < 0.05e9 <= spans[1]
    assert [event["kind"] for event in recording.run.events] == ["checkpoint-in-step"]


def test_a_process_that_ends_inside_a_training_interrupts_the_run(tmp_path: Path) -> None:
    recording = _begun(tmp_path)
    recording._close_at_process_exit()
    assert recording.run.status == "interrupted"
    assert recording.run.meta["reason"].startswith("the process ended")


def test_an_exception_that_nobody_catches_is_found_when_the_process_ends(tmp_path: Path) -> None:
    script = f"""
from torch import nn
from stepscope.integrations._training import TrainingRun
recording = TrainingRun(out={str(tmp_path)!r}, record="none")
recording.begin(nn.Linear(2, 2), trainer={LIBRARY!r})
recording.step()
raise ValueError("wrong")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG_S, check=False)
    run = stepscope.Run(next(path.parent for path in tmp_path.glob("*/run.json")))
    assert (run.status, run.meta["reason"], len(run.steps)) == ("failed", "ValueError: wrong", 1)
    assert done.returncode == 1
