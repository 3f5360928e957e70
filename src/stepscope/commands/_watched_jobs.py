"""The progress of a study's jobs on stderr: a live line on a terminal, a line a job elsewhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stepscope.commands._called import by_program, line
from stepscope.errors import UnknownName

if TYPE_CHECKING:
    from stepscope.analysis.findings import Findings
    from stepscope.studies.suite.run_one import Outcome
    from stepscope.studies.watch import Watch


def gone_through(measure: Callable[[Watch, str], Findings], out: str, named: bool, quiet: bool) -> Findings:
    """Measure with progress; Ctrl-C says the line that goes on. `named`: whether the user's line has the folder."""
    command = line() if named else f"{line()} --out {shlex.quote(out)}"
    try:
        with watching(quiet) as watch:
            return measure(watch, command)
    except KeyboardInterrupt:
        if by_program() is None:
            sys.stderr.write(f"interrupted; go on with: {command}\n")
        raise


@contextmanager
def watching(quiet: bool) -> Iterator[Watch]:
    """What a study is to tell; drawn at most once a second, since drawing takes time from what is measured."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.studies.watch import Watch

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield Watch()
        return
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

        yield Watch(begins, progress.refresh, ends)


def known_board(name: str | None) -> str | None:
    """The simulated board of this name, or UnknownName with those that there are."""
    from stepscope.simulate.boards import BOARDS

    if name is not None and name not in BOARDS:
        raise UnknownName("simulated board", name, BOARDS)
    return name
