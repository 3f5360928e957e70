"""After tuning a training goes on bit by bit as if it had not been tuned."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections import UserDict, UserList
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from tests.tune.fake_training import FACTS
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset

import stepscope
from stepscope import workloads
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.tune.block_runner import BlockRunner, LocalTraining, _loader_with, runner_for_loop
from stepscope.experiments.tune.changes import all_changes, changes_applied, select_changes
from stepscope.experiments.tune.changes.loop import patch_loader_arguments
from stepscope.experiments.tune.child import runner_for_workload
from stepscope.experiments.tune.loop_protection import copy_of_batch
from stepscope.experiments.tune.training import Observer, Targets, facts_of
from stepscope.experiments.tune.training_state import LoaderSampler, State

LIVE = ("channels_last", "bf16", "fused", "foreach", "flush-denormals", "threads=1", "matmul=medium", "checkpoint")


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Compute with two, so that one is a change, whatever runs in this process beside it."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _fingerprint(training: Any) -> list[Any]:
    tensors = [*training.model.parameters(), *training.model.buffers()]
    states = [value for o in training.optimizers for state in o.state.values() for value in state.values()]
    return [
        *((tensor.data_ptr(), tensor.stride(), tensor.detach().clone()) for tensor in tensors),
        *((t.grad.data_ptr(), t.grad.clone()) if t.grad is not None else None for t in training.model.parameters()),
        *(value.clone() if isinstance(value, torch.Tensor) else value for value in states),
        torch.get_rng_state(), random.getstate(), str(np.random.get_state()), torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
    ]  # fmt: skip


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(_same(a, b) for a, b in zip(first, second, strict=True))
    return bool(first == second)


@pytest.mark.parametrize(
    ("name", "optimizer", "batch"),
    [
        ("lenet", "adam", 4),  # dropout
        ("mobilenet-v1-025-96", "momentum", 2),  # batch normalisation
        ("dcgan-32", None, 2),  # two optimizers in turn, noise
        ("resnet8-c32", "rmsprop", 2),
    ],
)
def test_weights_state_and_random_numbers_are_bit_identical_after_every_change(
    name: str, optimizer: str | None, batch: int
) -> None:
    training = workloads.find(name).prepare(batch=batch, optimizer=optimizer)
    batches = training.batches()
    training.step(next(batches))
    before = _fingerprint(training)
    bench = runner_for_workload(training, restored=True)
    facts = bench.facts()
    assert _same(before, _fingerprint(training))
    applying = [change.name for change in bench.find(LIVE) if not change.refused]
    assert {"fused", "foreach"} & set(applying) or optimizer == "rmsprop"
    for change in [*([name] for name in applying), ["channels_last", "bf16"], []]:
        bench.run_block(change, 1, 2)
        bench.measure_losses(change, 2)
        assert _same(before, _fingerprint(training)), change
    bench.measure_memory([])
    assert _same(before, _fingerprint(training))
    assert facts["step_s"] > 0


def test_a_training_that_was_tuned_has_the_losses_of_one_that_was_not() -> None:
    def losses(tuned: bool) -> list[float]:
        training = workloads.find("lenet").prepare(batch=8, optimizer="adam")
        found, batches = [], iter(training.batches())
        for step in range(6):
            if tuned and step == 3:
                bench = runner_for_workload(training, restored=True)
                for change in ("channels_last", "bf16", "fused"):
                    bench.run_block([change], 1, 3)
            found.append(float(training.step(next(batches))))
        return found

    assert losses(True) == losses(False)


def test_nothing_of_a_change_stays_on_the_model_also_where_the_step_fails() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 6, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    count = [0]

    def step(batch: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        if count[0] == 5:
            raise RuntimeError("the user's own")
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    batch = torch.randn(2, 3, 6, 6)
    bench = BlockRunner(step, Targets((model,), (optimizer,)), lambda _: iter(lambda: batch, None), [batch])
    strides = [parameter.stride() for parameter in model.parameters()]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="the user's own"):
        bench.run_block(["channels_last", "bf16", "fused"], 0, 8)
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert all(torch.equal(old, new) for old, new in zip(weights, model.parameters(), strict=True))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer.state
    assert optimizer.param_groups[0]["fused"] is None
    assert not torch.is_autocast_enabled("cpu")
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_changes_do_what_they_say() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters())
    seen: list[dict[str, Any]] = []

    def watch(_: nn.Module, args: Any, output: torch.Tensor) -> None:
        weight: Any = model[0].weight
        seen.append(
            {
                "layout": weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous(),
                "dtype": output.dtype,
                "fused": optimizer.param_groups[0]["fused"],
                "threads": torch.get_num_threads(),
            }
        )

    model[0].register_forward_hook(watch)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        assert loss.dtype == torch.float32
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    batch = torch.randn(2, 3, 6, 6)
    bench = BlockRunner(step, Targets((model,), (optimizer,)), lambda _: iter(lambda: batch, None), [batch])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        bench.set_facts({**bench.facts(), "cores": 4})
        bench.run_block(["channels_last", "bf16", "fused", "threads=1"], 0, 1)
        assert seen[-1] == {"layout": True, "dtype": torch.bfloat16, "fused": True, "threads": 1}
        bench.run_block([], 0, 1)
        assert seen[-1] == {"layout": False, "dtype": torch.float32, "fused": None, "threads": 2}
    finally:
        torch.set_num_threads(before)


def test_others_are_put_back_schedulers_generators_and_dictionaries() -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    generator, own, counters = torch.Generator().manual_seed(3), random.Random(4), {"steps": 1, "list": [1]}
    numpy_generator = np.random.default_rng(5)
    state = State(Targets((), (optimizer,)), (scheduler, generator, own, counters, numpy_generator))
    expected = torch.rand(3, generator=generator), own.random(), numpy_generator.random()
    optimizer.step()
    scheduler.step()
    counters["steps"], counters["list"] = 7, [9]
    state.restore()
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"], counters) == (0, 0.1, {"steps": 1, "list": [1]})
    assert torch.equal(torch.rand(3, generator=generator), expected[0])
    assert (own.random(), numpy_generator.random()) == expected[1:]


class _Stateful(nn.Module):
    """A network that keeps its state, and draws, in attributes of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 3)
        self.hidden = (torch.zeros(2, 3), torch.zeros(2, 3))
        self.draws = torch.Generator().manual_seed(1)
        self.numpy_draws, self.old_draws = np.random.default_rng(2), np.random.RandomState(3)
        self.python_draws = random.Random(4)
        self.counts = np.zeros(3)
        self.seen = ([torch.zeros(1)], {"steps": 0})

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.counts += self.numpy_draws.random() + self.old_draws.rand() + self.python_draws.random()
        self.seen[0][0] += float(torch.rand(1, generator=self.draws))
        self.seen[1]["steps"] += 1
        hidden, cell = self.cell(values, self.hidden)
        self.hidden = hidden.detach(), cell.detach()
        return hidden  # type: ignore[no-any-return]

    def told(self) -> list[Any]:
        """Return all that a step alters, and what it would draw next."""
        drawn = torch.rand(2, generator=self.draws), self.numpy_draws.random(), self.old_draws.rand()
        return [*self.hidden, *drawn, self.python_draws.random(), self.counts.tolist(), *map(str, self.seen)]


def test_tuples_arrays_and_generators_of_a_module_are_put_back() -> None:
    torch.manual_seed(0)
    model, expected, values = _Stateful(), _Stateful(), torch.ones(2, 4)
    expected.load_state_dict(model.state_dict())
    for network in (model, expected):
        network(values)
    state = State(Targets((model,), ()))
    for _ in range(3):
        model(values)
    state.restore()
    assert _same(model.told(), expected.told())


class _Around(torch.optim.Optimizer):
    """Steps through another optimizer, as those do that look ahead, and keeps slow weights and a history."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner
        self.slow = [group["params"][0].detach().clone() for group in inner.param_groups]
        self.history: dict[str, Any] = {"losses": []}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        for slow, group in zip(self.slow, self.param_groups, strict=True):
            slow.lerp_(group["params"][0].detach(), 0.5)
        self.history["losses"].append(1.0)


def test_an_optimizer_within_an_optimizer_and_what_it_keeps_are_put_back() -> None:
    weight = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    around = _Around(inner)

    def step() -> None:
        weight.grad = weight.detach().clone()
        around.step()

    step()
    before = [weight.detach().clone(), inner.state[weight]["momentum_buffer"].clone(), around.slow[0].clone()]
    state = State(Targets((), (around,)))
    step()
    step()
    state.restore()
    assert _same([weight.detach(), inner.state[weight]["momentum_buffer"], around.slow[0]], before)
    assert around.history == {"losses": [1.0]}


class _Metric(nn.Module):
    """As metrics of a training are: its numbers are attributes, and no state_dict has them."""

    def __init__(self) -> None:
        super().__init__()
        self.right = torch.zeros(1)


def test_a_module_among_the_others_is_put_back_and_an_empty_state_is_refused() -> None:
    metric = _Metric()
    state = State(Targets((), ()), (metric, torch.amp.GradScaler("cpu", enabled=False)))
    metric.right += 5
    state.restore()
    assert metric.right.item() == 0

    class Empty:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Take nothing."""

    with pytest.raises(UsageError, match=r"'Empty' cannot be put back: its state_dict\(\) is empty"):
        State(Targets((), ()), (Empty(),))


def test_a_loader_that_is_made_anew_starts_its_workers_as_the_first_did() -> None:
    data: Any = list(range(8))
    loader: Any = DataLoader(data, num_workers=1, persistent_workers=True, multiprocessing_context="spawn")
    assert _loader_with(loader, {}).multiprocessing_context.get_start_method() == "spawn"
    single: Any = DataLoader(data)
    assert _loader_with(single, {"num_workers": 1}).multiprocessing_context is None


def test_a_loader_without_batches_is_refused_and_a_stream_that_ends_as_well() -> None:
    model, optimizer, step = _loop()
    targets = Targets((model,), (optimizer,))
    empty: Any = DataLoader(TensorDataset(torch.randn(3, 8)), batch_size=8, drop_last=True)
    with pytest.raises(UsageError, match="there is no batch"):
        runner_for_loop(step, empty, targets, (), 1)

    class Once(IterableDataset[torch.Tensor]):
        left: Iterator[torch.Tensor] = iter([*torch.randn(64, 8)])

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self.left

    bench = runner_for_loop(step, DataLoader(Once(), batch_size=8), targets, (), 1)
    with pytest.raises(UsageError, match="its stream is at its end"):
        bench.run_block([], 0, 20)


def test_a_device_whose_work_nobody_waits_for_is_refused_and_precision_of_a_backend_is_a_fact() -> None:
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(UsageError, match="runs on meta, whose steps tune cannot time"):
        facts_of(Targets((model,), ()), Observer())
    onednn: Any = torch.backends.mkldnn
    before, onednn.matmul.fp32_precision = onednn.matmul.fp32_precision, "bf16"
    try:
        facts = facts_of(Targets((nn.Linear(2, 2),), ()), Observer())
    finally:
        onednn.matmul.fp32_precision = before
    assert all_changes(facts)["matmul=medium"].refused


def _loop() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[torch.Tensor], torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    return model, optimizer, step


def test_a_loop_is_tuned_from_python_and_goes_on_as_before(tmp_path: Path) -> None:
    def weights(tuned: bool) -> torch.Tensor:
        model, optimizer, step = _loop()
        data: Any = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8, shuffle=True)  # type: ignore[arg-type]
        for place, batch in enumerate(data):
            step(batch)
            if tuned and place == 3:
                found = stepscope.tune(
                    step, data, model=model, optimizer=optimizer, minutes=0.01, only=("fused", "foreach"), out=tmp_path
                )
                assert {"findings.json", "page.html"} <= {path.name for path in tmp_path.iterdir()}
                tried = [
                    str(row[0]) for table in found.tables if table.name in ("helps", "no-gain") for row in table.rows
                ]
                assert tried
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(weights(True), weights(False))


class Pair(NamedTuple):
    values: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize(
    "made",
    [
        lambda values, labels: {"values": values, "labels": labels},
        lambda values, labels: [values, labels],
        lambda values, labels: Pair(values, labels),
        lambda values, labels: (values, [labels]),
        lambda values, labels: UserDict(values=values, labels=labels),
        lambda values, labels: (values.numpy(), labels),
    ],
    ids=["dictionary", "list", "named tuple", "list within", "mapping of a library", "numpy"],
)
def test_a_step_may_consume_and_alter_its_batch(made: Callable[[Any, Any], Any]) -> None:
    model, optimizer, _ = _loop()

    def step(batch: Any) -> torch.Tensor:
        mapping = isinstance(batch, (dict, UserDict))
        values = batch["values"] if mapping else batch[0]
        labels = batch.pop("labels") if mapping else batch.pop() if isinstance(batch, list) else batch[1]
        labels = labels.pop() if isinstance(labels, list) else labels
        values /= 255
        optimizer.zero_grad()
        loss = (model(torch.as_tensor(values)) - labels).square().mean()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    batch = made(torch.full((4, 8), 255.0), torch.ones(4, 1))
    before = copy.deepcopy(batch)
    place = LocalTraining(runner_for_loop(step, [batch], Targets((model,), (optimizer,)), (), 1))
    losses = place.ask(9, do="losses", changes=[], steps=3)["losses"]
    assert losses == place.ask(9, do="losses", changes=[], steps=3)["losses"]
    assert len(place.ask(9, do="block", changes=["foreach"], warmup=2, steps=3)["seconds"]) == 3
    place.ask(9, do="memory", changes=[])
    assert repr(batch) == repr(before)


class _Slow:
    """A part of a batch whose copy takes 20 ms: were the copy in the time of a step, no step would be shorter."""

    def __init__(self) -> None:
        self.copies = 0

    def __copy__(self) -> _Slow:
        time.sleep(0.02)
        duplicate = _Slow()
        duplicate.copies = self.copies + 1
        return duplicate


def test_the_time_of_a_step_has_none_of_the_copy_that_it_gets() -> None:
    model, optimizer, _ = _loop()

    class Noted:
        copies: ClassVar[UserList[int]] = UserList()  # a list that the step reaches by name would be put back

    def step(batch: tuple[torch.Tensor, _Slow]) -> None:
        Noted.copies.append(batch[1].copies)
        model(batch[0]).sum().backward()

    bench = runner_for_loop(step, [(torch.zeros(1, 8), _Slow())], Targets((model,), (optimizer,)), (), 1)
    block = bench.run_block([], 1, 20)
    assert min(Noted.copies) >= 1, "each step gets a copy"
    assert min(block.seconds) < 0.02


@pytest.mark.parametrize("other", ["step", "model", "optimizer", "batch"])
def test_the_folder_of_another_loop_is_refused_with_the_difference(other: str, tmp_path: Path) -> None:
    def tune(**changed: Any) -> None:
        model, optimizer, step = _loop()
        made: dict[str, Any] = {"step": step, "model": model, "optimizer": optimizer, "batch": torch.zeros(4, 8)}
        made |= changed
        stepscope.tune(
            made["step"], [made["batch"]], model=made["model"], optimizer=made["optimizer"], minutes=1e-3,
            only=["foreach"], out=tmp_path / "out",
        )  # fmt: skip

    tune()
    tune()  # as it was, it goes on
    model = nn.Linear(8, 2)
    rule = torch.optim.Adam(model.parameters())

    def step(batch: torch.Tensor) -> torch.Tensor:
        rule.zero_grad()
        loss = model(batch).abs().mean()
        loss.backward()
        rule.step()
        return loss  # type: ignore[no-any-return]

    changes = {"step": step, "model": model, "optimizer": rule, "batch": torch.zeros(2, 8)}
    with pytest.raises(UsageError, match=f"(?s)the training has changed .*  {other}: ") as refused:
        tune(**{other: changes[other]})
    assert "--out" in str(refused.value.hint)


class Wrapping(Sampler[int]):
    """A sampler of somebody's own, with a generator of numpy, around another one."""

    def __init__(self, inner: Sampler[int]) -> None:
        self.inner, self.random = inner, np.random.default_rng(1)

    def __iter__(self) -> Iterator[int]:
        places = list(self.inner)
        return iter([places[place] for place in self.random.permutation(len(places))])


@pytest.mark.parametrize("wrapped", [False, True], ids=["batch sampler", "around another"])
def test_the_order_of_the_data_goes_on_as_before_also_behind_a_batch_sampler(wrapped: bool) -> None:
    def order(tuned: bool) -> list[torch.Tensor]:
        data: Any = TensorDataset(torch.arange(32.0).repeat(8, 1).T)
        sampler: Sampler[int] = RandomSampler(data, generator=torch.Generator().manual_seed(3))
        sampler = Wrapping(sampler) if wrapped else sampler
        loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 4, drop_last=False))
        if tuned:
            model, optimizer, step = _loop()
            bench = runner_for_loop(lambda batch: step(batch[0]), loader, Targets((model,), (optimizer,)), (), 2)
            bench.run_block([], 1, 4)
        return [batch for (batch,) in loader]

    assert _same(order(True), order(False))


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.full((8,), float(place)) for place in range(10)])


def test_a_stream_of_data_is_read_by_no_more_workers_and_other_changes_of_its_loader_are_made() -> None:
    model, optimizer, step = _loop()

    class Noted:
        sizes: ClassVar[UserList[int]] = UserList()

    def watched(batch: torch.Tensor) -> torch.Tensor:
        Noted.sizes.append(len(batch))
        return step(batch)

    loader = DataLoader(Stream(), batch_size=4, drop_last=True, num_workers=1)
    place = LocalTraining(runner_for_loop(watched, loader, Targets((model,), (optimizer,)), (), 2))
    changes = all_changes({**place.ask(9, do="facts"), "data_share": 0.5})
    assert "iterable data set" in changes["workers=2"].refused
    assert not changes["prefetch=4"].refused
    assert len(place.ask(9, do="block", changes=["prefetch=4"], warmup=1, steps=3)["seconds"]) == 3
    assert set(Noted.sizes) == {4}


def test_a_loader_of_a_stream_keeps_its_workers_beside_one_whose_workers_are_changed() -> None:
    change = all_changes({"loader": {"workers": 0}, "cores": 4})["workers=2"]
    with changes_applied([change], Targets((), ())):
        stream, other = DataLoader(Stream(), batch_size=4), DataLoader(TensorDataset(torch.zeros(4)))
    assert (stream.num_workers, other.num_workers) == (0, 2)


def test_a_scope_tunes_between_two_steps_and_records_none_of_it(tmp_path: Path) -> None:
    model, optimizer, step = _loop()
    with stepscope.profile(model, optimizer, out=tmp_path, characterise=False) as scope:
        for place in range(6):
            step(torch.randn(4, 8))
            scope.step()
            if place == 3:
                found = scope.tune(step, [torch.randn(4, 8)], minutes=0.005, only=("fused",))
                assert found.study == "tune"
                scope.tune(step, [torch.randn(4, 8)], minutes=0.005, only=("foreach",))  # of other settings
    assert len(scope.run.steps) == 6
    assert {path.parent.name for path in scope.path.glob("*/findings.json")} == {"tune", "tune-2"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, UsageError),
        ({"model": nn.Linear(1, 1)}, UsageError),
        ({"batch": 3}, UnknownName),
        ({"plug": ("termux",)}, UsageError),
    ],
)
def test_a_loop_that_cannot_be_tuned_is_refused(
    arguments: Mapping[str, Any], error: type[Exception], tmp_path: Path
) -> None:
    model, optimizer, step = _loop()
    known: dict[str, Any] = {"model": model, "optimizer": optimizer} if set(arguments) & {"batch", "plug"} else {}
    with pytest.raises(error):
        stepscope.tune(step, [torch.zeros(1, 8)], out=tmp_path / "out", **{**known, **arguments})


def test_autocast_is_opened_for_the_device_that_each_model_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def autocast(device: str, dtype: torch.dtype) -> Any:
        opened.append(device)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)
    unknown = all_changes({})["bf16"]  # as a study makes it, before anything is known of the script
    models = nn.Identity(), nn.Identity(), nn.Identity()
    with FakeTensorMode():
        for model, device in zip(models, ("cuda", "cpu"), strict=False):
            model.weight = nn.Parameter(torch.empty(1, device=device))
        with changes_applied([unknown], Targets(models, (), models)):
            for model in models:
                model(torch.empty(1))
    assert opened == ["cuda", "cpu", "cpu"]  # one without parameters takes the device that is known


def test_counts_of_steps_lie_beside_the_weights_while_the_update_is_fused() -> None:
    changes = all_changes({"optimizers": [{"kind": "Adam", "fused": False, "foreach": False}]})
    with FakeTensorMode():
        weight = nn.Parameter(torch.empty(3, device="cuda"))
        optimizer = torch.optim.Adam([weight])
        count = torch.tensor(2.0)
        optimizer.state[weight] = {"step": count}
        with changes_applied([changes["fused"]], Targets((), (optimizer,))):
            assert optimizer.state[weight]["step"].device == weight.device
        assert optimizer.state[weight]["step"] is count
        with changes_applied([changes["foreach"]], Targets((), (optimizer,))):
            assert optimizer.state[weight]["step"] is count


class _Wrapped:
    """An optimizer of no class of torch's, as libraries of sharded training have them."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def step(self) -> None:
        self.inner.step()

    def zero_grad(self) -> None:
        self.inner.zero_grad()


class _WrappedWithState(_Wrapped):
    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


def test_an_optimizer_that_is_none_of_torchs_is_put_back_by_its_state_or_refused() -> None:
    model = nn.Linear(4, 2)

    def trained(optimizer: Any) -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()

    optimizer = _WrappedWithState(torch.optim.Adam(model.parameters(), 0.1))
    trained(optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    state = State(Targets((model,), (optimizer,)))  # type: ignore[arg-type]
    trained(optimizer)
    assert optimizer.state_dict()["state"][0]["step"] == 2
    state.restore()
    assert _same(list(before["state"][0].values()), list(optimizer.state_dict()["state"][0].values()))
    with pytest.raises(UsageError, match="'_Wrapped' cannot be put back"):
        State(Targets((model,), (_Wrapped(torch.optim.Adam(model.parameters())),)))  # type: ignore[arg-type]


def test_a_gradient_scaler_is_as_far_with_each_optimizer_as_it_was() -> None:
    model = nn.Linear(4, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=8.0)

    def forward() -> None:
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(3, 4)).sum()).backward()
        scaler.unscale_(optimizer)

    forward()
    scaler.step(optimizer)
    scaler.update()
    state = State(Targets((model,), (optimizer,)), (scaler,))
    forward()  # and the step raises
    state.restore()
    forward()
    scaler.step(optimizer)


def test_tensors_that_show_a_number_several_times_are_put_back_and_nothing_else_is_left_out() -> None:
    model = nn.Linear(4, 2)
    model.register_buffer("mask", torch.arange(3.0).reshape(1, 3).expand(5, 3))
    model.own = torch.ones(1).expand(7)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    before = copy.deepcopy(model.state_dict())
    state = State(Targets((model,), (optimizer,)))
    model.get_buffer("mask")[0].add_(2)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    state.restore()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not optimizer.state


def test_what_cannot_be_put_back_is_told_once_everything_else_is() -> None:
    class Broken:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: Any) -> None:
            raise ValueError("not today")

    class Count:
        def __init__(self) -> None:
            self.count = 1

        def state_dict(self) -> dict[str, int]:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    model, count = nn.Linear(2, 2), Count()
    state = State(Targets((model,), ()), (Broken(), count))
    drawn = torch.get_rng_state()
    count.count, model.weight.data[0, 0] = 7, 5.0
    torch.rand(1)
    with pytest.raises(ValueError, match="not today"):
        state.restore()
    assert count.count == 1
    assert model.weight.data[0, 0] != 5.0
    assert torch.equal(drawn, torch.get_rng_state())


def test_asking_for_the_facts_changes_no_weight_that_is_computed() -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 3, 6, 6))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = copy.deepcopy(model.state_dict())
    pictures = torch.ones(1, 3, 6, 6)

    def step(batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    bench = runner_for_loop(step, [pictures], Targets((model,), (optimizer,)), (), 1)
    bench.facts()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_an_optimizer_may_keep_a_count_beside_its_parameters() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    count = torch.zeros(1)
    optimizer.state["k"] = count  # type: ignore[index]  # as MADGRAD
    targets = Targets((model,), (optimizer,))
    assert any(tensor is count for tensor in targets.tensors())
    state = State(targets)
    count.add_(1)
    optimizer.state["other"] = 3  # type: ignore[index]
    state.restore()
    assert dict(optimizer.state) == {"k": count}
    assert count == 0


def test_a_batch_that_can_be_called_is_copied() -> None:
    class Graph:
        def __init__(self) -> None:
            self.x = torch.zeros(2)

        def __call__(self) -> None: ...

    batch = Graph()
    copied = copy_of_batch(batch)
    copied.x.add_(1)
    assert not batch.x.any()
    assert copy_of_batch(len) is len


def test_the_samples_that_a_sampler_draws_from_are_not_copied() -> None:
    data = [torch.zeros(1000) for _ in range(50)]
    loader: Any = DataLoader(data, batch_size=5, shuffle=True)  # type: ignore[arg-type]
    state = State(Targets((), ()), (LoaderSampler(loader.sampler), LoaderSampler(loader.batch_sampler)))
    assert not state._tensors
    state.restore()
    assert loader.sampler.data_source is data


def test_a_loader_without_workers_is_tried_where_it_has_some_without_what_needs_them() -> None:
    facts = {**FACTS, "loader": {"workers": 2}, "data_share": 0.5}
    known = all_changes(facts)
    assert not known["workers=0"].refused
    assert all_changes({**facts, "loader": {"workers": 0}})["workers=0"].refused
    data = TensorDataset(torch.zeros(8, 1))
    with patch_loader_arguments(known["workers=0"].loader):
        loader = DataLoader(data, num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=9)
    assert (loader.num_workers, len(list(loader))) == (0, 8)


def test_a_group_of_changes_is_named_by_what_stands_before_the_number() -> None:
    known = all_changes({**FACTS, "loader": {"workers": 1}, "data_share": 0.5})
    chosen = {change.name for change in select_changes(known.values(), "time", ("workers",), ())}
    assert chosen == {"workers=0", "workers=1", "workers=2", "workers=4"}


def test_the_code_of_an_update_turns_off_the_one_that_it_excludes() -> None:
    facts = {**FACTS, "optimizers": [{"kind": "Adam", "fused": False, "foreach": True}]}
    code = all_changes(facts)["fused"].code
    assert code == "torch.optim.Adam(..., foreach=False, fused=True)"
    torch.optim.Adam([torch.zeros(1, requires_grad=True)], foreach=False, fused=True)
