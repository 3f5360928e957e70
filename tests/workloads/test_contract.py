"""Every workload of the folder keeps the contract: one test, run over all of them."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from stepscope import workloads
from stepscope.errors import UnknownName, UsageError
from stepscope.workloads.contract import Training, Workload

ALL = workloads.names()
every_workload = pytest.mark.parametrize("name", ALL)


def train(training: Training, steps: int) -> list[float]:
    losses = []
    for batch in itertools.islice(training.batches(), steps):
        training.optimizer.zero_grad()
        loss = training.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_the_folder_holds_the_first_two_workloads_and_nothing_was_left_out() -> None:
    assert {"lenet", "resnet18-c32"} <= set(ALL)
    assert workloads.warnings() == []


@every_workload
def test_a_workload_says_what_it_is(name: str) -> None:
    workload = workloads.find(name)
    assert workload.name == name
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
    assert workload.domain
    assert workload.summary
    assert workload.dominant_layer
    assert workload.references
    assert workload.default_batch >= 1
    assert workload.default_optimizer in workload.hyperparameters
    assert all(figure.quantity and figure.value and figure.source for figure in workload.published)


@every_workload
def test_the_facts_of_the_data_are_complete_and_true(name: str) -> None:
    training = workloads.find(name).prepare(batch=4)
    facts = training.data
    assert facts.kind in ("real-full", "real-subset", "synthetic")
    assert re.fullmatch(r"[0-9a-f]{64}", facts.sha256)
    assert facts.name
    assert facts.licence
    assert facts.origin
    assert facts.train_size == len(training.splits.train)  # type: ignore[arg-type]
    assert training.splits.test is None or facts.test_size == len(training.splits.test)  # type: ignore[arg-type]


@every_workload
def test_gradients_are_finite_and_steps_on_one_batch_lower_its_loss(name: str) -> None:
    training = workloads.find(name).prepare(batch=4)
    batch = next(training.batches())
    training.model.eval()  # without dropout and batch statistics, the loss before and after can be compared
    losses = []
    for _ in range(4):
        training.optimizer.zero_grad()
        loss = training.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in training.model.parameters() if p.requires_grad]
        assert gradients
        assert all(g is not None and bool(torch.isfinite(g).all()) for g in gradients)
        training.optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


@every_workload
def test_a_seed_repeats_a_run_and_another_seed_does_not(name: str) -> None:
    first, again, other = (train(workloads.find(name).prepare(batch=4, seed=seed), 3) for seed in (7, 7, 8))
    assert all(math.isfinite(loss) for loss in first)
    assert first == again
    assert first != other


@every_workload
def test_an_example_looks_like_a_batch_of_the_data(name: str) -> None:
    training = workloads.find(name).prepare(batch=4)
    for made, real in zip(training.workload.example(4), next(training.batches()), strict=True):
        assert (made.shape, made.dtype) == (real.shape, real.dtype)
    assert next(iter(training.workload.example(4))).shape[1:] == training.workload.input_shape


@pytest.fixture
def lenet() -> Workload:
    return workloads.find("lenet")


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_every_optimizer_trains_lenet(lenet: Workload, optimizer: str) -> None:
    losses = train(lenet.prepare(optimizer=optimizer), 40)
    assert sum(losses[-5:]) < sum(losses[:5])


def test_momentum_and_learning_rate_reach_the_optimizer(lenet: Workload) -> None:
    group = lenet.prepare(optimizer="momentum", lr=0.125).optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.125, 0.9)


def test_batches_go_on_past_an_epoch_in_another_order_and_are_always_full(lenet: Workload) -> None:
    training = lenet.prepare(batch=1500)  # two whole batches an epoch, the rest is dropped
    labels = [batch[1] for batch in itertools.islice(training.batches(), 4)]
    assert [len(each) for each in labels] == [1500] * 4
    assert not torch.equal(labels[0], labels[2])


def test_three_hundred_steps_of_lenet_pass_85_percent(lenet: Workload) -> None:
    training = lenet.prepare(batch=64)
    train(training, 300)
    accuracy = training.evaluate()
    assert accuracy is not None
    assert 0.85 < accuracy <= 1


def test_evaluation_leaves_the_model_in_training_and_disturbs_no_randomness(lenet: Workload) -> None:
    training = lenet.prepare(batch=64)
    before = torch.get_rng_state()
    assert training.evaluate() is not None
    assert training.model.training
    assert torch.equal(before, torch.get_rng_state())


def test_a_misspelt_workload_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownName) as caught:
        workloads.find("lenett")
    assert caught.value.hint == "did you mean lenet?"


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_below_one_is_refused(lenet: Workload, batch: int) -> None:
    with pytest.raises(UsageError, match=str(batch)) as caught:
        lenet.prepare(batch=batch)
    assert caught.value.hint


def test_a_batch_larger_than_the_training_data_is_refused_with_the_largest_that_fits(lenet: Workload) -> None:
    with pytest.raises(UsageError, match="4001") as caught:
        lenet.prepare(batch=4001)
    assert "4000" in str(caught.value.hint)


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_a_learning_rate_that_cannot_train_is_refused(lenet: Workload, lr: float) -> None:
    with pytest.raises(UsageError, match="learning rate"):
        lenet.prepare(lr=lr)


def test_an_unknown_optimizer_gets_the_nearest_name(lenet: Workload) -> None:
    with pytest.raises(UnknownName) as caught:
        lenet.prepare(optimizer="adamm")
    assert "adam" in str(caught.value.hint)


@pytest.mark.parametrize("device", ["warp", "cpu:x", "meta", ""])
def test_a_device_that_cannot_train_here_is_refused_with_those_present(lenet: Workload, device: str) -> None:
    with pytest.raises(UnknownName) as caught:
        lenet.prepare(device=device)
    assert "cpu" in str(caught.value.hint)


def test_a_device_number_past_the_last_is_refused(lenet: Workload) -> None:
    with pytest.raises(UsageError, match="cpu:5"):
        lenet.prepare(device="cpu:5")
