"""One answer to "is this process still there?" for the reader, the packer, the live view and the sampler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.liveness import is_running, start_time


def test_this_process_runs_and_its_start_time_tells_it_from_a_later_one() -> None:
    began = start_time(os.getpid())
    assert is_running(os.getpid())
    if began is not None:
        assert is_running(os.getpid(), began)
        assert not is_running(os.getpid(), began + 1)


def test_a_process_that_has_ended_does_not_run_also_before_it_is_waited_for() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    if Path("/proc/self/stat").exists():
        assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)


@pytest.mark.parametrize("pid", [2**22 + 1, 2**80, None, "1"])
def test_a_number_that_no_process_has_does_not_run(pid: object) -> None:
    assert not is_running(pid)


def test_a_process_of_another_user_that_proc_hides_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("stepscope.liveness.start_time", lambda _: None)
    monkeypatch.setattr("stepscope.liveness._PROC", tmp_path)
    monkeypatch.setattr(os, "kill", refuse)
    assert is_running(1)
