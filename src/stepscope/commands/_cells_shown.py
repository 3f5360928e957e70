"""The progress of a study: a live line on a terminal, a line a measurement elsewhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.commands._called import by_program, line


@contextmanager
def cells_shown(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """What a study calls when it is about to measure something: its place, of how many, and what."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    live = console.is_terminal and not quiet
    with Progress(*columns, console=console, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=None)

        def tell(place: int, count: int, what: str) -> None:
            if live:
                progress.update(task, description=what, completed=place, total=count)
            elif not quiet:
                sys.stderr.write(f"{place + 1}/{count} {what}\n")

        yield tell


def command_line(out: Path | None, folder: Path) -> str:
    """The line that repeats this command, and goes on in the same folder."""
    return line() if out is not None else f"{line()} --out {shlex.quote(str(folder))}"


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if by_program() is None:
            sys.stderr.write(f"interrupted; go on with: {command}\n")
        raise
