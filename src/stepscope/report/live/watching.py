"""Watching a run until it ends: on a terminal twice a second, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from stepscope.report.live.line import ending_of, line_of
from stepscope.report.live.now import Now, Watch
from stepscope.report.live.screen import Screen

LOOKS_PER_S = 2.0
LINE_EVERY_S = 5.0


def watch(
    run: Path,
    console: Console,
    *,
    lines: bool = False,
    looks_per_s: float = LOOKS_PER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Show a run until it has ended; returns its status. `lines`: never draw over what is on the terminal."""
    follows = Watch(run)
    with contextlib.closing(follows):
        first = follows.look()
        if first.ended:
            _say(console, ending_of(first))
            return first.status
        if lines or not console.is_terminal:
            return _in_lines(looks(follows, first, LINE_EVERY_S, sleep), console)
        return _on_screen(looks(follows, first, 1 / looks_per_s, sleep), console)


def _on_screen(looks: Iterator[Now], console: Console) -> str:
    now = next(looks)
    with Live(Screen(now), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for later in looks:
            now = later
            live.update(Screen(now), refresh=True)
    return now.status


def _in_lines(looks: Iterator[Now], console: Console) -> str:
    status, warnings = "", tuple[str, ...]()
    for now in looks:
        for warning in now.warnings[-1:] if now.warnings != warnings else ():
            _say(console, f"! {warning}")
        status, warnings = now.status, now.warnings
        _say(console, ending_of(now) if now.ended else line_of(now))
    return status


def looks(follows: Watch, now: Now, every_s: float, sleep: Callable[[float], None]) -> Iterator[Now]:
    """The first look and one more each period, the last when the run has ended."""
    yield now
    while not now.ended:
        sleep(every_s)
        now = follows.look()
        yield now


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
