from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.patience import HANG_S, until
from tests.record.loops import record, simple_loop
from torch import nn
from torch.utils.data import DataLoader

from stepscope.record.fault_boundary import Boundary
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.steps import StepFinder
from stepscope.record.torch_hooks import TorchHooks


def _in_a_thread(action: Callable[[], None]) -> Callable[[], None]:
    """Start it in a thread that then lives on; returns what ends the thread."""
    done, may_end = threading.Event(), threading.Event()

    def run() -> None:
        action()
        done.set()
        may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    done.wait()

    def end() -> None:
        may_end.set()
        thread.join()

    return end


def test_another_thread_that_computed_gradients_counts_until_it_has_ended() -> None:
    trainers = GradientThreads()
    trainers.note_this_thread()
    assert not trainers.others()
    end = _in_a_thread(trainers.note_this_thread)
    assert trainers.others()
    end()
    assert not trainers.others()


def test_a_thread_that_the_module_threading_knows_nothing_of_counts_until_it_has_ended() -> None:
    trainers, done, may_end = GradientThreads(), threading.Event(), threading.Event()
    trainers.note_this_thread()

    def run() -> None:
        trainers.note_this_thread()
        done.set()
        may_end.wait()

    _thread.start_new_thread(run, ())
    done.wait()
    assert trainers.others()
    may_end.set()
    until(lambda: not trainers.others())


def test_a_thread_that_has_the_number_of_one_that_ended_counts_as_that_one() -> None:
    """What it does is what the former did, so that it is only looked at, and tells nobody that it computes."""
    trainers, numbers = GradientThreads(), []
    trainers.note_this_thread()

    def computes() -> None:
        trainers.note_this_thread()
        numbers.append(threading.get_ident())

    _in_a_thread(computes)()
    assert not trainers.others()
    ends = [_in_a_thread(lambda: numbers.append(threading.get_ident())) for _ in range(20)]
    others = trainers.others()
    for end in ends:  # else the interpreter waits for them
        end()
    assert others == (numbers[0] in numbers[1:])


def test_a_pass_within_a_pass_makes_no_trainer() -> None:
    """Autograd runs it in a thread of its own for an accelerator, while the one that asked for it waits."""
    trainers = GradientThreads()

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(_context: object, values: torch.Tensor) -> torch.Tensor:
            return values.clone()

        @staticmethod
        def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
            trainers.note_this_thread()
            return gradient

    values = torch.ones(2, requires_grad=True)
    end = _in_a_thread(lambda: Nested.apply(values).sum().backward())  # type: ignore[no-untyped-call]
    assert not trainers.others()
    end()


class _Heard:
    """A listener that keeps which modules were reported."""

    def __init__(self) -> None:
        self.called_modules: list[nn.Module] = []

    def called(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        self.called_modules.append(module)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def _heard(action: Callable[[], object]) -> list[nn.Module]:
    """Modules that are reported as called while this runs."""
    heard = _Heard()
    listener: Any = heard
    routes = TorchHooks(Boundary(lambda _: None), listener)
    routes.install()
    try:
        action()
    finally:
        routes.remove()
    return heard.called_modules


class _Waiting:
    """Something that another thread does, from `begin` to `end`."""

    def __init__(self, action: Callable[[Callable[[], None]], object]) -> None:
        self._under_way, self._may_end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=action, args=(self._wait,))

    def _wait(self) -> None:
        self._under_way.set()
        self._may_end.wait(HANG_S)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._under_way.wait(HANG_S)

    def __exit__(self, *_: object) -> None:
        self._may_end.set()
        self._thread.join()


class _Rows:
    """A data set of one row, which takes some time to make."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> torch.Tensor:
        self._make()
        return torch.ones(2)


def _first_batch(make: Callable[[], object]) -> None:
    rows: Any = _Rows(make)
    next(iter(DataLoader(rows)))


def test_a_model_that_is_called_while_another_thread_loads_a_batch_is_no_transform() -> None:
    model = nn.Linear(2, 1)

    def trains_meanwhile() -> None:
        with _Waiting(_first_batch):
            model(torch.ones(2))

    assert _heard(trains_meanwhile) == [model]


def test_what_a_data_set_calls_after_a_loader_of_its_own_is_a_transform() -> None:
    transform = nn.Linear(2, 1)

    def make() -> None:
        _first_batch(lambda: None)
        transform(torch.ones(2))

    assert _heard(lambda: _first_batch(make)) == []


class _Acts(nn.Module):
    """A model that takes its time."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self.wait = wait

    def forward(self) -> None:
        """Until somebody says so."""
        self.wait()


def test_a_model_that_is_called_while_another_thread_acts_is_an_outermost_one() -> None:
    model, acting = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), list[nn.Module]()

    def act(wait: Callable[[], None]) -> None:
        acting.append(_Acts(wait))
        with torch.no_grad():
            acting[0]()

    def trains_meanwhile() -> None:
        with _Waiting(act):
            model(torch.ones(2))

    assert _heard(trains_meanwhile) == [*acting, model]


def test_parts_of_a_model_that_run_in_threads_of_their_own_are_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

        def forward(self, values: torch.Tensor) -> Any:
            found: list[torch.Tensor] = []
            threads = [threading.Thread(target=lambda p=part: found.append(p(values))) for part in self.parts]
            for thread in threads:
                thread.start()
                thread.join()
            return sum(found)

    called, plain = list[nn.Module](), StepFinder.called

    def noting(self: StepFinder, module: nn.Module, args: Any, kwargs: Any) -> None:
        called.append(module)
        plain(self, module, args, kwargs)

    monkeypatch.setattr(StepFinder, "called", noting)
    model = Parallel()
    run = record(simple_loop(model, 8), tmp_path)
    assert set(called) == {model}
    assert run.steps["samples"].to_list() == [4] * 8
