"""Runs on real workers: each is made once and comes home as it was, whoever is killed, stopped or restarted."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.fleet_child import BIG_BYTES
from tests.fleet.small_fleets import fleet_folder, fleet_of, let_go, started, statuses, swept, written_hosts
from tests.patience import HANG_S, until

from stepscope.errors import FleetError, UsageError
from stepscope.experiments.engine.sweep_points import SweepPoint
from stepscope.experiments.fleet import gatherer as gatherer_module
from stepscope.experiments.fleet.agent import running_pid, stop_process
from stepscope.experiments.fleet.certificates import make_certificates
from stepscope.experiments.fleet.devices import query_device_states, up
from stepscope.experiments.fleet.gatherer import Device
from stepscope.experiments.fleet.hosts import (
    Hosts,
    SchedulerAddress,
    read_hosts,
    scheduler_address,
    scheduler_of_hosts,
)
from stepscope.experiments.fleet.scheduling import FleetCallbacks, FleetFolder, FleetIncomplete, fleet_results
from stepscope.runfolder import RunReader

DEVICES = {"x": "pair", "y": "pair", "z": "solo"}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    path = written_hosts(tmp_path_factory.mktemp("fleet") / "hosts.toml", DEVICES, forget_after_s=1)
    with fleet_of(path) as found:
        yield found


@pytest.fixture
def fleet(hosts: Hosts) -> Hosts:
    """All three there, and nothing started yet."""
    (hosts.path.parent / "started.txt").unlink(missing_ok=True)
    if not all(running_pid(hosts.state_folder / "devices" / name) for name in DEVICES):
        assert not [state.refused for state in up(hosts, lives_with=os.getpid()) if state.refused]
    return hosts


def _worker(fleet: Hosts, name: str) -> int:
    number = running_pid(fleet.state_folder / "devices" / name)
    assert number is not None
    return number


def test_each_board_makes_each_run_once_and_one_table_shows_them(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["pair", "solo"], "ok", "run", batches=(1, 2))
    assert swept(folder, fleet) == []
    assert statuses(folder) == {"pair": ["ok"] * 4, "solo": ["ok"] * 4}
    assert sorted(started(fleet)) == sorted(2 * ["ok-1-0", "ok-2-0", "run-1-0", "run-2-0"])
    table = fleet_results(FleetFolder(folder.path))
    assert set(table["board"]) == {"pair", "solo"}
    sweep = folder.boards["solo"]
    result = next(each for each in sweep.results().values() if each["point"]["workload"] == "run")
    assert RunReader(sweep.path / result["run"]).status == "ok"
    assert result["made_by"] == "z"
    assert abs(result["clock"]["offset_s"]) < result["clock"]["within_s"] + 0.1, "it is the same clock"
    assert sweep.plan["device"]["machine"] == os.uname().machine
    assert not list((fleet.state_folder / "devices" / "z" / "runs").glob("*/*")), (
        "what is home is not kept on the device"
    )


def test_a_large_folder_arrives_as_it_is_and_links_in_it_do_not(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["solo"], "big")
    swept(folder, fleet)
    where = folder.boards["solo"].run_folder(folder.boards["solo"].order[0])
    assert (where / "parts" / "blob.bin").read_bytes() == bytes(range(250)) * (BIG_BYTES // 250)
    assert (where / "parts" / "empty.bin").stat().st_size == 0
    assert not (where / "leads-out").exists()
    assert not list(where.parent.glob(".coming*"))


def test_a_worker_killed_in_mid_run_costs_no_run(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["pair"], "wait-0.4", batches=(1, 2, 3))
    killed: list[int] = []

    def kill(device: object, point: object) -> None:
        if not killed and getattr(device, "name", None) == "x":
            killed.append(_worker(fleet, "x"))
            threading.Timer(0.2, os.kill, (killed[0], signal.SIGKILL)).start()

    swept(folder, fleet, watch=FleetCallbacks(begins=kill))
    assert killed
    assert statuses(folder) == {"pair": ["ok"] * 3}
    assert {result["made_by"] for result in folder.boards["pair"].results().values()} <= {"x", "y"}


def test_a_scheduler_that_is_restarted_costs_no_second_run(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["solo"], "held", batches=(1, 2))
    begun = threading.Event()

    def restart() -> None:
        begun.wait(HANG_S)
        until(lambda: started(fleet))
        stop_process(fleet.state_folder / "scheduler")
        up(fleet, lives_with=os.getpid())
        let_go(fleet)

    thread = threading.Thread(target=restart)
    thread.start()
    said = swept(folder, fleet, watch=FleetCallbacks(begins=lambda device, point: begun.set()))
    thread.join()
    assert any("waiting for it" in line for line in said)
    assert statuses(folder) == {"solo": ["ok"] * 2}
    assert sorted(started(fleet)) == ["held-1-0", "held-2-0"]


def test_a_device_that_sleeps_is_waited_for(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["solo"], "wait-0.2", "ok")
    asleep: list[int] = []

    def sleep(device: object, point: object) -> None:
        if not asleep:
            asleep.append(_worker(fleet, "z"))
            os.kill(asleep[0], signal.SIGSTOP)
            threading.Timer(2.5, os.kill, (asleep[0], signal.SIGCONT)).start()  # longer than forget_after_s

    swept(folder, fleet, watch=FleetCallbacks(begins=sleep))
    assert statuses(folder) == {"solo": ["ok", "ok"]}
    assert len(started(fleet)) == 2


def test_a_board_that_stays_away_is_said_and_its_runs_are_made_when_it_is_back(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["pair", "solo"], "ok")
    stop_process(fleet.state_folder / "devices" / "z")
    with pytest.raises(FleetIncomplete, match=r"solo \(1 run not made\)"):
        swept(folder, fleet, wait_s=1.0)
    assert statuses(folder) == {"pair": ["ok"], "solo": []}
    up(fleet, lives_with=os.getpid())
    swept(FleetFolder(folder.path), fleet)
    assert statuses(folder) == {"pair": ["ok"], "solo": ["ok"]}
    assert len(started(fleet)) == 2


def test_a_device_of_another_version_is_not_used_and_both_versions_are_said(
    fleet: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gatherer_module, "__version__", "9.9.9")
    folder = fleet_folder(tmp_path / "s", ["solo"], "ok")
    with pytest.raises(FleetIncomplete):
        swept(folder, fleet, wait_s=1.0)
    states = {state.device.name: state.refused for state in query_device_states(scheduler_of_hosts(fleet))}
    assert "has Stepscope 0.1.0, and this machine 9.9.9" in (states["z"] or "")
    assert started(fleet) == []


def test_wrong_tls_material_is_an_error_that_says_so(fleet: Hosts, tmp_path: Path) -> None:
    make_certificates(tmp_path / "other")
    good, url = scheduler_of_hosts(fleet), scheduler_of_hosts(fleet).url
    with pytest.raises(FleetError, match="does not take this TLS material"):
        query_device_states(SchedulerAddress(url, tmp_path / "other" / "gatherer"))
    shutil.copytree(good.tls, tmp_path / "broken")
    (tmp_path / "broken" / "key.pem").write_text("no key", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be used"):
        query_device_states(SchedulerAddress(url, tmp_path / "broken"))
    with pytest.raises(UsageError, match="no TLS material"):
        query_device_states(scheduler_address(url, tmp_path / "nowhere"))


def test_keys_can_be_read_by_their_owner_alone(fleet: Hosts) -> None:
    keys = list(fleet.state_folder.rglob("*key.pem"))
    assert len(keys) >= 5
    assert {path.stat().st_mode & 0o077 for path in keys} == {0}


def test_hosts_that_run_already_are_left_alone_and_no_second_fleet_takes_them(fleet: Hosts, tmp_path: Path) -> None:
    before = _worker(fleet, "z")
    assert [state.about["began"] for state in up(fleet, lives_with=os.getpid()) if state.about] == [False] * 3
    assert _worker(fleet, "z") == before
    other = written_hosts(tmp_path / "hosts.toml", {"w": "w"})
    with other.open("a", encoding="utf-8") as file:
        file.write(f'folder = "{fleet.state_folder / "devices" / "z"}"\n')
    try:
        (state,) = up(read_hosts(other), lives_with=os.getpid())
    finally:
        stop_process(other.with_suffix(".fleet") / "scheduler")
    assert "a worker runs in" in str(state.refused)
    assert "name z" in str(state.refused)
    assert _worker(fleet, "z") == before


def test_a_run_that_takes_its_device_with_it_each_time_is_marked_lost(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["solo"], "wait-5", "ok")
    killed: list[int] = []

    def kill(device: Device, point: SweepPoint) -> None:
        if point.workload == "wait-5":
            killed.append(_worker(fleet, "z"))
            os.kill(killed[-1], signal.SIGKILL)
            threading.Thread(target=up, args=(fleet,), kwargs={"lives_with": os.getpid()}).start()

    with pytest.raises(FleetIncomplete, match=r"solo \(1 run lost\)"):
        swept(folder, fleet, watch=FleetCallbacks(begins=kill))
    assert statuses(folder) == {"solo": ["lost", "ok"]}
    assert len(set(killed)) == 3
    lost = next(result for result in folder.boards["solo"].results().values() if result["status"] == "lost")
    assert lost["reason"] == "tried 3 times: z went away"


def test_a_device_that_cannot_make_runs_is_not_used_and_costs_no_try(fleet: Hosts, tmp_path: Path) -> None:
    folder = fleet_folder(tmp_path / "s", ["pair"], "ok", batches=(1, 2))
    runs = fleet.state_folder / "devices" / "x" / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    runs.write_text("in the way", encoding="utf-8")
    try:
        said = swept(folder, fleet)
    finally:
        runs.unlink()
    assert statuses(folder) == {"pair": ["ok", "ok"]}
    assert [line for line in said if line.startswith("not used any more: x: NotADirectoryError")]
    assert {result["made_by"] for result in folder.boards["pair"].results().values()} == {"y"}
