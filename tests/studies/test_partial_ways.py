"""What each way trains, what stays as it was, and what a step then costs."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stepscope import workloads
from stepscope.errors import UsageError
from stepscope.experiments import partial
from stepscope.experiments.engine.training import TrainingEnvironment
from stepscope.experiments.partial import PartialTraining, methods
from stepscope.experiments.partial.methods import (
    WAYS,
    FreezingSchedule,
    ScheduleSettings,
    TrainedParameters,
    biases,
    freeze,
    freeze_filters,
    parameters_by_layer,
)
from stepscope.experiments.partial.study import PartialTrainingOrders
from stepscope.experiments.partial.training import (
    NoSuchLayers,
    OptimizerRule,
    StepCost,
    _run_training,
    _schedule_settings,
    load_weights,
    probe_steps,
    read_weights,
    split_classes,
    splits_of_classes,
    step_cost,
    train_one_seed,
)
from stepscope.record.session import Session
from stepscope.workloads.contract import Training
from stepscope.workloads.data import packaged

TERMS = ScheduleSettings(fraction=0.6, steps=40, draw_every=1, seed=0, gradients=dict)
LESSON = PartialTrainingOrders("all", 1.0, "step", 3, 1, 16, "momentum", None, "mnist-5k", "cpu", False, (), None)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def training() -> Training:
    return workloads.find("lenet").prepare(batch=8, optimizer="momentum", data="mnist-5k")


def _plan(training: Training, way: str, **terms: object) -> FreezingSchedule:
    return WAYS[way].schedule(training.model, replace(TERMS, **terms))  # type: ignore[arg-type]


def _step(training: Training, choice: TrainedParameters) -> None:
    freeze(training.model, choice)
    with freeze_filters(training.model, training.optimizers, choice):
        training.step(next(iter(training.batches())))


def _weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}


def test_the_command_knows_every_way_without_torch() -> None:
    assert tuple(WAYS) == partial.WAYS


def test_what_is_frozen_gets_no_gradient_and_does_not_move(training: Training) -> None:
    before = _weights(training)
    _step(training, _plan(training, "last")(0))
    moved = {name for name, parameter in training.model.named_parameters() if not parameter.equal(before[name])}
    assert moved == {"fc2.weight", "fc2.bias"}
    assert training.model.get_parameter("conv1.weight").grad is None


def test_a_held_filter_stays_although_momentum_would_move_it(training: Training) -> None:
    for _ in range(2):
        _step(training, TrainedParameters(frozenset(dict(training.model.named_parameters()))))
    before = _weights(training)["conv1.weight"]
    choice = TrainedParameters(frozenset(dict(training.model.named_parameters())), {"conv1.weight": (0, 3)})
    _step(training, choice)
    after = training.model.get_parameter("conv1.weight").detach()
    still = {row for row in range(10) if after[row].equal(before[row])}
    assert still == {0, 3}
    _step(training, TrainedParameters(choice.trained))
    assert not training.model.get_parameter("conv1.weight")[0].equal(before[0])  # held for that step alone


def test_fresh_masks_thaw_and_cumulative_ones_never_do(training: Training) -> None:
    fresh, grown = _plan(training, "filters"), _plan(training, "cumulative")
    assert len(fresh(0).frozen_filters["conv1.weight"]) == 4
    assert len({fresh(step).frozen_filters["conv1.weight"] for step in range(6)}) > 1
    frozen = [set(grown(step).frozen_filters.get("conv1.weight", range(10))) for step in range(40)]
    assert all(before <= after for before, after in itertools.pairwise(frozen))
    assert "conv1.weight" not in grown(39).trained
    assert {"fc1.weight", "fc2.bias"} <= grown(39).trained


def test_a_choice_lasts_for_an_epoch_where_that_is_asked_for(training: Training) -> None:
    chosen = [_plan(training, "layers", draw_every=10)(step) for step in range(20)]
    assert chosen[0] == chosen[9]
    each = [_plan(training, "layers", draw_every=1)(step).trained for step in range(10)]
    assert len(set(each)) > 1
    assert all(len({name.partition(".")[0] for name in trained}) == 2 for trained in each)  # 60 % of 4, rounded down


def test_sparse_keeps_to_its_budget_and_gradual_ends_with_everything(training: Training) -> None:
    names = dict(training.model.named_parameters())
    gradients = {name: torch.ones_like(parameter) for name, parameter in names.items()}
    chosen = _plan(training, "sparse", gradients=lambda: gradients)(0)
    weights = sum(names[name].numel() for name in chosen.trained if names[name].dim() > 1)
    assert weights <= 0.6 * sum(parameter.numel() for parameter in names.values())
    assert "fc2.weight" in chosen.trained
    gradual = _plan(training, "gradual")
    assert gradual(0).trained == {"fc2.weight", "fc2.bias"}
    assert gradual(39).trained == set(names)


def test_an_adapter_changes_nothing_at_first_and_is_what_is_trained(training: Training) -> None:
    x, model = torch.randn(2, 1, 28, 28), training.model.eval()
    with torch.no_grad():
        expected = model(x)
        methods.add_adapters(model)
        assert torch.allclose(model(x), expected, atol=1e-6)
    trained = _plan(training, "lora")(0).trained
    assert {"conv1.down.weight", "conv1.up.weight", "fc2.weight"} <= trained
    assert not any(".layer." in name for name in trained)
    assert parameters_by_layer(model)["fc2"] == ("fc2.weight", "fc2.bias")


def test_the_shift_of_a_normalisation_is_no_bias() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert biases(model) == ("0.bias",)
    assert WAYS["batch-norm"].schedule(model, TERMS)(0).trained == {"1.weight", "1.bias"}
    assert WAYS["batch-norm"].missing(nn.Linear(2, 2)) == "it has no batch normalisation with parameters"
    assert WAYS["filters"].missing(nn.Linear(2, 2)) is not None
    assert WAYS["bias"].missing(nn.Linear(2, 2, bias=False)) is not None
    assert WAYS["lora"].missing(nn.Linear(2, 2)) is not None


def _cost(training: Training, way: str, *steps: int) -> StepCost:
    chosen = _plan(training, way)
    return step_cost(training, WAYS[way], [chosen(step) for step in steps or (0,)], OptimizerRule("sgd", {"lr": 0.01}))


def test_freezing_saves_backward_work_and_memory_and_a_mask_saves_none(training: Training) -> None:
    whole, last, masked = _cost(training, "all"), _cost(training, "last"), _cost(training, "filters")
    assert whole.flops_backward
    assert whole.saved_bytes
    assert whole.peak_bytes
    assert last.flops_backward == 2 * 8 * 50 * 10  # the weight gradient of 50 -> 10 alone
    assert last.saved_bytes is not None
    assert last.saved_bytes < 0.05 * whole.saved_bytes
    assert last.peak_bytes is not None
    assert last.peak_bytes < whole.peak_bytes
    assert masked.flops_backward == whole.flops_backward
    assert masked.saved_bytes == pytest.approx(whole.saved_bytes, rel=0.01)
    assert masked.trained_share < 1
    grown = _cost(training, "cumulative", 39)
    assert grown.flops_backward is not None
    assert grown.flops_backward < 0.3 * whole.flops_backward


def test_probed_steps_span_the_training_without_repeats() -> None:
    assert probe_steps(1) == [0]
    assert probe_steps(3) == [0, 1, 2]
    assert len(probe_steps(1000)) == 8
    assert probe_steps(1000)[-1] == 999


def test_a_checkpoint_that_is_not_plain_weights_is_refused_and_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (open, (str(tmp_path / "exploded"), "w"))  # type: ignore[return-value]

    for name, content in (("code", {"a": Bomb()}), ("list", [1, 2]), ("numbers", {"a": 1})):
        torch.save(content, tmp_path / name)
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "text").write_text("not weights", encoding="utf-8")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("code", "list", "numbers", "pickle", "text", "empty"):
        with pytest.raises(UsageError) as refused:
            read_weights(tmp_path / name)
        assert refused.value.hint
    assert not (tmp_path / "exploded").exists()
    with pytest.raises(UsageError, match="no checkpoint"):
        read_weights(tmp_path / "nowhere")


def test_a_checkpoint_fits_with_another_last_layer_and_with_nothing_else(tmp_path: Path) -> None:
    model, other = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    torch.save({"state_dict": {f"module.{name}": value for name, value in other.state_dict().items()}}, tmp_path / "w")
    weights = read_weights(tmp_path / "w")
    note = load_weights(model, weights, "w")
    assert note is not None
    assert "last layer is new" in note
    assert model.get_parameter("0.weight").equal(other.get_parameter("0.weight"))
    with pytest.raises(UsageError, match=r"lacks 2\.bias"):
        load_weights(nn.Sequential(*model, nn.Linear(2, 2)), weights, "w")


def test_classes_are_divided_and_an_absent_one_is_named(training: Training) -> None:
    assert split_classes((3, 1, 2, 0)) == ((0, 1), (2, 3))
    part = splits_of_classes(training.splits, (3, 4))
    assert (part.facts.train_size, part.facts.test_size) == (800, 200)
    with pytest.raises(UsageError, match="no class 11"):
        splits_of_classes(training.splits, (11,))
    with pytest.raises(UsageError, match="one class"):
        split_classes((1,))


def test_a_transfer_begins_with_the_same_weights_whatever_the_way(tmp_path: Path) -> None:
    environment = TrainingEnvironment(tmp_path / "runs", tmp_path / "pretrained")
    lenet = workloads.find("lenet")
    first = train_one_seed(lenet, replace(LESSON, transfer=True), 0, environment)
    second = train_one_seed(lenet, replace(LESSON, transfer=True, way="last"), 0, environment)
    assert first["data"]["train_size"] == 2000
    assert [row["step"] for row in first["curve"]] == [0, 1, 2, 3]
    assert first["curve"][0]["before"] == second["curve"][0]["before"]
    assert first["curve"][0]["accuracy"] == second["curve"][0]["accuracy"]
    assert first["curve"][3]["time_s"] > first["curve"][1]["time_s"] > 0
    assert len(list((tmp_path / "runs").glob("*/steps.parquet"))) == 2
    with pytest.raises(NoSuchLayers, match="no batch normalisation"):
        train_one_seed(lenet, replace(LESSON, way="batch-norm"), 0, environment)


def test_weights_that_ship_begin_a_transfer_to_other_data(tmp_path: Path) -> None:
    environment = TrainingEnvironment(tmp_path / "runs", tmp_path / "pretrained")
    resnet8 = workloads.find("resnet8-c32")
    lesson = replace(LESSON, pretrained=True, data="fashion-mnist-6k", steps=1)
    known, other = (
        train_one_seed(resnet8, lesson, 0, environment),
        train_one_seed(resnet8, replace(lesson, data="mnist-5k"), 0, environment),
    )
    assert known["curve"][0]["accuracy"] == pytest.approx(packaged.WEIGHTS["resnet8-c32"].accuracy, abs=0.002)
    assert other["curve"][0]["accuracy"] < 0.5  # digits are no clothes
    assert any("weights that ship" in note for note in other["notes"])
    assert "before" not in other["curve"][0]


@pytest.mark.parametrize("more", [{"transfer": True}, {"checkpoint": Path("weights.pt")}])
def test_weights_that_ship_and_others_are_refused_together(more: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--pretrained"):
        PartialTraining(pretrained=True, **more)


def test_a_network_without_weights_that_ship_is_told_which_have_some() -> None:
    with pytest.raises(UsageError, match="no weights ship for 'resnet18-c32'") as refused:
        PartialTraining(workload="resnet18-c32", pretrained=True).checked()
    assert "resnet8-c32" in str(refused.value.hint)


def test_gradients_that_a_choice_is_made_by_leave_the_training_as_it_began() -> None:
    training = workloads.find("resnet8-c32").prepare(batch=4, data="mnist-5k")
    before = {name: buffer.clone() for name, buffer in training.model.named_buffers()}
    drawn = torch.get_rng_state()
    assert _schedule_settings(training, LESSON, 3, 0).gradients()
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in training.model.named_buffers())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_a_cumulative_schedule_holds_one_state_whatever_the_number_of_steps(training: Training) -> None:
    schedule = _plan(training, "cumulative")
    first, last = schedule(0), schedule(5_000)
    assert schedule(5_001) is last
    tracemalloc.start()
    try:
        for step in range(5_000, 8_000):
            schedule(step)
        assert tracemalloc.get_traced_memory()[0] < 10_000
    finally:
        tracemalloc.stop()
    assert schedule(0) == first


def test_drawing_is_no_part_of_a_step(training: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class ObservedSession(Session):
        def pause(self) -> None:
            events.append("pause")
            super().pause()

        def resume(self) -> None:
            events.append("resume")
            super().resume()

        def step(self, loss: Any = None, samples: int | None = None) -> None:
            events.append("step")
            super().step(loss, samples)

    def schedule(step: int) -> TrainedParameters:
        events.append("draw")
        return TrainedParameters(frozenset(dict(training.model.named_parameters())))

    monkeypatch.setattr("stepscope.experiments.engine.training.Session", ObservedSession)
    environment = TrainingEnvironment(tmp_path / "runs", tmp_path)
    record = _run_training(training, schedule, 2, lambda: {"accuracy": 0.5}, environment)
    assert [evaluation.steps for evaluation in record.evaluations] == [0, 1, 2]
    assert events == ["draw", "draw", *["step", "pause", "draw", "resume"] * 2]
