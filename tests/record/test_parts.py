"""A step that is too large for one window: parts of its phases are profiled, and what is said of them is no more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.record.loops import record
from torch import nn

from stepscope import Run
from stepscope.record import op_windows, recorder, torch_private
from stepscope.record.ops.module_calls import ModuleCallLog
from stepscope.runfolder import RunReader

PART = "step-profiled-in-part"


class Recurrent(nn.Module):
    """Two cells and a head, called for each time step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.LSTMCell(1, 4), nn.LSTMCell(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = second = (x.new_zeros(len(x), 4), x.new_zeros(len(x), 4))
        outputs = []
        for now in torch.split(x, 1, dim=1):
            first = self.first(now, first)
            second = self.second(first[0], second)
            outputs.append(self.head(second[0]))
        return torch.cat(outputs, 1)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op_windows, "MOST_EVENTS_PER_STEP", 3000)
    monkeypatch.setattr(op_windows, "MOST_EVENTS_PER_PART", 1000)


@pytest.fixture(autouse=True)
def threads_of_earlier_tests_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other threads no part of a backward pass is profiled; those of a test worker are not the training's."""
    count, before = threading.active_count, threading.active_count()
    monkeypatch.setattr(threading, "active_count", lambda: count() - before + 1)


def trained(optimizer: str, folder: Path | None, steps: int = 4, length: int = 60) -> tuple[RunReader | None, Any]:
    """The run (None without a folder) and the parameters of a recurrent net after a few steps."""
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(3, length)
    if optimizer == "LBFGS":
        updater: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    else:
        updater = torch.optim.Adam(model.parameters())

    def closure() -> torch.Tensor:
        updater.zero_grad()
        loss: torch.Tensor = (model(x) - x).pow(2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def loop(_: Any) -> None:
        for _ in range(steps):
            if optimizer == "LBFGS":
                updater.step(closure)
            else:
                closure()
                updater.step()

    if folder is None:
        loop(None)
        return None, list(model.parameters())
    return record(loop, folder, steps="optimizer"), list(model.parameters())


def parts(run: RunReader) -> pl.DataFrame:
    found = [event for event in run.events if event["kind"] == PART]
    return pl.DataFrame(found).select("step", "part", "t0_ns", "until_ns")


@pytest.mark.parametrize("optimizer", ["Adam", "LBFGS"])
def test_every_layer_of_a_recurrent_net_has_forward_and_backward_time(tmp_path: Path, optimizer: str) -> None:
    run, _ = trained(optimizer, tmp_path)
    assert run is not None
    layers = Run(run.path).modules().filter(pl.col("module").is_in(["first", "second", "head"]))
    assert len(layers) == 3
    assert (layers["forward_ns"] > 0).all()
    assert (layers["backward_ns"] > 0).all()
    last = parts(run).filter(pl.col("step") == pl.col("step").max())
    assert last["part"].to_list() == ["forward", "backward", "optimizer"]
    assert not [event for event in run.events if event["kind"] in ("profiling-failed", "ops-lost", "recording-stopped")]


@pytest.mark.parametrize("optimizer", ["Adam", "LBFGS"])
def test_a_training_that_is_profiled_in_parts_computes_the_same_bit_by_bit(tmp_path: Path, optimizer: str) -> None:
    _, plain = trained(optimizer, None)
    _, profiled = trained(optimizer, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain, profiled, strict=True))


def test_a_backward_pass_of_any_length_is_cut_where_its_window_is_full(tmp_path: Path) -> None:
    run, _ = trained("Adam", tmp_path, length=600)
    assert run is not None
    rows = run.ops.group_by("step", pl.col("phase").cast(pl.String)).len()
    whole = 600 * 20 * 5  # nodes of the pass, and what each makes at least
    assert rows.filter(pl.col("phase") == "backward")["len"].max() < whole / 10  # type: ignore[operator]


def test_rows_of_all_parts_of_a_step_point_to_their_own_parents(tmp_path: Path) -> None:
    run, _ = trained("Adam", tmp_path)
    assert run is not None
    rows = run.ops.filter(pl.col("step") == pl.col("step").max())
    begin, end, parent = (rows[name].to_numpy() for name in ("t0_ns", "t1_ns", "parent"))
    inside = ~np.isnan(rows["parent"].cast(pl.Float64).fill_null(float("nan")).to_numpy())
    above = parent[inside].astype(np.int64)
    assert inside.sum() > 500
    assert (begin[above] <= begin[inside]).all()
    assert (end[above] >= end[inside]).all()


def test_backward_time_of_a_part_goes_to_the_module_that_made_the_nodes(tmp_path: Path) -> None:
    run, _ = trained("Adam", tmp_path)
    assert run is not None
    rows = run.ops.filter(
        pl.col("phase").cast(pl.String) == "backward", pl.col("step") > 0
    )  # then it is known as large
    named = rows.with_columns(pl.col("name", "module").cast(pl.String)).filter(pl.col("name") == "SigmoidBackward0")
    assert set(named["module"]) <= {"first", "second"}
    assert len(named) > 10


def test_the_report_says_that_it_knows_parts_of_steps_alone(tmp_path: Path) -> None:
    run, _ = trained("Adam", tmp_path)
    assert run is not None
    said = {item.what: item.why for item in Run(run.path).not_measured()}
    assert "parts of it" in said["whole steps"]
    assert "forward, backward, optimizer" in said["whole steps"]


def test_no_hook_stays_on_a_graph_that_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Recurrent(), torch.randn(3, 60)
    adam = torch.optim.Adam(model.parameters())
    kept = []

    def loop(_: Any) -> None:
        for step in range(4):
            loss = (model(x) - x).pow(2).mean()
            loss.backward(retain_graph=True)
            if step < 3:  # else the last graph could not be gone through again
                adam.step()
            kept.append(loss)

    called: list[int] = []
    plain = recorder.OpRecorder._end_part_within_a_pass

    def heard(self: recorder.OpRecorder) -> None:
        called.append(1)
        plain(self)

    monkeypatch.setattr(recorder.OpRecorder, "_end_part_within_a_pass", heard)
    act = torch_private.act_within_backward
    hooked: list[Any] = []

    def hook(roots: Any, nodes: int, action: Any) -> Any:
        return act(roots, nodes, lambda: hooked.append(action()))

    monkeypatch.setattr(torch_private, "act_within_backward", hook)
    record(loop, tmp_path, steps="optimizer")
    during = len(hooked)
    kept[-1].backward()
    assert during > 0
    assert called
    assert len(hooked) == during


def test_an_exception_within_a_large_backward_pass_is_the_trainings_and_profiling_goes_on(tmp_path: Path) -> None:
    model, x = Recurrent(), torch.randn(3, 60)
    adam = torch.optim.Adam(model.parameters())
    caught = []

    def loop(_: Any) -> None:
        for step in range(5):
            output = model(x)
            if step == 2:
                output.register_hook(lambda _: 1 / 0)
            try:
                (output - x).pow(2).mean().backward()
            except ZeroDivisionError as error:
                caught.append(error)
            adam.step()
            adam.zero_grad()

    run = record(loop, tmp_path, steps="optimizer")
    assert len(caught) == 1
    assert run.steps.height == 5
    assert parts(run).filter(pl.col("step") == 4)["part"].to_list() == ["forward", "backward", "optimizer"]


def test_a_large_pass_beside_another_thread_is_left_alone_and_that_is_said(tmp_path: Path) -> None:
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()
    try:
        run, _ = trained("Adam", tmp_path)
    finally:
        done.set()
        beside.join()
    assert run is not None
    assert "backward" not in set(parts(run)["part"])
    assert "backward-not-profiled" in {event["kind"] for event in run.events}
    assert run.steps.height == 4


def test_where_optimizers_step_within_backward_the_report_says_why_there_are_no_layers(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    updaters = {id(p): torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
    for parameter in model.parameters():
        hook: Any = parameter.register_post_accumulate_grad_hook
        hook(lambda p: updaters[id(p)].step())

    def loop(_: Any) -> None:
        for _ in range(8):
            model(torch.randn(4, 8)).sum().backward()

    run = record(loop, tmp_path, steps="optimizer", record="adaptive")
    said = [event for event in run.events if event["kind"] == "steps-end-in-backward"]
    assert len(said) == 1
    missing = {entry.what: entry for entry in Run(run.path).not_measured()}["operators and modules"]
    assert missing.why == said[0]["message"]
    assert missing.remedy is not None
    assert "after backward()" in missing.remedy


def test_the_module_of_a_node_is_the_innermost_one_that_ran_when_it_was_made() -> None:
    number = iter([0, 2, 5, 5, 9, 12])
    places = ModuleCallLog({"outer": 0, "inner": 1}.__getitem__, lambda: next(number))
    places.enter("outer")
    places.enter("inner")
    places.leave()
    places.enter("inner")
    places.leave()
    found = places.modules_of(np.arange(14))
    assert found.tolist() == [-1] * 2 + [0] * 7 + [1] * 3 + [0] * 2


def test_calls_of_another_thread_make_no_nodes_of_this_one() -> None:
    places = ModuleCallLog(lambda module: 7, torch_private.autograd_sequence)

    def call() -> None:
        places.enter(None)
        places.leave()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert set(places.modules_of(np.arange(100)).tolist()) == {-1}
