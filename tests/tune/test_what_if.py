"""Delays show what a step waits for: all of what nothing hides, nothing of a loader that is ahead."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepscope.errors import UsageError
from stepscope.experiments.tune import TuneRequest
from stepscope.experiments.tune.block_runner import BlockRunner
from stepscope.experiments.tune.delays import LAYER, LOADER, OPTIMIZER, delay_name, delay_of, take_delay_totals
from stepscope.experiments.tune.training import Targets
from stepscope.experiments.tune.what_if import StepPart, WhatIf, judge_parts


class DelayedTraining:
    """Steps of 10 ms. Of the delay of each part the step waits for a planted share."""

    def __init__(self, waits: dict[str, float], device: str = "cpu") -> None:
        self.waits, self.device, self.draw = waits, device, random.Random(1)
        self.closed = False

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]:
        if command["do"] == "facts":
            return {"device": self.device, "step_s": 0.01, "loader": {"workers": 1}}
        steps, delayed, slower = command["steps"], 0.0, 0.0
        for name in command["changes"]:
            part, (forward_ns, backward_ns) = delay_of(name).title.removesuffix(" made slower"), _delays(name)
            delayed = (forward_ns + backward_ns) / 1e9
            slower = delayed * self.waits[part]
        block = (0.01 + slower) * (1 + self.draw.gauss(0, 0.002))
        return {
            "seconds": [block] * steps, "delayed_s": delayed * (steps + command["warmup"]), "fetches": 5,
            "fetch_s": 0.002,
        }  # fmt: skip

    def close(self) -> None:
        self.closed = True


def _delays(name: str) -> tuple[float, float]:
    import json

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


def test_a_part_that_is_not_surely_waited_for_is_no_answer() -> None:
    part = StepPart("conv", LAYER, "Conv2d", 0.5, attained=0.1, waits=[0.9, -0.5, 1.4], reason="")
    found = WhatIf(lambda: DelayedTraining({}), [part], 1)
    assert judge_parts(found, "t").answer.startswith("Cannot tell yet")


def test_why_no_saving_is_stated_and_what_to_do_is_said() -> None:
    part = StepPart("conv", LAYER, "Conv2d", 0.5, waits=[0.9, 1.0, 1.0, 0.95, 1.0, 1.0], reason="")
    found = WhatIf(lambda: DelayedTraining({}), [part], 1e6)
    why = "the ceilings of this device are withheld: their probe waited for a CPU core in 9 % of its time"
    findings = judge_parts(found, "t", why)
    assert findings.answer.endswith(f"cannot be told: {why}.")
    assert any(why in note and "stepscope doctor --ceilings" in note for note in findings.notes)


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
