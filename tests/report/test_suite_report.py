"""The page of a sweep: a row a setting, curves where there are several batches, names that stay text."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.__main__ import main
from stepscope.experiments.suite.results import KIND, Results, save_results, settings_table

pytest.importorskip("altair")
from stepscope.report import suite_report
from stepscope.units import number

HOSTILE = "<img src=x onerror=alert(1)>"


def results(*names: str, batches: tuple[int, ...] = (4, 8)) -> Results:
    runs = []
    for name in names:
        for batch in batches:
            point = {"workload": name, "batch": batch, "optimizer": "sgd", "precision": "fp32", "threads": None}
            numbers = {
                "step_time_ms": {"value": 10.0 * batch, "low": 9.0 * batch, "high": 11.0 * batch},
                "samples_per_s": {"value": 100.0 + batch, "low": 90.0, "high": 120.0},
            }
            runs.append({"point": {**point, "device": "cpu", "repeat": 0}, "status": "ok", "reason": None,
                         "numbers": numbers, "data": {"kind": "synthetic", "sha256": "abc"}})  # fmt: skip
    return Results(
        {
            "kind": KIND, "schema": 1, "name": "board", "created": "now", "tier": None, "rules": {"seed": 0},
            "limits": {"memory": None}, "device": {"cpu": "A57"}, "versions": {"torch": "2"},
            "workloads": {name: {"definition": {}, "about": {}} for name in names}, "runs": runs,
        }
    )  # fmt: skip


def test_an_interval_wider_than_its_value_has_both_ends() -> None:
    row = {"step_ms": 32.4, "step_ms_low": 1.4, "step_ms_high": 750.0}
    assert suite_report.with_interval(row, "step_ms", number) == "32.4 [1.4, 750]"
    assert suite_report.with_interval({**row, "step_ms_high": 63.4}, "step_ms", number) == "32.4 ±96%"


def test_every_setting_is_a_row_and_names_stay_text() -> None:
    frame = settings_table(results("lenet", HOSTILE))
    page = suite_report.render("my board", [("Sweep", "on a board")], frame, [f"{HOSTILE}: slow"])
    assert "<img src=x" not in page
    assert page.count("40 ±10%") == 2  # batch 4 of both
    assert "<svg" in page


def test_a_single_batch_draws_no_curve() -> None:
    page = suite_report.render("b", [], settings_table(results("lenet", batches=(4,))))
    assert 'id="batches"' not in page
    assert "lenet" in page


def test_scores_have_their_parts() -> None:
    part = {"workload": "lenet", "optimizer": "sgd", "precision": "fp32", "batch": 4, "reference": 10.0, "here": 5.0}
    parts = pl.DataFrame([{**part, "ratio": 2.0, "low": 1.9, "high": 2.1, "remark": None}])
    page = suite_report.render("b", [], settings_table(results("lenet")), scores=[("speed score 2", parts)])
    assert 'id="scores"' in page
    assert "speed score 2" in page


def exit_code(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)


def test_the_command_writes_the_page_of_a_result_file(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    save_results(results("lenet"), file)
    assert exit_code("suite", "show", str(file), "--html") == 0
    assert (tmp_path / "board.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert exit_code("suite", "show", str(file), "--html", "--json") == 2
