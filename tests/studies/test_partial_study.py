"""The study of partial training as a whole: made, gone on with, judged, drawn, refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from stepscope.analysis.estimate import Estimate
from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.child import run_task
from stepscope.experiments.engine.engine import SHARE, Point, ProgressCallbacks, answer_study, mean_of
from stepscope.experiments.partial import PartialTraining as Partial
from stepscope.experiments.partial.study import (
    PartialSetting,
    SettingOutcome,
    _answer,
    maybe_unbeaten,
    pareto_front,
    partial_plan,
    partial_settings,
)
from stepscope.report.charts.comparison import partial_charts
from stepscope.report.study_results import render, save_figures

CHILD = (sys.executable, str(Path(__file__).parent / "training_child.py"))
SMALL = Partial(ways=("all", "filters", "last"), fractions=(0.6, 1.0), seeds=2, steps=2)


def _counting(begun: list[str]) -> ProgressCallbacks:
    return ProgressCallbacks(begins=lambda point, place, count: begun.append(point.title))


def _column(rows: tuple[tuple[object, ...], ...], place: int) -> dict[object, object]:
    return {row[0]: row[place] for row in rows}


def test_an_interrupted_study_goes_on_with_the_trainings_that_are_left(tmp_path: Path) -> None:
    def stop(point: Point, place: int, count: int, result: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_study(SMALL, tmp_path / "s", child=CHILD, watch=ProgressCallbacks(ends=stop))
    ended = [path.stem for path in (tmp_path / "s/cells").glob("*.json")]
    assert ended == [partial_plan(SMALL).points[0].id]
    begun: list[str] = []
    answer_study(SMALL, tmp_path / "s", child=CHILD, watch=_counting(begun))
    assert begun == [point.title for point in partial_plan(SMALL).points[1:]]
    (tmp_path / "s/cells/all-s1.json").write_text("{ broken", encoding="utf-8")
    begun.clear()
    findings = answer_study(SMALL, tmp_path / "s", child=CHILD, watch=_counting(begun))
    assert begun == ["lenet: all, seed 1"]
    assert [row[0] for row in findings.tables[0].rows] == ["all", "filters 60 %", "last"]
    with pytest.raises(UsageError, match="seeds: 2 -> 3"):
        answer_study(replace(SMALL, seeds=3), tmp_path / "s", child=CHILD)


def test_the_findings_say_what_each_way_gives_costs_and_saves(tmp_path: Path) -> None:
    findings = answer_study(SMALL, tmp_path / "s", child=CHILD)
    ways, savings = findings.tables[0], findings.tables[1]
    assert _column(ways.rows, 3)["all"] == pytest.approx(90.5)
    assert _column(ways.rows, -1) == {"all": "time, peak", "filters 60 %": "time, peak", "last": "time, peak"}
    assert _column(savings.rows, 3)["last"] == pytest.approx(100 / 3)
    assert "energy J" not in ways.columns
    assert any(note.startswith("energy was not measured") for note in findings.notes)
    assert "Training all gives 90.5 %" in findings.answer
    drawn = partial_charts(findings.frames)
    assert set(drawn) == {"accuracy-and-cost", "accuracy-over-time", "savings"}
    assert all(path.stat().st_size > 1000 for path in save_figures(drawn, tmp_path, findings.title, ("svg",)))
    assert "What freezing saves" in render(findings, drawn)


def test_energy_of_a_simulated_board_has_a_column_of_its_own_and_a_figure(tmp_path: Path) -> None:
    findings = answer_study(replace(SMALL, simulate="jetson-tx2"), tmp_path / "s", child=CHILD)
    assert "simulated energy J" in findings.tables[0].columns
    assert "energy J" not in findings.tables[0].columns
    assert findings.simulated == "jetson-tx2"
    assert "accuracy-over-energy" in partial_charts(findings.frames)


def test_a_way_that_the_model_has_no_layers_for_is_said_and_a_failed_one_is_tried_again(tmp_path: Path) -> None:
    asked = replace(SMALL, ways=("all", "batch-norm", "layers"), fractions=(0.2,))
    findings = answer_study(asked, tmp_path / "s", child=CHILD)
    unmade = next(table for table in findings.tables if table.name == "unmade")
    assert unmade.rows[0] == ("batch-norm", "refused", "it has no batch normalisation")
    assert unmade.rows[1][:2] == ("layers 20 %", "oom")
    assert _column(findings.tables[0].rows, 1) == {"all": 2, "layers 20 %": 1}
    begun: list[str] = []
    answer_study(asked, tmp_path / "s", child=CHILD, watch=_counting(begun))
    assert begun == ["lenet: layers 20 %, seed 1"]


def test_where_nothing_could_be_trained_the_reason_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no batch normalisation"):
        answer_study(replace(SMALL, ways=("batch-norm",)), tmp_path / "s", child=CHILD)


def test_a_transfer_shows_what_is_forgotten(tmp_path: Path) -> None:
    findings = answer_study(replace(SMALL, transfer=True), tmp_path / "s", child=CHILD)
    before = next(table for table in findings.tables if table.name == "before")
    assert before.rows[0][4] == pytest.approx(90)
    assert before.rows[0][7] == pytest.approx(70)


def test_the_preset_is_compared_with_the_known_points(tmp_path: Path) -> None:
    findings = answer_study(Partial(preset="second-paper", seeds=2), tmp_path / "s", child=CHILD)
    known = next(table for table in findings.tables if table.name == "reference")
    assert set(_column(known.rows, -1)) == {"all", "filters 20 %", "filters 60 %", "cumulative 20 %", "cumulative 60 %"}
    assert _column(known.rows, -1)["cumulative 60 %"] == "differ"
    assert known.rows[0][4:6] == (86.1, 87.5)


def test_an_answer_claims_no_more_than_what_was_compared() -> None:
    alone, other = (replace(_outcome(way, 60, 2, 0), accuracy=Estimate(60.0)) for way in ("last", "bias"))
    assert _answer([alone]) == "last gives 60 % in 2 s; nothing else was measured to compare it with (--ways)."
    assert "For its time unbeaten: last (60.0 %), bias (60.0 %) by one seed." in _answer([alone, other])


def test_all_of_the_filters_is_the_same_training_as_all() -> None:
    asked = Partial(ways=("all", "filters", "bias"), fractions=(0.2, 1.0))
    assert [setting.id for setting in partial_settings(asked)] == ["all", "filters-20", "bias"]
    assert {"all-s4", "filters-20-s4", "bias-s4"} < {point.id for point in partial_plan(asked).points}


def test_a_point_is_unbeaten_where_nothing_is_better_at_both() -> None:
    ways = [
        _outcome("all", 50, 1, 0),
        _outcome("last", 60, 2, 0),
        _outcome("bias", 55, 2, 0),
        _outcome("lora", 60, 3, 0),
    ]
    assert pareto_front(ways, "time_s") == {"all", "last"}
    assert pareto_front([ways[0], replace(ways[1], time_s=ways[0].time_s, accuracy=ways[0].accuracy)], "time_s") == {
        "all", "last"
    }  # fmt: skip


def _outcome(way: str, percent: float, seconds: float, half: float, peak: float = 1e6) -> SettingOutcome:
    gain, time_s = (Estimate(value, value - half, value + half) for value in (percent, seconds))
    unknown = (None, None, None, None, peak, None)
    return SettingOutcome(PartialSetting(way, 1.0), (), gain, gain, time_s, time_s, *unknown, 1.0)


def test_a_way_that_is_beaten_within_the_intervals_alone_is_not_decided() -> None:
    ways = [_outcome("all", 90, 10, 0.5), _outcome("last", 60, 20, 0.5), _outcome("bias", 89.5, 10.2, 0.5)]
    assert pareto_front(ways, "time_s") == pareto_front(ways, "peak_mb") == {"all"}
    assert maybe_unbeaten(ways, "time_s") == maybe_unbeaten(ways, "peak_mb") == ["bias"]
    assert maybe_unbeaten([_outcome("all", 90, 10, 0.5), _outcome("last", 80, 9.8, 0.5, 2e6)], "peak_mb") == []
    alone = [replace(way, accuracy=Estimate(way.accuracy.value)) for way in ways]
    assert maybe_unbeaten(alone, "time_s") == ["last", "bias"], "one seed tells nothing"


def test_an_interval_stays_within_what_is_possible_and_needs_every_seed() -> None:
    found = mean_of([0.99, 0.80], 100, SHARE)
    assert found is not None
    assert found.high == 100
    assert found.low == 0
    assert mean_of([1.0, None]) is None
    alone = mean_of([1.0])
    assert alone is not None
    assert alone.low is None


def test_bad_settings_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="way 'lats'"):
        Partial(ways="lats")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--fractions"):
        Partial(fractions="120")  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="preset"):
        Partial(preset="first-paper")
    with pytest.raises(UsageError, match="fixes --lr"):
        Partial(preset="second-paper", lr=0.1)
    with pytest.raises(UsageError, match="no accuracy"):
        Partial("dcgan-32").checked()
    with pytest.raises(UsageError, match="--steps 0"):
        Partial(steps=0)
    with pytest.raises(UsageError, match="--seeds"):
        Partial(seeds=0)
    with pytest.raises(UnknownName, match="each"):
        Partial(each="hour")
    with pytest.raises(UsageError, match="not a whole number"):
        Partial(classes="a")  # type: ignore[arg-type]
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(UsageError, match="something else than tensors"):
        Partial(checkpoint=tmp_path / "list.pt").checked()
    with pytest.raises(UsageError, match="bring weights"):
        Partial(checkpoint=tmp_path / "list.pt", transfer=True)


def test_the_task_of_a_point_returns_its_curve_and_cost_or_says_why_not(tmp_path: Path) -> None:
    point = partial_plan(Partial(ways=("all",), seeds=1, steps=2)).points[0]
    orders = {**point.orders, "task": point.task, "out": str(tmp_path / "runs"), "study": str(tmp_path), "threads": 1}
    result = run_task(orders)
    assert [row["step"] for row in result["curve"]] == [0, 1, 2]
    assert result["cost"]["flops_backward"] > 0
    refused = run_task({**orders, "lesson": {**point.orders["lesson"], "way": "batch-norm"}})
    assert refused["status"] == "refused"
    assert "no batch normalisation" in refused["reason"]
    assert run_task({**orders, "workload": "dcgan-32"})["status"] == "refused"
