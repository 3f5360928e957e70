"""The beacon in the trainer: what is marked, that nothing of it stays, and that training never notices."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepscope.simulate.marks import RingReader, State, StateLog, StateReader, create_ring, open_writer
from stepscope.simulate.training_hooks import Models, StateMarker

Attach = Callable[[Models], StateMarker]


class Marks:
    """A ring and its states in a folder, and what was marked so far."""

    def __init__(self, folder: Path) -> None:
        create_ring(folder / "ring")
        self.log = StateLog(folder / "states")
        self._states, self._known = StateReader(folder / "states"), list[State]()
        self._ring = RingReader(folder / "ring")
        self.mark = open_writer(folder / "ring")
        self._beacons: list[StateMarker] = []

    def attach(self, models: Models = None) -> StateMarker:
        beacon = StateMarker(self.mark, self.log, models)
        beacon.attach()
        self._beacons.append(beacon)
        return beacon

    def seen(self) -> list[State]:
        """Every state since the last call."""
        self._known += self._states.read()
        return [self._known[state] for state in self._ring.read()[1]]

    def kinds(self) -> list[tuple[str, str]]:
        return [(state.kind, state.phase) for state in self.seen()]

    def close(self) -> None:
        for beacon in self._beacons:
            beacon.remove()
        self.log.close()
        self._states.close()


@pytest.fixture
def marks(tmp_path: Path) -> Iterator[Marks]:
    marks = Marks(tmp_path)
    yield marks
    marks.close()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 3) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = model(torch.ones(batch, 4)).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def test_a_step_is_marked_forward_backward_optimizer_and_host(marks: Marks) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks.attach(model)
    assert marks.kinds() == [("host", "data")]
    train_once(model, optimizer)
    forward = [("Linear", "forward"), ("ReLU", "forward"), ("Linear", "forward")]
    between = [("between modules", "forward")] * 3
    assert marks.kinds() == [
        *(mark for pair in zip(forward, between, strict=True) for mark in pair),
        ("Linear", "backward"),
        ("ReLU", "backward"),
        ("Linear", "backward"),
        ("SGD", "optimizer"),
        ("host", "data"),
    ]


def test_a_module_that_gets_the_id_of_a_container_that_is_gone_is_marked(marks: Marks) -> None:
    marks.attach(nn.Sequential(nn.Linear(4, 4)))
    for _ in range(50):
        nn.Sequential(nn.Linear(4, 4), nn.ReLU())(torch.ones(1, 4))
        marks.seen()
        layers = [nn.ReLU() for _ in range(50)]  # some of them where a container was, if it is gone
        for layer in layers:
            layer(torch.ones(1, 4))
        assert len(marks.seen()) == 2 * len(layers)


def test_states_know_their_place_and_the_shapes(marks: Marks) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks.attach(model)
    train_once(model, optimizer, batch=3)
    train_once(model, optimizer, batch=5)
    linear = {state for state in marks.seen() if state.kind == "Linear" and state.phase == "forward"}
    assert {state.place for state in linear} == {"0", "2.0"}
    assert {state.signature for state in linear if state.place == "0"} == {
        "(3, 4) [(8, 4), (8,)]",
        "(5, 4) [(8, 4), (8,)]",
    }


def test_nothing_is_marked_after_removal_not_even_by_a_graph_that_lives_on(marks: Marks) -> None:
    model = network()
    beacon = marks.attach(model)
    loss = model(torch.ones(1, 4)).sum()
    beacon.remove()
    assert marks.seen()[-1] == State("idle", "other")
    loss.backward()
    model(torch.ones(1, 4))
    assert marks.seen() == []


def test_a_model_can_be_copied_and_saved_meanwhile(marks: Marks) -> None:
    model = network()
    marks.attach(model)
    model(torch.ones(1, 4))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    copied = copy.deepcopy(model)
    torch.save(model, io.BytesIO())
    copied(torch.ones(1, 4))
    assert [state.place for state in marks.seen() if state.kind == "ReLU"] == ["1", "Sequential.1"]


def test_results_are_the_same_with_and_without_a_beacon(marks: Marks) -> None:
    losses = []
    for beacon in (None, marks):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if beacon is not None:
            beacon.attach(model)
        losses.append([train_once(model, optimizer).item() for _ in range(5)])
    assert losses[0] == losses[1]


def test_recurrent_attention_and_identity_modules_are_marked_in_both_directions(marks: Marks) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(4, 4, batch_first=True)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.nothing = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x, _ = self.recurrent(x)
            x, _ = self.attention(x, x, x)
            found: Tensor = self.nothing(x)
            return found

    model = Mixed()
    marks.attach(model)
    model(torch.ones(2, 3, 4)).sum().backward()
    kinds = marks.kinds()
    assert sorted(
        {kind for kind in kinds if kind[1] == "forward" and kind[0] in ("LSTM", "MultiheadAttention")}, reverse=True
    ) == [("MultiheadAttention", "forward"), ("LSTM", "forward")]
    assert kinds.index(("MultiheadAttention", "backward")) < kinds.index(("LSTM", "backward"))
    assert ("Identity", "backward") not in kinds


def test_modules_without_gradients_or_with_odd_arguments_do_no_harm(marks: Marks) -> None:
    class Odd(nn.Module):
        def forward(self, *, words: list[str]) -> dict[str, int]:
            return {word: len(word) for word in words}

    beacon = marks.attach()
    assert Odd()(words=["a"]) == {"a": 1}
    with torch.no_grad():
        network()(torch.ones(1, 4))
    assert beacon.failure is None
    assert ("Odd", "forward") in marks.kinds()


def test_a_beacon_that_fails_goes_out_and_the_training_goes_on(marks: Marks) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beacon = marks.attach(model)
    marks.log.close()  # the next new state cannot be written
    train_once(model, optimizer)
    assert beacon.failure is not None
    assert beacon.failure.startswith("OSError")
    marks.log = StateLog(Path("/dev/null"))


def test_an_exception_of_the_models_own_passes_through(marks: Marks) -> None:
    marks.attach()
    with pytest.raises(RuntimeError, match="shapes"):
        network()(torch.ones(1, 5))
