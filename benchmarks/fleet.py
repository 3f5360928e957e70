"""What a fleet costs a run, and whether it survives: python -m benchmarks.fleet.

Workers on this machine, of one board, make short runs that train nothing; some workers are killed (SIGKILL) at random
moments and stay dead. Bar: with eight workers, 200 runs and two killed every run is there once, and a run costs at
most 3 s of its device beyond what its own process takes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from stepscope.experiments.engine.sweep_points import Grid, SweepPoint, WorkloadEntry
from stepscope.experiments.fleet.agent import running_pid
from stepscope.experiments.fleet.devices import down, up
from stepscope.experiments.fleet.gatherer import Device
from stepscope.experiments.fleet.hosts import Hosts, read_hosts, scheduler_of_hosts
from stepscope.experiments.fleet.scheduling import FleetCallbacks, FleetFolder, run_fleet_sweep
from stepscope.experiments.suite.rules import RunRules

BOARD = "bench"
CHILD = (
    "import json, pathlib, sys, time\n"
    "orders = json.loads(sys.argv[1])\n"
    "time.sleep({seconds})\n"
    "pathlib.Path(orders['out'], 'data.bin').write_bytes(bytes({size}))\n"
    'pathlib.Path(orders[\'ended\']).write_text(\'{{"status": "ok", "reason": null}}\')\n'
)


def hosts_of(folder: Path, workers: int) -> Hosts:
    """A fleet of so many local workers of one board."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    each = "".join(f'[[host]]\nname = "w{n}"\nboard = "{BOARD}"\nlocal = true\n' for n in range(workers))
    (folder / "hosts.toml").write_text(f"[fleet]\nport = {port}\n{each}", encoding="utf-8")
    return read_hosts(folder / "hosts.toml")


def sweep_of(path: Path, runs: int) -> FleetFolder:
    """A sweep of one workload with so many repeats."""
    entry = WorkloadEntry("nothing", ("smoke",), 1, "sgd", ("sgd",))
    plan = {
        "name": "bench", "created": "now", "tier": None, "argv": [], "limits": {"memory": None},
        "rules": asdict(RunRules(steps=1, time_limit_s=60.0)),
        "order": [point.to_dict() for point in Grid(repeats=runs).points([entry], seed=0)],
    }  # fmt: skip
    return FleetFolder.create(path, [BOARD], plan, [entry])


class Watcher:
    """Counts what ends, kills workers at chosen counts, and notes how long each device had each run."""

    def __init__(self, hosts: Hosts, kill_at: list[int], chance: random.Random) -> None:
        self.hosts, self.kill_at, self.chance = hosts, list(kill_at), chance
        self.ended: list[str] = []
        self.killed: list[str] = []
        self.held_s: list[float] = []
        self._began: dict[str, float] = {}

    def begins(self, device: Device, point: SweepPoint) -> None:
        self._began[device.name] = time.monotonic()
        if self.kill_at and len(self.ended) >= self.kill_at[0]:
            self.kill_at.pop(0)
            threading.Timer(self.chance.uniform(0, 0.3), self._kill, (device.name,)).start()

    def ends(self, board: str, device: Device, point: SweepPoint, result: object) -> None:
        self.ended.append(point.id)
        self.held_s.append(time.monotonic() - self._began[device.name])

    def _kill(self, name: str) -> None:
        number = running_pid(self.hosts.state_folder / "devices" / name)
        if number is not None:
            self.killed.append(name)
            os.kill(number, signal.SIGKILL)


def measure(workers: int, runs: int, kills: int, seconds: float, size: int, seed: int) -> bool:
    """Make the runs; prints the figures and returns whether each run is there once."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        hosts = hosts_of(Path(place), workers)
        began = time.monotonic()
        try:
            refused = [str(state.refused) for state in up(hosts, lives_with=os.getpid()) if state.refused]
            assert not refused, refused
            print(f"{workers} workers up in {time.monotonic() - began:.1f} s", flush=True)
            folder = sweep_of(Path(place) / "sweep", runs)
            watcher = Watcher(
                hosts, sorted(chance.sample(range(workers, max(workers + kills, runs // 2)), kills)), chance
            )
            began = time.monotonic()
            child = ("-S", "-E", "-c", CHILD.format(seconds=seconds, size=size))
            run_fleet_sweep(
                folder, scheduler_of_hosts(hosts), child, FleetCallbacks(watcher.begins, watcher.ends, print), 60.0
            )
            lasted = time.monotonic() - began
        finally:
            down(hosts)
        return _told(folder, watcher, lasted, runs, workers)


def _told(folder: FleetFolder, watcher: Watcher, lasted: float, runs: int, workers: int) -> bool:
    sweep = folder.boards[BOARD]
    ended = sweep.results()
    whole = [point for point in sweep.order if (sweep.run_folder(point) / "data.bin").exists()]
    once = len(watcher.ended) == len(set(watcher.ended)) == runs == len(ended) == len(whole)
    well = sum(result["status"] == "ok" for result in ended.values())
    overhead = [held - ended[name]["wall_s"] for name, held in zip(watcher.ended, watcher.held_s, strict=True)]
    print(f"{runs} runs on {workers} workers in {lasted:.1f} s; killed: {', '.join(watcher.killed) or 'none'}")
    print(f"each run there once: {'yes' if once else 'NO'}; ended well: {well}")
    most = max(overhead)
    print(f"overhead a run: median {statistics.median(overhead):.3f} s, most {most:.3f} s (bar 3)")
    return once and well == runs


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--workers", type=int, default=8)
    arguments.add_argument("--runs", type=int, default=200)
    arguments.add_argument("--kills", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=0.2)
    arguments.add_argument("--size", type=int, default=200_000)
    arguments.add_argument("--seed", type=int, default=0)
    return 0 if measure(**vars(arguments.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
