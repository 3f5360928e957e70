"""`stepscope suite run --fleet` and the one table of all boards that comes of it."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stepscope.commands._called import by_program
from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.commands._suite_plan import Asked
    from stepscope.studies.fleet.address import Reach
    from stepscope.studies.fleet.folder import FleetFolder

_CHILD = ("-m", "stepscope.commands._suite_child")


@dataclass(frozen=True)
class FleetAsked:
    """The options of a fleet as they were typed."""

    fleet: str
    boards: str | None
    tls: Path | None
    wait: str


def run_on_fleet(asked: Asked, fleet: FleetAsked, out: Path | None, resume: bool, quiet: bool) -> None:
    """Begin or go on with the sweeps of all boards, and show their table."""
    from stepscope.commands._fleet_watch import watching_fleet
    from stepscope.studies.fleet.address import need_dask, reach
    from stepscope.studies.fleet.sweep import fleet_sweep
    from stepscope.studies.suite.rules import seconds_of

    need_dask()
    where, wait_s = reach(fleet.fleet, fleet.tls), seconds_of("--wait", fleet.wait)
    if where.unprotected:
        sys.stderr.write(f"{where.url} has no TLS: whoever is on that network can run programs on the devices\n")
    folder = _resumed(out, asked, fleet) if resume else _begun(out, asked, fleet, where)
    runs = sum(len(sweep.order) for sweep in folder.boards.values())
    if not quiet:
        sys.stderr.write(f"sweep of {runs} runs on {len(folder.boards)} boards in {folder.path}\n")
    try:
        with watching_fleet(folder, quiet) as watch:
            fleet_sweep(folder, where, _CHILD, watch, wait_s)
    except KeyboardInterrupt:
        go_on = f"stepscope suite run --fleet {fleet.fleet} --resume --out {folder.path}"
        if by_program() is None:
            sys.stderr.write(f"interrupted; the devices end what they are at; go on with: {go_on}\n")
        raise
    if not quiet and by_program() is None:
        show_fleet(folder.path, None, False, False, False)


def show_fleet(path: Path, against: str | None, models: bool, json: bool, html: bool) -> None:
    """The table of all boards; pages, scores and the table of models are of one board."""
    from rich.console import Console

    from stepscope.report.fleet_table import fleet_results_table
    from stepscope.report.suite_tables import notes
    from stepscope.studies.fleet.folder import FleetFolder
    from stepscope.studies.fleet.results import fleet_results

    folder = FleetFolder(path)
    if against is not None or models or html:
        one = next(iter(folder.boards.values())).path
        raise UsageError("--against, --models and --html are of one board", f"for example stepscope suite show {one}")
    frame = fleet_results(folder)
    if json:
        typer.echo(json_format.dumps({"boards": list(folder.boards), "settings": frame.to_dicts()}, default=str))
        return
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    console.print(f"{path.name}: {len(folder.boards)} boards", fleet_results_table(frame), sep="\n")
    for board in folder.boards:
        for line in notes(frame.filter(board=board)):
            console.print(f"- {board}: {line}", style="dim", markup=False)


def _begun(out: Path | None, asked: Asked, fleet: FleetAsked, where: Reach) -> FleetFolder:
    from stepscope.commands._suite_plan import chosen, default_out, grid, plan
    from stepscope.studies.fleet.folder import FleetFolder

    axes, entries = grid(asked, here=False), chosen(asked)
    twice = axes.duplicates(entries)
    if twice:
        sys.stderr.write(f"{twice} settings were asked for more than once: each is run once\n")
    out = out or default_out(f"{asked.tier or 'smoke' if asked.workloads is None else 'sweep'}-fleet")
    boards = _chosen_boards(fleet.boards, where)
    return FleetFolder.create(out, boards, plan(asked, entries, axes, out.name, here=False), entries)


def _resumed(out: Path | None, asked: Asked, fleet: FleetAsked) -> FleetFolder:
    """As it was begun, with all of its boards; refused where a workload has changed."""
    from stepscope.commands._suite_entries import entries
    from stepscope.studies.fleet.folder import FleetFolder

    if out is None:
        raise UsageError("--resume with --fleet needs the folder", "name it: --resume --out DIR")
    if asked.given() or fleet.boards is not None:
        raise UsageError("a fleet's sweep goes on as it was begun", "leave out all but --fleet, --resume and --out")
    folder = FleetFolder(out)
    names = list(next(iter(folder.boards.values())).plan["workloads"])
    now = entries(names)
    for sweep in folder.boards.values():
        sweep.refuse_changes(now)
    return folder


def _chosen_boards(text: str | None, where: Reach) -> Sequence[str]:
    """Those of the hosts.toml, or that the scheduler knows now; or some of them."""
    from stepscope.studies.fleet.up import devices
    from stepscope.studies.suite.grid import words

    there = list(dict.fromkeys(each.device.board for each in devices(where)))
    known = there if where.hosts is None else where.hosts.boards
    if not known:
        raise UsageError(
            f"the scheduler at {where.url} knows no device", "start workers: stepscope fleet up hosts.toml"
        )
    wanted = words("--boards", text) or tuple(known)
    for name in wanted:
        if name not in known:
            raise UnknownName("board", name, known)
    return list(dict.fromkeys(wanted))
