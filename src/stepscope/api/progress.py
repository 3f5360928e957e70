"""Progress of what takes many runs, on stderr: a live line on a terminal, a line for each run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepscope.units import duration, number

if TYPE_CHECKING:
    from rich.progress import Progress

    from stepscope.experiments.engine.engine import Point, Watch
    from stepscope.experiments.engine.folder import SweepFolder
    from stepscope.experiments.engine.points import SweepPoint
    from stepscope.experiments.fleet.devices import Device
    from stepscope.experiments.fleet.sweep import FleetFolder, FleetWatch


@contextmanager
def study_progress(wanted: bool) -> Iterator[Watch]:
    """Yield the progress of a study; drawn at most once a second, since drawing takes time from what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.experiments.engine.engine import Watch

    if not wanted:
        yield Watch()
        return
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    live = console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=None)

        def begins(point: Point, place: int, count: int) -> None:
            progress.update(task, description=point.title, completed=place, total=count, refresh=True)

        def ends(point: Point, place: int, count: int, result: Mapping[str, Any]) -> None:
            ended_well, wall_s = result["status"] == "ok", result["wall_s"] or 0
            if live and ended_well and wall_s < 1:  # hundreds of kernels
                return
            status = "ok" if ended_well else f"{result['status']}: {result['reason']}"
            _print_line(progress, live, f"{place + 1}/{count} {point.title}: {status}, {wall_s:.0f} s")

        yield Watch(begins, progress.refresh, ends)


@contextmanager
def sweep_progress(folder: SweepFolder, wanted: bool) -> Iterator[Watch]:
    """Yield the progress of a sweep.

    Drawn at most once a second, since drawing takes CPU time from what is measured.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from stepscope.experiments.engine.engine import Watch
    from stepscope.experiments.suite.sweep import time_left_s

    order, ended = folder.order, folder.results()
    console = Console(stderr=True, highlight=False)
    if not wanted:
        yield Watch()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    live = console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=len(order), completed=sum(p.id in ended for p in order), left="")
        now = _CurrentRun()

        def draw() -> None:
            left_s = time_left_s(order, ended)
            left = "" if left_s is None else f"{duration(max(0.0, left_s - now.seconds()) * 1e9, 2)} left"
            progress.update(task, description=f"{now.name} {now.seconds():.0f} s", left=left, refresh=True)

        def begins(point: SweepPoint, place: int, count: int) -> None:
            now.begin(point.title)
            draw()

        def ends(point: SweepPoint, place: int, count: int, result: Mapping[str, Any]) -> None:
            ended[point.id] = dict(result)
            progress.update(task, advance=1)
            _print_line(progress, live, f"{place + 1}/{count} {point.title}: {outcome_label(result)}")
            now.begin("")

        yield Watch(begins, draw, ends)


def _print_line(progress: Progress, live: bool, line: str) -> None:
    """Print above the bar of a terminal; elsewhere there is no bar."""
    if live:
        progress.console.print(line, markup=False)
    else:
        sys.stderr.write(f"{line}\n")


class _CurrentRun:
    """The run that is going on, and since when."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str) -> None:
        self.name, self._began = name, monotonic()

    def seconds(self) -> float:
        return monotonic() - self._began


def outcome_label(result: Mapping[str, Any]) -> str:
    """Return in few words how a run ended."""
    if result["status"] != "ok":
        return f"{result['status']}: {result['reason']}"
    step = (result.get("numbers") or {}).get("step_time_ms", {}).get("value")
    flags = result.get("flags") or []
    return f"ok, {number(step)} ms a step" + (f" ({'; '.join(flags)})" if flags else "")


@contextmanager
def fleet_progress(folder: FleetFolder, wanted: bool) -> Iterator[FleetWatch]:
    """Yield the progress lines of a fleet's sweep."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from stepscope.experiments.fleet.sweep import FleetWatch

    if not wanted:
        yield FleetWatch()
        return
    console = Console(stderr=True, highlight=False)
    live = console.is_terminal
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, refresh_per_second=1, transient=True, disable=not live) as progress:
        ended = {board: len(sweep.results()) for board, sweep in folder.boards.items()}
        bars = {
            board: progress.add_task(board, total=len(sweep.order), completed=ended[board], now="")
            for board, sweep in folder.boards.items()
        }
        under_way: dict[str, dict[str, tuple[str, float]]] = {board: {} for board in folder.boards}

        def draw(board: str) -> None:
            now = [f"{name}: {what} ({monotonic() - since:.0f} s)" for name, (what, since) in under_way[board].items()]
            progress.update(bars[board], completed=ended[board], now="; ".join(now))

        def begins(device: Device, point: SweepPoint) -> None:
            under_way[device.board][device.name] = (point.title, monotonic())
            draw(device.board)

        def ends(board: str, device: Device, point: SweepPoint, result: Mapping[str, Any]) -> None:
            under_way[board].pop(device.name, None)
            ended[board] += 1
            of = f"{ended[board]}/{len(folder.boards[board].order)}"
            says(f"{board} {of} on {device.name}: {point.title}: {outcome_label(result)}")
            draw(board)

        def says(line: str) -> None:
            _print_line(progress, live, line)

        yield FleetWatch(begins, ends, says)
