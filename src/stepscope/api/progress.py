"""Progress of what takes many runs, on stderr: a live line on a terminal, a line for each run elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepscope.units import duration, number

if TYPE_CHECKING:
    from stepscope.experiments.engine.folder import SweepFolder
    from stepscope.experiments.engine.points import Point
    from stepscope.experiments.engine.process import JobWatch, Outcome
    from stepscope.experiments.fleet.devices import Device
    from stepscope.experiments.fleet.sweep import FleetFolder, FleetWatch
    from stepscope.experiments.suite.sweep import SweepWatch


@contextmanager
def job_progress(wanted: bool) -> Iterator[JobWatch]:
    """The words of a study; drawn at most once a second, since drawing takes time from what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.experiments.engine.process import JobWatch

    if not wanted:
        yield JobWatch()
        return
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    live = console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=None)

        def begins(called: str, place: int, count: int) -> None:
            progress.update(task, description=called, completed=place, total=count, refresh=True)

        def ends(called: str, place: int, count: int, outcome: Outcome) -> None:
            became = "ok" if outcome.status == "ok" else f"{outcome.status}: {outcome.reason}"
            ended = f"{place + 1}/{count} {called}: {became}, {outcome.wall_s or 0:.0f} s"
            if live:
                progress.console.print(ended, markup=False)
            else:
                sys.stderr.write(f"{ended}\n")

        def tell(place: int, count: int, what: str) -> None:
            begins(what, place, count)
            if not live:
                sys.stderr.write(f"{place + 1}/{count} {what}\n")

        yield JobWatch(begins, progress.refresh, ends, tell)


@contextmanager
def sweep_progress(folder: SweepFolder, wanted: bool) -> Iterator[SweepWatch]:
    """Yield the progress lines of a sweep.

    Drawn at most once a second, since drawing takes CPU time from what is measured.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from stepscope.experiments.suite.sweep import SweepWatch, time_left_s

    order, ended = folder.order, folder.ended()
    console = Console(stderr=True, highlight=False)
    if not wanted:
        yield SweepWatch()
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

        def begins(point: Point, place: int) -> None:
            now.begin(run_label(point))
            draw()

        def ends(point: Point, place: int, result: Mapping[str, Any]) -> None:
            ended[point.id] = dict(result)
            line = f"{place + 1}/{len(order)} {run_label(point)}: {outcome_label(result)}"
            if live:
                progress.update(task, advance=1)
                progress.console.print(line, markup=False)
            else:
                sys.stderr.write(f"{line}\n")
            now.begin("")

        yield SweepWatch(begins, draw, ends)


class _CurrentRun:
    """The run that is going on, and since when."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str) -> None:
        self.name, self._began = name, monotonic()

    def seconds(self) -> float:
        return monotonic() - self._began


def run_label(point: Point) -> str:
    """A run in few words."""
    threads = "" if point.threads is None else f" {point.threads} threads"
    precision = "" if point.precision == "fp32" else f" {point.precision}"
    return f"{point.workload} batch {point.batch} {point.optimizer}{precision}{threads}, repeat {point.repeat + 1}"


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
            under_way[device.board][device.name] = (run_label(point), monotonic())
            draw(device.board)

        def ends(board: str, device: Device, point: Point, result: Mapping[str, Any]) -> None:
            under_way[board].pop(device.name, None)
            ended[board] += 1
            of = f"{ended[board]}/{len(folder.boards[board].order)}"
            says(f"{board} {of} on {device.name}: {run_label(point)}: {outcome_label(result)}")
            draw(board)

        def says(line: str) -> None:
            if live:
                progress.console.print(line, markup=False)
            else:
                sys.stderr.write(f"{line}\n")

        yield FleetWatch(begins, ends, says)
