"""Processes of a fleet end when nobody has a use for them any more: no agent is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fleet.small_fleets import written_hosts
from tests.patience import until

from stepscope.errors import UsageError
from stepscope.experiments.fleet.agent import running_pid, stop_process
from stepscope.experiments.fleet.devices import down, up
from stepscope.experiments.fleet.hosts import Hosts, read_hosts

pytest.importorskip("asyncssh")


def _processes(hosts: Hosts) -> dict[str, int | None]:
    folders = [hosts.state_folder / "scheduler", *(hosts.state_folder / "devices" / host.name for host in hosts.hosts)]
    return {folder.name: running_pid(folder) for folder in folders}


def _nobody(hosts: Hosts) -> bool:
    return set(_processes(hosts).values()) == {None}


def test_a_fleet_ends_with_the_process_that_it_lives_with_however_that_ends(tmp_path: Path) -> None:
    hosts = read_hosts(written_hosts(tmp_path / "hosts.toml", {"a": "a", "b": "b"}))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as owner:
        try:
            assert not [state.refused for state in up(hosts, lives_with=owner.pid) if state.refused]
            assert None not in _processes(hosts).values()
            owner.send_signal(signal.SIGKILL)
            until(lambda: _nobody(hosts))
        finally:
            owner.kill()
            down(hosts)


def test_a_worker_and_a_scheduler_end_when_their_folder_is_removed(tmp_path: Path) -> None:
    hosts = read_hosts(written_hosts(tmp_path / "hosts.toml", {"a": "a"}))
    assert not [state.refused for state in up(hosts, lives_with=os.getpid()) if state.refused]
    numbers = [number for number in _processes(hosts).values() if number is not None]
    assert len(numbers) == 2
    shutil.rmtree(hosts.state_folder)
    until(lambda: not any(Path(f"/proc/{number}").exists() for number in numbers))


def test_a_worker_ends_when_no_scheduler_has_been_there_for_long(tmp_path: Path) -> None:
    hosts = read_hosts(written_hosts(tmp_path / "hosts.toml", {"a": "a"}, alone_s=0.5))
    try:
        assert not [state.refused for state in up(hosts, lives_with=os.getpid()) if state.refused]
        stop_process(hosts.state_folder / "scheduler")
        until(lambda: _nobody(hosts))
    finally:
        down(hosts)


def test_a_process_that_is_not_there_is_refused(tmp_path: Path) -> None:
    hosts = read_hosts(written_hosts(tmp_path / "hosts.toml", {"a": "a"}))
    with pytest.raises(UsageError, match="no process 4194999"):
        up(hosts, lives_with=4_194_999)
    assert not (tmp_path / "hosts.fleet").exists()
