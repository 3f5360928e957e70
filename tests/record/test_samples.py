"""Samples and steps where batches are no plain tensors, and where parts of a step are computed again."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.record.loops import record
from torch import nn
from torch.utils import swap_tensors
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset, default_collate

import stepscope
from stepscope.analysis.run import Run
from stepscope.record import repeated_steps
from stepscope.record.call_samples import LoaderBatches
from stepscope.record.memory import tensor_watch
from stepscope.record.sample_count import SampleCount, tensors_in
from stepscope.runfolder import RunReader


def recorded(loop: Callable[[], None], folder: Path, record: str = "every:3", **options: Any) -> RunReader:
    """A run of a loop whose optimizer makes the steps."""
    with stepscope.profile(steps="optimizer", out=folder, record=record, **options) as scope:
        loop()
    return RunReader(scope.path)


def train(samples: list[Any], collate: Callable[[list[Any]], Any], loss: Callable[[nn.Module, Any], Any]) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in DataLoader(samples, 5, collate_fn=collate):  # type: ignore[arg-type]
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()


def test_a_batch_of_a_list_of_images_and_one_of_targets_has_as_many_samples(tmp_path: Path) -> None:
    pairs = [(torch.randn(3 + number % 2, 4), {"labels": torch.ones(1)}) for number in range(22)]
    loss = lambda model, batch: sum(model(image).mean() for image in batch[0])  # noqa: E731
    run = recorded(lambda: train(pairs, lambda rows: tuple(zip(*rows, strict=True)), loss), tmp_path)
    assert run.steps["samples"].to_list() == [5, 5, 5, 5, 2]


def test_a_batch_of_pairs_of_stacked_tensors_has_the_samples_of_each(tmp_path: Path) -> None:
    pairs = [((torch.randn(4), torch.randn(4)), (torch.ones(1), torch.ones(1))) for _ in range(22)]
    run = recorded(lambda: train(pairs, default_collate, lambda model, batch: model(batch[0][0]).mean()), tmp_path)
    assert run.steps["samples"].to_list() == [5, 5, 5, 5, 2]


@pytest.mark.parametrize("parts", [1, 4])
def test_gradients_of_parts_of_a_batch_that_was_fetched_ahead_are_of_that_batch_alone(
    tmp_path: Path, parts: int
) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            batches = iter(DataLoader(TensorDataset(torch.randn(22, 4)), batch_size=8))
            batch = next(batches)
            while batch is not None:
                following = next(batches, None)
                optimizer.zero_grad()
                for part in batch[0].chunk(parts):
                    model(part).sum().backward()
                optimizer.step()
                batch = following

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [8, 8, 6] * 2


class Named(Mapping[str, Any]):
    """A batch type of somebody's own, which counts how often it is asked."""

    asked = 0

    def __init__(self, **tensors: Any) -> None:
        self.tensors = tensors

    def __getitem__(self, name: str) -> Any:
        type(self).asked += 1
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        type(self).asked += 1
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def test_a_mapping_of_the_trainings_own_tells_its_samples_and_is_not_asked(tmp_path: Path) -> None:
    rows = list(torch.randn(22, 4))
    run = recorded(
        lambda: train(rows, lambda each: Named(x=torch.stack(each)), lambda model, batch: model(batch["x"]).mean()),
        tmp_path,
    )
    assert run.steps["samples"].to_list() == [5, 5, 5, 5, 2]
    assert Named.asked == 5


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_steps_with_nested_tensors_are_found(layout: torch.layout, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop() -> None:
        for _ in range(8):
            batch = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
            optimizer.zero_grad()
            torch.stack([part.square().mean() for part in model(batch).unbind()]).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    run = recorded(loop, tmp_path)
    assert run.steps["samples"].to_list() == [2] * 8
    assert "profiling-failed" not in [event["kind"] for event in run.events]


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_counts_no_samples(reentrant: bool, tmp_path: Path) -> None:
    first, second, last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters(), *last.parameters()], 0.01)

    def loop() -> None:
        for number in range(14):
            optimizer.zero_grad()
            hidden = checkpoint(second, first(torch.randn(5, 4)), use_reentrant=reentrant)
            last(hidden).sum().backward()
            if number == 9:  # what repeats is told after the fact here
                second(torch.randn(5, 4)).detach()
            optimizer.step()

    run = recorded(loop, tmp_path, record="adaptive")
    samples = run.steps["samples"].to_list()
    assert [*samples[:9], *samples[10:]] == [5] * 13


def test_a_checkpoint_that_stops_early_keeps_the_batches_that_were_fetched_ahead(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loop() -> None:
        batches = iter(DataLoader([torch.randn(4) for _ in range(96)], batch_size=4))  # type: ignore[arg-type]
        for _ in range(12):
            for batch in [next(batches), next(batches)]:  # both at once, as a trainer that accumulates does
                hidden = model[0](batch)
                checkpoint(model[1], hidden, use_reentrant=False).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = recorded(loop, tmp_path)
    assert run.steps["samples"].to_list() == [8] * 12


@pytest.mark.parametrize("record", ["all", "every:3", "none"])
def test_tensors_can_be_swapped_in_every_state_of_a_run(record: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def swap() -> None:
        optimizer.zero_grad()
        torch.utils.swap_tensors(model.bias, nn.Parameter(model.bias.detach() * 2))  # type: ignore[no-untyped-call]

    def loop() -> None:
        for _ in range(8):
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
            swap()
            model(torch.randn(5, 4))
            swap()

    run = recorded(loop, tmp_path, record=record, memory="auto" if record == "none" else "all")
    swap()
    assert len(run.steps) == 8


def test_tensors_are_swapped_by_a_name_that_was_imported_before_while_updates_are_by_hand(tmp_path: Path) -> None:
    model, plain = nn.Linear(4, 1), (swap_tensors.__code__, inspect.signature(swap_tensors))

    def loop() -> None:
        for number in range(9):
            model(torch.randn(5, 4)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
            if number % 3 == 2:
                swap_tensors(model.bias, nn.Parameter(model.bias.detach() * 2))  # type: ignore[no-untyped-call]

    assert len(recorded(loop, tmp_path).steps) == 9
    assert plain == (swap_tensors.__code__, inspect.signature(swap_tensors)), "it is torch's own again"


def test_a_loaders_batch_that_is_trained_on_in_chunks_counts_what_each_step_was_called_with(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for batch in DataLoader(list(torch.randn(26, 4)), 8):  # type: ignore[arg-type]
            for chunk in batch.split(4):
                optimizer.zero_grad()
                model(chunk).mean().backward()
                optimizer.step()

    run = recorded(loop, tmp_path)
    assert run.steps["samples"].to_list() == [8, 4, 4, 4, 4, 4, 2]  # what follows the first is not known by then


def test_a_forward_pass_that_raised_counts_no_samples(tmp_path: Path) -> None:
    class Picky(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 15:
                raise ValueError
            return super().forward(x)

    def loop() -> None:
        model = Picky(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for number in range(24):
            with contextlib.suppress(ValueError):
                model(torch.randn(15 if number % 5 == 4 else 9, 4))  # one that returns is twice the same samples
            optimizer.zero_grad()
            model(torch.randn(14, 4)).mean().backward()
            optimizer.step()

    assert set(recorded(loop, tmp_path).steps["samples"].to_list()[4::5]) == {14}


class Refused(torch.autograd.Function):
    """The same on the way there; on the way back it refuses what is not finite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        if not gradient.isfinite().all():
            raise ValueError("not finite")
        return gradient


@pytest.mark.parametrize("loaded", [True, False])
def test_a_backward_pass_that_raised_counts_no_samples(loaded: bool, tmp_path: Path) -> None:
    data = list(torch.randn(9 * 30 + 4, 4))

    def batches() -> Iterator[torch.Tensor]:
        return iter(DataLoader(data, 9)) if loaded else iter(torch.stack(data).split(9))  # type: ignore[arg-type,no-untyped-call]

    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for number, batch in enumerate(batches()):
            optimizer.zero_grad()
            loss = Refused.apply(model(batch)).mean()  # type: ignore[no-untyped-call]
            try:
                (loss * (float("nan") if number % 7 == 6 else 1)).backward()
            except ValueError:
                continue
            optimizer.step()

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [9] * 26 + [4]


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_backward_pass_whose_gradients_were_dropped_counts_no_samples(
    loaded: bool, accumulated: int, tmp_path: Path
) -> None:
    data = list(torch.randn(9 * 64, 4))

    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        batches = iter(DataLoader(data, 9) if loaded else torch.stack(data).split(9))  # type: ignore[arg-type,no-untyped-call]
        for number, batch in enumerate(batches):
            model(batch).mean().backward()
            if number in ((2, 21, 40, 60) if accumulated == 1 else (2, 21)):  # at the beginning, amid steps that repeat
                optimizer.zero_grad()
            elif number % accumulated == accumulated - 1:
                optimizer.step()
                optimizer.zero_grad()

    steps = recorded(loop, tmp_path, record="none").steps["samples"].to_list()
    if accumulated == 1:
        assert steps == [9] * 60
    else:
        assert steps == [18, 9, *[18] * 29]


def test_gradients_by_what_a_model_was_called_with_are_neither_a_step_nor_samples(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(12):
            x = torch.randn(16, 4)
            for _ in range(5):  # an attack
                x = x.detach().requires_grad_()
                (slope,) = torch.autograd.grad(model(x).square().mean(), x)
                x = x + 0.1 * slope.sign()
            optimizer.zero_grad()
            model(x.detach()).square().mean().backward()
            optimizer.step()

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [16] * 12


def test_functional_training_by_gradients_of_plain_tensors_has_its_steps(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        weights = {name: tensor.detach().clone().requires_grad_() for name, tensor in model.named_parameters()}
        for _ in range(12):
            loss = torch.func.functional_call(model, weights, torch.randn(16, 4)).square().mean()
            slopes = torch.autograd.grad(loss, list(weights.values()))
            pairs = zip(weights.items(), slopes, strict=True)
            weights = {name: (old - 0.1 * slope).detach().requires_grad_() for (name, old), slope in pairs}

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [16] * 12


def test_the_first_batch_after_a_validation_counts_when_gradients_add_up(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        train: DataLoader[Any] = DataLoader(list(torch.randn(64, 4)), 8)  # type: ignore[arg-type]
        check: DataLoader[Any] = DataLoader(list(torch.randn(64, 4)), 8)  # type: ignore[arg-type]
        for _ in range(3):
            for number, batch in enumerate(train):
                model(batch).mean().backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
            with torch.no_grad():
                for batch in check:
                    model(batch)

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [16] * 12


def test_stages_that_hand_over_tensors_of_their_own_make_no_step_more(tmp_path: Path) -> None:
    def loop() -> None:
        stages = [nn.Linear(4, 4), nn.Linear(4, 1)]
        optimizers = [torch.optim.SGD(stage.parameters(), 0.01) for stage in stages]
        for _ in range(12):
            for chunk in torch.randn(4, 8, 4):
                first = stages[0](chunk)
                handed = first.detach().requires_grad_()
                stages[1](handed).mean().backward()
                first.backward(handed.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    assert recorded(loop, tmp_path).steps.height == 12


@pytest.mark.parametrize("labelled", [True, False])
def test_a_last_small_batch_is_not_taken_for_a_whole_one_where_a_sample_is_as_wide(
    tmp_path: Path, labelled: bool
) -> None:
    samples = [(torch.randn(4), 1) if labelled else torch.randn(3) for _ in range(10)]  # two of them in the last batch

    def loop() -> None:
        model = nn.Linear(4 if labelled else 3, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for batch in DataLoader(samples, 4):  # type: ignore[arg-type]
            model(batch[0] if labelled else batch).mean().backward()
            optimizer.step()

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [4, 4, 2]


@pytest.mark.parametrize("padded", [True, False])
def test_flops_of_inputs_of_other_lengths_are_said_to_be_of_those_that_were_seen(tmp_path: Path, padded: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, out=tmp_path, record="all") as scope:
        for number in range(24):
            model(torch.randn(5, 24 if padded else 1 + number, 4)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            scope.step()
    run = Run(scope.path)
    others = run.meta["recorder"]["other_shapes"]
    said = [entry.what for entry in run.not_measured()]
    assert (others == 0) == padded
    assert ("FLOPs of inputs of all shapes" in said) != padded


@pytest.mark.parametrize("last", [8, 3])
def test_flops_of_steps_with_more_micro_batches_than_were_seen_are_those_of_all_of_them(
    tmp_path: Path, last: int
) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def loop() -> None:
        for step in range(10):
            for place in range(2 if step < 3 else 4):  # shapes are recorded in the first three
                model(torch.randn(last if step >= 3 and place == 3 else 8, 20)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    run = Run(recorded(loop, tmp_path, record="all").path)
    flops = dict(run.modules().select("module", "flops").iter_rows())
    of_a_sample = 2 * 20 * 64 * 2  # forward, and the gradient of the weight
    assert flops["0"] == pytest.approx((3 * 8 + last) * of_a_sample)


STATED: list[Any] = [4.0, torch.tensor(4), 2.5, float("nan"), float("inf"), "4", -5, 10**30, [4, 4]]


@pytest.mark.parametrize("stated", STATED)
def test_every_step_is_kept_whatever_its_samples_and_its_loss_are_said_to_be(tmp_path: Path, stated: Any) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, out=tmp_path) as scope:
        for _ in range(6):
            model(torch.randn(4, 4)).sum().backward()
            optimizer.step()
            scope.step(loss=10**400, samples=stated)
    run = RunReader(scope.path)
    assert run.steps["samples"].to_list() == [4] * 6
    kinds = [event["kind"] for event in run.events]
    assert "profiling-failed" not in kinds
    assert kinds.count("no-count") == int(stated is not STATED[0] and stated is not STATED[1])


@pytest.mark.parametrize(("same", "samples"), [(False, 6), (True, 3)])
def test_updates_of_one_optimizer_in_a_step_count_together_unless_they_are_of_the_same_tensor(
    tmp_path: Path, same: bool, samples: int
) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, optimizer, out=tmp_path, record="every:3") as scope:
        for _ in range(6):
            batch = torch.randn(3, 4)
            for _ in range(2):
                optimizer.zero_grad()
                model(batch if same else torch.randn(3, 4)).mean().backward()
                optimizer.step()
            scope.step()
    assert RunReader(scope.path).steps["samples"].to_list() == [samples] * 6


@pytest.mark.parametrize("layer", [nn.Linear(10, 1), nn.Conv2d(3, 1, 3)])
def test_a_sample_without_a_batch_within_vmap_is_one_in_every_step(tmp_path: Path, layer: nn.Module) -> None:
    """DP-SGD: gradients of each sample by vmap of grad, which asks for parameters within a transform."""
    shape = (10,) if isinstance(layer, nn.Linear) else (3, 6, 6)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def loss(parameters: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, (sample,)).square().mean()  # type: ignore[no-any-return]

    def loop() -> None:
        for _ in range(6):
            batch = torch.randn(8, *shape)
            found = torch.func.vmap(torch.func.grad(loss), (None, 0))(dict(layer.named_parameters()), batch)
            for name, parameter in layer.named_parameters():
                parameter.grad = found[name].detach().mean(0)
            optimizer.step()
            optimizer.zero_grad()

    assert recorded(loop, tmp_path).steps["samples"].to_list() == [8] * 6


def test_a_layer_that_is_added_in_mid_training_and_a_lazy_one_have_their_names(tmp_path: Path) -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.LazyLinear(4)})
    model["b"](torch.ones(1, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with stepscope.profile(model, optimizer, out=tmp_path, record="all") as scope:
        for number in range(6):
            if number == 3:
                model["c"] = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
                optimizer.add_param_group({"params": model["c"].parameters()})
            value = torch.randn(3, 4)
            for part in model.values():
                value = part(value)
            value.square().sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            scope.step()
    types = dict(RunReader(scope.path).model.select("module", "type").iter_rows())
    assert {name: types.get(name) for name in ("b", "c.0", "c.1")} == {"b": "Linear", "c.0": "Linear", "c.1": "Tanh"}


@pytest.mark.parametrize(("rows", "shape", "batch"), [(70, (32,), 32), (7, (3, 4), 3)])
def test_the_last_batch_is_a_smaller_one_where_samples_have_as_many_values_as_full_ones_have_samples(
    tmp_path: Path, rows: int, shape: tuple[int, ...], batch: int
) -> None:
    model = nn.Linear(shape[-1], 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(rows, *shape)), batch_size=batch)

    def loop(step: Any) -> None:
        for _ in range(2):
            for (images,) in data:
                model(images).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                step()

    run = record(loop, tmp_path, record="none")
    assert run.steps["samples"].to_list() == [batch, batch, rows - 2 * batch] * 2


def test_sequences_of_any_length_that_are_batched_along_the_second_side_are_as_many_as_a_batch() -> None:
    loader, iterator = LoaderBatches(), SimpleNamespace(_index_sampler=SimpleNamespace(batch_size=4))
    lengths = [4, 2, 3, 2, 5]
    samples = [loader.samples(iterator, [torch.zeros(length, 4)]) for length in lengths]
    assert samples[2:] == [4, 4, 4]


def test_a_loss_that_is_nan_is_said_once(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with stepscope.profile(model, optimizer, out=tmp_path, record="none") as scope:
        for number in range(20):
            loss = model(torch.ones(2, 4)).mean() * (1.0 if number < 12 else float("nan"))
            loss.backward()
            optimizer.step()
            scope.step(loss)
    assert [event["step"] for event in scope.run.events if event["kind"] == "loss-nan"] == [12]
    assert "The loss of step 12 is NaN: the training had diverged." in scope.run.verdict().cautions


@pytest.mark.parametrize("record", ["none", "every:3"])
def test_a_loss_that_stays_nan_is_said_though_nobody_states_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr(repeated_steps, "FLUSH_EVERY_NS", -1)

    def diverge() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for number in range(40):
            loss = model(torch.ones(2, 4)).mean() * (1.0 if number < 29 and number not in (9, 19) else float("nan"))
            loss.backward()
            if number in (9, 19):  # left out by the training
                optimizer.zero_grad()
            else:
                optimizer.step()

    events = recorded(diverge, tmp_path, record).events
    (noted,) = [event for event in events if event["kind"] == "loss-nan"]
    assert noted["step"] >= 29


Update = Callable[..., None]


def read_by_a_thread(data: DataLoader[Any], _: DataLoader[Any], update: Update) -> None:
    """Fetch up to three batches ahead, as background generators do."""
    batches: Queue[Any] = Queue(3)

    def read() -> None:
        for loader in (data, data):
            for batch in loader:
                batches.put(batch)
        batches.put(None)

    threading.Thread(target=read).start()
    while (batch := batches.get()) is not None:
        update(*batch)


def in_pairs_of_two_loaders(data: DataLoader[Any], other: DataLoader[Any], update: Update) -> None:
    """`zip` has fetched a batch of the first one when the second one ends."""
    for _ in range(3):
        for (inputs,), (others,) in zip(data, other, strict=False):
            update(torch.cat([inputs, others]))


def after_a_mean(data: DataLoader[Any], _: DataLoader[Any], update: Update) -> None:
    mean = torch.cat([inputs for (inputs,) in data]).mean()
    for _epoch in range(2):
        for (inputs,) in data:
            update(inputs - mean)


def after_a_look(data: DataLoader[Any], _: DataLoader[Any], update: Update) -> None:
    for number, _batch in enumerate(data):
        if number == 2:
            break
    for _epoch in range(2):
        for (inputs,) in data:
            update(inputs)


def from_a_list(data: DataLoader[Any], _: DataLoader[Any], update: Update) -> None:
    for _epoch in range(2):
        for (inputs,) in list(data):
            update(inputs)


def after_an_evaluation(data: DataLoader[Any], other: DataLoader[Any], update: Update) -> None:
    """As a sanity check does, or a first look at the accuracy."""
    model = nn.Linear(4, 1)
    with torch.no_grad():
        for (inputs,) in other:
            model(inputs)
    for (inputs,) in data:
        update(inputs)


@pytest.mark.parametrize(
    ("loop", "samples"),
    [
        (from_a_list, [5, 5, 5, 5, 3] * 2),
        (after_an_evaluation, [5, 5, 5, 5, 3]),
        (read_by_a_thread, [5, 5, 5, 5, 3] * 2),
        (in_pairs_of_two_loaders, [11, 11, 11] * 3),
        (after_a_mean, [5, 5, 5, 5, 3] * 2),
        (after_a_look, [5, 5, 5, 5, 3] * 2),
    ],
)
def test_batches_that_are_fetched_early_or_for_nothing_count_in_no_other_step(
    loop: Callable[..., None], samples: list[int], tmp_path: Path
) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def update(inputs: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    data, other = (DataLoader(TensorDataset(torch.randn(23, 4)), size, drop_last=size > 5) for size in (5, 6))
    run = recorded(lambda: loop(data, other, update), tmp_path, record="none")
    assert run.steps["samples"].to_list() == samples


def test_an_evaluation_within_the_second_step_takes_no_batch_from_it(tmp_path: Path) -> None:
    """The first step of an optimizer is known to be one only with its second update."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(24, 4)), 4)

    def loop() -> None:
        for number, (inputs,) in enumerate(data):
            model(inputs).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            if number == 2:
                with torch.no_grad():
                    for (others,) in data:
                        model(others)

    assert recorded(loop, tmp_path, record="none").steps["samples"].to_list() == [8, 8, 8]


def test_iterators_that_are_made_anew_for_each_batch_leave_nothing_behind() -> None:
    count = SampleCount()
    for iterator in range(100):
        count.batch(iterator, 4)
        count.backward()
        count.updated()
        count.forget(iterator - 1)
        assert count.take() == 4
    assert max(len(value) for value in vars(count).values() if isinstance(value, (dict, set, list))) < 10


def test_arguments_that_refer_to_each_other_are_looked_at_once() -> None:
    nodes: list[dict[str, Any]] = [{"value": torch.zeros(number + 1)} for number in range(30)]
    for node in nodes:
        node["neighbours"] = nodes
    assert {tensor.numel() for tensor in tensors_in((nodes,))} == set(range(1, 31))
    assert {tensor.numel() for tensor in tensor_watch.tensors_in(nodes)} == set(range(1, 31))
