"""Steps whose layers alone are timed: what they hold, what they leave alone, and when there are none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from tests.record.loops import Loop, record, simple_loop
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import ENGINE_NS
from stepscope.clock import monotonic_ns
from stepscope.record import kineto
from stepscope.record.layer_times import LayerRecorder, LayerTimes, LayerTrial
from stepscope.record.ops.rows import StepSpan
from stepscope.record.plan import WARMUP_STEPS, Plan
from stepscope.record.recorder import OpRecorder
from stepscope.record.settings import parse_schedule
from stepscope.record.torch_recorder import TorchRecorder
from stepscope.runfolder import AUTOGRAD_NODE, DATA_LOADER, RunReader

MS = 1_000_000


@pytest.fixture(autouse=True)
def _everything_is_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plan take every block that it wants, however slow the machine is just now."""
    monkeypatch.setattr("stepscope.record.plan.BUDGET", 1e6)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 4))


def recorded(loop: Loop, out: Path, model: Any = None) -> RunReader:
    return record(loop, out, model, record="adaptive")


def layer_rows(run: RunReader) -> pl.DataFrame:
    return run.layer_calls.with_columns(pl.col("name", "module", "phase").cast(pl.String))


def by_layer(rows: pl.DataFrame, step: int) -> dict[tuple[str, str | None], int]:
    """Calls of modules and backward nodes of a step, by phase and module."""
    rows = rows.with_columns(pl.col("name", "module", "phase").cast(pl.String)).filter(
        pl.col("step") == step, pl.col("name").str.starts_with("nn.") | pl.col("name").str.starts_with(AUTOGRAD_NODE)
    )
    return {(phase, module): count for phase, module, count in rows.group_by("phase", "module").len().iter_rows()}


def test_each_call_and_each_node_of_a_step_has_the_layer_that_a_profiled_step_gives_it(tmp_path: Path) -> None:
    run = recorded(simple_loop(net(), 60), tmp_path)
    timed = run.layer_calls["step"].unique().sort().to_list()
    profiled = run.steps.filter("recorded", pl.col("step") >= WARMUP_STEPS)["step"].to_list()
    assert len(timed) >= 5
    expected = by_layer(run.ops, profiled[-1])
    assert ("backward", "2.0") in expected
    assert all(by_layer(run.layer_calls, step) == expected for step in timed)


def test_such_a_step_is_neither_profiled_nor_unprofiled(tmp_path: Path) -> None:
    run = recorded(simple_loop(net(), 60), tmp_path)
    timed = set(run.layer_calls["step"].to_list())
    assert not timed & set(run.steps.filter("recorded")["step"].to_list())
    from stepscope.analysis.time.steps import timed_steps

    steps, which = timed_steps(run)
    assert which == "unprofiled steps"
    assert not timed & set(steps["step"].to_list())


def test_rows_nest_lie_within_their_step_and_their_times_are_possible(tmp_path: Path) -> None:
    run = recorded(simple_loop(net(), 60), tmp_path)
    rows = layer_rows(run).join(
        run.steps.select("step", begin="t0_ns", end="t1_ns").cast({"step": pl.UInt32}), on="step"
    )
    assert (rows["t0_ns"] >= rows["begin"]).all()
    assert (rows["t1_ns"] <= rows["end"]).all()
    assert (rows["self_ns"] >= 0).all()
    outer = rows.filter(pl.col("name") == "nn.Sequential", pl.col("module") == "").select("step", "t0_ns", "t1_ns")
    inner = rows.filter(pl.col("name") == "nn.Linear").join(outer, on="step", suffix="_outer")
    assert ((inner["t0_ns"] >= inner["t0_ns_outer"]) & (inner["t1_ns"] <= inner["t1_ns_outer"])).all()
    updates = rows.filter(pl.col("phase") == "optimizer")
    assert updates["step"].n_unique() == rows["step"].n_unique()


def test_steps_whose_layers_are_timed_are_only_looked_at_as_unprofiled_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[int] = []
    plain = TorchRecorder.after_backward

    def after_backward(self: TorchRecorder) -> None:
        followed.append(self._session.number)
        plain(self)

    monkeypatch.setattr(TorchRecorder, "after_backward", after_backward)
    run = recorded(simple_loop(net(), 120), tmp_path)
    timed = set(run.layer_calls["step"].to_list())
    assert len(timed) >= 20
    assert not timed & set(followed)
    assert len(run.steps) == 120


def test_a_block_whose_layers_are_timed_goes_on_behind_a_step_that_differs(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    differ = set(range(7, 120, 3))

    def loop(step: Callable[[], None]) -> None:
        for number in range(120):
            optimizer.zero_grad()
            model(torch.randn(5 if number in differ else 4, 8)).sum().backward()
            optimizer.step()
            step()

    run = recorded(loop, tmp_path, model)
    rows = layer_rows(run)
    timed = rows["step"].unique().to_list()
    assert differ & set(timed)
    assert set(timed) - differ
    updates = rows.filter(pl.col("phase") == "optimizer").group_by("step").len()
    assert sorted(updates["step"].to_list()) == sorted(timed)
    assert set(updates["len"].to_list()) == {1}
    times = run.steps.sort("step")
    assert (times["t0_ns"][1:] >= times["t1_ns"][:-1]).all()


def test_steps_that_another_thread_makes_an_end_of_belong_to_the_window_in_which_they_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    within: set[int] = set()
    plain = OpRecorder.repeated

    def repeated(self: OpRecorder, spans: list[StepSpan], sequence: int) -> None:
        if self.layers.open is not None:
            within.update(span.step for span in spans)
        plain(self, spans, sequence)

    def loop(step: Callable[[], None]) -> None:
        for number in range(150):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            if number % 40 == 20:
                beside = threading.Thread(target=model, args=(torch.randn(4, 8),))
                beside.start()
                beside.join()
            step()

    monkeypatch.setattr(OpRecorder, "repeated", repeated)
    run = recorded(loop, tmp_path, model)
    assert len(within) >= 5
    assert within <= set(run.layer_calls["step"].to_list())


def test_no_operator_and_no_range_of_the_training_is_recorded(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(60):
            with torch.profiler.record_function("the training's own"):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            step()

    names = set(layer_rows(recorded(loop, tmp_path))["name"].to_list())
    assert names
    assert all(name.startswith(("nn.", AUTOGRAD_NODE, "Optimizer.step#")) for name in names)


def test_a_forward_pass_that_is_made_again_belongs_to_the_backward_pass(tmp_path: Path) -> None:
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*inner.parameters(), *model.parameters()], lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(60):
            optimizer.zero_grad()
            checkpoint(inner, model(torch.randn(4, 8)), use_reentrant=False).sum().backward()
            optimizer.step()
            step()

    rows = layer_rows(recorded(loop, tmp_path, {"inner": inner, "model": model}))
    again = rows.filter(pl.col("name") == "nn.ReLU").group_by("step").agg(pl.col("phase").sort())
    assert len(again) >= 5
    assert all(phases.to_list() == ["backward", "forward"] for phases in again["phase"])


def test_an_exception_within_a_layer_reaches_the_training_and_calls_stay_nested(tmp_path: Path) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("of the training")

    model, fails = net(), nn.Sequential(Fails())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    caught = 0

    def loop(step: Callable[[], None]) -> None:
        nonlocal caught
        for _ in range(60):
            optimizer.zero_grad()
            output = model(torch.randn(4, 8))
            with contextlib.suppress(KeyError):
                fails(output)
                caught -= 1
            caught += 1
            output.sum().backward()
            optimizer.step()
            step()

    run = recorded(loop, tmp_path)
    assert caught == 60
    assert not run.events
    rows = layer_rows(run)
    assert rows.filter(pl.col("name") == "nn.Fails")["step"].n_unique() == rows["step"].n_unique() >= 5


class Recurrent(nn.Module):
    """A model whose calls are also heard for the axis of their batch: as long as its sequences, it never settles."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.lstm(x)[0])


def test_calls_that_somebody_else_hears_of_are_timed_all_the_same(tmp_path: Path) -> None:
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(60):
            optimizer.zero_grad()
            model(torch.randn(4, 4, 8)).sum().backward()
            optimizer.step()
            step()

    run = recorded(loop, tmp_path, model)
    rows = layer_rows(run)
    assert rows.filter(pl.col("module") == "lstm", pl.col("phase") == "forward")["step"].n_unique() >= 5
    assert rows.filter(pl.col("module") == "lstm", pl.col("phase") == "backward")["step"].n_unique() >= 5


def test_plain_work_between_two_backward_passes_is_the_time_of_no_node(tmp_path: Path) -> None:
    model, work = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(60):
            optimizer.zero_grad()
            output = model(torch.randn(4, 8))
            output.sum().backward(retain_graph=True)
            began_ns = monotonic_ns()
            torch.ones(64, 64) @ torch.ones(64, 64)
            work.append((began_ns, monotonic_ns()))
            output.pow(2).sum().backward()
            optimizer.step()
            step()

    rows = layer_rows(recorded(loop, tmp_path, model)).with_columns(ends=pl.col("t1_ns") + ENGINE_NS)
    steps = rows["step"].unique().to_list()
    assert len(steps) >= 5
    for step in steps:
        began_ns, ended_ns = work[step]
        nodes = rows.filter(pl.col("step") == step, pl.col("name").str.starts_with(AUTOGRAD_NODE))
        assert (nodes["t0_ns"] < began_ns).any()
        assert (nodes["t0_ns"] > ended_ns).any()
        assert not ((nodes["t0_ns"] < began_ns) & (nodes["ends"] > began_ns)).any()


def test_calls_of_other_threads_are_not_noted(tmp_path: Path) -> None:
    model, beside = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(60):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).sum()
            with torch.no_grad():
                thread = threading.Thread(target=beside, args=(torch.randn(4, 8),))
                thread.start()
                thread.join()
            loss.backward()
            optimizer.step()
            step()

    rows = layer_rows(recorded(loop, tmp_path, {"model": model, "beside": beside}))
    assert rows["step"].n_unique() >= 5
    assert not rows.filter(pl.col("name").str.starts_with("nn."), pl.col("module").str.starts_with("beside")).height


def test_nothing_stays_on_the_model_or_the_class_after_such_steps(tmp_path: Path) -> None:
    model, before = net(), nn.Module.__call__
    attributes = {name: set(vars(part)) for name, part in model.named_modules()}
    recorded(simple_loop(model, 60), tmp_path, model)
    assert nn.Module.__call__ is before
    assert {name: set(vars(part)) for name, part in model.named_modules()} == attributes
    assert not torch._C._autograd._profiler_enabled()


def test_a_profiler_of_another_thread_waits_for_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[bool] = []

    def within(_: LayerTrial) -> None:
        asked = threading.Thread(target=lambda: free.append(kineto._one_at_a_time.acquire(blocking=False)))
        asked.start()
        asked.join()

    monkeypatch.setattr(LayerTrial, "measure_in_window", within)
    recorded(simple_loop(net(), 30), tmp_path, net())
    assert free
    assert not any(free)


@pytest.mark.filterwarnings("ignore:stepscope recorded no training step")
@pytest.mark.parametrize(
    "place",
    ["LayerRecorder.learn_from_step", "LayerRecorder.may_open", "LayerRecorder.rehearse", "LayerRecorder.repeated",
     "LayerRecorder.settled_window", "LayerRecorder.start", "LayerTimes.__init__", "LayerTimes.part",
     "LayerTimes.passed", "LayerTimes.updating", "LayerTrial.__init__", "LayerTrial.measure_in_window", "_calls_of",
     "_ends_before_next_pass", "_nodes_with_ranges", "per_call_ns"],
)  # fmt: skip
def test_a_fault_of_ours_ends_profiling_and_the_training_computes_what_it_would(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("of ours")

    def trained(loop_of: Callable[[nn.Module], None]) -> list[float]:
        torch.manual_seed(7)
        model = net()
        loop_of(model)
        return [float(parameter.detach().sum()) for parameter in model.parameters()]

    bare = trained(lambda model: simple_loop(model, 60)(lambda: None))
    monkeypatch.setattr(f"stepscope.record.layer_times.{place}", fault)
    runs: list[RunReader] = []
    assert trained(lambda model: runs.append(recorded(simple_loop(model, 60), tmp_path, model))) == bare
    lost = {event["kind"] for event in runs[0].events if "of ours" in event["message"]}
    assert lost & {"ops-lost", "profiling-failed"}
    assert len(runs[0].steps) == 60 or "profiling-failed" in lost
    assert not torch._C._autograd._profiler_enabled()


def test_fixed_choices_of_steps_time_no_layers(tmp_path: Path) -> None:
    assert record(simple_loop(net(), 20), tmp_path, record="every:5").layer_calls.is_empty()


def test_a_profiler_of_the_trainings_own_takes_over_and_the_training_goes_on(tmp_path: Path) -> None:
    model = net()
    step_of = simple_loop(model, 1)
    seen: list[int] = []

    def loop(step: Callable[[], None]) -> None:
        for number in range(60):
            if number == 40:
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                    step_of(lambda: None)
                events = profiler.events()
                seen.append(len(events or ()))
            step_of(step)

    run = recorded(loop, tmp_path, model)
    assert len(run.steps) == 60
    assert seen[0] > 10
    assert run.layer_calls["step"].max() < 40  # type: ignore[operator]


def test_rows_of_more_than_one_thread_or_with_collectives_are_not_timed_apart() -> None:
    from stepscope.runfolder import PHASES, Part

    def columns(threads: list[int], phases: list[str]) -> Part:
        return Part({"thread": np.array(threads), "phase": np.array([PHASES.index(phase) for phase in phases])})

    recorder = LayerRecorder(None, lambda _: 0, lambda: None)  # type: ignore[arg-type]
    assert not recorder.may_open(100)  # nothing has shown so far that it can be
    for threads, phases, possible in (
        ([1, 1], ["forward", "backward"], True),
        ([1, 2], ["forward", "backward"], False),
        ([1, 1], ["forward", "communication"], False),
        ([1, 1], ["backward", "optimizer"], False),  # the forward pass is elsewhere
    ):
        recorder.learn_from_step(columns(threads, phases))
        assert recorder.may_open(100) == possible
    recorder.learn_from_step(columns([1], ["forward"]))
    assert not recorder.may_open(1e9)


def test_a_call_that_never_returned_and_an_end_without_a_beginning_are_left_out() -> None:
    from stepscope.record.layer_times import _calls_of
    from stepscope.record.listeners import ENDED

    calls, places = _calls_of([ENDED, 5, 0, 3, 10, 1, 4, 11, 2, ENDED, 20, 4, 7, 30, 5])
    assert calls == [(4, 11, 20)]
    assert places.modules_of(np.array([0, 1, 2, 3, 4, 5, 9])).tolist() == [-1, 3, 4, 4, 3, 7, 7]


def test_times_of_updates_end_with_the_optimizer_that_began() -> None:
    times = LayerTimes(lambda _: 0)
    times.updating(None)
    times.updating("SGD")
    times.updating(None)
    times.updating(None)
    assert [kind for kind, _, _ in times.updates] == ["SGD"]


# the plan


def plan(cost_of_layers_ms: float = 0.1) -> tuple[Plan, list[int], list[int]]:
    """Return a plan after 2,000 steps of 10 ms, the profiled steps, and those whose layers were timed."""
    made, profiled, layers = Plan(parse_schedule("adaptive")), [], []
    made.layers_possible, made.events_per_step = True, 100.0
    open_layers = 0
    for step in range(2_000):
        wanted = made.records(step, step * 10 * MS)
        if open_layers and not made.times_layers:
            made.note_cost(int(made.window_ns + open_layers * cost_of_layers_ms * MS), layer_steps=open_layers)
            open_layers = 0
        if wanted:
            profiled.append(step)
        elif made.times_layers:
            layers.append(step)
            open_layers += 1
            made.layers_timed = True
        made.note_step_length(wanted, 10 * MS)
    return made, profiled, layers


def test_layers_are_timed_in_blocks_of_their_own_more_often_than_operators_are_profiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepscope.record.plan.BUDGET", 0.02)
    _, profiled, layers = plan()
    assert layers[0] > WARMUP_STEPS + 6  # the operators first: they tell whether layers can be timed apart
    assert len(layers) > len(profiled)
    starts = [step for step in layers if step - 1 not in layers]
    assert all({*range(start, start + 5)} <= {*layers} for start in starts[:-1])
    assert not {*layers} & {*profiled}


def test_layers_stay_within_the_allowance_of_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.record.plan.BUDGET", 0.02)
    made, _, layers = plan(cost_of_layers_ms=20)
    assert 5 <= len(layers) <= 60
    assert made._spent_ns <= 0.03 * 2_000 * 10 * MS


def test_a_training_whose_layers_cannot_be_timed_apart_is_profiled_as_before() -> None:
    made = Plan(parse_schedule("adaptive"))
    for step in range(300):
        made.note_step_length(made.records(step, step * 10 * MS), 10 * MS)
        assert not made.times_layers


def test_batches_of_data_loaders_are_timed_and_what_asks_for_one_too_many(tmp_path: Path) -> None:
    def loop(end_step: Callable[[], None]) -> None:
        loader = DataLoader(TensorDataset(torch.randn(30, 8)), batch_size=6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(12):
            for (inputs,) in loader:
                optimizer.zero_grad()
                model(inputs).sum().backward()
                optimizer.step()
                end_step()

    model = net()
    run = recorded(loop, tmp_path, model)
    rows = layer_rows(run).filter(pl.col("phase") == "data")
    timed = run.layer_calls["step"].unique().sort().to_list()
    expected = [2 if step % 5 == 0 and step else 1 for step in timed]
    assert [rows.filter(pl.col("step") == step).height for step in timed] == expected
    assert rows["name"].unique().to_list() == [f"{DATA_LOADER}_SingleProcessDataLoaderIter.__next__"]
    assert (rows["self_ns"] > 0).all()


def test_what_a_run_says_of_layers_comes_from_these_steps(tmp_path: Path) -> None:
    with stepscope.profile(net_model := net(), out=tmp_path) as scope:
        simple_loop(net_model, 80)(scope.step)
    run = Run(scope.path)
    times, modules = run.step_times, run.modules()
    assert modules["total_ns"].sum() == pytest.approx(times.step_ns, rel=1e-6)
    assert run.operators()["total_ns"].sum() == pytest.approx(times.step_ns, rel=1e-6)
    assert run.phases()["ns"].sum() == pytest.approx(times.step_ns, rel=1e-6)
