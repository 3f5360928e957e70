"""A loop that is tuned goes on as before also where its user names less than it changes, interrupts it, or compiles."""

from __future__ import annotations

import copy
import functools
import logging
import signal
import sys
import threading
import time
import types
from collections import UserList, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import stepscope
import stepscope.api.tune as tune_module
from stepscope.errors import UsageError
from stepscope.experiments.tune import block_runner
from stepscope.experiments.tune.block_runner import LocalTraining, runner_for_loop
from stepscope.experiments.tune.changes import all_changes, changes_applied
from stepscope.experiments.tune.loop_protection import HeldInterrupts, NotPutBack, StepState, recompiled_after
from stepscope.experiments.tune.process import TrainingEnded
from stepscope.experiments.tune.training import Targets
from stepscope.experiments.tune.training_state import State

Step = Callable[[torch.Tensor], torch.Tensor]
BATCH = torch.ones(2, 4)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _loop(model: nn.Module | None = None) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    return model, optimizer, step


class Trainer:
    """As people write it: the step is a method, and what it changes are attributes, in lists too."""

    def __init__(self) -> None:
        self.model, self.optimizer, self.inner_step = _loop()
        self.schedulers = [torch.optim.lr_scheduler.StepLR(self.optimizer, 1)]
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        self.draws: dict[str, Any] = {"noise": torch.Generator().manual_seed(1), "numpy": np.random.default_rng(2)}
        self.itself = self

    def step(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.inner_step(batch + torch.rand(1, generator=self.draws["noise"]) + self.draws["numpy"].random())
        self.schedulers[0].step()
        self.average.update_parameters(self.model)
        return loss


def test_a_scheduler_an_average_and_a_generator_that_nobody_named_are_put_back() -> None:
    trainer = Trainer()
    for step in (trainer.step, functools.partial(Trainer.step, trainer), lambda batch: trainer.step(batch)):
        targets = Targets((trainer.model,), (trainer.optimizer,))
        before = copy.deepcopy([trainer.schedulers[0].state_dict(), dict(trainer.average.state_dict())])
        drawn = trainer.draws["noise"].get_state(), trainer.draws["numpy"].bit_generator.state
        runner_for_loop(step, [BATCH], targets, (), 1).run_block(["foreach"], 1, 2)
        scheduled, averaged = before
        assert trainer.schedulers[0].state_dict() == scheduled
        assert all(torch.equal(averaged[name], tensor) for name, tensor in trainer.average.state_dict().items())
        assert torch.equal(trainer.draws["noise"].get_state(), drawn[0])
        assert trainer.draws["numpy"].bit_generator.state == drawn[1]


_updates = 0


@dataclass(slots=True)
class Counts:
    """What has no dictionary of attributes."""

    moves: int = 0


class Environment:
    """As of reinforcement learning: what it is in is an attribute, an array, and a generator of its own."""

    def __init__(self) -> None:
        self.draws, self.position, self.visited = np.random.default_rng(0), np.zeros(2), deque[float](maxlen=3)
        self.about, self.counts = SimpleNamespace(episodes=0), Counts()

    def move(self) -> float:
        self.position += self.draws.normal(size=2)
        self.position = self.position * 0.9
        self.visited.append(float(self.position[0]))
        self.about.episodes += 1
        self.counts.moves += 1
        self._count()
        return float(self.position.sum())

    def _count(self) -> None:
        global _updates
        _updates += 1


class Counting(nn.Module):
    """A model that keeps what is no tensor in an object of the user's, and is watched by a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(4, 1), Environment()
        self.outputs: list[float] = []
        outputs = self.outputs
        self.layer.register_forward_hook(lambda module, args, output: outputs.append(output.sum().item()))
        self.layer.weight.register_hook(self._seen)  # type: ignore[no-untyped-call]

    def _seen(self, gradient: torch.Tensor) -> torch.Tensor:
        self.own.about.episodes += 1
        return gradient

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch) * self.own.move()  # type: ignore[no-any-return]


class Tally:
    """Counts in its class, as a registry or a shared cache does."""

    steps, seen = 0, list[float]()
    mean: torch.Tensor

    @classmethod
    def add(cls, loss: torch.Tensor) -> None:
        cls.steps += 1
        cls.seen.append(loss.item())
        cls.mean = loss.detach()


def test_attributes_of_classes_and_of_the_users_modules_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.ModuleType("settings_of_a_user")
    exec("steps, seen = 0, []\ndef note():\n    global noted\n    noted = steps\nnoted = -1", vars(settings))
    monkeypatch.setitem(sys.modules, settings.__name__, settings)
    own: Any = settings
    model, optimizer, step = _loop(Counting())

    def whole(batch: torch.Tensor) -> torch.Tensor:
        loss = step(batch)
        Tally.add(loss)
        own.steps += 1
        own.seen.append(loss.item())
        own.latest = loss.item()
        own.note()
        return loss

    def state() -> tuple[Any, ...]:
        seen = Tally.seen, own.seen
        names = {*vars(settings)} | {*vars(Tally)}
        return Tally.steps, own.steps, own.noted, *map(tuple, seen), *map(id, seen), names

    before = state()
    runner_for_loop(whole, [BATCH], Targets((model,), (optimizer,)), (), 1).run_block(["foreach"], 1, 2)
    assert state() == before
    whole(BATCH)
    assert state() != before


def test_what_a_step_changes_by_name_is_put_back_as_the_objects_that_it_is() -> None:
    model, optimizer, step = _loop(Counting())
    environment = Environment()
    memory: list[Any] = [torch.zeros(2), {"best": torch.ones(1)}]
    history, hidden, warm = [0.5], torch.zeros(1), 1
    replay, place = np.zeros((4, 1)), 0

    def whole(batch: torch.Tensor) -> torch.Tensor:
        nonlocal hidden, warm, place
        warm, place = warm + 1, (place + 1) % 4
        loss = step(batch) + environment.move() + hidden
        hidden = loss.detach()
        replay[place] = loss.item()
        memory[0].data.lerp_(torch.ones(2), 0.1)
        memory[1]["best"] = torch.maximum(memory[1]["best"], hidden)
        history.append(loss.item())
        vars(whole)["calls"] = vars(whole).get("calls", 0) + 1
        return loss

    def state() -> Any:
        own = [copy.deepcopy(vars(part)) for part in (environment, model.own)]
        for content in own:
            content["draws"] = content["draws"].bit_generator.state
        texts = repr((_updates, own, memory, history, hidden, warm, replay, place, vars(whole), model.outputs))
        return texts, list(map(id, (environment.position, memory[0], history, replay)))

    before = state()
    bench = runner_for_loop(whole, [BATCH], Targets((model,), (optimizer,)), (), 1)
    bench.run_block(["foreach"], 1, 2)
    bench.measure_losses([], 2)
    assert state() == before
    whole(BATCH)
    assert state() != before


def test_a_data_set_that_counts_is_put_back_and_objects_of_libraries_are_left_alone() -> None:
    class Numbers(IterableDataset[torch.Tensor]):
        place = 0

        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                self.place += 1
                yield torch.full((4,), float(self.place))

    model, optimizer, inner = _loop()
    log = logging.Logger("of a library")

    def step(batch: torch.Tensor) -> torch.Tensor:
        log.setLevel(log.level + 1)
        return inner(batch)

    numbers = Numbers()
    bench = runner_for_loop(step, DataLoader(numbers, batch_size=2), Targets((model,), (optimizer,)), (), 1)
    bench.run_block([], 1, 2)
    assert numbers.place == 0
    assert log.level == 5, "two steps are observed, three are in the block"


def test_a_step_that_draws_from_an_iterator_of_its_own_is_refused_and_one_that_has_another_is_not() -> None:
    class WithIterators:
        def __init__(self) -> None:
            self.model, self.optimizer, self.inner = _loop()
            self.training, self.testing = iter([BATCH] * 9), iter([BATCH])

        def train(self, batch: torch.Tensor) -> torch.Tensor:
            return self.inner(self.draw() if batch.sum() < 0 else batch)

        def draw(self) -> torch.Tensor:
            return next(self.training)

    trainer, noise = WithIterators(), (torch.rand(4) for _ in range(9))
    with pytest.raises(UsageError, match=r"draws from 'training' \(list_iterator\), which cannot be put back"):
        StepState([trainer.train])
    with pytest.raises(UsageError, match="draws from 'noise'"):
        StepState([lambda batch: trainer.inner(batch + next(noise))])
    assert trainer.optimizer in StepState([trainer.inner]).parts
    assert trainer.optimizer in StepState([lambda batch: trainer.inner(batch)]).parts


def test_a_tensor_too_large_to_be_kept_is_watched_and_told_where_the_step_changes_it() -> None:
    model, optimizer, inner = _loop()
    table, data = torch.zeros(20, 500_000), torch.ones(20, 500_000)

    def step(batch: torch.Tensor) -> torch.Tensor:
        table[0] += 1
        return inner(batch * data[0, :4])

    with pytest.raises(NotPutBack, match="the step changes a tensor of 20x500000 that others="):
        runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (), 1)
    table.zero_()
    runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (table,), 1).run_block([], 0, 1)
    assert not table.any()


_scheduler: torch.optim.lr_scheduler.LRScheduler


def _helper() -> None:
    _scheduler.step()


def test_what_a_function_of_the_users_reaches_in_its_turn_is_a_part_and_what_a_library_holds_is_none() -> None:
    global _scheduler
    _, optimizer, _ = _loop()
    _scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step(batch: torch.Tensor) -> None:
        torch.nn.functional.relu(batch)

        def inner() -> None:
            _helper()

        inner()

    class Proxy:
        """As those of web frameworks, which stand for nothing outside of a request."""

        @property
        def __class__(self) -> Any:
            raise RuntimeError

        @__class__.setter
        def __class__(self, value: Any) -> None: ...

    step.__defaults__ = (Proxy(), _scheduler)
    assert StepState([step]).parts == [_scheduler]
    assert StepState([torch.nn.functional.relu]).parts == []
    assert StepState([print]).parts == []


def test_parts_within_lists_dictionaries_and_tuples_of_the_others_are_put_back() -> None:
    class Count:
        def __init__(self) -> None:
            self.count = 0

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    _, optimizer, _ = _loop()
    scheduler, counts = torch.optim.lr_scheduler.StepLR(optimizer, 1), [Count() for _ in range(3)]
    itself: list[Any] = [counts[0], object()]
    itself.append(itself)
    state = State(Targets((), (optimizer,)), (itself, {"count": counts[1], "epoch": 0}, (counts[2], [scheduler], 3)))
    optimizer.step()
    scheduler.step()
    for count in counts:
        count.count += 1
    state.restore()
    assert [count.count for count in counts] == [0, 0, 0]
    assert scheduler.last_epoch == 0
    with pytest.raises(UsageError, match="'object' cannot be put back"):
        State(Targets((), ()), ((object(),),))


def test_a_single_other_needs_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, step = _loop()
    scheduler, counts = torch.optim.lr_scheduler.StepLR(optimizer, 1), {"steps": 0}
    named: list[tuple[Any, ...]] = []
    monkeypatch.setattr(tune_module, "_tune_step", lambda *arguments: named.append(arguments[3]))
    for others in (scheduler, counts, [scheduler, counts], ()):
        stepscope.tune(step, [BATCH], model=model, optimizer=optimizer, others=others)
    assert named == [(scheduler,), (counts,), (scheduler, counts), ()]


def test_ctrl_c_while_a_block_is_put_back_waits_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, step = _loop()
    bench = runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (), 1)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    plain = State.restore
    whole: list[bool] = []

    def restore(state: State) -> None:
        signal.raise_signal(signal.SIGINT)
        plain(state)
        whole.append(True)

    monkeypatch.setattr(State, "restore", restore)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # where it is ignored, as in a background job
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.run_block(["foreach"], 1, 2)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert whole == [True]
    assert all(torch.equal(old, new) for old, new in zip(weights, model.parameters(), strict=True))


class Heard:
    """What an object of a library holds is not put back, unlike what is in a step's own lists."""

    signals: ClassVar[UserList[int]] = UserList()


def test_ctrl_c_within_a_step_is_the_trainings_own_and_a_handler_that_a_step_sets_stays() -> None:
    model, optimizer, step = _loop()
    Heard.signals.clear()

    def own(number: int, frame: object) -> None:
        Heard.signals.append(number)

    def interrupted(batch: torch.Tensor) -> torch.Tensor:
        loss = step(batch)
        signal.signal(signal.SIGINT, own)
        signal.raise_signal(signal.SIGINT)
        return loss

    before = signal.getsignal(signal.SIGINT)
    try:
        runner_for_loop(interrupted, [BATCH], Targets((model,), (optimizer,)), (), 1)
        assert signal.getsignal(signal.SIGINT) is own
        assert Heard.signals == [signal.SIGINT] * 2
        with HeldInterrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            assert len(Heard.signals) == 2
            with interrupts.released():
                assert len(Heard.signals) == 3
        assert len(Heard.signals) == 3
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_held_and_a_loop_is_tuned_all_the_same() -> None:
    model, optimizer, step = _loop()
    lengths: list[int] = []

    def tune() -> None:
        bench = runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (), 1)
        lengths.append(len(bench.run_block([], 1, 2).seconds))

    thread = threading.Thread(target=tune)
    thread.start()
    thread.join()
    assert lengths == [2]


def test_what_is_compiled_is_compiled_for_each_change_and_for_the_training_again_afterwards() -> None:
    compilations: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compilations.append(inputs)
        return graph.forward

    def compiled(action: Callable[[], object]) -> int:
        before = len(compilations)
        action()
        return len(compilations) - before

    model: Any = torch.compile(nn.Linear(4, 1), backend=backend)
    _, optimizer, step = _loop(model)
    config = torch._dynamo.config
    with config.patch(recompile_limit=2):
        assert compiled(lambda: step(BATCH)) == 1
        with recompiled_after():
            bench = runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (), 1)
            bench.set_facts({**bench.facts(), "cores": 16})
            for names in (["threads=2"], ["threads=4"], ["bf16"], ["bf16", "threads=2"]):
                assert compiled(functools.partial(bench.run_block, names, 0, 1)) == 1
        assert config.recompile_limit == 2
        assert compiled(lambda: step(BATCH)) == 1
        assert compiled(lambda: step(torch.ones(7, 4))) == 1, "torch runs it as it is written"
        assert compiled(lambda: step(BATCH)) == 0


def test_a_loop_that_could_not_go_on_is_refused_before_a_step_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(batch: torch.Tensor) -> None:
        raise AssertionError

    def tune(batches: Any, model: nn.Module) -> None:
        stepscope.tune(step, batches, model=model, optimizer=torch.optim.SGD([nn.Parameter(BATCH)], 0.1))

    batches = iter([BATCH, BATCH])
    with pytest.raises(UsageError, match="an iterator gives each batch once") as refused:
        tune(batches, nn.Linear(4, 1))
    assert "list(itertools.islice(loader, 8))" in str(refused.value.hint)
    assert len(list(batches)) == 2
    lazy = nn.Sequential(nn.ReLU(), nn.LazyLinear(1))
    with pytest.raises(UsageError, match="the layer '1' has no weights yet"):
        tune([BATCH], lazy)
    assert isinstance(lazy[1], nn.LazyLinear)
    with pytest.raises(UsageError, match="runs on meta, whose steps tune cannot time"):
        tune([BATCH], nn.Linear(4, 1, device="meta"))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="2 processes train together"):
        tune([BATCH], nn.Linear(4, 1))


def test_the_precision_of_each_backend_is_what_it_was_before_products_were_rounded() -> None:
    backends = [backend.matmul for backend in (torch.backends.cuda, torch.backends.mkldnn)]

    def precisions() -> list[str]:
        return [torch.get_float32_matmul_precision(), *(backend.fp32_precision for backend in backends)]

    before = precisions()
    with changes_applied([all_changes({})["matmul=medium"]], Targets((), ())):
        assert precisions() != before
    assert precisions() == before


def test_a_picture_that_shows_a_number_several_times_is_no_reason_against_channels_last() -> None:
    model = nn.Conv2d(3, 4, 3)
    model.register_buffer("mask", torch.ones(1, 1, 4, 1).expand(2, 3, 4, 4))
    with changes_applied([all_changes({})["channels_last"]], Targets((model,), (), (model,))):
        assert model.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.weight.is_contiguous()
    assert model.get_buffer("mask").stride() == (0, 0, 1, 0)


def test_weights_that_share_memory_share_it_in_another_layout_too_and_parts_of_other_memory_stay() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    first, second, third = (layer.weight for layer in model)
    second.data = first.data
    flat = torch.zeros(100)  # as of an optimizer that updates all at once
    third.data = flat[:81].view(3, 3, 3, 3)
    with changes_applied([all_changes({})["channels_last"]], Targets((model,), (), (model,))), torch.no_grad():
        assert first.data_ptr() == second.data_ptr()
        assert first.is_contiguous(memory_format=torch.channels_last)
        first[0, 1] = 7.0
        flat += 1
        assert bool((third == 1).all())
    assert first.data_ptr() == second.data_ptr()
    assert bool((second[0, 1] == 7).all())


def test_a_part_that_cannot_be_put_back_after_a_change_is_no_result_of_it_but_told() -> None:
    class Sometimes:
        fails = False

        def state_dict(self) -> dict[str, int]:
            return {"count": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            if self.fails:
                raise ValueError("not today")

    model, optimizer, step = _loop()
    other = Sometimes()
    place = LocalTraining(runner_for_loop(step, [BATCH], Targets((model,), (optimizer,)), (other,), 1))
    place.ask(9, do="facts")
    other.fails = True
    with pytest.raises(NotPutBack, match="the training is not as it was before tune: ValueError: not today"):
        place.ask(9, do="block", changes=["foreach"], warmup=0, steps=1)
    assert not issubclass(NotPutBack, (TrainingEnded, UsageError))  # with which the others would go on


class Hanging(Dataset[torch.Tensor]):
    """As one whose worker processes wait for a lock that this process held when they were forked."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> torch.Tensor:
        if get_worker_info() is not None:
            time.sleep(1e6)
        return torch.ones(4)


def test_worker_processes_that_wait_for_ever_are_a_result_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_runner, "_HUNG_WORKER_S", 0.2)
    model, optimizer, step = _loop()
    loader = DataLoader(Hanging(), batch_size=2)
    place = LocalTraining(runner_for_loop(step, loader, Targets((model,), (optimizer,)), (), 1))
    place.ask(9, do="facts")
    with pytest.raises(TrainingEnded, match="DataLoader timed out"):
        place.ask(9, do="block", changes=["workers=1"], warmup=0, steps=1)
    assert len(place.ask(9, do="block", changes=["foreach"], warmup=0, steps=1)["seconds"]) == 1
