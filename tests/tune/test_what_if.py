"""Delays show what a step waits for: all of what nothing hides, nothing of a loader that is ahead."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fabricate import fabricate_run
from torch import nn
from typer import Typer
from typer.testing import CliRunner

from stepscope import Run
from stepscope.analysis.first_screen import machine_name
from stepscope.analysis.suggested_changes import refuse_other_training
from stepscope.api.tune import _as_recorded
from stepscope.cli.tune import tune
from stepscope.errors import UsageError
from stepscope.experiments.tune import TuneRequest, what_if
from stepscope.experiments.tune.block_runner import BlockRunner
from stepscope.experiments.tune.delays import LAYER, LOADER, OPTIMIZER, delay_name, delay_of, take_delay_totals
from stepscope.experiments.tune.pair_statistics import ExperimentStore
from stepscope.experiments.tune.training import Targets
from stepscope.experiments.tune.what_if import _COLUMNS, StepPart, WhatIf, judge_parts


class DelayedTraining:
    """Steps of 10 ms. Of the delay of each part the step waits for a planted share."""

    def __init__(self, waits: dict[str, float], device: str = "cpu", calls: int = 1) -> None:
        self.waits, self.device, self.draw, self.calls = waits, device, random.Random(1), calls
        self.closed, self.longest_s = False, 0.0

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        if command["do"] == "facts":
            return {
                "device": self.device, "step_s": 0.01, "loader": {"workers": 1}, "threads": 2,
                "optimizers": [{"kind": "SGD"}],
            }  # fmt: skip
        steps, delayed, slower = command["steps"], 0.0, 0.0
        for name in command["changes"]:
            part, (forward_ns, backward_ns) = delay_of(name).title.removesuffix(" made slower"), _delays(name)
            delayed = self.calls * (forward_ns + backward_ns) / 1e9
            slower = delayed * self.waits[part]
            self.longest_s = max(self.longest_s, delayed)
        block = (0.01 + slower) * (1 + self.draw.gauss(0, 0.002))
        return {
            "seconds": [block] * steps, "delayed_s": delayed * (steps + command["warmup"]), "fetches": 5,
            "fetch_s": 0.002,
        }  # fmt: skip

    def close(self) -> None:
        self.closed = True


def _delays(name: str) -> tuple[float, float]:
    _, _, forward_ns, backward_ns = json.loads(name.partition("=")[2])
    return forward_ns, backward_ns


def _found(waits: dict[str, float], parts: list[StepPart]) -> WhatIf:
    training = DelayedTraining(waits)
    found = WhatIf(lambda: training, parts, 1e6)
    found.run()
    assert training.closed
    return found


def test_the_planted_shares_are_found_and_the_largest_saving_is_first() -> None:
    parts = [
        StepPart("conv1", LAYER, "Conv2d", 0.2, 0.4, attained=0.9),
        StepPart("conv2", LAYER, "Conv2d", 0.5, 0.3, attained=0.6),
        StepPart("optimizer", OPTIMIZER, "", 0.1), StepPart("loader", LOADER, "", 0.3),
    ]  # fmt: skip
    found = _found({"conv1": 1.0, "conv2": 1.0, "optimizer": 1.0, "loader": 0.0}, parts)
    table = judge_parts(found, "t").tables[0]
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert table.rows[0][0] == "conv2"
    assert rows["conv2"]["if perfect saves %"] == pytest.approx(20, abs=2)
    assert rows["conv1"]["decides %"] == pytest.approx(20, abs=2)
    assert rows["loader"]["decides %"] == pytest.approx(0, abs=2)
    assert rows["optimizer"]["if perfect saves %"] is None
    assert judge_parts(found, "t").answer.startswith("conv2, if perfect, would save ")


def test_the_start_of_the_training_is_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    def begin() -> DelayedTraining:
        now[0] += 60 * 10**9
        return DelayedTraining({"conv1": 1.0})

    monkeypatch.setattr(what_if, "monotonic_ns", lambda: now[0])
    experiment = WhatIf(begin, [StepPart("conv1", LAYER, "Conv2d", 0.2)], 30.0)
    experiment.run()
    assert len(experiment.parts[0].waits) > 1


def test_an_experiment_goes_on_with_what_was_measured_before_it_was_interrupted() -> None:
    kept: dict[str, Any] = {}
    parts = [("conv1", LAYER), ("conv2", LAYER)]

    class Interrupted(DelayedTraining):
        asked = 0

        def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
            self.asked += 1
            if self.asked == 14:
                raise KeyboardInterrupt
            return super().ask(limit_s, **command)

    def experiment(training: DelayedTraining) -> WhatIf:
        store = ExperimentStore(kept.__setitem__, json.loads(json.dumps(kept)))
        return WhatIf(lambda: training, [StepPart(name, kind, "", 0.2) for name, kind in parts], 1e6, store)

    first = experiment(Interrupted({"conv1": 1.0, "conv2": 0.0}))
    first.run()
    before = {part.name: list(part.waits) for part in first.parts}
    assert first.interrupted
    assert sum(map(len, before.values())) > 2
    second = experiment(DelayedTraining({"conv1": 1.0, "conv2": 0.0}))
    assert second.used > 0
    second.run()
    assert all(part.waits[: len(before[part.name])] == before[part.name] for part in second.parts)
    assert all(part.clear for part in second.parts)


@pytest.mark.parametrize(
    "stored", [7, {"waits": []}, {"waits": ["x"], "delayed": 0}, {"waits": [1.0], "delayed": None}]
)
def test_what_a_folder_states_that_cannot_have_been_measured_counts_as_nothing(stored: Any) -> None:
    store = ExperimentStore(saved={what_if.STUDY: {"spent_s": "x", "parts": {f"{LAYER} conv1": stored}}})
    experiment = WhatIf(lambda: DelayedTraining({}), [StepPart("conv1", LAYER, "", 0.2)], 10, store)
    assert (experiment.parts[0].waits, experiment.used < 1) == ([], True)


def test_a_part_that_is_not_surely_waited_for_is_no_answer() -> None:
    part = StepPart("conv", LAYER, "Conv2d", 0.5, attained=0.1, waits=[0.9, -0.5, 1.4], reason="")
    found = WhatIf(lambda: DelayedTraining({}), [part], 1)
    assert judge_parts(found, "t").answer.startswith("Cannot tell yet")


def test_of_one_pair_there_is_no_interval() -> None:
    part = StepPart("conv", LAYER, "Conv2d", 0.5, attained=0.1, waits=[0.9], reason="")
    row = judge_parts(WhatIf(lambda: DelayedTraining({}), [part], 1), "t").tables[0].rows[0]
    assert row[5:7] == (None, None)


def test_why_no_saving_is_stated_and_what_to_do_is_said() -> None:
    part = StepPart("conv", LAYER, "Conv2d", 0.5, waits=[0.9, 1.0, 1.0, 0.95, 1.0, 1.0], reason="")
    found = WhatIf(lambda: DelayedTraining({}), [part], 1e6)
    why = "the ceilings of this device are withheld: their probe waited for a CPU core in 9 % of its time"
    findings = judge_parts(found, "t", why)
    assert findings.answer.endswith(f"cannot be told: {why}.")
    assert any(why in note and "stepscope doctor --ceilings" in note for note in findings.notes)


def test_a_layer_that_is_called_often_is_delayed_by_as_much_as_one_that_is_called_once() -> None:
    for calls, most in ((1, 25), (20, 25), (50, 60)):  # of 50 us a call at least
        part = StepPart("cell", LAYER, "LSTMCell", 0.5, 0.4)
        training = DelayedTraining({"cell": 1.0}, calls=calls)
        found = WhatIf(lambda training=training: training, [part], 1e6)  # type: ignore[misc]
        found.run()
        row = dict(zip(_COLUMNS, judge_parts(found, "t").tables[0].rows[0], strict=True))
        slower = row["slower by %"]
        assert isinstance(slower, float)
        assert 15 < slower < most
        assert training.longest_s < most / 100 * 0.5 * 0.011
        assert row["decides %"] == pytest.approx(50, abs=3)


def test_a_part_that_is_perfect_already_is_not_ranked_by_what_it_decides() -> None:
    sure = [0.99, 1.0, 1.0, 1.0, 1.0, 1.01]
    parts = [
        StepPart("perfect", LAYER, "Conv2d", 0.5, attained=1.0, waits=list(sure), reason=""),
        StepPart("loader", LOADER, "", 0.3, waits=list(sure), reason=""),
        StepPart("poor", LAYER, "Conv2d", 0.1, attained=0.5, waits=list(sure), reason=""),
    ]
    findings = judge_parts(WhatIf(lambda: DelayedTraining({}), parts, 1e6), "t")
    assert [row[0] for row in findings.tables[0].rows] == ["poor", "perfect", "loader"]
    assert findings.answer.startswith("poor, if perfect, would save 5 % of the step")
    findings = judge_parts(WhatIf(lambda: DelayedTraining({}), parts[:2], 1e6), "t")
    assert findings.answer.startswith("perfect, if perfect, would save 0 % of the step; it decides 50 %")


@pytest.mark.parametrize("recorded", [{"threads": 4}, {"optimizer": "Adam"}])
def test_a_run_with_other_threads_or_another_optimizer_is_refused(recorded: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"the {next(iter(recorded))} of the run"):
        WhatIf(lambda: DelayedTraining({}), [], 10, None, recorded).run()
    WhatIf(lambda: DelayedTraining({}), [], 10, None, {"threads": 2, "optimizer": "SGD"}).run()


def test_what_the_command_leaves_open_is_taken_from_the_run() -> None:
    about = {"batch_size": 8, "optimizer": "SGD", "hyperparameters": {"lr": 0.02, "momentum": 0.9}}
    request = _as_recorded(TuneRequest("lenet"), {"workload": about, "threads": 2})
    assert (request.batch, request.optimizer, request.threads) == (8, "momentum", 2)
    with pytest.raises(UsageError, match="is of momentum, not of adam"):
        _as_recorded(TuneRequest("lenet", optimizer="adam"), {"workload": about})


def test_a_run_of_another_device_or_with_other_arguments_is_refused(tmp_path: Path) -> None:
    path = fabricate_run(tmp_path / "runs", steps=20)
    run = Run(path)
    run.meta["workload"].update(name="train")
    run.meta.pop("simulated", None)
    run.meta.update(script="train.py", argv=["stepscope", "run", "train.py", "--", "--wide"])
    here = machine_name(run) or ""
    refuse_other_training(run, "train.py", None, ("--wide",), here)
    with pytest.raises(UsageError, match="was given --wide"):
        refuse_other_training(run, "train.py", None, (), here)
    with pytest.raises(UsageError, match="and this is another"):
        refuse_other_training(run, "train.py", None, ("--wide",), "another")


def test_an_interrupted_experiment_ends_with_the_code_of_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = WhatIf(lambda: DelayedTraining({}), [], 10)
    found.interrupted = True
    monkeypatch.setattr("stepscope.api.tune.what_if", lambda *_, **__: (judge_parts(found, "t"), found))
    app = Typer()
    app.command()(tune)
    ended = CliRunner().invoke(app, ["lenet", "--what-if", "last", "--out", str(tmp_path), "--quiet"])
    assert ended.exit_code == 130
    assert "interrupted; go on with" in ended.output


def test_on_an_accelerator_it_is_refused_and_the_training_is_closed() -> None:
    training = DelayedTraining({}, "cuda")
    with pytest.raises(UsageError, match="a delay of the CPU is not one of the device"):
        WhatIf(lambda: training, [], 10).run()
    assert training.closed


def test_delays_are_waited_counted_and_leave_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: Any = model(batch).sum()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    bench = BlockRunner(
        step, Targets((model,), (optimizer,)), lambda _: iter(lambda: torch.ones(2, 4), None), [torch.ones(2, 4)]
    )
    for kind, part, count in ((LAYER, "0", 2), (LAYER, "2", 2), (OPTIMIZER, "optimizer", 1)):
        take_delay_totals()
        name = delay_name(kind, part, 2e6, 2e6 if count == 2 else 0)
        block = bench.run_block([name], 0, 3)
        assert take_delay_totals()["delayed_s"] >= 3 * count * 2e-3
        assert min(block.seconds) >= count * 2e-3
    assert not any(module._forward_hooks for module in model.modules())
    assert not optimizer._optimizer_step_post_hooks
    bench.run_block([], 0, 2)
    assert take_delay_totals()["delayed_s"] == 0.0
    with pytest.raises(LookupError, match="no module nothing"):
        bench.run_block([delay_name(LAYER, "nothing", 1e6)], 0, 1)


@pytest.mark.parametrize("more", [{"only": ("bf16",)}, {"not_": ("bf16",)}, {"for_": "memory"}])
def test_with_what_if_no_changes_are_chosen(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="tries no changes"):
        TuneRequest(target="lenet", what_if=Path("last"), **more).orders()
