"""A sweep on disk: written as a whole or not at all, locked, and refused when a workload has changed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest
from tests.suite.small_sweeps import entry, small_sweep

from stepscope.errors import OutputNotWritable, RunDamaged, RunNotFound, SchemaTooNew, UsageError
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.files import replace_json


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    small_sweep(tmp_path / "s")
    with pytest.raises(UsageError, match="holds a sweep already") as refused:
        small_sweep(tmp_path / "s")
    assert "--resume" in str(refused.value.hint)


def test_what_has_ended_is_read_back_and_a_torn_file_counts_as_none(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s", batches=(1, 2))
    first, second = folder.order
    folder.store_result(first.id, {"status": "ok"})
    (folder.path / "points" / f"{second.id}.json").write_text('{"status": "o')
    assert SweepFolder(folder.path).results() == {first.id: {"status": "ok"}}


def test_two_processes_cannot_run_the_same_sweep(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s")
    with folder.locked(), pytest.raises(UsageError, match="another process"), SweepFolder(folder.path).locked():
        pass
    with SweepFolder(folder.path).locked():
        pass


def test_a_child_of_a_killed_process_that_is_about_to_become_another_program_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between fork and exec it has the lock as well; the killed process let go of it."""
    folder, lock, refusals = small_sweep(tmp_path / "s"), fcntl.flock, [BlockingIOError()] * 3

    def held_at_first(number: int, how: int) -> None:
        if refusals:
            raise refusals.pop()
        lock(number, how)

    monkeypatch.setattr(fcntl, "flock", held_at_first)
    with folder.locked():
        assert not refusals


def test_a_changed_definition_is_refused_with_the_difference(tmp_path: Path) -> None:
    folder = small_sweep(tmp_path / "s")
    folder.refuse_changes([entry()])
    changed = entry(parameters=9)
    with pytest.raises(UsageError) as refused:
        folder.refuse_changes([type(changed)(**{**vars(changed), "source": "line 1\nline 2\n"})])
    assert "ok: parameters: 7 -> 9" in str(refused.value)
    assert "+line 2" in str(refused.value)
    with pytest.raises(UsageError, match="no longer among the workloads"):
        folder.refuse_changes([])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_refusal_that_says_how_to_go_on(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_sweep(tmp_path / "s")

    def full(*_: object) -> None:
        raise OSError(number, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputNotWritable, match="is full") as refused:
        folder.store_result(folder.order[0].id, {"status": "ok"})
    assert f"--resume --out {folder.path}" in str(refused.value.hint)
    assert not list((folder.path / "points").iterdir()), "no part is left behind"


def test_a_sweep_that_cannot_begin_for_a_full_disk_does_not_speak_of_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputNotWritable, match="no sweep was begun") as refused:
        small_sweep(tmp_path / "s")
    assert "--resume" not in str(refused.value.hint)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    replace_json(path, {"a": 1}, durable=True)
    replace_json(path, {"a": 2}, durable=True)
    assert json.loads(path.read_text()) == {"a": 2}
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_what_is_no_sweep_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no sweep in"):
        SweepFolder(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunDamaged, match="cannot be read"):
        SweepFolder(tmp_path)
    (tmp_path / "sweep.json").write_text('{"schema": 99}')
    with pytest.raises(SchemaTooNew):
        SweepFolder(tmp_path)
    (tmp_path / "sweep.json").write_text("[]")
    with pytest.raises(RunDamaged, match="not the plan"):
        SweepFolder(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(OutputNotWritable, match="cannot write"):
        small_sweep(tmp_path / "taken" / "s")
