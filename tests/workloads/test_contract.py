"""Every workload of the folder keeps the contract: one test, run over all of them."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from stepscope import workloads
from stepscope.errors import DataUnavailable, MissingDependency, UnknownName, UsageError
from stepscope.workloads.contract import TIERS, Batch, Extra, Training, Workload
from stepscope.workloads.data import packaged

ALL = workloads.names()
every_workload = pytest.mark.parametrize("name", ALL)
# One step of these is enough: the tests that take several leave them out.
LARGE = (
    "-224", "-227", "-299", "bert-base", "distilbert", "tinybert4", "bert-small", "smollm2", "seq2seq", "char-gpt-256",
    "resnet50", "resnet101", "resnet152", "densenet100", "inception-v1-c32", "vgg19", "dcgan-64", "unet64",
)  # fmt: skip
SLOW = (
    "vgg16-224", "vgg19-224", "bert-base-384", "resnet152-224", "resnet101-224", "smollm2-135m-full-128",
    "smollm2-135m-lora-128",
)  # fmt: skip
SMALL = [name for name in ALL if not any(part in name for part in LARGE)]


def train(training: Training, steps: int) -> list[float]:
    return [float(training.step(batch)) for batch in itertools.islice(training.batches(), steps)]


def prepared(name: str, batch: int, seed: int = 0) -> Training:
    """Ready to train, or skipped with what is to be installed."""
    try:
        return workloads.find(name).prepare(batch=batch, seed=seed)
    except MissingDependency as error:
        pytest.skip(f"{error}; {error.hint}")


def test_nothing_was_left_out() -> None:
    assert workloads.warnings() == []


@every_workload
def test_a_workload_says_what_it_is(name: str) -> None:
    workload = workloads.find(name)
    assert workload.name == name
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name)
    assert workload.domain
    assert workload.summary
    assert workload.dominant_layer
    assert workload.loss_name
    assert workload.references
    assert workload.default_batch >= 1
    assert workload.default_optimizer in workload.hyperparameters
    assert workload.tiers
    assert set(workload.tiers) <= set(TIERS)
    assert all(figure.quantity and figure.value and figure.source for figure in workload.published)


def test_every_family_has_a_member_in_the_smoke_tier() -> None:
    families: dict[str, set[str]] = {}
    for workload in workloads.every():
        builder = getattr(workload.build, "func", workload.build)
        families.setdefault(builder.__module__, set()).update(workload.tiers)
    assert not [family for family, tiers in families.items() if "smoke" not in tiers]


def test_the_tiers_of_the_papers_hold_what_they_trained() -> None:
    tiers = {tier: {w.name for w in workloads.every() if tier in w.tiers} for tier in TIERS}
    assert {"resnet18-224", "mobilenet-v1-224", "lenet"} <= tiers["paper-low-power"]
    for start in (
        "densenet40", "resnet50-c32", "resnet50-224", "squeezenet", "vgg16", "xception", "inception-v1", "char-lstm",
        "dcgan", "dqn-2013", "dqn-nature", "alexnet", "vgg19", "bert-base-384", "resnet101", "resnet152",
        "densenet100", "seq2seq",
    ):  # fmt: skip
        assert any(name.startswith(start) for name in tiers["paper-2019"]), start


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in ALL])
def test_one_step_at_batch_two_gives_every_trained_parameter_a_gradient(name: str) -> None:
    training = prepared(name, batch=2)
    frozen = [p.detach().clone() for p in training.model.parameters() if not p.requires_grad]
    batches = training.batches()
    losses = [float(training.step(next(batches))) for _ in range(2 if frozen else 1)]  # adapters start at zero
    trained = {n: p for n, p in training.model.named_parameters() if p.requires_grad}
    gradients = {n: p.grad for n, p in trained.items() if p.grad is not None}
    assert all(math.isfinite(loss) for loss in losses)
    assert set(gradients) == set(trained)
    largest = {n: float(torch.linalg.vector_norm(gradient, math.inf)) for n, gradient in gradients.items()}
    assert not [n for n, value in largest.items() if not math.isfinite(value)]  # a NaN is the largest there is
    assert not [n for n, value in largest.items() if value == 0]
    after = [p for p in training.model.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(frozen, after, strict=True))


@pytest.mark.parametrize("name", ["autoencoder-640", "inception-v1-narrow-c32", "xception-c32"])
def test_a_batch_that_no_step_can_be_made_with_is_refused_before_any_work(name: str) -> None:
    workload = workloads.find(name)
    with torch.device("meta"), pytest.raises(ValueError, match="more than 1 value per channel"):
        workload.loss(workload.build(), workload.example(1))
    with pytest.raises(UsageError, match="batch norm") as refusal:
        workload.prepare(batch=1)
    assert refusal.value.hint == "use --batch 2 or more"


@every_workload
def test_the_facts_of_the_data_are_complete_and_true(name: str) -> None:
    workload = workloads.find(name)
    if workload.needs:
        prepared(name, batch=2)
    splits = workload.data.load()
    facts = splits.facts
    assert facts.kind == workload.data.kind
    assert re.fullmatch(r"[0-9a-f]{64}", facts.sha256)
    assert facts.name
    assert facts.licence
    assert facts.origin
    assert facts.train_size == (0 if splits.train is None else len(splits.train))  # type: ignore[arg-type]
    assert splits.test is None or facts.test_size == len(splits.test)  # type: ignore[arg-type]


@every_workload
def test_an_example_looks_like_a_batch_of_the_data(name: str) -> None:
    workload = workloads.find(name)
    model = torch.nn.Linear(1, 1)
    if workload.stream is not None:
        real = next(prepared(name, batch=4).batches())
    else:
        here = workload.data.load()
        real = next(Training(workload, model, (), 4, torch.device("cpu"), 0, here).batches())
    example = workload.example(4)
    assert [(t.shape, t.dtype) for t in example] == [(t.shape, t.dtype) for t in real]
    assert example[0].shape[1:] == workload.input_shape


@pytest.mark.parametrize("name", [n for n in SMALL if "dcgan" not in n and "diffusion" not in n and "dqn" not in n])
def test_steps_on_one_batch_lower_its_loss(name: str) -> None:
    training = prepared(name, batch=4)
    batch = next(training.batches())
    training.model.eval()  # without dropout and batch statistics, the loss before and after can be compared
    losses = [float(training.step(batch)) for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_repeats_a_run_and_another_seed_does_not(name: str) -> None:
    first, again, other = (train(prepared(name, batch=2, seed=seed), 2) for seed in (7, 7, 8))
    assert all(math.isfinite(loss) for loss in first)
    assert first == again
    assert first != other


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


def test_a_part_of_the_test_data_gives_the_accuracy_of_that_part(lenet: Workload) -> None:
    training = lenet.prepare(batch=64)
    part = training.evaluate(samples=10)
    assert part is not None
    assert (part * 10) % 1 == pytest.approx(0, abs=1e-6)
    assert training.evaluate(samples=10**9) == training.evaluate()


def test_a_part_of_test_data_in_the_order_of_their_classes_has_all_classes(lenet: Workload) -> None:
    training = lenet.prepare(batch=64)
    test = training.splits.test
    assert test is not None
    by_class = sorted(range(training.data.test_size), key=lambda number: int(test[number][1]))
    splits = dataclasses.replace(training.splits, test=Subset(test, by_class))
    seen: list[int] = []

    def correct(model: nn.Module, batch: Batch) -> Tensor:
        seen.extend(batch[1].tolist())
        return torch.tensor(0.0)

    looking = dataclasses.replace(lenet, correct=correct)
    dataclasses.replace(training, splits=splits, workload=looking).evaluate(samples=100)
    assert len(seen) == 100
    assert all(5 <= seen.count(label) <= 15 for label in range(10))


def test_evaluation_with_channels_innermost_finds_what_plain_pictures_do() -> None:
    training = workloads.find("resnet8-c32").prepare(batch=50)
    training.model.load_state_dict(packaged.shipped_weights("resnet8-c32"))
    training.model.eval()
    assert training.splits.test is not None
    pictures, labels = next(iter(DataLoader(training.splits.test, batch_size=training.data.test_size)))
    with torch.no_grad():
        right = (training.model(pictures).argmax(1) == labels).sum().item()
    assert training.evaluate() == right / len(labels) > 0.85


def test_synthetic_data_reports_no_accuracy(lenet: Workload) -> None:
    training = lenet.prepare(data="synthetic")
    assert training.data.kind == "synthetic"
    assert training.evaluate() is None


def test_a_misspelt_workload_gets_the_nearest_name() -> None:
    with pytest.raises(UnknownName) as caught:
        workloads.find("lenett")
    assert str(caught.value.hint).startswith("did you mean lenet")


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


def test_an_unknown_data_set_gets_the_nearest_name(lenet: Workload) -> None:
    with pytest.raises(UnknownName) as caught:
        lenet.prepare(data="mnits")
    assert "mnist" in str(caught.value.hint)


def test_a_data_set_that_is_not_here_is_refused_with_how_to_get_it(lenet: Workload) -> None:
    with pytest.raises(DataUnavailable, match="mnist") as caught:
        lenet.prepare(data="mnist")
    assert caught.value.hint == "stepscope data fetch mnist"


def test_a_workload_that_names_no_data_set_says_so(lenet: Workload) -> None:
    with pytest.raises(DataUnavailable, match="its sources are empty"):
        dataclasses.replace(lenet, sources=()).prepare()


def test_a_workload_that_takes_no_data_of_the_users_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or folder"):
        workloads.find("autoencoder-640").prepare(data=tmp_path)


def test_a_missing_library_is_refused_with_the_line_that_installs_it(lenet: Workload) -> None:
    needy = dataclasses.replace(lenet, needs=(Extra("no_such_library", "atari"),))
    with pytest.raises(MissingDependency, match="no_such_library") as caught:
        needy.prepare()
    assert caught.value.hint == "pip install 'stepscope[atari]'"
