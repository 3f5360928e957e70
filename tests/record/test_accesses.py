"""Which tensors the operators of a step read and write, in a real training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.record.loops import record
from torch import Tensor, nn

from stepscope.analysis.run import Run
from stepscope.record.memory.event_tree import changed_arguments


class TwoBranches(nn.Module):
    """Two layers that read one input, and what joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, pictures: Tensor) -> Tensor:
        joined: Tensor = self.last(self.left(pictures) * self.right(pictures))
        return joined


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = TwoBranches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).sum().backward()
            optimizer.step()
            step()

    return Run(record(loop, tmp_path_factory.mktemp("accesses"), model, memory="all").path)


def _ways_to(run: Run, unit: int) -> set[int]:
    after = run.dependencies().units["after"].to_list()
    found: set[int] = set()
    waiting = [unit]
    while waiting:
        new = set(after[waiting.pop()]) - found
        found |= new
        waiting += new
    return found


def test_branches_do_not_wait_for_each_other_and_what_joins_them_waits_for_both(run: Run) -> None:
    units = run.dependencies().units.with_row_index("unit")
    forward = units.filter(phase="forward")
    left, right = (forward.filter(module=name, name="aten::linear")["unit"][0] for name in ("left", "right"))
    (joined,) = forward.filter(name="aten::mul")["unit"]
    assert left not in _ways_to(run, right)
    assert right not in _ways_to(run, left)
    assert {left, right} <= _ways_to(run, joined)


def test_an_update_waits_for_the_backward_nodes_of_its_layer(run: Run) -> None:
    units = run.dependencies().units.with_row_index("unit")
    (last,) = units.filter(phase="backward", module="last").filter(
        name="autograd::engine::evaluate_function: AddmmBackward0"
    )["unit"]
    updates = units.filter(phase="optimizer")["unit"].to_list()
    assert any(last in _ways_to(run, update) for update in updates)


def test_no_operator_waits_for_one_that_ran_later(run: Run) -> None:
    units = run.dependencies().units
    ends = (units["start_ns"] + units["duration_ns"]).to_list()
    assert all(
        ends[earlier] <= start + 1
        for start, before in zip(units["start_ns"], units["after"], strict=True)
        for earlier in before
    )


@pytest.mark.parametrize(
    ("name", "arguments", "changed"),
    [
        ("aten::add", 3, set()),
        ("aten::add", 4, {3}),  # out=
        ("aten::add_", 3, {0}),
        ("aten::_foreach_addcmul_", 4, {0}),
        ("aten::native_batch_norm", 8, {3, 4}),  # which its schema does not say
        ("AddmmBackward0", 1, set()),
        ("somebody::kernel", 2, {0, 1}),
    ],
)
def test_an_operator_writes_the_arguments_that_its_schema_says(name: str, arguments: int, changed: set[int]) -> None:
    assert changed_arguments(name, arguments) == changed
