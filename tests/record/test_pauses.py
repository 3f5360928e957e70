"""Pauses that the training states: what lies in them is nothing of the run, and what lies around them stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stepscope
from stepscope.record.profile import Scope
from stepscope.runfolder import RunReader

WORK_S, PAUSE_S = 0.03, 0.1
Pause = Callable[[Scope, nn.Module], Any]


def train(out: Path, *, within: Pause | None = None, between: Pause | None = None, **options: Any) -> RunReader:
    """Record eight steps that sleep for WORK_S each; every other one has a pause within it, or behind it."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, optimizer, out=out, **options) as scope:
        for number in range(8):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            time.sleep(WORK_S)
            if within is not None and number % 2:
                within(scope, model)
            optimizer.step()
            if options.get("steps") != "optimizer":
                scope.step()
            if between is not None and number % 2:
                between(scope, model)
    return RunReader(scope.path)


def pause(scope: Scope, model: nn.Module) -> None:
    """Evaluate with gradients enabled, and train a probe beside the model."""
    scope.pause()
    probe = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(probe.parameters(), lr=0.01)
    for _ in range(3):
        probe(torch.randn(64, 8)).sum().backward()
        optimizer.step()
    model(torch.randn(100, 8)).sum().item()
    time.sleep(PAUSE_S)
    scope.resume()


def lengths_s(run: RunReader) -> list[float]:
    return [(t1 - t0) / 1e9 for t0, t1 in run.steps.select("t0_ns", "t1_ns").rows()]


@pytest.mark.parametrize("steps", ["calls", "optimizer"])
def test_a_step_is_as_long_as_what_lies_outside_of_the_pause_within_it(tmp_path: Path, steps: str) -> None:
    run = train(tmp_path, within=pause, steps=steps, record="none")
    paused = lengths_s(run)[1::2]
    assert len(paused) == 4
    assert all(length >= WORK_S for length in paused)
    assert min(paused) < PAUSE_S
    assert run.steps["samples"].to_list()[2:] == [4] * 6


@pytest.mark.parametrize("steps", ["calls", "optimizer"])
def test_a_step_with_a_pause_within_it_is_not_profiled_and_that_is_said_once(tmp_path: Path, steps: str) -> None:
    run = train(tmp_path, within=pause, steps=steps, record="all")
    assert run.steps["recorded"].to_list() == [True, False] * 4
    assert set(run.ops["step"].unique().to_list()) == {0, 2, 4, 6}
    assert [event["kind"] for event in run.events].count("pause-within-step") == 1


@pytest.mark.parametrize("record", ["all", "none", "adaptive"])
@pytest.mark.parametrize("steps", ["calls", "optimizer"])
def test_what_is_trained_and_called_in_a_pause_is_no_step_and_no_sample(
    tmp_path: Path, steps: str, record: str
) -> None:
    run = train(tmp_path, between=pause, steps=steps, record=record)
    assert run.steps["samples"].to_list() == [4] * 8
    assert all(length > 0 for length in lengths_s(run))
    ends, begins = run.steps["t1_ns"].to_list(), run.steps["t0_ns"].to_list()
    assert all(begin - end >= PAUSE_S * 1e9 for end, begin in zip(ends[1::2], begins[2::2], strict=False))


def test_a_step_that_is_said_to_end_in_a_pause_ends_it(tmp_path: Path) -> None:
    run = train(tmp_path, within=lambda scope, _: scope.pause(), record="all")
    assert run.steps["samples"].to_list() == [4] * 8
    assert run.steps["recorded"].to_list() == [True, False] * 4


def test_a_pause_that_is_stated_twice_is_one(tmp_path: Path) -> None:
    def pause_twice(scope: Scope, model: nn.Module) -> None:
        scope.pause()
        time.sleep(WORK_S)
        pause(scope, model)

    paused = lengths_s(train(tmp_path, within=pause_twice, record="none"))[1::2]
    assert min(paused) < PAUSE_S
