"""The sweeps of all boards of a fleet from one request: begun, or gone on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.errors import UnknownName, UsageError
from stepscope.experiments.engine.points import workload_entries
from stepscope.experiments.fleet.sweep import FleetFolder
from stepscope.experiments.suite.plan import chosen_entries, sweep_grid, sweep_plan
from stepscope.experiments.suite.request import SuiteRun

if TYPE_CHECKING:
    from stepscope.experiments.fleet.connection import SchedulerAddress


def new_fleet(asked: SuiteRun, out: Path, where: SchedulerAddress, says: Callable[[str], None]) -> FleetFolder:
    """Begin a sweep on each board; what is asked for twice is said."""
    axes, entries = sweep_grid(asked, here=False), chosen_entries(asked)
    twice = axes.duplicates(entries)
    if twice:
        says(f"{twice} settings were asked for more than once: each is run once")
    boards = _chosen_boards(asked.boards, where)
    return FleetFolder.create(out, boards, sweep_plan(asked, entries, axes, out.name, here=False), entries)


def resume_fleet(asked: SuiteRun, out: Path) -> FleetFolder:
    """As it was begun, with all of its boards; refused where a workload has changed."""
    if asked.given or asked.boards is not None:
        raise UsageError("a fleet's sweep goes on as it was begun", "leave out all but --fleet, --resume and --out")
    folder = FleetFolder(out)
    names = list(next(iter(folder.boards.values())).plan["workloads"])
    now = workload_entries(names)
    for sweep in folder.boards.values():
        sweep.refuse_changes(now)
    return folder


def _chosen_boards(named: Sequence[str] | None, where: SchedulerAddress) -> Sequence[str]:
    """Those of the hosts.toml, or that the scheduler knows now; or some of them."""
    from stepscope.experiments.fleet.devices import devices

    there = list(dict.fromkeys(each.device.board for each in devices(where)))
    known = there if where.hosts is None else where.hosts.boards
    if not known:
        raise UsageError(
            f"the scheduler at {where.url} knows no device", "start workers: stepscope fleet up hosts.toml"
        )
    wanted = named or tuple(known)
    for name in wanted:
        if name not in known:
            raise UnknownName("board", name, known)
    return list(dict.fromkeys(wanted))
