"""`stepscope live`: watch a run that is going on, from another terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from stepscope.errors import RunNotFound
from stepscope.run_paths import NEWEST, RUNS, find_run

_NOT_OK = 1


def live(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")] = Path(NEWEST),
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the run to begin.")] = False,
    lines: Annotated[bool, typer.Option("--lines", help="A line every few seconds, as without a terminal.")] = False,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", help="Serve gauges at this port of 127.0.0.1 (0: any), or keep this .prom file."),
    ] = None,
) -> None:
    """Watch a run that is going on: step, speed, time left, load, power, memory and heat.

    It reads the run folder alone: the training does not notice it, and goes on when it is left with Ctrl-C. It ends
    when the run does, with exit code 0 if that went well and 1 if not.
    """
    from rich.console import Console

    from stepscope.report.live.screen import watch

    try:
        folder = _run_folder(run, wait)
        with _gauges(folder, prometheus):
            status = watch(folder, Console(), lines=lines)
    except KeyboardInterrupt:
        sys.stderr.write("\nThe view is closed; the training goes on.\n")
        return
    raise typer.Exit(0 if status == "ok" else _NOT_OK)


@contextlib.contextmanager
def _gauges(folder: Path, wanted: str | None) -> Iterator[None]:
    """Gauges for Prometheus as long as the run is watched."""
    if wanted is None:
        yield
        return
    from stepscope.integrations import prometheus

    if not wanted.isdigit():
        with prometheus.live_file(folder, Path(wanted)):
            yield
        return
    with prometheus.live_server(folder, int(wanted)) as port:
        typer.echo(f"gauges at http://{prometheus.LOOPBACK}:{port}/metrics", err=True)
        yield


def _run_folder(run: Path, wait: bool) -> Path:
    """The folder to watch, once it is there."""
    if wait:
        from stepscope.report.live.folder import newest_running, wait_for

        if str(run) == NEWEST and not run.exists():
            found = wait_for(lambda: newest_running(RUNS), lambda: False)
        else:
            found = wait_for(lambda: _started_run(run), lambda: False)
        assert found is not None
        return found
    folder = find_run(run)
    if not (folder / "run.json").is_file():
        raise RunNotFound(f"no run at '{folder}'", "give the folder of a run, or wait for it to begin with --wait")
    return folder


def _started_run(run: Path) -> Path | None:
    return next((folder for folder in (run, RUNS / run) if (folder / "run.json").is_file()), None)
