"""`stepscope.study`: a question that needs many runs. The command `stepscope study` asks through the same functions.

Also the progress of what takes many runs, on stderr: a live line on a terminal, a line for each run elsewhere.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from stepscope.api.requests import STUDIES
from stepscope.errors import UnknownName, UsageError
from stepscope.units import duration, number

if TYPE_CHECKING:
    from rich.progress import Progress

    from stepscope.analysis.results import Findings
    from stepscope.experiments.engine import StudyRequest
    from stepscope.experiments.engine.engine import Point, ProgressCallbacks
    from stepscope.experiments.engine.folder import SweepFolder
    from stepscope.experiments.engine.sweep_points import SweepPoint
    from stepscope.experiments.fleet.gatherer import Device
    from stepscope.experiments.fleet.scheduling import FleetCallbacks, FleetFolder
    from stepscope.report.study_results import Charts


@contextmanager
def _bars_on_stderr(last: str = "", **settings: Any) -> Iterator[tuple[Progress, bool]]:
    """Yield bars, and whether stderr is a terminal, which alone has them; last: behind each bar, default: the time."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    live = console.is_terminal
    behind = TextColumn(last) if last else TimeElapsedColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), behind)
    with Progress(*columns, console=console, transient=True, disable=not live, **settings) as progress:
        yield progress, live


@contextmanager
def study_progress(enabled: bool) -> Iterator[ProgressCallbacks]:
    """Yield the progress of a study; drawn at most once a second, since drawing takes time from what is measured."""
    from stepscope.experiments.engine.engine import ProgressCallbacks

    if not enabled:
        yield ProgressCallbacks()
        return
    with _bars_on_stderr(auto_refresh=False) as (progress, live):
        task = progress.add_task("", total=None)

        def begins(point: Point, place: int, count: int) -> None:
            progress.update(task, description=point.title, completed=place, total=count, refresh=True)

        def ends(point: Point, place: int, count: int, result: Mapping[str, Any]) -> None:
            ended_well, wall_s = result["status"] == "ok", result["wall_s"] or 0
            if live and ended_well and wall_s < 1:  # hundreds of kernels
                return
            status = "ok" if ended_well else f"{result['status']}: {result['reason']}"
            _print_line(progress, live, f"{place + 1}/{count} {point.title}: {status}, {wall_s:.0f} s")

        yield ProgressCallbacks(begins, progress.refresh, ends)


@contextmanager
def sweep_progress(folder: SweepFolder, enabled: bool) -> Iterator[ProgressCallbacks]:
    """Yield the progress of a sweep.

    Drawn at most once a second, since drawing takes CPU time from what is measured; what is left is forecast between
    the runs.
    """
    from stepscope.experiments.engine.engine import ProgressCallbacks
    from stepscope.experiments.suite.sweep import time_left_s

    if not enabled:
        yield ProgressCallbacks()
        return
    order, ended = folder.order, folder.results()
    with _bars_on_stderr("{task.fields[left]}", auto_refresh=False) as (progress, live):
        task = progress.add_task("", total=len(order), completed=sum(p.id in ended for p in order), left="")
        now = _CurrentRun()
        left_s = time_left_s(order, ended)

        def draw() -> None:
            if not live:
                return
            remaining = "" if left_s is None else f"{duration(max(0.0, left_s - now.seconds()) * 1e9, 2)} left"
            progress.update(task, description=f"{now.name} {now.seconds():.0f} s", left=remaining, refresh=True)

        def begins(point: SweepPoint, place: int, count: int) -> None:
            now.begin(point.title)
            draw()

        def ends(point: SweepPoint, place: int, count: int, result: Mapping[str, Any]) -> None:
            nonlocal left_s
            ended[point.id] = dict(result)
            left_s = time_left_s(order, ended)
            progress.update(task, advance=1)
            _print_line(progress, live, f"{place + 1}/{count} {point.title}: {outcome_label(result)}")
            now.begin("")

        yield ProgressCallbacks(begins, draw, ends)


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
def fleet_progress(folder: FleetFolder, enabled: bool) -> Iterator[FleetCallbacks]:
    """Yield the progress lines of a fleet's sweep."""
    from stepscope.experiments.fleet.scheduling import FleetCallbacks

    if not enabled:
        yield FleetCallbacks()
        return
    with _bars_on_stderr("{task.fields[now]}", refresh_per_second=1) as (progress, live):
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

        yield FleetCallbacks(begins, ends, says)


FIGURE_FORMATS = ("png", "svg", "pdf")


def study(
    question: str | StudyRequest, /, *, out: str | Path | None = None, progress: bool = False, **settings: Any
) -> Findings:
    """Answer a question with many runs, as `stepscope study NAME`; its answer, tables, notes and the frames of figures.

    question: a request of `stepscope.requests`, or its name with its fields as settings: kernels, breakdown, batch,
    threads, precision, power-modes, optimizers, partial, daily, observations, paper-2019, paper-p744. The fields are
    the options of the command, with _ for -: `quick=True`, `workload="lenet"`, `batch=[1, 2, 4]`, `lr={"adam": 0.003}`,
    `import_="tables"`; an amount is an SI number or a text: `fractions=(0.125,)` or `"12.5%"`, `charging="1h"`.
    out: the folder of the study, with page and figures; the same call with the same folder goes on where it stopped
    (studies/<time>-<name> by default). progress: on stderr. Units stand in the names of the columns; null is "not
    measured".

    Raises UnknownName for a study or setting that is not there, UsageError for a value that cannot be or a folder that
    holds another question, OutputNotWritable; KeyboardInterrupt leaves the folder so that it can be gone on with.
    """
    request = _request_named(question, settings) if isinstance(question, str) else question
    if settings and request is question:
        raise UsageError("a request has its settings already", "give the request, or the name of the study")
    checked = request.checked()
    return answer_request(request, checked, study_path(request, None if out is None else Path(out)), progress)


def answer_request(request: StudyRequest, checked: StudyRequest, folder: Path, progress: bool) -> Findings:
    """Answer a request in a folder, with findings.json, figures, page and PDF; `checked` is what it stores."""
    from stepscope.experiments.engine.engine import answer_study
    from stepscope.experiments.engine.folder import StudyFolder
    from stepscope.report.study_results import write_pictures

    with study_progress(progress) as watch:
        findings = answer_study(checked, folder, watch=watch, command=study_command(request, folder))
    StudyFolder(folder, request.study, checked.to_dict()).store_findings(findings)
    write_pictures(findings, lambda: _charts(request.study, findings), folder, FIGURE_FORMATS)
    return findings


def study_path(request: StudyRequest, out: Path | None) -> Path:
    """The folder of a study: the one given, else studies/<UTC time>-<study>[-<subject>]."""
    if out is not None:
        return out
    name = "-".join(part for part in (request.study, re.sub(r"[^A-Za-z0-9._-]+", "_", request.subject)) if part)
    return Path("studies") / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{name}"


def study_command(request: StudyRequest, folder: Path) -> str:
    """The line that asks this again, and goes on in the same folder."""
    return request.command_line("stepscope", "study", request.study, out=folder)


def _request_named(name: str, settings: dict[str, Any]) -> StudyRequest:
    if name == "compare":
        raise UsageError(
            f"'{name}' is not a separate question in Python", "use stepscope.compare and stepscope.check"
        )  # fmt: skip
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name].request.from_settings(settings, name)


def _charts(study: str, findings: Findings) -> Charts:
    module, _, function = STUDIES[study].charts.partition(":")
    charts: Charts = {}
    if module:
        charts = getattr(importlib.import_module(f"stepscope.report.charts.{module}"), function)(findings.frames)
    return charts
