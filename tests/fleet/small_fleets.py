"""Fleets for tests: real schedulers and workers on loopback, and sweeps whose runs are made by `fleet_child.py`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.patience import HANG_S
from tests.suite.small_sweeps import entry

from stepscope.experiments.engine.sweep_points import Grid
from stepscope.experiments.fleet.devices import down, up
from stepscope.experiments.fleet.hosts import Hosts, SchedulerAddress, read_hosts, scheduler_of_hosts
from stepscope.experiments.fleet.scheduling import FleetCallbacks, FleetFolder, run_fleet_sweep
from stepscope.experiments.suite.rules import RunRules

CHILD = (str(Path(__file__).with_name("fleet_child.py")),)


def written_hosts(path: Path, boards: dict[str, str], **more: object) -> Path:
    """A hosts.toml of local hosts with these boards; runs say in started.txt beside it that they begin."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = [
        "[fleet]",
        f"port = {port}",
        *(f"{key} = {value}" for key, value in more.items()),
    ]
    for name, board in boards.items():
        environment = f'environment = {{ STARTED = "{path.parent / "started.txt"}" }}'
        lines += ["[[host]]", f'name = "{name}"', f'board = "{board}"', "local = true", environment]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextlib.contextmanager
def fleet_of(path: Path) -> Iterator[Hosts]:
    """The fleet of a hosts.toml, up; ended whatever happens."""
    hosts = read_hosts(path)
    try:
        refused = [str(state.refused) for state in up(hosts, lives_with=os.getpid()) if state.refused]
        assert not refused
        yield hosts
    finally:
        down(hosts)


def fleet_folder(path: Path, boards: list[str], *names: str, **axes: Any) -> FleetFolder:
    """Sweeps that have not begun: these workloads on each board."""
    entries = [entry(name) for name in names]
    plan = {
        "name": path.name, "created": "now", "tier": None, "argv": [], "limits": {"memory": None},
        "rules": asdict(RunRules(steps=6, time_limit_s=HANG_S)),
        "order": [point.to_dict() for point in Grid(**{"repeats": 1, **axes}).points(entries, seed=0)],
    }  # fmt: skip
    return FleetFolder.create(path, boards, plan, entries)


def swept(
    folder: FleetFolder, hosts: Hosts | SchedulerAddress, wait_s: float = HANG_S, watch: FleetCallbacks | None = None
) -> list[str]:
    """Make the runs; what was said meanwhile."""
    lines: list[str] = []
    given = watch or FleetCallbacks()
    where = scheduler_of_hosts(hosts) if isinstance(hosts, Hosts) else hosts
    run_fleet_sweep(folder, where, CHILD, FleetCallbacks(given.begins, given.ends, lines.append), wait_s)
    return lines


def started(hosts: Hosts) -> list[str]:
    """The runs that a child was started for, with repetitions."""
    path = hosts.path.parent / "started.txt"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def let_go(hosts: Hosts) -> None:
    """Let the children of the workload "held" end, those that are still to come as well."""
    (hosts.path.parent / "started.txt").with_suffix(".go").touch()


def statuses(folder: FleetFolder) -> dict[str, list[str]]:
    """How the runs of each board ended, sorted."""
    return {board: sorted(r["status"] for r in sweep.results().values()) for board, sweep in folder.boards.items()}
