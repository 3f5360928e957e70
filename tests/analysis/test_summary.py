"""summary.json says what the tables say."""

from __future__ import annotations

import json
from pathlib import Path

from tests.fabricate import fabricate_run

from stepscope.analysis.run import Run
from stepscope.analysis.summary import is_summary_current, write_summary


def test_the_summary_holds_the_headline_with_units_and_intervals(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path))
    said = json.loads(write_summary(run).read_text())
    step = next(row for row in said["metrics"] if row["metric"] == "step_time")
    assert said["id"] == run.id
    assert said["verdict"]["sentence"] == run.verdict().sentence
    assert step["unit"] == "ns"
    assert step["low"] <= step["value"] <= step["high"]
    assert {"energy"} <= {entry["what"] for entry in said["not_measured"]}


def test_a_run_without_steps_has_a_summary_too(tmp_path: Path) -> None:
    said = json.loads(write_summary(Run(fabricate_run(tmp_path, steps=0))).read_text())
    assert said["steps"] == 0
    assert said["metrics"] == [] or all(row["metric"] != "step_time" for row in said["metrics"])


def test_a_summary_without_fits_names_what_it_leaves_out_and_is_made_whole_later(tmp_path: Path) -> None:
    run = Run(fabricate_run(tmp_path))
    brief = json.loads(write_summary(run, of_operators=False).read_text())
    assert brief["pending"] == ["energy_of_ops", "use_of_ops", "energy_notes"]
    assert brief["use_of_ops"] is None
    assert brief["metrics"]
    assert is_summary_current(run, of_operators=False)
    assert not is_summary_current(run)
    assert json.loads(write_summary(run).read_text())["pending"] == []
    assert is_summary_current(run)
