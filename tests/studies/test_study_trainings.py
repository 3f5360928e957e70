"""Trainings of one workload in several settings: what each costs, which is best for what, and going on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import CommandLine

from stepscope import workloads
from stepscope.analysis.estimate import Estimate
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.daily import DailyTraining
from stepscope.experiments.engine import StudyRequest
from stepscope.experiments.engine.engine import Point, ProgressCallbacks, answer_study
from stepscope.experiments.engine.sweep_points import in_rounds
from stepscope.experiments.observations import Observations
from stepscope.experiments.paper_2019 import Paper2019
from stepscope.experiments.partial import PartialTraining
from stepscope.experiments.sweeps import (
    BatchSweep,
    OptimizerSweep,
    PrecisionSweep,
    ThreadSweep,
    TrainingRules,
    TrainingSetting,
)
from stepscope.experiments.sweeps.optimizers import (
    KINDS,
    OptimizerKind,
    kinds_named,
    state_bytes,
    with_every_optimizer,
)
from stepscope.experiments.sweeps.results import (
    SPEED,
    WINDOW,
    BestSetting,
    SettingCost,
    _flag_summary,
    _limit_notes,
    _smallest_saturating_batch,
    axis_sweep,
    best_settings,
    loss_tables,
    smoothed,
    steps_to,
)
from stepscope.experiments.sweeps.trainings import TrainingRun
from stepscope.report.charts.comparison import setting_charts
from stepscope.report.study_results import render

CHILD = (sys.executable, str(Path(__file__).parent / "setting_child.py"))
BATCHES = BatchSweep("net", batch=(4, 64), repeats=2, steps=20)


def _counting(begun: list[str]) -> ProgressCallbacks:
    return ProgressCallbacks(begins=lambda point, place, count: begun.append(point.title))


def test_the_largest_batch_has_the_highest_throughput_and_resources_are_told_apart(tmp_path: Path) -> None:
    findings = answer_study(BATCHES, tmp_path, child=CHILD)
    best = {row[0]: row[1] for row in findings.tables[0].rows}
    assert best["throughput, samples/s"] == "batch 64"
    assert findings.answer.startswith("Best by throughput: batch 64 with ")
    assert "on, throughput" not in findings.answer  # the largest of all: from it on there is none
    speeds = {row[0]: row for row in findings.tables[1].rows if row[1] == "throughput, samples/s"}
    assert speeds["batch 4"][2] < speeds["batch 4"][4] < speeds["batch 64"][3]  # type: ignore[operator]
    assert any("energy cannot be judged" in note for note in findings.notes)


def test_an_interrupted_study_of_trainings_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def stop(point: Point, place: int, count: int) -> None:
        if place == 2:
            raise KeyboardInterrupt

    asked, told = ThreadSweep("net", threads=(1, 2), repeats=2, steps=20), list[str]()
    with pytest.raises(KeyboardInterrupt):
        answer_study(asked, tmp_path, child=CHILD, watch=ProgressCallbacks(begins=stop))
    findings = answer_study(asked, tmp_path, child=CHILD, watch=_counting(told))
    assert len(told) == 2
    assert {row[0] for row in findings.tables[1].rows} == {"threads 1", "threads 2"}


def test_what_finds_no_memory_is_said_and_the_others_are_compared(tmp_path: Path) -> None:
    findings = answer_study(replace(BATCHES, batch=(4, 8, 666), repeats=1), tmp_path, child=CHILD)
    assert any("batch 666: oom 1: 7 GB were asked for" in note for note in findings.notes)
    assert {row[0] for row in findings.tables[1].rows} == {"batch 4", "batch 8"}
    assert any("single repeat" in note for note in findings.notes)


def test_time_and_steps_to_a_target_are_of_those_that_reach_it(tmp_path: Path) -> None:
    asked = PrecisionSweep("net", repeats=1, steps=20, target=0.5)  # the loss of step n is 2 / n
    findings = answer_study(asked, tmp_path / "near", child=CHILD)
    steps = {row[0]: row[2] for row in findings.tables[1].rows if row[1] == "way to the target, steps"}
    expected = steps_to([2 / (n + 1) for n in range(20)], 0.5)
    assert steps == pytest.approx({"fp32": expected, "bf16": expected})
    assert {row[0]: row[1] for row in findings.tables[0].rows}["time to the target, s"] == "bf16"
    never = answer_study(replace(asked, precisions=("fp32",), target=0.01), tmp_path / "far", child=CHILD)
    assert any("0 of 1 trainings reached the target" in note for note in never.notes)


def test_the_loss_of_a_precision_is_compared_after_as_many_steps_from_the_same_seeds() -> None:
    settings = [TrainingSetting("net", precision=name) for name in ("fp32", "int8")]
    trainings = [
        TrainingRun(setting, repeat, "ok", losses=[1.0 + 0.1 * repeat + extra] * steps)
        for setting, extra, steps in zip(settings, (0.0, 0.5), (30, 20), strict=True)
        for repeat in range(3)
    ]
    (table,) = loss_tables(axis_sweep("precision", "net"), trainings)
    (row,) = table.rows
    assert row[:2] == ("int8", 20)
    assert row[3:6] == pytest.approx((0.5, 0.5, 0.5))


def test_figures_and_page_of_trainings_are_drawn(tmp_path: Path) -> None:
    findings = answer_study(replace(BATCHES, repeats=1), tmp_path, child=CHILD)
    drawn = setting_charts(findings.frames)
    assert set(drawn) == {"by-setting", "loss-by-step"}
    assert "Sweet spots" in render(findings, drawn)


@pytest.mark.parametrize(("high", "end"), [(66_000.0, 625.0), (300.0, None), (None, None)])
def test_an_interval_far_beyond_the_values_does_not_flatten_them_in_the_figure(
    high: float | None, end: float | None
) -> None:
    rows = [("batch 4", 4.0, "throughput", 160.0, 150.0, 170.0), ("batch 16", 16.0, "throughput", 250.0, 10.0, high)]
    frame = pl.DataFrame(rows, ["label", "at", "quantity", "value", "low", "high"], orient="row")
    draw, _ = setting_charts({"by-setting": frame})["by-setting"]
    scales = [layer["encoding"]["y"].get("scale") for layer in draw(700).to_dict()["concat"][0]["layer"]]
    assert scales[0].get("domainMax") == end


def test_optimizers_have_a_target_that_all_reach_and_the_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = OptimizerKind("far", "no_such_library.optim:Far", "adam", library="far")
    monkeypatch.setitem(KINDS, "far", far)
    asked = OptimizerSweep("net", optimizers=("sgd", "adam", "far"), repeats=2, steps=20)
    findings = answer_study(asked, tmp_path, child=CHILD)
    state = {row[0]: row[2] for row in findings.tables[1].rows if row[1] == "optimizer state, MB"}
    assert state == {"sgd": 0.0, "adam": pytest.approx(0.001)}
    assert {row[0]: row[1] for row in findings.tables[0].rows}["optimizer state, MB"] == "sgd"
    assert any("far was excluded: far is not installed" in note for note in findings.notes)
    assert any("the lowest that all of them reached" in note for note in findings.notes)
    steps = {row[0] for row in findings.tables[1].rows if row[1] == "way to the target, steps"}
    assert steps == {"sgd", "adam"}


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.why_missing is None])
def test_every_optimizer_that_is_here_trains_and_its_state_is_counted(name: str) -> None:
    made: list[torch.optim.Optimizer] = []
    workload = with_every_optimizer(workloads.find("lenet"), made.append)
    parameter = torch.nn.Parameter(torch.ones(8, 4))
    optimizer = workload.makers[name]([parameter], **workload.hyperparameters[name])
    (parameter * 2).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    assert made == [optimizer]
    assert not torch.equal(parameter.detach(), torch.ones(8, 4))
    least = {"sgd": 0, "momentum": 128, "adam": 256, "adamw": 256, "adagrad": 128, "rmsprop": 128}.get(name, 0)
    assert least <= state_bytes(optimizer) <= least + 64


def test_an_unknown_optimizer_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UnknownName, match="adamm"):
        kinds_named(("adamm",))


@given(st.lists(st.floats(0, 10), min_size=0, max_size=60), st.floats(0, 10))
def test_a_target_is_reached_at_the_first_step_whose_mean_of_ten_is_there(losses: list[float], target: float) -> None:
    means = [float(np.mean(losses[end - WINDOW : end])) for end in range(WINDOW, len(losses) + 1)]
    assert smoothed(losses) == pytest.approx(means)
    found = steps_to(losses, target)
    assert found is None or means[found - WINDOW] <= target + 1e-9
    assert all(mean > target - 1e-9 for mean in means[: (found or len(losses) + 1) - WINDOW])


def test_a_setting_whose_repeats_tell_no_interval_is_not_distinguishable_and_the_others_are() -> None:
    best, unsure, slow = (
        SettingCost(TrainingSetting("lenet", threads=threads), 2, "ok", None, {SPEED: speed})
        for threads, speed in ((1, Estimate(100.0, 95.0, 105.0)), (2, Estimate(60.0)), (3, Estimate(50.0, 48.0, 52.0)))
    )
    assert best_settings([best, unsure, slow]) == [BestSetting(SPEED, best, (unsure,))]


def test_every_round_has_every_setting_once() -> None:
    settings = [TrainingSetting("net", batch=batch) for batch in (1, 2, 3)]
    order = in_rounds(settings, 3, seed=0)
    assert [repeat for _, repeat in order] == [0] * 3 + [1] * 3 + [2] * 3
    assert {setting for setting, _ in order[:3]} == set(settings)
    assert len(set(order)) == 9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"repeats": 0}, "--repeats 0"), ({"steps": 0}, "--steps 0"), ({"seconds": -1.0}, "--seconds -1"),
        ({"steps": 5, "seconds": 2.0}, "both end"), ({"simulate": "tx3"}, "simulated board"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_kept_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        BatchSweep("lenet", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"optimizer": "adamm"}, {"precision": "fp8"}, {"batch": 0}, {"threads": 0}, {"device": "tpu"}]
)
def test_settings_that_do_not_exist_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        BatchSweep("lenet", **options).checked()  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_real_training_of_two_settings_from_the_command_line(stepscope_cli: CommandLine, tmp_path: Path) -> None:
    command = ("study", "precision", "lenet", "--precisions", "fp32", "--batch", "2", "--steps", "12", "--repeats", "1")
    done = stepscope_cli(*command, "--threads", "1", "--out", "study")
    assert done.returncode == 0, done.stderr
    assert "throughput" in done.stdout
    assert (tmp_path / "study" / "page.html").exists()
    refused = stepscope_cli("study", "batch", "lenett")
    assert refused.returncode == 2
    assert "lenet" in refused.stderr


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ({1: 50, 8: 96, 64: 100}, "From batch 8 on, throughput is within 5% of the highest."),
        (
            {1: 50, 8: 100, 32: 97, 64: 60},
            "At batch 8 throughput is within 5% of the highest, and lower again at batch 64.",
        ),
        ({1: 97, 8: 80, 64: 100}, "At batch 1 throughput is within 5% of the highest, and lower again at batch 8."),
    ],
)
def test_a_larger_batch_that_is_slower_again_is_named(speeds: dict[int, float], said: str) -> None:
    assert _smallest_saturating_batch(_costs(speeds, 2, 1.0)) == said


def _costs(speeds: dict[int, float], repeats: int, half: float) -> list[SettingCost]:
    return [
        SettingCost(
            TrainingSetting("net", batch=batch), repeats, "ok", None,
            {SPEED: Estimate(speed, max(0.0, speed - half), speed + half)},
        )
        for batch, speed in speeds.items()
    ]  # fmt: skip


def test_from_which_batch_on_it_is_fast_is_said_where_the_intervals_tell() -> None:
    speeds = {1: 50.0, 8: 96.0, 64: 100.0}
    within = "throughput is within 5% of the highest"
    said = f"Cannot tell from which batch on {within}: the CI of batch 1 reaches it as well."
    assert _smallest_saturating_batch(_costs(speeds, 2, 60.0)) == said
    assert _smallest_saturating_batch(_costs(speeds, 1, 1.0)) == said  # of one run the interval is of its own steps
    largest_is_fastest = {1: 50.0, 8: 60.0, 64: 100.0}
    assert _smallest_saturating_batch(_costs(largest_is_fastest, 2, 1.0)) == ""


def test_a_single_repeat_names_no_best_and_flags_that_differ_are_a_range() -> None:
    assert [best.alike for best in best_settings(_costs({1: 50.0, 8: 96.0}, 1, 1.0), [SPEED])] == [None]
    assert [best.alike for best in best_settings(_costs({1: 50.0, 8: 96.0}, 2, 1.0), [SPEED])] == [()]
    load, setting = "background CPU load of {} cores", TrainingSetting("net")
    flagged = [TrainingRun(setting, n, "ok", flags=(load.format(cores),)) for n, cores in enumerate((1.6, 1.1, 1.3))]
    notes = list(_limit_notes(axis_sweep("batch", "net"), [], flagged, TrainingRules()))
    assert f"3 of 3 runs: {load.format('between 1.1 and 1.6')}" in notes
    assert _flag_summary([load.format(1.6)] * 2) == load.format(1.6)


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("device_name", "another board", r'device: ".+" -> "another board"'),
        ("versions", {"torch": "0.4"}, r'torch: ".+" -> "0.4"'),
    ],
)
def test_a_study_does_not_go_on_with_another_device_or_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: object, said: str
) -> None:
    asked = replace(BATCHES, batch=(4,), repeats=1)
    answer_study(asked, tmp_path, child=CHILD)
    monkeypatch.setattr(f"stepscope.experiments.engine.engine.{name}", lambda: other)
    with pytest.raises(UsageError, match=said) as refused:
        answer_study(asked, tmp_path, child=CHILD)
    assert "--out DIR" in str(refused.value.hint)
    begun = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    for key in ("device", "accelerators", "versions"):  # as an earlier version of Stepscope wrote it
        del begun[key]
    (tmp_path / "study.json").write_text(json.dumps(begun), encoding="utf-8")
    told = list[str]()
    answer_study(asked, tmp_path, child=CHILD, watch=_counting(told))
    assert told == []


def test_an_optimizer_of_another_family_gets_no_betas() -> None:
    rules = with_every_optimizer(workloads.find("dcgan-32")).hyperparameters
    assert {"betas", "lr"} <= rules["adam"].keys()
    assert rules["adagrad"].keys() == rules["adafactor"].keys() == {"lr"}


def test_a_training_may_take_as_long_as_its_seconds_and_a_target_has_none() -> None:
    assert BatchSweep("lenet", seconds=1800.0).rules.time_limit_s > 3600
    assert BatchSweep("lenet").rules.time_limit_s == 900
    with pytest.raises(UsageError, match="--seconds ends no training that has a --target"):
        BatchSweep("lenet", target=0.5, seconds=30.0)


def test_a_training_that_ends_by_steps_has_an_hour_and_an_option_gives_more() -> None:
    assert OptimizerSweep("resnet50-c32").rules.time_limit_s == 3600
    assert BatchSweep("lenet", target=0.5).rules.time_limit_s == 3600
    assert BatchSweep("lenet", seconds=1800.0, time_limit=3 * 3600.0).rules.time_limit_s == 3 * 3600
    assert Breakdown(("lenet",), time_limit=2 * 3600.0).rules.time_limit_s == 2 * 3600


@pytest.mark.parametrize("request_type", [BatchSweep, PartialTraining, DailyTraining, Observations, Paper2019])
def test_another_time_limit_goes_on_with_a_begun_folder(request_type: type[StudyRequest]) -> None:
    settings = {"workload": "lenet"} if request_type in (BatchSweep, PartialTraining, DailyTraining) else {}
    requests = [request_type.from_settings({**settings, "time_limit": limit}) for limit in ("1h", "3h")]
    assert requests[0].to_dict() == requests[1].to_dict()
    assert "--time-limit 10800" in requests[1].command_line("stepscope")


@pytest.mark.parametrize(("half", "repeats", "unsure"), [(1.0, 2, ""), (40.0, 2, "4, 8, 16"), (1.0, 1, "4, 8, 16")])
def test_a_throughput_near_the_highest_by_its_mean_alone_is_said_so(half: float, repeats: int, unsure: str) -> None:
    text = _smallest_saturating_batch(_costs({4: 100, 8: 102, 16: 101}, repeats, half))
    within = "From batch 4 on, throughput is within 5% of the highest"
    assert text == (f"{within} by the means alone (CIs of batch {unsure})." if unsure else f"{within}.")
