"""The progress of a fleet on stderr: a bar a board with what each device is at, or a line a run without a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from stepscope.commands._suite_watch import became, called
from stepscope.studies.fleet.device import Device
from stepscope.studies.fleet.folder import FleetFolder
from stepscope.studies.fleet.sweep import FleetWatch
from stepscope.studies.suite.grid import Point


@contextmanager
def watching_fleet(folder: FleetFolder, quiet: bool) -> Iterator[FleetWatch]:
    """What a fleet's sweep is to tell."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if quiet:
        yield FleetWatch()
        return
    console = Console(stderr=True, highlight=False)
    live = console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, refresh_per_second=1, transient=True, disable=not live) as progress:
        ended = {board: len(sweep.ended()) for board, sweep in folder.boards.items()}
        bars = {
            board: progress.add_task(board, total=len(sweep.order), completed=ended[board], now="")
            for board, sweep in folder.boards.items()
        }
        under_way: dict[str, dict[str, tuple[str, float]]] = {board: {} for board in folder.boards}

        def draw(board: str) -> None:
            now = [f"{name}: {what} ({monotonic() - since:.0f} s)" for name, (what, since) in under_way[board].items()]
            progress.update(bars[board], completed=ended[board], now="; ".join(now))

        def begins(device: Device, point: Point) -> None:
            under_way[device.board][device.name] = (called(point), monotonic())
            draw(device.board)

        def ends(board: str, device: Device, point: Point, result: Mapping[str, Any]) -> None:
            under_way[board].pop(device.name, None)
            ended[board] += 1
            of = f"{ended[board]}/{len(folder.boards[board].order)}"
            says(f"{board} {of} on {device.name}: {called(point)}: {became(result)}")
            draw(board)

        def says(line: str) -> None:
            if live:
                progress.console.print(line, markup=False)
            else:
                sys.stderr.write(f"{line}\n")

        yield FleetWatch(begins, ends, says)
