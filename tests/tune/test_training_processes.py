"""A process that is tuned begins as it is told, and where it is gone it is started again and told what it was told."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.patience import HANG_S
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stepscope.experiments.tune import child
from stepscope.experiments.tune.changes import all_changes
from stepscope.experiments.tune.process import RestartingTraining, TooShort, TrainingEnded, TrainingProcess
from stepscope.experiments.tune.training import Observer, Targets

_CORE = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
_BREAKS_WITH_VIEW = """
import torch
layer, head = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(144, 2)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = layer, head
    def forward(self, pictures):
        values = self.layer(pictures)
        assert values.is_contiguous(), "NCHW"
        return self.head(values.view(len(pictures), -1))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(2, 1, 8, 8)).sum().backward()
    optimizer.step()
"""
Open = Callable[[int], RestartingTraining]


@pytest.fixture
def open_script(tmp_path: Path) -> Iterator[Open]:
    places: list[RestartingTraining] = []

    def opened(steps: int) -> RestartingTraining:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(_BREAKS_WITH_VIEW.replace("{steps}", str(steps))))
        orders: dict[str, Any] = {"script": str(script), "arguments": [], "threads": 1, "facts": {}}
        places.append(RestartingTraining(orders, tmp_path / "log.txt", {}))
        return places[-1]

    yield opened
    for place in places:
        place.close()


def test_a_script_that_a_change_ends_is_started_again_for_the_next(open_script: Open) -> None:
    place = open_script(1_000_000)
    assert "foreach" not in place.ask(HANG_S, do="facts")
    with pytest.raises(TrainingEnded, match="with it the script failed: AssertionError: NCHW"):
        place.ask(HANG_S, do="block", changes=["channels_last"], warmup=1, steps=2)
    assert len(place.ask(HANG_S, do="block", changes=["foreach"], warmup=1, steps=2)["seconds"]) == 2


def test_a_script_that_ends_early_is_started_again_and_knows_the_changes(open_script: Open) -> None:
    place = open_script(12)
    place.ask(HANG_S, do="facts")
    for _ in range(2):
        assert len(place.ask(HANG_S, do="block", changes=["foreach"], warmup=1, steps=4)["seconds"]) == 4


def test_a_script_too_short_as_it_is_is_refused_and_not_the_change(open_script: Open) -> None:
    place = open_script(5)
    place.ask(HANG_S, do="facts")
    with pytest.raises(TooShort, match="too few to tune it"):
        place.ask(HANG_S, do="block", changes=[], warmup=1, steps=20)


@pytest.mark.parametrize(
    ("change", "facts", "in_force"),
    [
        ("workers=2", {"loader": {"workers": 0}, "cores": 4}, lambda place: _facts(place)["loader"]["workers"] == 2),
        ("large-cores", {"large_cores": [_CORE]}, lambda place: os.sched_getaffinity(place._child.pid) == {_CORE}),
    ],
)
def test_what_the_process_of_a_workload_begins_with_is_in_force_while_it_makes_steps(
    change: str, facts: dict[str, Any], in_force: Callable[[TrainingProcess], bool], tmp_path: Path
) -> None:
    orders: dict[str, Any] = {"workload": "lenet", "batch": 4, "facts": facts, "threads": 1}
    place = TrainingProcess(orders, tmp_path / "log.txt", {}, [change])
    try:
        assert len(place.ask(HANG_S, do="block", changes=[], warmup=1, steps=2)["seconds"]) == 2
        assert in_force(place)
    finally:
        place.close()


def _facts(place: TrainingProcess) -> dict[str, Any]:
    return place.ask(HANG_S, do="facts")


def test_a_workload_that_begins_compiled_calls_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_(call: Any) -> Any:
        def calls(*args: Any) -> Any:
            compiled.append(call)
            return call(*args)

        return calls

    monkeypatch.setattr(child, "_kept", contextlib.ExitStack())
    monkeypatch.setattr(torch, "compile", compile_)
    with child._kept:
        bench = child.prepare_workload_runner({"workload": "lenet", "batch": 2, "at_start": ["compile"], "facts": {}})
        compiled.clear()
        bench.run_block([], 0, 2)
        assert len(compiled) == 2


def test_an_answer_that_comes_too_late_is_not_taken_for_that_to_the_next_command(open_script: Open) -> None:
    place = open_script(1_000_000)
    place.ask(HANG_S, do="facts")
    with pytest.raises(TrainingEnded, match="no answer within 0 s"):
        place.ask(0.0, do="block", changes=[], warmup=1, steps=3)
    assert len(place.ask(HANG_S, do="block", changes=[], warmup=1, steps=2)["seconds"]) == 2


def test_the_peak_of_a_process_is_its_own_and_not_that_of_whoever_started_it(open_script: Open) -> None:
    filled = bytearray(600_000_000)
    filled[::4096] = b"x" * len(filled[::4096])
    place = open_script(1_000_000)
    place.ask(HANG_S, do="facts")
    assert place.ask(HANG_S, do="peak")["process_bytes"] < len(filled)


def test_gradients_are_looked_at_while_torch_compile_traces_a_pass_with_fake_tensors() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.zeros(3)
    observer = Observer()
    observer.before_optimizer(torch.optim.SGD([parameter], 0.1))
    with FakeTensorMode():
        observer.before_backward(None, None)
    assert observer.zeroes_gradients


def test_of_a_model_that_repeats_blocks_those_alone_are_compiled_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[dict[str, Any]] = []

    def compile_(call: Any, **options: Any) -> Any:
        compiled.append(options)
        return call

    monkeypatch.setattr(torch, "compile", compile_)
    blocks = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(*blocks, nn.Linear(2, 1))
    known = all_changes({"blocks": 3})
    targets = Targets((model,), (), called=(model,))
    for name, modules, options in (
        ("compile=blocks", blocks, {}),
        ("compile=max-autotune", [model], {"mode": "max-autotune"}),
    ):
        assert known[name].by_name
        switch = known[name].switch
        assert switch is not None
        with switch(targets):
            assert [part for part in model.modules() if part._compiled_call_impl is not None] == modules
        assert all(part._compiled_call_impl is None for part in model.modules())
        assert compiled[-len(modules) :] == [options] * len(modules)
    assert "repeats no block" in all_changes({"blocks": 0})["compile=blocks"].refused
