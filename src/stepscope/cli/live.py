"""`stepscope live`: watch a run that is going on, from another terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from stepscope.api.requests import LiveRequest
from stepscope.cli._options import make_command, print_json
from stepscope.errors import RunNotFound
from stepscope.run_paths import NEWEST, RUNS, find_run

_NOT_OK = 1


def _live(
    request: LiveRequest,
    as_json: Annotated[bool, typer.Option("--json", help="Print the current state as JSON, and exit.")] = False,
) -> None:
    """Watch until the run has ended; the exit code says how."""
    from rich.console import Console

    from stepscope.report.live.screen import watch

    try:
        folder = _find_or_await_run(request.run, request.wait)
        if as_json:
            print_json(_run_state_json(folder))
            return
        with _export_prometheus_gauges(folder, request.prometheus):
            status = watch(folder, Console(), lines=request.lines)
    except KeyboardInterrupt:
        sys.stderr.write("\nThe view is closed; the training goes on.\n")
        return
    raise typer.Exit(0 if status == "ok" else _NOT_OK)


live = make_command(LiveRequest, _live, "live")


def _run_state_json(folder: Path) -> dict[str, Any]:
    """The state of a run now; what has a name each (rails, zones, cores) is an object of them."""
    from dataclasses import asdict

    from stepscope.report.live.run_state import RunWatcher

    with contextlib.closing(RunWatcher(folder)) as follows:
        now = follows.read_state()
    named = {name: dict(getattr(now, name)) for name in ("cores", "accelerators", "rails", "temperatures", "clocks")}
    return {**asdict(now), **named, "left_s": now.left_s, "left_j": now.left_j}


@contextlib.contextmanager
def _export_prometheus_gauges(folder: Path, place: str | None) -> Iterator[None]:
    """Gauges for Prometheus as long as the run is watched."""
    if place is None:
        yield
        return
    from stepscope.integrations import prometheus

    if not place.isdigit():
        with prometheus.live_file(folder, Path(place)):
            yield
        return
    with prometheus.live_server(folder, int(place)) as port:
        typer.echo(f"gauges at http://{prometheus.LOOPBACK}:{port}/metrics", err=True)
        yield


def _find_or_await_run(run: Path, wait: bool) -> Path:
    if wait:
        from stepscope.report.live.growing_files import newest_running, wait_for

        if str(run) == NEWEST and not run.exists():
            run_folder = wait_for(lambda: newest_running(RUNS), lambda: False)
        else:
            headers = (run / "run.json", RUNS / run / "run.json")
            run_folder = wait_for(
                lambda: next((header.parent for header in headers if header.is_file()), None), lambda: False
            )
        assert run_folder is not None
        return run_folder
    folder = find_run(run)
    if not (folder / "run.json").is_file():
        raise RunNotFound(f"no run at '{folder}'", "give the folder of a run, or wait for it to begin with --wait")
    return folder
