"""The tables and figures of the 2019 paper: what fits, beside the paper's marks, and its points beside own ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.studies.tx2_board import Behaviour, board_runs, days, memory

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.observations import Observations
from stepscope.experiments.observations._evidence import gather_evidence
from stepscope.experiments.observations.study import build_findings, paper_points
from stepscope.experiments.paper_2019 import BATCHES, MODELS, Paper2019, count_model, paper_findings
from stepscope.report.charts.observations import paper_charts

FITS, CLOSE, NONE = "likely fits", "too close", "does not fit"


def results(largest: dict[str, int]) -> dict[str, dict[str, Any]]:
    """What the dry runs gave: models that fit up to a batch, 64 where nothing else is said; crosses none."""
    found = {}
    for model in MODELS:
        most = largest.get(model.name, 64 if model.trained else 0)
        verdicts = {str(batch): FITS if batch <= most else NONE for batch in BATCHES}
        counted = {"verdicts": verdicts, "sure": most, "likely": most, "live": 1e9, "low": 1.1e9, "high": 1.4e9}
        found[f"fit-{model.workload}"] = {"status": "ok", "reason": None, **counted}
    return found


def tables(largest: dict[str, int]) -> dict[str, dict[Any, tuple[Any, ...]]]:
    findings = paper_findings(Paper2019(), results(largest), None)
    return {table.name: {row[0]: row for row in table.rows} for table in findings.tables}


def test_there_are_ten_models_and_six_crosses_each_with_a_workload() -> None:
    from stepscope import workloads

    known = {workload.name for workload in workloads.every()}
    assert [model.trained for model in MODELS].count(True) == 10
    assert len(MODELS) == 16
    assert {name for model in MODELS for name in (model.workload, model.small) if name} <= known
    assert len({point.id for point in Paper2019(small=True).points()}) == 16


def test_a_board_that_behaves_as_in_the_paper_gives_its_table() -> None:
    found = tables({})
    assert {row[4] for row in found["feasibility"].values()} == {"as the paper"}
    assert [row[1] for row in found["statements"].values()] == ["holds"] * 3
    assert found["batches"]["VGG16"][1:] == ("likely",) * 7 + ("no",) * 2


def test_a_single_model_that_differs_is_named_and_is_enough_against_what_is_said_of_all() -> None:
    found = tables({"VGG16": 32, "BERT": 4, "AlexNet": 256})
    assert found["feasibility"]["VGG16"][4] == "differs: likely up to batch 32"
    assert found["feasibility"]["BERT"][4] == "differs: likely up to batch 4"
    said = {row[0]: row[1:] for row in found["statements"].values()}
    assert said["ten models train with a batch of 64"] == ("does not hold", "too large: VGG16")
    assert said["six models cannot be trained"] == ("does not hold", "likely to fit: BERT")
    assert said["with 128 and 256 all models run out of memory"] == ("does not hold", "likely to fit: AlexNet")


def test_what_is_too_close_or_was_not_counted_is_neither() -> None:
    given = results({})
    given["fit-vgg16-224"]["verdicts"]["64"] = CLOSE
    given["fit-bert-base-384"] = {"status": "refused", "reason": "fake tensors stopped"}
    findings = paper_findings(Paper2019(), given, None)
    rows = {row[0]: row for table in findings.tables for row in table.rows}
    assert rows["ten models train with a batch of 64"][1] == "cannot tell"
    assert "1 too close to tell" in findings.answer
    assert any("fake tensors stopped" in note for note in findings.notes)


def test_a_model_counted_on_dry_runs_has_verdicts_that_agree_with_its_largest_batch() -> None:
    found = count_model({"workload": "alexnet-224", "board": "jetson-tx2", "memory": 4e9, "batches": [64, 1024]})
    assert 1 <= found["sure"] < found["likely"] < 1024
    for batch, verdict in found["verdicts"].items():
        if int(batch) <= found["sure"]:
            assert verdict == FITS
        if int(batch) > found["likely"]:
            assert verdict in (CLOSE, NONE)
    assert found["verdicts"]["1024"] == NONE
    assert found["live"] < found["low"] < found["high"]


def test_an_unknown_board_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="unknown board 'tx9'"):
        Paper2019(board="tx9").checked()


def test_the_longer_plans_train_besides_and_the_dry_one_does_not() -> None:
    assert len(Paper2019().plan().points) == 16
    hour = Paper2019(plan_="hour", device="cpu", threads=1).plan().points
    trained = [point for point in hour if point.task.endswith(":train_run")]
    assert len(trained) == 4 * 3 * 4
    assert [point for point in hour if point.timed] == trained
    assert len({point.id for point in hour}) == len(hour)


def test_figures_have_the_paper_s_points_beside_own_ones(tmp_path: Path) -> None:
    runs = board_runs(tmp_path, Behaviour(), repeats=1)
    drawn = memory().with_columns(workload=pl.lit("densenet40-12-c32"))
    evidence = gather_evidence(runs, {"memory": drawn, "days": days(0.001)}, {})
    findings = build_findings(evidence, runs, Observations(device="cpu"), [])
    counted = paper_findings(Paper2019(), results({}), findings)
    charts = paper_charts(counted.frames)
    assert next(iter(charts)) == "paper-feasibility"
    for name in ("figure-4-use-by-batch", "figure-8-throughput-by-batch", "figure-10-accuracy-by-day"):
        assert "(2019 paper)" in charts[name][0](800).to_json()
    assert '"rule"' in charts["figure-7-power-over-steps"][0](800).to_json()
    assert "in which it does nothing" in charts["figure-5-cores-by-batch"][0](800).to_json()
    beside = {row[:3]: row[3:5] for table in counted.tables if table.name == "points" for row in table.rows}
    assert beside["figure 9", "DenseNet40", 64] == (5900.0, 16.0)
    assert beside["figure 8", "ResNet50", 4] == (9.0, None)
    assert len(paper_points()) == len(beside)


def test_a_model_that_fits_at_a_small_batch_is_no_cross_whatever_batches_are_asked_for() -> None:
    asked = Paper2019(batch=(64,))
    counted = {str(batch) for batch in asked.points()[0].orders["batches"]}
    given = results({"BERT": 4})
    for found in given.values():
        found["verdicts"] = {batch: verdict for batch, verdict in found["verdicts"].items() if batch in counted}
    findings = paper_findings(asked, given, None)
    rows = {table.name: {row[0]: row for row in table.rows} for table in findings.tables}
    assert rows["feasibility"]["BERT"][4] == "differs: likely up to batch 4"
    assert rows["statements"]["six models cannot be trained"][1:] == ("does not hold", "likely to fit: BERT")
    assert rows["batches"]["BERT"] == ("BERT", "no")


def test_runs_that_are_given_are_judged_by_the_paper_s_rankings_and_points(tmp_path: Path) -> None:
    runs = board_runs(tmp_path, Behaviour(), repeats=1)
    asked = Paper2019(from_=(tmp_path,)).observations_request
    assert asked is not None
    findings = build_findings(gather_evidence(runs, {}, {}), runs, asked, [])
    assert {"rankings", "points"} <= {table.name for table in findings.tables}
    few = build_findings(gather_evidence(runs, {}, {}), runs, Observations(only=(1, 2), device="cpu"), [])
    assert not {"rankings", "points"} & {table.name for table in few.tables}


def test_a_model_that_could_not_be_counted_keeps_what_is_said_of_all_open() -> None:
    lost = results({})
    lost[f"fit-{MODELS[0].workload}"] = {"status": "failed", "reason": "killed"}
    findings = paper_findings(Paper2019(), lost, None)
    said = {row[0]: row[1:] for table in findings.tables if table.name == "statements" for row in table.rows}
    open_ = said["ten models train with a batch of 64" if MODELS[0].trained else "six models cannot be trained"]
    assert open_ == ("cannot tell", f"too close, or not counted: {MODELS[0].name}")


def test_what_was_counted_for_a_board_is_said_of_that_board_alone() -> None:
    findings = paper_findings(Paper2019(board="jetson-tx2"), results({}), None)
    assert findings.title == "The 2019 paper for NVIDIA Jetson TX2"
    assert findings.device == "NVIDIA Jetson TX2, its memory alone"
    assert "10 likely fit a NVIDIA Jetson TX2 (8.59 GB)" in findings.answer
    assert "here" not in findings.answer
    assert not any("here" in column for table in findings.tables for column in table.columns)


def test_a_plan_that_trains_nothing_simulates_no_sensors() -> None:
    with pytest.raises(UsageError, match="--simulate belongs to a plan that measures"):
        Paper2019(simulate="jetson-tx2")
    assert Paper2019(plan_="hour", simulate="jetson-tx2").simulate == "jetson-tx2"
