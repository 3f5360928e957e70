"""A process that is tuned is started again where it is gone, and told what it was told."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.patience import HANG_S

from stepscope.experiments.tune.process import LastingPlace, PlaceEnded, TooShort

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
Open = Callable[[int], LastingPlace]


@pytest.fixture
def open_script(tmp_path: Path) -> Iterator[Open]:
    places: list[LastingPlace] = []

    def opened(steps: int) -> LastingPlace:
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(_BREAKS_WITH_VIEW.replace("{steps}", str(steps))))
        orders: dict[str, Any] = {"script": str(script), "arguments": [], "threads": 1, "facts": {}}
        places.append(LastingPlace(orders, tmp_path / "log.txt", {}))
        return places[-1]

    yield opened
    for place in places:
        place.close()


def test_a_script_that_a_change_ends_is_started_again_for_the_next(open_script: Open) -> None:
    place = open_script(1_000_000)
    assert "foreach" not in place.ask(HANG_S, do="facts")
    with pytest.raises(PlaceEnded, match="with it the script failed: AssertionError: NCHW"):
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
