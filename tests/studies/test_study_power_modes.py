"""Power modes of a Jetson, with an nvpmodel of our own on the PATH: said, asked, set, and always set back."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import CommandLine

from stepscope.analysis.results import Findings
from stepscope.cli.study import _confirm
from stepscope.errors import UsageError
from stepscope.experiments.engine.engine import Point, ProgressCallbacks, answer_study
from stepscope.experiments.sweeps import PowerModes
from stepscope.experiments.sweeps.power_modes import (
    SAVED_MODE_FILE,
    Jetson,
    ModeRefused,
    find_jetson,
    power_mode_plan,
    refuse_without_permission,
    restore_mode_after,
)

CHILD = (sys.executable, str(Path(__file__).parent / "setting_child.py"))
CONF = """
< PARAM TYPE=FILE NAME=CPU_ONLINE >
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_1 1
< POWER_MODEL ID=1 NAME=MODE_15W >
< POWER_MODEL ID=2 NAME=MODE_REBOOT >
"""
# Mode 2 asks for a reboot, as on an Orin, and without an answer stays where it is.
NVPMODEL = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
-q) printf 'NV Power Mode: X\\n%s\\n' "$(cat {mode})" ;;
-m) if [ "$2" = 2 ]; then echo "NVPM WARN: Reboot required for this power mode: 2"; else echo "$2" > {mode}; fi ;;
esac
"""
ASKED = PowerModes("net", modes=("0", "1"), batch=4, repeats=1, steps=20)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system with the modes of a board, which is in mode 0, and nvpmodel on the PATH."""
    top = tmp_path / "root"
    (top / "etc").mkdir(parents=True)
    (top / "bin").mkdir()
    (top / "etc/nvpmodel.conf").write_text(CONF, encoding="utf-8")
    (top / "mode").write_text("0\n", encoding="utf-8")
    command = top / "bin/nvpmodel"
    command.write_text(NVPMODEL.format(log=top / "log", mode=top / "mode"), encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{top / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return top


def _mode(root: Path) -> str:
    return (root / "mode").read_text(encoding="utf-8").strip()


def _end_in_mode_1(jetson: Jetson) -> None:
    jetson.set(1)
    signal.raise_signal(signal.SIGTERM)
    threading.Event().wait(0.05)


def _answer(root: Path, asked: PowerModes, folder: Path, watch: ProgressCallbacks | None = None) -> Findings:
    plan = power_mode_plan(find_jetson(root), asked)
    return answer_study(asked, folder / "study", child=CHILD, watch=watch, plan=plan)


def _was_set(root: Path) -> list[str]:
    log = root / "log"
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [line for line in lines if line.startswith("-m")]


def test_each_mode_is_set_for_its_trainings_and_the_first_again_at_the_end(root: Path, tmp_path: Path) -> None:
    findings = _answer(root, ASKED, tmp_path)
    assert _was_set(root) == ["-m 1", "-m 0"]
    assert _mode(root) == "0"
    assert {row[0] for row in findings.tables[1].rows} == {"0 MAXN", "1 MODE_15W"}
    assert not (tmp_path / "study" / SAVED_MODE_FILE).exists()


def test_a_mode_that_needs_a_reboot_is_said_and_the_others_are_trained(root: Path, tmp_path: Path) -> None:
    asked = replace(ASKED, modes=("2", "1"))
    findings = _answer(root, asked, tmp_path)
    assert any("MODE_REBOOT was not set" in note and "Reboot required" in note for note in findings.notes)
    assert {row[0] for row in findings.tables[1].rows} == {"1 MODE_15W"}
    assert _mode(root) == "0"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_mode_of_before_is_set_again_after_an_error_or_an_interruption(
    root: Path, tmp_path: Path, error: type[BaseException]
) -> None:
    def stop(point: Point, place: int, count: int) -> None:
        if "MODE_15W" in point.title:
            return
        assert _mode(root) == "1"
        raise error

    asked = replace(ASKED, modes=("1", "0"))
    with pytest.raises(error):
        _answer(root, asked, tmp_path, ProgressCallbacks(begins=stop))
    assert _mode(root) == "0"


def test_the_mode_of_before_is_set_again_when_it_is_told_to_end(root: Path, tmp_path: Path) -> None:
    jetson = find_jetson(root)
    with pytest.raises(SystemExit), restore_mode_after(jetson, tmp_path):
        _end_in_mode_1(jetson)
    assert _mode(root) == "0"


def test_after_a_power_cut_the_next_call_sets_the_mode_of_before(root: Path, tmp_path: Path) -> None:
    (root / "mode").write_text("1\n", encoding="utf-8")
    (tmp_path / SAVED_MODE_FILE).write_text(json.dumps({"mode": 0}), encoding="utf-8")
    with restore_mode_after(find_jetson(root), tmp_path) as before:
        assert before == 0
    assert _mode(root) == "0"


def test_a_mode_that_was_not_set_is_an_error_with_the_words_of_nvpmodel(root: Path) -> None:
    with pytest.raises(ModeRefused, match="Reboot required"):
        find_jetson(root).set(2)


def test_another_board_is_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(UsageError, match="no power modes"):
        find_jetson(tmp_path / "nothing")
    (root / "bin/nvpmodel").unlink()
    with pytest.raises(UsageError, match="no nvpmodel on the PATH"):
        find_jetson(root)


def test_only_root_may_set_a_mode() -> None:
    refuse_without_permission(0)
    with pytest.raises(UsageError, match="takes root"):
        refuse_without_permission(1000)


def test_without_apply_nothing_is_changed_and_it_is_said_what_would_be(root: Path, stepscope_cli: CommandLine) -> None:
    done = stepscope_cli("study", "power-modes", "lenet", "--root", str(root), "--modes", "MODE_15W")
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing is changed" in done.stdout
    assert "nvpmodel -m 1   MODE_15W" in done.stdout
    assert _was_set(root) == []
    assert _was_set(root) == []


def test_where_nobody_can_be_asked_no_mode_is_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="setting power modes needs a confirmation"):
        _confirm(find_jetson(root), ASKED)
    _confirm(find_jetson(root), replace(ASKED, yes=True))
    assert _was_set(root) == []
