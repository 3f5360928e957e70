"""Hugging Face: steps, phases and endings of real trainers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.integrations.trainings import BATCH, RefusedError, library
from torch import nn

from stepscope.integrations import huggingface as ours

pytestmark = pytest.mark.filterwarnings("ignore")


class Classifier(nn.Module):
    """What the Trainer needs of a model: a loss in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Loss and logits."""
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _callback(**options: Any) -> Any:
    library("transformers")
    return ours.StepscopeCallback(**options)


def _trainer(tmp_path: Path, batches: int = 8, *, kind: Any = None, **options: Any) -> Any:
    library("accelerate")
    transformers = library("transformers")
    callbacks = options.pop("callbacks", None)
    rows = [{"x": torch.randn(8), "labels": torch.tensor(i % 3)} for i in range(BATCH * batches)]
    told = {"num_train_epochs": 1, "per_device_train_batch_size": BATCH, "save_strategy": "no", "report_to": []}
    told |= {"use_cpu": True, "disable_tqdm": True, "logging_strategy": "no", "dataloader_pin_memory": False}
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), **{**told, **options})
    return (kind or transformers.Trainer)(
        Classifier(), arguments, train_dataset=rows, eval_dataset=rows[:BATCH], callbacks=callbacks
    )


def test_a_step_is_all_the_batches_whose_gradients_add_up(tmp_path: Path) -> None:
    callback = _callback(out=tmp_path / "runs", record="none")
    trainer = _trainer(tmp_path, 7, callbacks=[callback], gradient_accumulation_steps=3, num_train_epochs=2)
    trained = trainer.train()
    run = callback.recording.run
    assert run.status == "ok"
    assert run.steps["samples"].to_list() == [3 * BATCH, 3 * BATCH, BATCH] * 2
    assert run.steps["loss"].mean() == pytest.approx(trained.training_loss, rel=1e-4)
    assert run.meta["planned_steps"] == 6
    assert run.meta["workload"]["optimizer"].startswith("AdamW")


def test_evaluation_and_checkpoints_are_no_part_of_a_step(tmp_path: Path) -> None:
    callback = _callback(out=tmp_path / "runs", record="all")
    every: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = _trainer(tmp_path, callbacks=[callback], **every)
    trainer.train()
    run = callback.recording.run
    ops = run.ops.filter(pl.col("phase") == "forward").group_by("step").agg(pl.col("name").value_counts())
    gaps = run.steps.select(gap_ns=pl.col("t0_ns") - pl.col("t1_ns").shift()).drop_nulls()["gap_ns"].to_list()
    assert len(run.steps) == 8
    assert ops.height >= 4
    assert min(gaps[1::2]) > max(gaps[4::2])  # only after every second step is there something in between
    assert not run.ops.filter(pl.col("name") == "aten::cross_entropy_loss").group_by("step").len()["len"].gt(1).any()


def test_a_prediction_during_the_training_is_no_part_of_a_step(tmp_path: Path) -> None:
    callback, predicted = _callback(out=tmp_path / "runs", record="none"), []

    class Predicting(library("transformers").TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                trainer.predict(trainer.eval_dataset)

        def on_prediction_step(self, *_: Any, **__: Any) -> None:
            predicted.append(time.monotonic_ns())

    trainer = _trainer(tmp_path, 4, callbacks=[callback, Predicting()])
    trainer.train()
    steps = callback.recording.run.steps
    assert (len(steps), len(predicted)) == (4, 1)
    assert not steps.filter((pl.col("t0_ns") < predicted[0]) & (pl.col("t1_ns") > predicted[0])).height


def test_steps_are_profiled_where_an_epoch_is_one_batch(tmp_path: Path) -> None:
    callback = _callback(out=tmp_path / "runs", record="all")
    _trainer(tmp_path, 1, callbacks=[callback], num_train_epochs=5).train()
    run = callback.recording.run
    assert run.steps["recorded"].to_list() == [True] * 5
    assert run.ops.filter(pl.col("name") == "nn.ReLU").group_by("step").len().sort("step").rows() == [
        (step, 1) for step in range(5)
    ]


def test_a_resumed_training_says_at_which_step_it_begins(tmp_path: Path) -> None:
    _trainer(tmp_path, save_strategy="steps", save_steps=5, max_steps=5).train()
    callback = _callback(out=tmp_path / "runs", record="none")
    _trainer(tmp_path, callbacks=[callback], max_steps=8).train(resume_from_checkpoint=True)
    run = callback.recording.run
    assert (run.meta["trainer"]["first_step"], run.meta["planned_steps"], len(run.steps)) == (5, 3, 3)


def test_a_batch_size_that_the_trainer_has_found_is_the_one_of_the_run(tmp_path: Path) -> None:
    callback = _callback(out=tmp_path / "runs", record="none")
    trainer = _trainer(tmp_path, callbacks=[callback], auto_find_batch_size=True)
    computed = trainer.compute_loss

    def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if len(inputs["x"]) == BATCH:
            raise RuntimeError("CUDA out of memory.")
        return computed(model, inputs, *args, **kwargs)

    trainer.compute_loss = compute_loss
    trainer.train()
    run = callback.recording.run
    assert run.status == "ok"
    assert run.meta["workload"]["batch_size"] == trainer.state.train_batch_size == run.steps["samples"][0] < BATCH


@pytest.mark.parametrize("late", [False, True], ids=["given to the trainer", "added later"])
def test_an_exception_of_the_training_passes_untouched_and_the_run_says_failed(tmp_path: Path, late: bool) -> None:
    callback = _callback(out=tmp_path / "runs", record="none")
    trainer = _trainer(tmp_path, callbacks=None if late else [callback])
    if late:
        trainer.add_callback(callback)
    error, computed = RefusedError("no more"), trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step == 2:
            raise error
        return computed(*args, **kwargs)

    trainer.compute_loss = compute_loss
    with pytest.raises(RefusedError) as caught:
        trainer.train()
    run = callback.recording.run
    assert caught.value is error
    assert (run.status, run.meta["reason"], len(run.steps)) == ("failed", "RefusedError: no more", 2)


def test_an_exception_between_the_steps_is_seen_too(tmp_path: Path) -> None:
    callback = _callback(out=tmp_path / "runs", record="none")
    trainer = _trainer(tmp_path, callbacks=[callback])
    trainer.get_batch_samples = _refuse
    with pytest.raises(RefusedError):
        trainer.train()
    assert callback.recording.run.status == "failed"


def test_a_training_step_of_the_users_own_is_reached_where_it_calls_the_librarys(tmp_path: Path) -> None:
    class Doubling(library("transformers").Trainer):  # type: ignore[misc]
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().training_step(*args, **kwargs)

    callback = _callback(out=tmp_path / "runs", record="none")
    trained = _trainer(tmp_path, callbacks=[callback], kind=Doubling).train()
    losses = callback.recording.run.steps["loss"]
    assert 2 * losses.mean() == pytest.approx(trained.training_loss, rel=1e-4)


def test_losses_that_cannot_be_had_are_null(tmp_path: Path) -> None:
    class Own(library("transformers").Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *_: Any) -> Any:
            loss = model(**inputs)["loss"]
            loss.backward()
            return loss.detach()

    callback = _callback(out=tmp_path / "runs", record="none")
    _trainer(tmp_path, callbacks=[callback], kind=Own).train()
    run = callback.recording.run
    assert (run.status, len(run.steps), run.steps["loss"].null_count()) == ("ok", 8, 8)


def test_an_exception_that_the_users_trainer_catches_ends_nothing(tmp_path: Path) -> None:
    class Skipping(library("transformers").Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                raise RefusedError
            return super().compute_loss(*args, **kwargs)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().training_step(*args, **kwargs)
            except RefusedError:
                return torch.tensor(0.0)

    callback = _callback(out=tmp_path / "runs", record="none")
    _trainer(tmp_path, callbacks=[callback], kind=Skipping).train()
    run = callback.recording.run
    assert (run.status, len(run.steps)) == ("ok", 8)


def test_another_trainer_that_trains_meanwhile_is_not_heard(tmp_path: Path) -> None:
    callback, second = _callback(out=tmp_path / "runs", record="none"), _trainer(tmp_path, 2)

    class Distilling(library("transformers").TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            second.train()

    trained = _trainer(tmp_path, 4, callbacks=[callback, Distilling()]).train()
    steps = callback.recording.run.steps
    assert len(steps) == 4
    assert steps["loss"].mean() == pytest.approx(trained.training_loss, rel=1e-4)


def _refuse(*_: Any, **__: Any) -> None:
    raise RefusedError
