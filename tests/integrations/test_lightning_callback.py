"""Lightning: steps, phases and endings of real trainers."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from tests.integrations.trainings import BATCH, RefusedError, a_file, library, loader
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from stepscope.integrations import lightning as ours

pytestmark = pytest.mark.filterwarnings("ignore")


def _model(lightning: Any, **replaced: Any) -> Any:
    """A small classifier; methods of it can be replaced."""

    def init(self: Any) -> None:
        lightning.LightningModule.__init__(self)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.losses = []

    def training_step(self: Any, batch: Any, index: int) -> Any:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    methods = {
        "__init__": init,
        "training_step": training_step,
        "configure_optimizers": lambda self: torch.optim.SGD(self.parameters(), lr=0.1),
        **replaced,
    }
    return type("Classifier", (lightning.LightningModule,), methods)()


def _trainer(lightning: Any, callback: Any, **options: Any) -> Any:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "max_epochs": 1, "num_sanity_val_steps": 0}
    return lightning.Trainer(callbacks=callback, **{**quiet, **options})


def test_a_step_is_all_the_batches_whose_gradients_add_up(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    model, callback = _model(lightning), ours.StepscopeCallback(out=tmp_path, record="none")
    _trainer(lightning, callback, max_epochs=2, accumulate_grad_batches=3).fit(model, loader(10))
    run = callback.recording.run
    assert run.status == "ok"
    assert run.steps["samples"].to_list() == [3 * BATCH, 3 * BATCH, 3 * BATCH, BATCH] * 2
    groups = [model.losses[start + at : min(start + at + 3, start + 10)] for start in (0, 10) for at in (0, 3, 6, 9)]
    assert run.steps["loss"].to_list() == pytest.approx([sum(group) / len(group) for group in groups], rel=1e-5)
    assert run.meta["planned_steps"] == 8
    assert run.meta["trainer"]["accumulate"] == 3
    assert run.meta["workload"]["optimizer"] == "SGD"


def test_samples_are_those_that_the_option_states_else_those_of_the_data_loader(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")

    def training_step(self: Any, batch: Any, index: int) -> Any:
        return cross_entropy(self.net(batch[0]).mean(0), batch[1])

    def time_major(rows: Any) -> Any:
        return torch.stack([row for row, _ in rows], 1), torch.stack([label for _, label in rows])

    rows = [(torch.randn(7, 8), torch.tensor(number % 3)) for number in range(3 * BATCH)]
    data: Any = DataLoader(rows, batch_size=BATCH, collate_fn=time_major)  # type: ignore[arg-type]
    for options, samples in ({}, BATCH), ({"samples": 50}, 50):
        callback = ours.StepscopeCallback(out=tmp_path, record="none", **options)
        _trainer(lightning, callback).fit(_model(lightning, training_step=training_step), data)
        assert callback.recording.run.steps["samples"].to_list() == [samples] * 3


def test_training_step_is_forward_although_lightning_calls_it_inside_the_optimizer(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    callback = ours.StepscopeCallback(out=tmp_path, record="all")
    _trainer(lightning, callback).fit(_model(lightning), loader(6))
    ops = callback.recording.run.ops.filter(pl.col("step") >= 3)
    phases = {name: set(part["phase"].to_list()) for (name,), part in ops.group_by("name")}
    assert phases["aten::cross_entropy_loss"] == {"forward"}
    assert phases["aten::mm"] == {"backward"}
    assert phases["Optimizer.step#SGD.step"] == {"optimizer"}
    assert {"net.0", "net.1", "net.2"} <= set(ops["module"].drop_nulls().to_list())


def test_validation_is_no_part_of_a_step(tmp_path: Path) -> None:
    lightning, ended = library("lightning.pytorch"), []

    def validation_step(self: Any, batch: Any, index: int) -> None:
        self.net(batch[0])
        time.sleep(0.02)
        ended.append(time.monotonic_ns())

    callback = ours.StepscopeCallback(out=tmp_path, record="all")
    trainer = _trainer(lightning, callback, max_epochs=2, val_check_interval=3, limit_val_batches=1)
    trainer.fit(_model(lightning, validation_step=validation_step), loader(6), loader(1))
    steps = callback.recording.run.steps
    assert len(ended) == 4
    assert len(steps) == 12
    for t_ns in ended:
        assert not steps.filter((pl.col("t0_ns") < t_ns) & (pl.col("t1_ns") > t_ns)).height


def test_a_checkpoint_between_two_steps_is_no_part_of_them(tmp_path: Path) -> None:
    lightning, saved = library("lightning.pytorch"), []

    def on_save_checkpoint(self: Any, checkpoint: Any) -> None:
        time.sleep(0.02)
        saved.append(time.monotonic_ns())

    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    writer = library("lightning.pytorch.callbacks").ModelCheckpoint(tmp_path, every_n_train_steps=2, save_top_k=-1)
    model = _model(lightning, on_save_checkpoint=on_save_checkpoint)
    _trainer(lightning, [writer, callback], enable_checkpointing=True).fit(model, loader(5))
    steps = callback.recording.run.steps
    assert (len(steps), len(saved)) == (5, 2)
    for t_ns in saved:
        assert not steps.filter((pl.col("t0_ns") < t_ns) & (pl.col("t1_ns") > t_ns)).height


def test_steps_are_profiled_where_an_epoch_is_one_batch(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    callback = ours.StepscopeCallback(out=tmp_path, record="all")
    model = _model(lightning, validation_step=lambda self, batch, index: self.net(batch[0]))
    _trainer(lightning, callback, max_epochs=5).fit(model, loader(1), loader(1))
    run = callback.recording.run
    assert run.steps["recorded"].to_list() == [True] * 5
    assert run.ops.filter(pl.col("name") == "nn.ReLU").group_by("step").len().sort("step").rows() == [
        (step, 1) for step in range(5)
    ]


def test_validation_between_the_batches_of_one_step_is_noted(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    model = _model(lightning, validation_step=lambda self, batch, index: None)
    _trainer(lightning, callback, accumulate_grad_batches=2, val_check_interval=1).fit(model, loader(4), loader(1))
    assert [event["kind"] for event in callback.recording.run.events] == ["evaluated-in-step"]
    assert callback.recording.run.steps["samples"].to_list() == [2 * BATCH] * 2


def test_two_optimizers_that_step_in_one_batch_make_one_step(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")

    def configure(self: Any) -> Any:
        self.automatic_optimization = False
        return torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.Adam(self.net[2].parameters())

    def training_step(self: Any, batch: Any, index: int) -> None:
        for optimizer in self.optimizers(use_pl_optimizer=index % 2 == 0):
            optimizer.zero_grad()
            self.manual_backward(cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()

    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    model = _model(lightning, configure_optimizers=configure, training_step=training_step)
    _trainer(lightning, callback).fit(model, loader(5))
    run = callback.recording.run
    assert run.steps["samples"].to_list() == [BATCH] * 5
    assert run.meta["workload"]["optimizer"] == "SGD, Adam"
    assert "planned_steps" not in run.meta


def test_a_resumed_training_says_at_which_step_it_begins(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    callback, model = ours.StepscopeCallback(out=tmp_path, record="none"), _model(lightning)
    first = _trainer(lightning, callback)
    first.fit(model, loader(4))
    first.save_checkpoint(tmp_path / "half.ckpt")
    _trainer(lightning, callback, max_epochs=2).fit(model, loader(4), ckpt_path=tmp_path / "half.ckpt")
    run = callback.recording.run
    assert (run.meta["trainer"]["first_step"], run.meta["planned_steps"], len(run.steps)) == (4, 4, 4)
    assert len({path.parent for path in tmp_path.glob("*/run.json")}) == 2


def test_an_exception_of_the_training_passes_untouched_and_the_run_says_failed(tmp_path: Path) -> None:
    lightning, error = library("lightning.pytorch"), RefusedError("no more")

    def training_step(self: Any, batch: Any, index: int) -> Any:
        if index == 2:
            raise error
        return cross_entropy(self.net(batch[0]), batch[1])

    callback, model = ours.StepscopeCallback(out=tmp_path), _model(lightning, training_step=training_step)
    with pytest.raises(RefusedError) as caught:
        _trainer(lightning, callback).fit(model, loader(4))
    run = callback.recording.run
    assert caught.value is error
    assert (run.status, run.meta["reason"], len(run.steps)) == ("failed", "RefusedError: no more", 2)


def test_ctrl_c_closes_the_run_as_interrupted(tmp_path: Path) -> None:
    library("lightning.pytorch")
    callback = ours.StepscopeCallback(out=tmp_path)
    callback.recording.begin(nn.Linear(2, 2), trainer={"library": "lightning"})
    callback.on_exception(None, None, KeyboardInterrupt())
    assert callback.recording.run.status == "interrupted"


def test_where_no_run_can_be_written_the_training_goes_on_with_a_warning(tmp_path: Path) -> None:
    lightning = library("lightning.pytorch")
    model, callback = _model(lightning), ours.StepscopeCallback(out=a_file(tmp_path))
    with pytest.warns(RuntimeWarning, match="not recorded"):
        _trainer(lightning, callback).fit(model, loader(2))
    assert len(model.losses) == 2


def test_both_names_of_lightning_take_the_callback_and_pickle_finds_its_class() -> None:
    library("lightning.pytorch")
    made = pickle.loads(pickle.dumps(ours.StepscopeCallback))
    assert made is ours.StepscopeCallback
    assert issubclass(made, library("lightning.pytorch").Callback)
