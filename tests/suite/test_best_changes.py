"""`suite run --tune`: what helps each setting of a sweep, beside its runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.store.command_line import exit_code
from tests.suite.small_sweeps import CHILD, entry
from tests.tune.fake_training import FakeTraining

import stepscope
from stepscope.errors import UsageError
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.sweep_points import Grid
from stepscope.experiments.suite import SuiteRun, best_changes
from stepscope.experiments.suite.best_changes import changes_table, tune_setting
from stepscope.experiments.suite.plan import sweep_rules
from stepscope.experiments.suite.results import results_of_folder
from stepscope.experiments.suite.rules import RunRules
from stepscope.experiments.suite.sweep import run_missing_points, time_left_s
from stepscope.experiments.tune.experiment import Tuning
from stepscope.report.suite_report import change_notes, markdown, render
from stepscope.report.suite_report import changes_table as drawn

ORDERS = {
    "workload": "lenet", "batch": 16, "optimizer": "momentum", "precision": "fp32", "threads": None, "device": "cpu",
    "repeat": 0, "rules": {"tune_s": 30.0},
}  # fmt: skip


def _tuned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ratios: dict[str, float], seconds: float = 1e6
) -> dict[str, Any]:
    """What the process that tunes returns for a training with planted step times."""

    def tuned(request: Any, folder: Path, show_progress: Any) -> tuple[Any, Tuning]:
        from stepscope.experiments.tune.judge import judge

        tuning = FakeTraining(ratios).tuning(seconds, only=tuple(ratios))
        return judge(tuning, "t"), tuning

    monkeypatch.setattr("stepscope.experiments.tune.tuning_folder.tune_in_folder", tuned)
    return tune_setting({**ORDERS, "out": str(tmp_path)})


def test_a_setting_has_its_best_changes_with_gain_and_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _tuned(monkeypatch, tmp_path, {"channels_last": 0.8, "fused": 0.9})
    assert set(found["changes"]) == {"channels_last", "fused"}
    assert found["checked"] == "yes"
    assert found["gain_percent_low"] < 28 < found["gain_percent_high"]
    assert found["step_ms"] == pytest.approx(found["as_is_ms"] * 0.72, rel=0.03)
    assert "torch.channels_last" in found["code"]["channels_last"]


def test_where_nothing_helps_there_is_no_change_and_where_that_is_not_clear_it_is_not_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert _tuned(monkeypatch, tmp_path, {"channels_last": 1.2})["changes"] == []
    unclear = _tuned(monkeypatch, tmp_path, {"channels_last": 0.8, "fused": 0.9}, 1e-6)
    assert "changes" not in unclear
    assert "--tune" in unclear["answer"]
    assert "--minutes" not in unclear["answer"]


def test_a_setting_of_lower_precision_is_not_tuned(tmp_path: Path) -> None:
    assert tune_setting({**ORDERS, "precision": "bf16", "out": str(tmp_path)})["status"] == "refused"


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("lenet", {"batch": 16, "optimizer": "momentum", "device": "cpu"}),
        ("mine:training", {"batch": 16, "optimizer": None, "device": None}),
        ("train.py", {"batch": None, "optimizer": None, "device": None}),
    ],
)
def test_what_a_training_decides_itself_is_not_asked_of_it(workload: str, expected: dict[str, Any]) -> None:
    request = best_changes._request({**ORDERS, "workload": workload, "threads": 2})
    assert {name: getattr(request, name) for name in expected} == expected
    assert (request.threads, request.minutes) == (2, 0.5)
    request.orders()


def test_tuning_lengthens_the_time_limit_and_excludes_a_limit_on_memory() -> None:
    plain, tuned = (sweep_rules(SuiteRun(("lenet",), tune=seconds)) for seconds in (None, 180))
    assert plain["tune_s"] is None
    assert tuned["tune_s"] == 180
    assert tuned["time_limit_s"] > plain["time_limit_s"] + 180
    assert tuned["seconds"] == plain["seconds"]
    with pytest.raises(UsageError, match="--tune trains in several"):
        SuiteRun(("lenet",), tune=180, memory=2_000_000_000)


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    """A sweep of two workloads in two repeats, of which one was tuned and the other's process had died."""
    entries = [entry("ok"), entry("tuned")]
    plan = {
        "name": "s", "created": "now", "tier": None, "device": {"cpu": "none"}, "versions": {}, "argv": [],
        "rules": asdict(RunRules(steps=6, time_limit_s=300.0, tune_s=60.0)), "limits": {"memory": None},
        "order": [point.to_dict() for point in Grid(repeats=2).points(entries, seed=0)],
    }  # fmt: skip
    folder = SweepFolder.create(tmp_path / "s", plan, entries)
    run_missing_points(folder, CHILD)
    return folder


def test_the_table_has_a_row_for_each_setting_and_says_why_one_has_no_answer(sweep: SweepFolder) -> None:
    table = changes_table(results_of_folder(SweepFolder(sweep.path)))
    assert table["workload"].to_list() == ["ok", "tuned"]
    assert table["changes"].to_list() == [None, "fused"]
    assert table["gain_percent"].to_list() == [None, 25.0]
    assert "ended without an answer" in table["answer"][0]
    assert stepscope.suite.changes(sweep.path).equals(table)
    assert change_notes(table) == [f"ok batch 2: {table['answer'][0]}"]
    assert "25.0 % [21.0, 29.0]" in str(drawn(table).rows)


def test_terminal_page_json_and_markdown_have_what_helps(
    sweep: SweepFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert exit_code(["suite", "show", str(sweep.path)]) == 0
    shown = capsys.readouterr().out
    assert "What to change" in shown
    assert "25.0 %" in shown
    assert "29.0]" in shown
    assert exit_code(["suite", "show", str(sweep.path), "--json"]) == 0
    assert [row["changes"] for row in json.loads(capsys.readouterr().out)["changes"]] == [None, "fused"]
    page = stepscope.suite.page(sweep.path).read_text()
    assert "torch.optim.SGD(..., fused=True)" in page
    text = stepscope.suite.export(sweep.path, "markdown", tmp_path / "s.md").read_text()
    assert "25.0 % [21.0, 29.0]" in text
    travelled = stepscope.suite.export(sweep.path, "result", tmp_path / "s.json")
    assert stepscope.suite.changes(travelled).equals(stepscope.suite.changes(sweep.path))


def test_a_sweep_that_tunes_nothing_has_no_such_table(sweep: SweepFolder, capsys: pytest.CaptureFixture[str]) -> None:
    content = {**results_of_folder(sweep).content}
    content["runs"] = [{name: value for name, value in run.items() if name != "tune"} for run in content["runs"]]
    empty = changes_table(type(results_of_folder(sweep))(content))
    assert empty.is_empty()
    table = stepscope.suite.table(sweep.path)
    assert "What to change" not in render("s", [], table, changes=empty)
    assert "What helps" not in markdown(table, "s", [], empty)
    assert isinstance(empty, pl.DataFrame)


def test_the_time_that_is_left_counts_tuning_in_first_repeats_alone(sweep: SweepFolder) -> None:
    first, *_ = [point for point in sweep.order if point.workload == "tuned" and point.repeat == 0]
    ended = {first.id: {"total_s": 65.0, "tune": {"wall_s": 60.0}}}
    left = time_left_s(sweep.order, ended)
    assert left == pytest.approx(5.0 + 65.0 + 5.0)
