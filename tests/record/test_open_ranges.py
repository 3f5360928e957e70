"""Ranges that are open when a window closes: torch crashes where one outlives the window in which it began."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.patience import HANG_S
from tests.record.loops import last_step, record, simple_loop
from torch import nn

import stepscope
from stepscope.record import kineto
from stepscope.record.ops.events import CLOSING, Names, read_event_columns
from stepscope.record.ops.rows import trim_at_window_close
from stepscope.record.torch_hooks import _ModuleRoute
from stepscope.runfolder import RunReader

NESTED = """
import sys, torch
from torch import nn
import stepscope

torch.set_num_threads(1)
layer = nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
kind, out, steps, memory = sys.argv[1:]

def train(step):
    for _ in range(4):  # even: a window is open when the ranges begin, and another one when they end
        optimizer.zero_grad(); layer(torch.randn(4, 8)).sum().backward(); optimizer.step(); step()
        kept.append([bytearray(64 + size) for size in range(2000)])  # takes the memory that a window gave back

class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nested(depth - 1) if depth else None
    def forward(self, step):
        if self.inner is None:
            return train(step)
        if kind == "modules":
            return self.inner(step)
        with torch.profiler.record_function("range of the training's own"):
            return self.inner.forward(step)

nested, kept = Nested(120), []
with stepscope.profile(nested, out=out, record="every:2", steps=steps, memory=memory, characterise=False) as scope:
    for _ in range(5):
        nested(scope.step if steps == "calls" else lambda: None)
print("recorded", scope.run.steps["recorded"].sum())
"""


@pytest.mark.parametrize(("kind", "steps", "memory"), [("modules", "calls", "off"), ("ranges", "optimizer", "all")])
def test_a_training_survives_windows_that_close_inside_a_hundred_open_ranges(
    tmp_path: Path, kind: str, steps: str, memory: str
) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", NESTED, kind, str(tmp_path), steps, memory]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=HANG_S, env={**os.environ, "MALLOC_PERTURB_": "165"}
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout.split()[1]) >= 9  # every second of 20 steps: windows open again after each close


def stopped(left_open: Callable[[], Any]) -> tuple[list[str], tuple[str, ...]]:
    """Names of a window's events and of what outlasted it."""
    window = kineto.start_window(shapes=False, cuda=False)
    torch.ones(2).sum()
    kept = left_open()
    names = Names()
    events, left = trim_at_window_close(read_event_columns(window.stop(), names, cuda=False), names)
    del kept
    return [names.texts()[number] for number in events.name], left


def test_a_range_of_the_trainings_own_ends_with_the_window_and_may_be_left_again() -> None:
    range_ = torch.profiler.record_function("epoch")
    seen, left = stopped(lambda: entered(range_))
    assert ("epoch" in seen, left) == (True, ())
    range_.__exit__(None, None, None)
    assert torch.profiler.record_function.__exit__.__module__ == "torch.autograd.profiler"
    assert not hasattr(torch.profiler.record_function.__exit__, "__wrapped__")  # nothing of ours stays behind


def test_a_range_that_cannot_be_ended_is_told() -> None:
    seen, left = stopped(lambda: entered(torch._C._profiler._RecordFunctionFast("theirs")))
    assert ("theirs" in seen, left) == (True, ("theirs",))


def test_what_ends_by_itself_outlasts_nothing() -> None:
    seen, left = stopped(lambda: None)
    assert ("aten::sum" in seen, CLOSING in seen, left) == (True, False, ())


def entered(scope: Any) -> Any:
    scope.__enter__()
    return scope


def test_nothing_more_is_recorded_after_a_range_that_cannot_be_ended(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    kept: list[Any] = []

    def loop(step: Any) -> None:
        simple_loop(model, 4)(step)
        kept.append(entered(torch._C._profiler._RecordFunctionFast("theirs")))
        simple_loop(model, 8)(step)
        kept.clear()

    run = record(loop, tmp_path, model, record="every:2")
    messages = [event["message"] for event in run.events if event["kind"] == "recording-stopped"]
    assert len(messages) == 1
    assert "theirs" in messages[0]
    assert run.steps.height == 12
    assert max(run.steps.filter("recorded")["step"].to_list()) <= 4


def test_rows_of_a_call_that_is_open_at_the_end_of_its_step_end_with_the_step(tmp_path: Path) -> None:
    inner = nn.Linear(8, 8)

    class Trainer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, step: Any) -> None:
            simple_loop(self.inner, 6)(step)

    run = record(lambda step: Trainer()(step), tmp_path, record="every:2")
    rows, step = last_step(run), run.steps.filter("recorded").row(-1, named=True)
    assert max(rows["t1_ns"].to_list()) <= step["t1_ns"]
    assert rows.filter(pl.col("phase") == "backward")["module"].drop_nulls().len() > 0
    assert not [event for event in run.events if event["kind"] in ("recording-stopped", "ops-lost")]


def in_a_thread(action: Callable[[], Any]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


def test_steps_in_a_thread_of_their_own_are_timed_and_the_run_says_why_it_has_no_ops(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    run = record(lambda step: in_a_thread(lambda: simple_loop(model, 5)(step)), tmp_path, model)
    assert run.steps.height == 5
    assert not run.steps["recorded"].any()
    assert [event["kind"] for event in run.events].count("recording-stopped") == 1
    assert not torch._C._autograd._profiler_enabled()


def test_a_run_that_another_thread_closes_leaves_no_profile_behind(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    profile = stepscope.profile(model, out=tmp_path, record="all")
    scope = profile.__enter__()
    simple_loop(model, 3)(scope.step)
    in_a_thread(lambda: profile.__exit__(None, None, None))
    simple_loop(model, 1)(lambda: None)
    assert not torch._C._autograd._profiler_enabled()
    assert RunReader(scope.path).steps.height == 3


def test_a_profiler_that_runs_already_is_left_alone(tmp_path: Path) -> None:
    model = nn.Linear(8, 1)
    with torch.profiler.profile() as own:
        run = record(simple_loop(model, 4), tmp_path, model)
    assert "aten::addmm" in {event.key for event in own.key_averages()}
    assert run.steps.height == 4
    assert [event["kind"] for event in run.events].count("ops-lost") == 1


@pytest.mark.parametrize("broken", [True, False])
def test_a_recorder_that_fails_leaves_no_profile_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    plain = _ModuleRoute.profile

    def fails(route: _ModuleRoute, profiled: bool) -> None:
        if profiled == broken:
            monkeypatch.undo()
            _raises()
        plain(route, profiled)

    model = nn.Linear(8, 1)
    with stepscope.profile(model, out=tmp_path, record="every:2") as scope:
        monkeypatch.setattr(_ModuleRoute, "profile", fails)
        simple_loop(model, 6)(scope.step)
        assert not torch._C._autograd._profiler_enabled()
    run = RunReader(scope.path)
    assert run.steps.height == 6
    assert "RuntimeError: broken" in [event["message"] for event in run.events]


def _raises() -> None:
    raise RuntimeError("broken")


def test_a_window_opens_and_closes_without_room_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    window = kineto.start_window(shapes=False, cuda=False)
    torch.ones(2).sum()
    assert "aten::sum" in [event.name() for event in window.stop()]
    assert not torch._C._autograd._profiler_enabled()


def test_an_annotator_of_torchs_may_begin_while_a_step_is_recorded(tmp_path: Path) -> None:
    annotator: Any = torch.autograd.profiler.emit_itt
    plain = vars(annotator)["__enter__"]
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def train() -> None:
        optimizer.zero_grad()
        layer(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        scope.step()

    with stepscope.profile(layer, out=tmp_path, record="all") as scope:
        for _ in range(4):
            train()
        with annotator():
            train()
        for _ in range(3):
            train()
    assert vars(annotator)["__enter__"] is plain
    recorded = scope.run.steps["recorded"].to_list()
    assert len(recorded) == 8
    assert recorded[2]
