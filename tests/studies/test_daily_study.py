"""The study of daily training: what is trained on which day, what is judged, what is refused."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from stepscope import workloads
from stepscope.analysis.estimate import Estimate
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.daily import DailyTraining
from stepscope.experiments.daily.study import DailyTrainingOrders, SettingOutcome
from stepscope.experiments.daily.training import (
    _batches_of,
    _images,
    _images_to_train_by_day,
    _pretrain,
    _shipped_weights,
    train_all_days,
)
from stepscope.experiments.engine import request_fields
from stepscope.experiments.engine.engine import Point, ProgressCallbacks, answer_study
from stepscope.experiments.engine.training import TrainingEnvironment
from stepscope.experiments.partial import PartialTraining
from stepscope.report.charts.comparison import daily_charts
from stepscope.report.study_results import render, save_figures
from stepscope.workloads.contract import Training
from stepscope.workloads.data import packaged

CHILD = (sys.executable, str(Path(__file__).parent / "training_child.py"))
SMALL = DailyTraining(days=3, seeds=3, batch=(16,))
ROUTINE = DailyTrainingOrders(2, 20, 0.15, 8, "none", 10, 1, "shuffled", None, None, "mnist-5k", "cpu")


def _counting(begun: list[str]) -> ProgressCallbacks:
    return ProgressCallbacks(begins=lambda point, place, count: begun.append(point.title))


def test_replay_brings_back_older_images_and_a_reservoir_keeps_its_size() -> None:
    days = [list(range(day * 20, day * 20 + 20)) for day in range(5)]
    none, every = (_images_to_train_by_day(days, replace(ROUTINE, replay=name), 0) for name in ("none", "all"))
    assert none == days
    assert [len(lesson) for lesson in every] == [20, 40, 60, 80, 100]
    kept = _images_to_train_by_day(days, replace(ROUTINE, replay="reservoir"), 0)
    assert [len(lesson) for lesson in kept] == [20, 30, 30, 30, 30]
    assert all(number < 20 * day for day, lesson in enumerate(kept) for number in lesson[20:])
    assert all(len(set(lesson)) == len(lesson) for lesson in kept)
    assert any(number >= 20 for number in kept[4][20:])  # it is not the first day's for ever


def test_a_rest_of_one_image_joins_the_batch_before() -> None:
    assert [len(chunk) for chunk in _batches_of(range(17), 8)] == [8, 9]
    assert [len(chunk) for chunk in _batches_of(range(18), 8)] == [8, 8, 2]
    assert [len(chunk) for chunk in _batches_of(range(1), 8)] == [1]
    assert len(_batches_of(range(5), 1)) == 5


def test_a_life_has_its_evenings_and_the_next_setting_begins_with_the_same_model(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    environment = TrainingEnvironment(tmp_path / "runs", tmp_path / "pretrained")
    lenet = workloads.find("lenet")
    one = train_all_days(lenet, ROUTINE, 0, environment)
    other = train_all_days(lenet, replace(ROUTINE, batch=16, replay="all"), 0, environment)
    assert [day["day"] for day in one["days"]] == [0, 1, 2]
    assert one["days"][0]["accuracy"] == other["days"][0]["accuracy"]
    assert all(day["time_s"] > 0 for day in one["days"][1:])
    assert [day["trained_on"] for day in other["days"]] == [0, 20, 40]
    assert one["pretrained"] == other["pretrained"]
    assert one["pretrained"]["accuracy"] >= 0.15
    assert one["pretrained"]["images"] + one["pretrained"]["looked_at"] == 2000
    with pytest.raises(UsageError, match="too few for 200 days"):
        train_all_days(lenet, replace(ROUTINE, days=200), 0, environment)


def test_days_begin_with_the_weights_that_ship_and_every_image_is_new_to_them(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    environment = TrainingEnvironment(tmp_path / "runs", tmp_path / "pretrained")
    lenet = workloads.find("lenet")
    routine = replace(ROUTINE, start=None, data="fashion-mnist-6k")
    lives = [train_all_days(lenet, routine, seed, environment) for seed in (0, 1)]
    assert not (tmp_path / "pretrained").exists()
    shipped = packaged.WEIGHTS["lenet"]
    assert lives[0]["days"][0]["accuracy"] == lives[1]["days"][0]["accuracy"] == lives[0]["pretrained"]["accuracy"]
    assert lives[0]["pretrained"]["accuracy"] == pytest.approx(shipped.accuracy, abs=0.002)
    assert lives[0]["days"][1]["accuracy"] != lives[1]["days"][1]["accuracy"]
    with pytest.raises(UsageError, match="5000 training images are too few for 251 days"):
        train_all_days(lenet, replace(routine, days=251), 0, environment)


@pytest.mark.parametrize(
    ("name", "data", "start", "ships"),
    [
        ("lenet", "fashion-mnist-6k", None, True),
        ("lenet", "fashion-mnist-6k", 0.15, False),
        ("lenet", "mnist-5k", None, False),
        ("mobilenet-v1-c32", "fashion-mnist-6k", None, False),
    ],
)
def test_days_begin_with_weights_that_ship_for_this_network_on_this_data_alone(
    name: str, data: str, start: float | None, ships: bool
) -> None:
    training = workloads.find(name).prepare(16, data=data)
    assert (_shipped_weights(training, replace(ROUTINE, start=start, data=data)) is not None) is ships


def test_pre_training_ends_where_the_accuracy_on_images_that_it_does_not_see_rises_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(1)
    training = workloads.find("lenet").prepare(20, None, "cpu", 0, None, "mnist-5k")
    looks = iter([0.3, 0.5, 0.6, 0.7, 0.71, 0.711, 0.712, *[0.71] * 200])
    sizes = set[int]()

    def accuracy(part: Training) -> float:
        assert isinstance(part.splits.train, Subset)
        assert isinstance(part.splits.test, Subset)
        sizes.add(len(part.splits.test))
        assert not set(part.splits.train.indices) & set(part.splits.test.indices)
        return next(looks)

    monkeypatch.setattr("stepscope.experiments.daily.training.accuracy_of", accuracy)
    ended = _pretrain(training, range(200), None)  # nine steps an epoch, a look every two
    assert ended["plateau"]
    assert sizes == {20}
    assert ended["steps"] == 10 + 28, "the last rise by half a point is at the fifth look; three epochs are 27 steps"
    looks = iter([0.01 * look for look in range(99)])
    assert not _pretrain(training, range(200), 0.2)["plateau"]
    looks = iter([0.006 * look for look in range(9999)])
    rising = _pretrain(training, range(40), None)  # one step an epoch
    assert (rising["plateau"], rising["steps"]) == (False, 60)
    looks = iter([0.0] * 9999)
    with pytest.raises(UsageError, match="did not bring 'lenet' to 20%"):
        _pretrain(training, range(40), 0.2)


def test_the_findings_say_how_the_pre_training_of_each_seed_ended(tmp_path: Path) -> None:
    notes = answer_study(SMALL, tmp_path / "s", child=CHILD).notes
    assert any("in 3 epochs no more" in note for note in notes)
    assert any("NO plateau was reached" in note for note in notes)
    given = answer_study(replace(SMALL, start=0.6), tmp_path / "t", child=CHILD).notes
    assert not any("plateau" in note for note in given)


def test_the_findings_say_how_accuracy_moves_and_whether_a_day_fits(tmp_path: Path) -> None:
    asked = replace(SMALL, charging=60.0)
    findings = answer_study(asked, tmp_path / "s", child=CHILD)
    accuracy, cost = findings.tables
    slopes = {row[1]: row[10:13] for row in accuracy.rows}
    assert slopes["none"][0] == pytest.approx(-0.9)
    assert slopes["all"][1] == pytest.approx(2.1 - 0.2484, abs=1e-3)
    assert {row[-1] for row in cost.rows} == {"yes"}
    assert cost.rows[0][3] == pytest.approx(31)
    assert "3 of 3 settings fit" in findings.answer
    assert any(note.startswith("energy was not measured") for note in findings.notes)
    drawn = daily_charts(findings.frames)
    assert set(drawn) == {"accuracy-by-day", "time-by-day"}
    assert all(path.stat().st_size > 1000 for path in save_figures(drawn, tmp_path, findings.title, ("svg",)))
    assert "What a day takes" in render(findings, drawn)


def test_a_charging_time_that_the_interval_spans_is_not_judged(tmp_path: Path) -> None:
    findings = answer_study(replace(SMALL, charging=31.5), tmp_path / "s", child=CHILD)
    assert str(findings.tables[1].rows[0][-1]).startswith("cannot be judged")
    assert "0 of 3 settings fit while the device charges, 0 do not, 3 cannot be judged." in findings.answer
    short = answer_study(replace(SMALL, charging=5.0), tmp_path / "t", child=CHILD)
    assert short.tables[1].rows[0][-1] == "no"
    assert "0 of 3 settings fit while the device charges, 3 do not, 0 cannot be judged." in short.answer


@pytest.mark.parametrize(("low", "high", "judged"), [(0.0, 5.0, True), (12.0, 15.0, None), (8.0, 12.0, None)])
def test_a_day_that_fits_beside_other_processes_fits_and_one_that_does_not_may(
    low: float, high: float, judged: bool | None
) -> None:
    day = Estimate(high, low, high)
    rest: dict[str, Any] = {field.name: None for field in fields(SettingOutcome)}
    disturbed = SettingOutcome(**{**rest, "day_s": day, "cells": ({"background": "1.2 cores"},)})
    assert disturbed.fits(10.0) is judged
    assert replace(disturbed, cells=()).fits(10.0) is (False if low > 10 else judged)


def test_settings_that_the_intervals_do_not_tell_from_the_best_are_named(tmp_path: Path) -> None:
    alone = answer_study(SMALL, tmp_path / "s", child=CHILD)
    assert "Best after 3 days: batch 16, replay all" in alone.answer
    assert "Not distinguishable" not in alone.answer
    both = answer_study(replace(SMALL, batch=(16, 32)), tmp_path / "t", child=CHILD)  # which do the same there
    assert "Not distinguishable from it: batch 32, replay all." in both.answer
    single = answer_study(replace(SMALL, seeds=1), tmp_path / "u", child=CHILD)
    assert single.answer.startswith("Best after 3 days, by one seed: ")


def test_energy_is_a_share_of_the_battery_and_simulated_energy_says_so(tmp_path: Path) -> None:
    findings = answer_study(replace(SMALL, simulate="jetson-tx2", battery=36_000.0), tmp_path / "s", child=CHILD)
    assert "simulated J a day" in findings.tables[1].columns
    assert findings.tables[1].rows[0][-1] == pytest.approx(100 * 300 / 36_000)
    assert "energy-by-day" in daily_charts(findings.frames)
    assert any("missed up to 5 %" in note for note in findings.notes)


def test_an_interrupted_study_of_days_goes_on(tmp_path: Path) -> None:
    def stop(point: Point, place: int, count: int) -> None:
        if place == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_study(SMALL, tmp_path / "s", child=CHILD, watch=ProgressCallbacks(begins=stop))
    begun: list[str] = []
    answer_study(SMALL, tmp_path / "s", child=CHILD, watch=_counting(begun))
    assert len(begun) == 8


def test_everything_that_a_day_depends_on_is_told_to_the_process() -> None:
    assert {each.name for each in fields(DailyTrainingOrders)} - {"batch", "replay"} <= {
        each.name for each in fields(DailyTraining)
    }


def test_bad_scenarios_are_refused_before_anything_runs() -> None:
    for bad in ({"days": 0}, {"images": 0}, {"start": 1.0}, {"keep": 0}, {"passes": 0}, {"charging": "0h"}):
        with pytest.raises(UsageError):
            DailyTraining(**bad)
    with pytest.raises(UnknownName, match="replay 'some'"):
        DailyTraining(replay="some")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="order"):
        DailyTraining(order="random")
    with pytest.raises(UsageError, match="not a length of time"):
        DailyTraining(charging="soon")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--battery"):
        DailyTraining(battery="0")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no accuracy"):
        DailyTraining("dcgan-32").checked()
    for study in (DailyTraining, PartialTraining):
        with pytest.raises(UnknownName, match="unknown data set 'clothes'"):
            study("lenet", data="clothes").checked()


def test_accuracy_of_the_pre_training_is_a_share_of_the_images_that_were_looked_at() -> None:
    training = workloads.find("lenet").prepare(64, data="mnist-5k")
    ended = _pretrain(training, range(1000), 0.6)  # 100 of them are looked at, of 1,000 test images
    assert 0.6 <= ended["accuracy"] <= 1


def test_fewer_images_than_a_batch_are_trained_as_one_or_refused() -> None:
    training = workloads.find("lenet").prepare(64, data="mnist-5k")
    assert _pretrain(training, range(40), 0.05)["images"] == 36
    few = replace(training.splits, train=Subset(_images(training), range(30)))
    with pytest.raises(UsageError, match="fewer than 64 training samples"):
        next(replace(training, splits=few).batches())


def test_a_study_goes_on_with_the_data_that_it_began_with() -> None:
    for asked in (DailyTraining(workload="lenet"), PartialTraining(workload="lenet")):
        assert asked.data is None
        assert request_fields(asked.checked(), ("data",)) == {"data": workloads.find("lenet").data.name}
