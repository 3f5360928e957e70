"""The study of the observations as a whole: measured once, gone on with, taken from a sweep, shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import CommandLine
from tests.fabricate import STEP, fabricate_run

from stepscope.errors import RunNotFound, UnknownName, UsageError
from stepscope.experiments.engine.engine import Point, ProgressCallbacks, answer_study
from stepscope.experiments.observations import PAPER_WORKLOADS, QUICK_WORKLOADS, Observations
from stepscope.experiments.observations._measurements import (
    planned_measurements,
    runs_in,
)
from stepscope.report.charts.observations import observation_charts
from stepscope.report.study_results import render, save_figures

CHILD = (sys.executable, str(Path(__file__).parent / "observations_child.py"))
SMALL = Observations(
    workloads=("net",), batch=(4, 64), repeats=1, device="cpu", threads=1, days=3, day_batches=(16,), day_seeds=3
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study, made as far as it goes."""
    out = tmp_path_factory.mktemp("study") / "small"
    stopped = _interrupted_at(2)
    with pytest.raises(KeyboardInterrupt):
        answer_study(SMALL, out, child=CHILD, watch=stopped)
    assert len(list((out / "cells").glob("*.json"))) == 2
    answer_study(SMALL, out, child=CHILD)
    return out


def _interrupted_at(which: int) -> ProgressCallbacks:
    def begins(point: Point, place: int, count: int) -> None:
        if place == which:
            raise KeyboardInterrupt

    return ProgressCallbacks(begins=begins)


def _counting(begun: list[str]) -> ProgressCallbacks:
    return ProgressCallbacks(begins=lambda point, place, count: begun.append(point.title))


def test_an_interrupted_study_goes_on_and_nothing_is_measured_twice(folder: Path) -> None:
    begun: list[str] = []
    findings = answer_study(SMALL, folder, child=CHILD, watch=_counting(begun))
    assert begun == []
    assert [row[0] for row in findings.tables[0].rows] == list(range(1, 13))
    assert "hold here" in findings.answer


def test_what_was_lost_is_measured_again(folder: Path) -> None:
    lost = folder / "cells" / "days-b16-s1.json"
    lost.write_text("{ broken")
    begun: list[str] = []
    answer_study(SMALL, folder, child=CHILD, watch=_counting(begun))
    assert begun == ["3 days of 64 images, batch 16, seed 1"]


def test_other_settings_in_the_same_folder_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="repeats: 1 -> 2"):
        answer_study(replace(SMALL, repeats=2), folder, child=CHILD)


def test_the_findings_state_tests_and_limits_and_why_not(folder: Path) -> None:
    findings = answer_study(SMALL, folder, child=CHILD)
    verdicts = {row[0]: row[2] for row in findings.tables[0].rows}
    assert verdicts[9] == "holds"
    assert verdicts[12] == "holds"
    assert {verdicts[6], verdicts[7], verdicts[8]} == {"cannot be judged"}
    tables = {table.name: table.rows for table in findings.tables}
    tests = {(row[0], row[1]): row for row in tables["tests"]}
    assert "no batch size has two runs" in str(tests[10, "samples a second grow with the batch"][-1])
    assert [row[2:4] for row in tables["models"] if row[0] == 10] == [("net", "cannot be judged")]
    assert all(row[3] for row in tables["methods"])
    assert any("run once" in note for note in findings.notes)
    assert not json.loads(findings.to_json())["simulated"]


def test_every_figure_that_has_numbers_is_written_in_every_form_and_is_on_the_page(
    folder: Path, tmp_path: Path
) -> None:
    findings = answer_study(SMALL, folder, child=CHILD)
    drawn = observation_charts(findings.frames)
    assert {"figure-3-use-over-steps", "figure-8-throughput-by-batch", "figure-10-accuracy-by-day"} <= set(drawn)
    assert not {"figure-6-energy-by-batch", "figure-7-power-over-steps"} & set(drawn)
    paths = save_figures(drawn, tmp_path, findings.title, ("svg",))
    assert all(path.stat().st_size > 1000 for path in paths)
    page = render(findings, drawn)
    assert "Figure 9" in page
    assert "cannot be judged" in page


def test_a_run_that_finds_no_memory_is_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    asked = replace(SMALL, workloads=("net", "large"), only=(9, 10))
    findings = answer_study(asked, tmp_path / "study", child=CHILD)
    assert any("large batch 64" in note and "7 GB were asked for" in note for note in findings.notes)
    assert [row[0] for row in findings.tables[0].rows] == [9, 10]
    parts = [row for row in next(table for table in findings.tables if table.name == "tests").rows if row[0] == 9]
    assert [row[2] for row in parts] == ["holds"] * 3 + ["cannot be judged"]
    assert "memory of large" in str(parts[-1][-1])


def test_a_study_of_which_nothing_came_out_says_so_and_judges_nothing(tmp_path: Path) -> None:
    findings = answer_study(replace(SMALL, workloads=("large",), only=(1, 9, 11)), tmp_path / "study", child=CHILD)
    assert {row[2] for row in findings.tables[0].rows} == {"cannot be judged"}
    assert len(findings.notes) == 3
    assert not observation_charts(findings.frames)


def test_runs_of_a_sweep_are_taken_instead_of_made(tmp_path: Path) -> None:
    for batch in (4, 16, 64) * 2:
        header = {"workload": {"name": "net", "batch_size": batch, "device": "cpu"}, "threads": 1}
        fabricate_run(tmp_path / "runs", steps=12, ops=STEP[:1], residual_us=30_000, batch=batch, header=header)
    fabricate_run(tmp_path / "runs", steps=3, status="failed")
    begun: list[str] = []
    asked = replace(SMALL, from_=(tmp_path / "runs",), only=(10,))
    findings = answer_study(asked, tmp_path / "study", child=CHILD, watch=_counting(begun))
    assert begun == []
    assert findings.tables[0].rows[0][2] == "holds"
    assert {row[1] for row in findings.tables[-1].rows} == {4, 16, 64}


def test_runs_with_another_optimizer_are_left_out_and_counted(tmp_path: Path) -> None:
    for batch, optimizer in ((4, "SGD"), (64, "SGD"), (64, "Adam")):
        workload = {"name": "net", "batch_size": batch, "device": "cpu", "optimizer": optimizer}
        fabricate_run(tmp_path / "runs", steps=12, ops=STEP[:1], header={"workload": workload, "threads": 1})
    asked = replace(SMALL, from_=(tmp_path / "runs",), only=(10,))
    findings = answer_study(asked, tmp_path / "study", child=CHILD)
    assert any(note.startswith("1 runs on other devices") for note in findings.notes)


@pytest.mark.parametrize(
    ("device", "header", "data"),
    [
        ({"board": "another board"}, {}, "mnist-5k"),
        ({}, {"simulated": "jetson-tx2"}, "mnist-5k"),
        ({}, {}, "synthetic"),
    ],
    ids=["another board", "simulated", "other data"],
)
def test_runs_of_another_board_or_data_set_are_no_repeats(
    tmp_path: Path, device: dict[str, str], header: dict[str, str], data: str
) -> None:
    def runs(count: int, name: str, of: dict[str, str], about: dict[str, str]) -> None:
        for batch in (4, 64) * count:
            workload = {"name": "net", "batch_size": batch, "device": "cpu", "data": {"name": name}}
            facts = {"workload": workload, "threads": 1, **about}
            fabricate_run(tmp_path / "runs", steps=12, ops=STEP[:1], batch=batch, header=facts, device=of)

    runs(2, "mnist-5k", {"board": "this board"}, {})
    runs(1, data, {"board": "this board", **device}, header)
    asked = replace(SMALL, from_=(tmp_path / "runs",), only=(10,))
    findings = answer_study(asked, tmp_path / "study", child=CHILD)
    assert any(note.startswith("2 runs on other devices") for note in findings.notes)


def test_a_folder_without_a_good_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no run that ended well"):
        runs_in(tmp_path)


def test_quick_is_small_and_the_paper_s_plan_is_whole() -> None:
    assert (
        len(planned_measurements(Observations(quick=True))) == len(QUICK_WORKLOADS) * 3 * 3 + len(QUICK_WORKLOADS) + 4
    )
    assert len(planned_measurements(Observations())) == len(PAPER_WORKLOADS) * 5 * 3 + len(PAPER_WORKLOADS) + 15
    assert len({cell.id for cell in planned_measurements(Observations())}) == len(planned_measurements(Observations()))


def test_repeats_lie_in_rounds() -> None:
    runs = [
        cell.orders
        for cell in planned_measurements(Observations(workloads=("a", "b"), batch=(1, 2), repeats=2))
        if cell.task.endswith(":train_run")
    ]
    assert {(each["workload"], each["batch"]) for each in runs[:4]} == {("a", 1), ("a", 2), ("b", 1), ("b", 2)}
    assert {each["seed"] for each in runs[:4]} == {0}


def test_bad_settings_are_refused_before_anything_runs() -> None:
    with pytest.raises(UnknownName, match="observation '13'"):
        Observations(only=(13,))
    with pytest.raises(UsageError, match="--seconds"):
        Observations(seconds=0)
    with pytest.raises(UsageError, match="--repeats"):
        Observations(repeats=0)


def test_the_command_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UnknownName, match="simulated board 'jetson-tx9'"):
        Observations(simulate="jetson-tx9", device="cpu").checked()
    with pytest.raises(UsageError, match="must be 1 or more"):
        Observations(batch="4,0", device="cpu").checked()  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--days"):
        Observations(days=0, device="cpu").checked()
    with pytest.raises(UnknownName, match="device"):
        Observations(device="gpu").checked()
    with pytest.raises(RunNotFound, match="no run that ended well"):
        Observations(from_=[Path("nowhere")], device="cpu").checked()  # type: ignore[arg-type]


def test_the_command_judges_the_runs_of_a_folder_and_writes_page_and_figures(
    stepscope_cli: CommandLine, tmp_path: Path
) -> None:
    for batch in (4, 64):
        workload = {"name": "net", "batch_size": batch, "device": "cpu"}
        fabricate_run(
            tmp_path / "runs", steps=12, ops=STEP[:1], batch=batch, header={"workload": workload, "threads": 1}
        )
    options = ("--from", "runs", "--only", "1,10", "--device", "cpu", "--out", "study")
    ended = stepscope_cli("study", "observations", *options)
    assert ended.returncode == 0, ended.stderr
    assert "Of 2 observations 2 cannot be judged (1, 10)" in ended.stdout
    for name in ("page.html", "findings.json", "figures/figure-8-throughput-by-batch.pdf"):
        assert (tmp_path / "study" / name).stat().st_size > 1000


def test_what_is_asked_for_twice_is_measured_once() -> None:
    asked = Observations(workloads=("lenet", "lenet"), batch=(4, 4, 16), day_batches=(16, 16), device="cpu")
    assert (asked.workloads, asked.batch, asked.day_batches) == (("lenet",), (4, 16), (16,))
    points = planned_measurements(asked)
    assert len({point.id for point in points}) == len(points)


def test_runs_in_another_power_mode_or_with_another_torch_are_no_repeats(tmp_path: Path) -> None:
    for batch, mode, torch in ((4, "MAXN", "2.13"), (64, "MAXN", "2.13"), (64, "MAXQ", "2.13"), (64, "MAXN", "2.9")):
        workload = {"name": "net", "batch_size": batch, "device": "cpu"}
        header = {"workload": workload, "threads": 1, "versions": {"torch": torch}}
        fabricate_run(tmp_path / "runs", steps=12, ops=STEP[:1], header=header, device={"power_mode": mode})
    asked = replace(SMALL, from_=(tmp_path / "runs",), only=(10,))
    findings = answer_study(asked, tmp_path / "study", child=CHILD)
    note = next(note for note in findings.notes if note.startswith("2 runs on other devices"))
    assert note.endswith("they differ in: power mode, torch")


def test_the_seed_of_the_trainings_is_that_of_the_days_too() -> None:
    assert Observations(device="cpu").daily.seeds == (0, 1, 2, 3, 4)
    assert Observations(device="cpu", seed=7).daily.seeds == (7, 8, 9, 10, 11)
