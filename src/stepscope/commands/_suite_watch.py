"""The progress of a sweep on stderr: a live line with the time left, or a line a run where nobody watches live."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stepscope.studies.suite.grid import Point
from stepscope.studies.suite.state import SweepFolder
from stepscope.studies.suite.sweep import Watch, time_left_s
from stepscope.units import duration, number


@contextmanager
def watching(folder: SweepFolder, quiet: bool) -> Iterator[Watch]:
    """What a sweep is to tell; drawn at most once a second, since drawing takes CPU time from what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    order, ended = folder.order, folder.ended()
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield Watch()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    live = console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=len(order), completed=sum(p.id in ended for p in order), left="")
        now = _Now()

        def draw() -> None:
            left_s = time_left_s(order, ended)
            left = "" if left_s is None else f"{duration(max(0.0, left_s - now.seconds()) * 1e9, 2)} left"
            progress.update(task, description=f"{now.name} {now.seconds():.0f} s", left=left, refresh=True)

        def begins(point: Point, place: int) -> None:
            now.begin(called(point))
            draw()

        def ends(point: Point, place: int, result: Mapping[str, Any]) -> None:
            ended[point.id] = dict(result)
            line = f"{place + 1}/{len(order)} {called(point)}: {became(result)}"
            if live:
                progress.update(task, advance=1)
                progress.console.print(line, markup=False)
            else:
                sys.stderr.write(f"{line}\n")
            now.begin("")

        yield Watch(begins, draw, ends)


class _Now:
    """Which run is going on, and since when."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, name: str) -> None:
        self.name, self._began = name, time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._began


def called(point: Point) -> str:
    """A run in few words."""
    threads = "" if point.threads is None else f" {point.threads} threads"
    precision = "" if point.precision == "fp32" else f" {point.precision}"
    return f"{point.workload} batch {point.batch} {point.optimizer}{precision}{threads}, repeat {point.repeat + 1}"


def became(result: Mapping[str, Any]) -> str:
    """How a run ended, in few words."""
    if result["status"] != "ok":
        return f"{result['status']}: {result['reason']}"
    step = (result.get("numbers") or {}).get("step_time_ms", {}).get("value")
    flags = result.get("flags") or []
    return f"ok, {number(step)} ms a step" + (f" ({'; '.join(flags)})" if flags else "")
