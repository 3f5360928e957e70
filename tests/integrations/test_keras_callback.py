"""Keras on torch: steps, phases and endings of real fits."""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.integrations.trainings import BATCH, RefusedError, library

from stepscope.errors import UsageError
from stepscope.integrations import keras as ours

pytestmark = pytest.mark.filterwarnings("ignore")


def _model(keras: Any, **optimizer: Any) -> Any:
    inner = keras.Sequential([keras.layers.Dense(16, activation="relu", name="wide")], name="inner")
    model = keras.Sequential([keras.Input((8,)), inner, keras.layers.Dense(3, name="last")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.SGD(0.1, **optimizer), loss=loss)
    return model


def _data(batches: int) -> tuple[Any, Any]:
    return np.zeros((BATCH * batches, 8), np.float32), np.zeros(BATCH * batches, np.int64)


def _fit(model: Any, callback: Any, batches: int = 6, **options: Any) -> None:
    x, y = _data(batches)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback], **options)


def test_a_step_is_an_update_with_all_its_batches(tmp_path: Path) -> None:
    keras = library("keras")
    model, callback = _model(keras, gradient_accumulation_steps=2), ours.StepscopeCallback(out=tmp_path, record="none")
    _fit(model, callback, 5, epochs=2, validation_data=_data(2))
    run = callback.recording.run
    assert run.status == "ok"
    assert run.steps["samples"].to_list() == [2 * BATCH] * 5
    assert run.meta["planned_steps"] == 5
    assert run.steps["loss"].is_null().all()  # what Keras reports is a mean over the epoch


def test_phases_and_layers_have_the_names_of_keras(tmp_path: Path) -> None:
    keras = library("keras")
    callback = ours.StepscopeCallback(out=tmp_path, record="all")
    _fit(_model(keras), callback)
    ops = callback.recording.run.ops.filter(pl.col("step") >= 3)
    phases = {name: set(part["phase"].to_list()) for (name,), part in ops.group_by("name")}
    assert phases["aten::cross_entropy_loss"] == {"forward"}
    assert phases["Optimizer.step#SGD.step"] == {"optimizer"}
    assert "backward" in phases["aten::mm"]
    assert {"inner.wide", "last"} <= set(ops["module"].drop_nulls().to_list())


def test_an_exception_of_the_training_passes_untouched_and_the_run_says_failed(tmp_path: Path) -> None:
    keras, error = library("keras"), RefusedError("no more")
    model, callback = _model(keras), ours.StepscopeCallback(out=tmp_path, record="none")

    def train_step(data: Any) -> Any:
        raise error

    model.train_step = train_step
    with pytest.raises(RefusedError) as caught:
        _fit(model, callback)
    run = callback.recording.run
    assert caught.value is error
    assert (run.status, run.meta["reason"]) == ("failed", "RefusedError: no more")


def test_an_exception_outside_the_batches_is_seen_too_and_one_that_is_caught_is_none(tmp_path: Path) -> None:
    keras = library("keras")

    class Refusing(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            with contextlib.suppress(ValueError, TypeError):
                self.model(np.zeros((2, 5), np.float32))  # passes Keras' own handler of tracebacks
            if epoch == 1:
                raise RefusedError("in between")

    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    with pytest.raises(RefusedError):
        _model(keras).fit(*_data(3), batch_size=BATCH, epochs=2, verbose=0, callbacks=[callback, Refusing()])
    run = callback.recording.run
    assert (run.status, run.meta["reason"], len(run.steps)) == ("failed", "RefusedError: in between", 3)


@pytest.mark.parametrize("first", [True, False], ids=["after our callback", "before it"])
def test_a_checkpoint_between_two_steps_is_no_part_of_them(tmp_path: Path, first: bool) -> None:
    keras, saved = library("keras"), []

    class Model(keras.Sequential):  # type: ignore[misc, name-defined]
        def save_own_variables(self, store: Any) -> None:
            time.sleep(0.02)
            saved.append(time.monotonic_ns())
            super().save_own_variables(store)

    model = Model([keras.Input((8,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    writer = keras.callbacks.ModelCheckpoint(tmp_path / "at.weights.h5", save_weights_only=True, save_freq=2)
    callbacks = [callback, writer] if first else [writer, callback]
    model.fit(*_data(5), batch_size=BATCH, verbose=0, callbacks=callbacks)
    run = callback.recording.run
    within = [run.steps.filter((pl.col("t0_ns") < t_ns) & (pl.col("t1_ns") > t_ns)).height for t_ns in saved]
    assert (len(run.steps), within) == (5, [0, 0] if first else [1, 1])
    assert [event["kind"] for event in run.events] == ([] if first else ["checkpoint-in-step"])


def test_a_run_that_was_left_open_is_closed_when_another_callback_begins_but_not_while_its_fit_runs(
    tmp_path: Path,
) -> None:
    keras = library("keras")
    inner, outer = (ours.StepscopeCallback(out=tmp_path, record="none") for _ in range(2))

    class Stopping(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            _fit(_model(keras), inner, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _model(keras).fit(*_data(3), batch_size=BATCH, verbose=0, callbacks=[outer, Stopping()])
    assert (inner.recording.run.status, outer.recording.open) == ("ok", True)
    _fit(_model(keras), ours.StepscopeCallback(out=tmp_path, record="none"), 2)
    assert not outer.recording.open
    assert outer.recording.run.status == "interrupted"
    assert "before the trainer said" in outer.recording.run.meta["reason"]


def test_a_second_fit_is_a_run_of_its_own_that_says_where_it_begins(tmp_path: Path) -> None:
    keras = library("keras")
    model, callback = _model(keras), ours.StepscopeCallback(out=tmp_path, record="none")
    _fit(model, callback, 3)
    _fit(model, callback, 2)
    assert callback.recording.run.meta["trainer"]["first_step"] == 3
    assert len(callback.recording.run.steps) == 2


def test_a_fit_that_goes_on_at_a_later_epoch_plans_the_epochs_that_are_left(tmp_path: Path) -> None:
    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    _fit(_model(library("keras")), callback, 4, epochs=5, initial_epoch=3)
    run = callback.recording.run
    assert (len(run.steps), run.meta["planned_steps"]) == (8, 8)


def test_batches_that_wait_for_others_of_the_next_fit_make_a_step_there(tmp_path: Path) -> None:
    keras = library("keras")
    model = _model(keras, gradient_accumulation_steps=2)
    updates: list[Any] = []
    callback = ours.StepscopeCallback(out=tmp_path, record="none")
    weights = [layer.kernel for layer in model.layers if layer.name == "last"]

    class Updates(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            updates.append(weights[0].numpy().copy())

    x, y = np.ones((BATCH * 3, 8), np.float32), np.zeros(BATCH * 3, np.int64)
    for _ in range(2):
        updates = [weights[0].numpy().copy()]
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[callback, Updates()])
    changed = [bool((before != after).any()) for before, after in pairwise(updates)]
    assert changed == [True, False, True]  # as Keras counts
    run = callback.recording.run
    assert run.steps["samples"].to_list() == [BATCH, 2 * BATCH]
    assert run.meta["planned_steps"] == 2


def test_another_backend_is_refused_with_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library("keras").backend, "backend", lambda: "jax")
    with pytest.raises(UsageError) as refused:
        ours.StepscopeCallback()
    assert "KERAS_BACKEND=torch" in str(refused.value.hint)
