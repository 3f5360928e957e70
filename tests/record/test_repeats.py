"""Steps that repeat are only looked at: what is written of them is the same as if each event had been followed."""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import stepscope
from stepscope.record import repeated_steps
from stepscope.record.framework import Ended
from stepscope.record.repeated_steps import RepeatFilter
from stepscope.record.session import SESSIONS, Session
from stepscope.record.torch_recorder import TorchRecorder
from stepscope.runfolder import RunReader

Loop = Callable[[random.Random], None]


def accumulated(picks: random.Random) -> None:
    """Epochs of a loader with a smaller last batch, evaluation now and then, gradients that add up in between."""
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data: Any = torch.randn(picks.choice([90, 101, 120]), 4)
    loader: Any = torch.utils.data.DataLoader(data, batch_size=4)
    for _ in range(5):
        for number, batch in enumerate(loader):
            model(batch).sum().backward()
            if picks.random() < 0.97:
                optimizer.step()
                optimizer.zero_grad()
            if picks.random() < 0.03:
                with torch.no_grad():
                    picks.choice([model, other])(batch)
            if number == 9 and picks.random() < 0.5:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(7, 4))
                model.train()


def adversaries(picks: random.Random) -> None:
    """Two optimizers a step, one of which is sometimes left out; the batch has no loader and changes its size."""
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    one, two = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (first, second))
    size = 5
    for _ in range(80):
        size = picks.choice([2, 8]) if picks.random() < 0.05 else size
        first(torch.randn(size, 3)).sum().backward()
        one.step()
        if picks.random() < 0.97:
            second(first(torch.randn(size, 3))).sum().backward()
            two.step()


def failing(picks: random.Random) -> None:
    """The training's own exceptions end a step in its midst."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(80):
        try:
            model(torch.randn(5, 4 if picks.random() < 0.05 else 3)).sum().backward()
        except RuntimeError:
            continue
        optimizer.step()


def scaled(picks: random.Random) -> None:
    """A gradient scaler leaves updates out."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for _ in range(120):
        batch = torch.randn(5, 3)
        batch[0, 0] = float("inf") if picks.random() < 0.04 else 1.0
        optimizer.zero_grad()
        scaler.scale(model(batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()


def distilled(picks: random.Random) -> None:
    """A teacher is asked in each step, before the student or behind it, and sometimes not; the student is evaluated."""
    teacher, student = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(torch.randn(142, 4), batch_size=4)  # type: ignore[arg-type]
    first = picks.random() < 0.5
    for _ in range(6):
        for batch in loader:
            asked = picks.random() < 0.97
            if asked and first:
                with torch.no_grad():
                    teacher(batch)
            loss = student(batch).square().sum()
            if asked and not first:
                with torch.no_grad():
                    teacher(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if picks.random() < 0.5:
            student.eval()
            with torch.no_grad():
                student(torch.randn(7, 4))
            student.train()


def acting(picks: random.Random) -> None:
    """Deep Q-learning: the policy acts before most updates, a copy of it says what is to come."""
    policy, target = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    for step in range(150):
        for _ in range(picks.choice([1, 1, 1, 1, 1, 1, 2, 0]) if step > 60 else 1):
            with torch.no_grad():
                policy(torch.randn(1, 4))
        with torch.no_grad():
            wanted = target(torch.randn(8, 4)).max(1).values
        optimizer.zero_grad()
        (policy(torch.randn(8, 4)).max(1).values - wanted).square().sum().backward()
        optimizer.step()


class Tagger(nn.Module):
    """Words to classes through a recurrent layer, which alone knows which side of its input is the batch."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=first), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.out(self.layer(self.words(x))[0]))


def squares(picks: random.Random) -> None:
    """As many samples as words in each: the shape of the input does not tell which side is the batch."""
    model = Tagger(first=picks.random() < 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = 6
    for _ in range(80):
        words = picks.choice([6, 7]) if picks.random() < 0.06 else words
        model(torch.randint(9, (6, words))).sum().backward()
        optimizer.step()


def vectors(picks: random.Random) -> None:
    """A vector goes in: one sample, or a batch of numbers, as the output says."""
    one, many = nn.Linear(5, 2), nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1))
    optimizer = torch.optim.SGD([*one.parameters(), *many.parameters()], lr=0.01)
    model: nn.Module = one
    for _ in range(80):
        model = picks.choice([one, many]) if picks.random() < 0.06 else model
        model(torch.randn(5)).sum().backward()
        optimizer.step()


def written(loop: Loop, seed: int, out: Path, **options: Any) -> list[tuple[int, int | None]]:
    """Numbers and samples of the steps of a run of this loop, and the steps in which an update was left out."""
    torch.manual_seed(seed)
    with stepscope.profile(out=out, record="none", steps="optimizer", **options) as scope:
        loop(random.Random(seed))
    run = RunReader(scope.path)
    assert [event["traceback"] for event in run.events if event["kind"] == "profiling-failed"] == []
    assert (run.steps["t1_ns"] >= run.steps["t0_ns"]).all()
    skipped = [(int(event["step"]), None) for event in run.events if event["kind"] == "update-skipped"]
    return [*zip(run.steps["step"], run.steps["samples"], strict=True), *skipped]


@pytest.fixture
def no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_start_sampler", lambda _: None)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Steps that were only looked at."""
    counted: list[int] = []
    settle = TorchRecorder.repeated

    def repeated(self: TorchRecorder, ended: list[Ended], samples: int | None, sequence: int) -> None:
        counted.append(len(ended))
        settle(self, ended, samples, sequence)

    monkeypatch.setattr(TorchRecorder, "repeated", repeated)
    return counted


@pytest.mark.usefixtures("no_sampler")
@pytest.mark.parametrize("loop", [accumulated, adversaries, failing, scaled, distilled, acting, squares, vectors])
@pytest.mark.parametrize("seed", range(4))
def test_steps_and_samples_are_those_of_a_run_in_which_every_event_is_followed(
    loop: Loop, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: list[int]
) -> None:
    found = written(loop, seed, tmp_path / "looked")
    assert sum(looked_at) > 10
    monkeypatch.setattr(RepeatFilter, "may_begin", lambda *_: None)
    assert found == written(loop, seed, tmp_path / "followed")


@pytest.mark.usefixtures("no_sampler")
def test_losses_and_profiled_steps_are_kept_where_the_training_says_its_steps(
    tmp_path: Path, looked_at: list[int]
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, out=tmp_path, record="every:20") as scope:
        for step in range(60):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            scope.step(float(step), samples=3)
    steps = RunReader(scope.path).steps
    assert steps["loss"].to_list() == [float(step) for step in range(60)]
    assert steps["samples"].to_list() == [3] * 60
    assert steps.filter(steps["recorded"])["step"].to_list() == [0, 20, 40]
    assert sum(looked_at) > 20


class _Accelerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stand-in for a device that works on after a call has returned: tensors without numbers, until one is read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.read = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            self.read += 1
            return float(self.read)
        return func(*args, **(kwargs or {}))


def test_losses_on_an_accelerator_are_waited_for_at_the_flush_and_not_in_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepscope.record.session.FLUSH_EVERY_NS", 10**15)
    monkeypatch.setattr("stepscope.record.repeated_steps.FLUSH_EVERY_NS", 10**15)
    model, read, graphs = nn.Linear(8, 1), list[int](), list[weakref.ref[Any]]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _Accelerator() as device, stepscope.profile(model, out=tmp_path, record="none") as scope:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            loss = torch.zeros(1, device="meta", requires_grad=True) * 2
            graphs.append(weakref.ref(loss))
            scope.step(loss)
            del loss
            read.append(device.read)
        assert [graph for graph in graphs if graph() is not None] == []
    assert set(read) == {0}
    assert RunReader(scope.path).steps["loss"].to_list() == [float(number) for number in range(1, 21)]


@pytest.mark.usefixtures("no_sampler")
@pytest.mark.parametrize("says", [True, False])
def test_of_steps_that_repeat_only_profiled_ones_are_followed(
    says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[tuple[int, bool]] = []
    called = TorchRecorder.called

    def noted(self: TorchRecorder, *call: Any) -> None:
        called(self, *call)
        (session,) = SESSIONS
        followed.append((session.number, session.profiled))

    monkeypatch.setattr(TorchRecorder, "called", noted)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = "calls" if says else "optimizer"
    with stepscope.profile(model, out=tmp_path, record="every:20", steps=steps) as scope:
        for _ in range(100):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            if says:
                scope.step(samples=3)
    run = RunReader(scope.path).steps
    assert run.filter(run["recorded"])["step"].to_list() == [0, 20, 40, 60, 80]
    assert [step for step, profiled in followed if step > 10] == [20, 40, 60, 80]


@pytest.mark.usefixtures("no_sampler")
def test_epochs_that_end_again_and_again_are_no_reason_to_follow_their_steps(
    tmp_path: Path, looked_at: list[int]
) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Any = torch.utils.data.DataLoader(torch.randn(160, 4), batch_size=4)  # type: ignore[arg-type]
    with stepscope.profile(model, out=tmp_path, record="none", steps="optimizer"):
        for _ in range(20):
            for batch in loader:
                model(batch).sum().backward()
                optimizer.step()
    assert sum(looked_at) > 0.8 * 20 * 40


@pytest.mark.usefixtures("no_sampler")
def test_no_step_is_decided_on_once_recording_has_stopped_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[int] = []
    decides = TorchRecorder.decides

    def noted(self: TorchRecorder, samples: int | None, sequence: int) -> None:
        decided.append(self._session.number)
        decides(self, samples, sequence)

    monkeypatch.setattr(TorchRecorder, "decides", noted)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for step in range(500):
            with torch.profiler.profile() if step == 20 else contextlib.nullcontext():
                model(torch.randn(3, 4)).sum().backward()
                optimizer.step()
            scope.step()
    assert "recording-stopped" in [event["kind"] for event in RunReader(scope.path).events]
    assert RunReader(scope.path).steps.height == 500
    assert 0 < len([step for step in decided if step > 20]) < 10


@pytest.mark.usefixtures("no_sampler")
def test_a_fault_of_ours_in_a_look_is_told_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> bool:
        raise RuntimeError("a fault of ours")

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, out=tmp_path, record="none") as scope:
        for step in range(20):
            if step == 15:
                monkeypatch.setattr(repeated_steps, "_is_grad_enabled", broken)
            model(torch.randn(3, 4))
            monkeypatch.undo()
            optimizer.step()
            scope.step()
    run = RunReader(scope.path)
    (told,) = [event["traceback"] for event in run.events if event["kind"] == "profiling-failed"]
    assert "repeats.py" in told  # for whoever is to mend it
    assert "a fault of ours" in told
    assert run.steps["step"].to_list() == list(range(15))  # those that waited in memory are written


@pytest.mark.usefixtures("no_sampler")
def test_steps_are_counted_while_they_wait_in_memory(tmp_path: Path, looked_at: list[int]) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, out=tmp_path, record="none"):
        (session,) = SESSIONS
        for step in range(40):
            assert session.steps == step
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
            session.step()
    assert sum(looked_at) > 20


@pytest.mark.usefixtures("no_sampler")
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_step_that_repeats_and_holds_an_evaluation_in_its_midst_begins_where_it_began(
    without: Callable[[], Any], tmp_path: Path, looked_at: list[int]
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun: dict[int, int] = {}
    modes, evaluated = [], (50, 120, 170)
    with stepscope.profile(model, optimizer, out=tmp_path, record="every:500") as scope:
        for step in range(200):
            optimizer.zero_grad()
            begun[step] = time.monotonic_ns()
            loss = model(torch.randn(4, 8)).sum()
            if step in evaluated:
                with without():
                    model(torch.randn(4, 8))
                    modes.append(torch.is_grad_enabled())
            loss.backward()
            optimizer.step()
            scope.step()
    assert sum(looked_at) > 100
    assert not any(modes)
    began = dict(scope.run.steps.select("step", "t0_ns").iter_rows())
    assert all(began[step] <= begun[step] for step in evaluated)
