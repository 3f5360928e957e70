"""A device serves one fleet: another one can neither take, change nor end its worker, and its own one can move."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.small_fleets import fleet_of, written_hosts

from stepscope.errors import UsageError
from stepscope.experiments.fleet.agent import (
    hold_folder,
    publish_state,
    read_state,
    running_pid,
    start_worker,
    stop_worker,
)
from stepscope.experiments.fleet.certificates import (
    CA,
    CERTIFICATE,
    DEVICE,
    KEY,
    Identity,
    device_public_key,
    issue_or_reuse_certificate,
    keep_certificate,
    make_certificates,
    tls_context,
)
from stepscope.experiments.fleet.devices import query_device_states, up
from stepscope.experiments.fleet.hosts import read_hosts, scheduler_of_hosts
from stepscope.experiments.fleet.worker import FOLDER_VARIABLE, forget_run, remove_old_runs

pytest.importorskip("asyncssh")
PLACE = {"scheduler": "tls://192.168.0.2:8786", "name": "nano-1", "board": "nano"}


def _certified(tls: Path, folder: Path, rotate: bool = False) -> str:
    """A certificate of an authority in `tls` for the key of a device."""
    make_certificates(tls)
    identity = Identity(DEVICE, PLACE["name"], PLACE["board"])
    return issue_or_reuse_certificate(tls, identity, device_public_key(folder / "tls", rotate))


@pytest.fixture
def worker_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a worker of fleet A whose scheduler is off for the night; this process holds it."""
    folder = tmp_path / "device"
    certificate = _certified(tmp_path / "a", folder)
    keep_certificate(folder / "tls", (tmp_path / "a" / CA).read_text(), certificate)
    with hold_folder(folder):
        publish_state(folder, {**PLACE, "error": "no scheduler answers"})
        yield folder


@pytest.mark.parametrize("change", [{"scheduler": "tls://192.168.0.9:8786"}, {"name": "pi-7"}, {"board": "pi"}])
def test_a_worker_whose_scheduler_is_off_is_neither_taken_nor_ended_by_another_fleet(
    change: dict[str, str], worker_folder: Path, tmp_path: Path
) -> None:
    tls = {path.name: path.read_bytes() for path in (worker_folder / "tls").iterdir()}
    certificate = _certified(tmp_path / "b", worker_folder)
    orders = {
        **PLACE,
        "environment": {},
        "folder": str(worker_folder),
        "ca": (tmp_path / "b" / CA).read_text(),
        **change,
    }
    with pytest.raises(UsageError, match="runs in") as refused:
        start_worker({**orders, "certificate": certificate})
    assert next(iter(change)) in str(refused.value)
    if "board" not in change:
        with pytest.raises(UsageError, match="runs in"):
            stop_worker(orders)
    assert {path.name: path.read_bytes() for path in (worker_folder / "tls").iterdir()} == tls
    assert running_pid(worker_folder) == os.getpid()


def test_a_new_key_replaces_the_one_in_use_when_its_certificate_comes(worker_folder: Path, tmp_path: Path) -> None:
    tls = worker_folder / "tls"
    before = (tls / KEY).read_bytes()
    certificate = _certified(tmp_path / "a", worker_folder, rotate=True)
    assert (tls / KEY).read_bytes() == before
    tls_context(tls)
    keep_certificate(tls, (tmp_path / "a" / CA).read_text(), certificate)
    assert (tls / KEY).read_bytes() != before
    assert (tls / CERTIFICATE).read_text() == certificate
    tls_context(tls)


def test_a_fleet_whose_scheduler_has_another_address_now_moves_with_its_workers(tmp_path: Path) -> None:
    path = written_hosts(tmp_path / "hosts.toml", {"a": "a"}, forget_after_s=30)
    with fleet_of(path) as hosts:
        first = running_pid(hosts.state_folder / "devices" / "a")
        path.write_text(written_hosts(tmp_path / "other.toml", {"a": "a"}, forget_after_s=40).read_text())
        moved = read_hosts(path)
        assert moved.port != hosts.port
        (state,) = up(moved, lives_with=os.getpid())
        assert state.refused is None
        assert (state.about or {})["began"]
        assert running_pid(moved.state_folder / "devices" / "a") not in (first, None)
        assert [found.device.name for found in query_device_states(scheduler_of_hosts(moved))] == ["a"]
        settings = read_state(moved.state_folder / "scheduler")
        assert (settings["port"], settings["forget_after_s"]) == (moved.port, 40)


def test_runs_that_nobody_asks_for_any_more_and_what_a_sweep_has_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    runs = tmp_path / "runs"
    for name in ("old/run-1", "old/sources", "new/run-1", "new/run-2", "new/sources"):
        (runs / name).mkdir(parents=True)
    long_ago = time.time() - 40 * 86_400
    os.utime(runs / "old" / "run-1", (long_ago, long_ago))
    os.utime(runs / "new" / "sources", (long_ago, long_ago))
    remove_old_runs(runs)
    assert sorted(path.relative_to(runs).as_posix() for path in runs.glob("*/*")) == [
        "new/run-1",
        "new/run-2",
        "new/sources",
    ]
    assert not (runs / "old").exists()
    forget_run("new", "run-1")
    assert (runs / "new" / "sources").exists()
    forget_run("new", "run-2")
    assert not (runs / "new").exists()
