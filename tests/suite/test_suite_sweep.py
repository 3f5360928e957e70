"""The loop of a sweep: whatever becomes of a run is a result, and nothing that has ended is run again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.suite.small_sweeps import CHILD, small_sweep, started, statuses

from stepscope.api.study import sweep_progress
from stepscope.errors import OutputNotWritable
from stepscope.experiments.engine.engine import ProgressCallbacks
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.sweep_points import SweepPoint
from stepscope.experiments.suite import sweep
from stepscope.experiments.suite.sweep import run_missing_points, skip_result, time_left_s
from stepscope.runfolder import RunWriter


def _only(folder: SweepFolder) -> Mapping[str, Any]:
    return run_missing_points(folder, CHILD)[folder.order[0].id]


@pytest.mark.parametrize(
    ("workload", "status", "reason"),
    [
        ("oom", "oom", "can't allocate memory"),
        ("starved", "oom", "bad_alloc"),
        ("killed", "killed", "SIGKILL from outside"),
        ("broken", "crashed", "RuntimeError: nothing is known of broken"),
        ("missing", "not installed", "pip install 'stepscope[atari]'"),
    ],
)
def test_a_run_that_goes_wrong_is_a_result_with_a_reason(
    workload: str, status: str, reason: str, tmp_path: Path
) -> None:
    result = _only(small_sweep(tmp_path / "s", workload))
    assert result["status"] == status
    assert reason in result["reason"]


def test_a_run_that_hangs_is_ended_at_the_time_limit(tmp_path: Path) -> None:
    result = _only(small_sweep(tmp_path / "s", "hang", time_limit_s=0.05))
    assert (result["status"], result["reason"]) == ("timeout", "did not end within 0.05 s")


def test_larger_batches_than_one_that_did_not_fit_are_skipped_and_say_so(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s", "oom-from-4", batches=(1, 2, 4, 8, 16), repeats=2)
    ended = run_missing_points(folder, CHILD)
    by_batch: dict[int, set[str]] = {}
    for result in ended.values():
        by_batch.setdefault(result["point"]["batch"], set()).add(result["status"])
    assert (by_batch[1], by_batch[2]) == ({"ok"}, {"ok"})
    assert by_batch[4] | by_batch[8] | by_batch[16] == {"oom", "would not fit"}
    skipped = [result for result in ended.values() if result["status"] == "would not fit"]
    assert all("ran out of memory" in result["reason"] for result in skipped)
    tried = {point.id: point for point in folder.order}
    failed = [batch for name in started(folder) if (batch := tried[name].batch or 0) >= 4]
    assert failed == sorted(failed, reverse=True), "after one that failed only smaller ones are tried"


@pytest.mark.parametrize("status", ["killed", "timeout"])
def test_one_run_that_was_killed_or_slow_says_nothing_of_its_own_repeats(status: str) -> None:
    first, again, larger = (
        SweepPoint("lenet", batch, "sgd", "fp32", 1, "cpu", repeat) for batch, repeat in ((8, 0), (8, 1), (16, 0))
    )
    order, ended = [first, again, larger], {first.id: {"status": status}}
    assert skip_result(again, order, ended) is None
    assert (skip_result(larger, order, ended) or {})["status"] == "would not fit"
    script, repeated = (SweepPoint("train.py", None, "own", "fp32", None, "cpu", repeat) for repeat in (0, 1))
    skipped = skip_result(repeated, [script, repeated], {script.id: {"status": "oom"}}) or {}
    assert skipped["reason"] == "train.py ran out of memory"


def test_a_crash_says_nothing_about_larger_batches(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s", "broken", batches=(1, 2))
    assert {result["status"] for result in run_missing_points(folder, CHILD).values()} == {"crashed"}


def test_an_interrupted_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    folder, whole = (small_sweep(tmp_path / name, "ok", "oom", batches=(1, 2), repeats=2) for name in ("a", "b"))

    def interrupted(point: SweepPoint, place: int, count: int, result: Mapping[str, Any]) -> None:
        if place == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_missing_points(folder, CHILD, ProgressCallbacks(ends=interrupted))
    before = started(folder)
    run_missing_points(SweepFolder(folder.path), CHILD)
    run_missing_points(whole, CHILD)
    assert statuses(folder) == statuses(whole)
    assert started(folder) == started(whole), "nothing is run twice"
    assert started(folder)[: len(before)] == before


def test_a_run_that_ended_while_the_sweep_was_killed_is_kept(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s")
    writer = RunWriter.create(folder.run_folder(folder.order[0]), "ok")
    writer.close("ok")
    assert _only(folder)["run"] == str(writer.path.relative_to(folder.path))
    assert started(folder) == []


def test_a_run_that_had_not_ended_is_run_again(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s")
    broken_off = RunWriter.create(folder.run_folder(folder.order[0]), "ok")
    assert _only(folder)["status"] == "ok"
    assert len(started(folder)) == 1
    assert not broken_off.path.exists()


def test_killed_at_several_points_and_resumed_the_table_is_that_of_an_undisturbed_sweep(tmp_path: Path) -> None:
    folder, whole = (small_sweep(tmp_path / name, "ok", "oom", batches=(1, 2, 4), repeats=3) for name in ("a", "b"))
    for wanted in (1, 6):
        _sweep_until_killed(folder, wanted)
    run_missing_points(SweepFolder(folder.path), CHILD)
    run_missing_points(whole, CHILD)
    assert statuses(folder) == statuses(whole)
    assert set(started(folder)) == set(started(whole))
    assert len(started(folder)) <= len(started(whole)) + 2, "only what was being run when it was killed is run again"


def _sweep_until_killed(folder: SweepFolder, wanted: int) -> None:
    """Run it in a process of its own and kill that once so many runs have ended."""
    process = subprocess.Popen([sys.executable, "-m", "tests.suite.small_sweeps", str(folder.path)])
    while len(folder.results()) < wanted and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def test_a_child_that_met_a_full_disk_stops_the_sweep_and_is_run_again(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s", "disk")
    with pytest.raises(OutputNotWritable, match="is full"):
        run_missing_points(folder, CHILD)
    assert folder.results() == {}


def test_a_sweep_does_not_begin_a_run_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    folder = small_sweep(tmp_path / "s")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1))
        with pytest.raises(OutputNotWritable, match="is full"):
            run_missing_points(folder, CHILD)
    assert _only(SweepFolder(folder.path))["status"] == "ok"


def test_each_run_is_told_in_a_line_where_nobody_watches_live(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_sweep(tmp_path / "s", "ok", "missing")
    with sweep_progress(folder, enabled=True) as watch:
        run_missing_points(folder, CHILD, watch)
    lines = sorted(line.partition(" ")[2] for line in capsys.readouterr().err.splitlines())
    assert lines[0].startswith("missing batch 2 sgd, repeat 1: not installed: needs x")
    assert lines[1].startswith("ok batch 2 sgd, repeat 1: ok")


def test_the_time_left_is_forecast_between_the_runs_and_not_while_one_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, forecasts = small_sweep(tmp_path / "s", batches=(1, 2)), list[int]()
    monkeypatch.setattr(sweep, "time_left_s", lambda order, ended: forecasts.append(len(ended)))
    with sweep_progress(folder, enabled=True) as watch:
        for place, point in enumerate(folder.order):
            watch.begins(point, place, 2)
            for _ in range(5):
                watch.ticks()
            watch.ends(point, place, 2, {"status": "ok", "numbers": {}})
    assert forecasts == [0, 1, 2]


def test_the_time_left_comes_from_the_runs_that_are_alike() -> None:
    small, large, other = (
        SweepPoint(name, batch, "sgd", "fp32", 1, "cpu", 0) for name, batch in (("a", 1), ("a", 8), ("b", 1))
    )
    again = SweepPoint("a", 1, "sgd", "fp32", 1, "cpu", 1)
    ended = {small.id: {"total_s": 2.0}, other.id: {"total_s": 10.0}}
    assert time_left_s([small, again, other], ended) == 2.0
    assert time_left_s([small, other, large], ended) == 2.0
    assert time_left_s([small, again], {}) is None
    assert time_left_s([small, other], ended) == 0.0
