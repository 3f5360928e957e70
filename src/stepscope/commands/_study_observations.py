"""`stepscope study observations`: the twelve observations of the 2019 paper on the device at hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.studies.observations._measuring import Watch
    from stepscope.studies.observations._plan import Asked, Cell


def observations(
    quick: Annotated[bool, typer.Option("--quick", help="Small models and few repeats: minutes on two cores.")] = False,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", help="Take the runs of a sweep, or of any folder of runs; may be given again."),
    ] = None,
    simulate: Annotated[str | None, typer.Option(help="Read the power of a simulated board: jetson-tx2.")] = None,
    workloads: Annotated[str | None, typer.Option(help="Train these: a,b. Unless said: the paper's.")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes: 4,8,...,64, unless said.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Fresh processes for each setting: 3 (--quick: 2).")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds of steps of a run, 12 steps at least: 20 (2).")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Unless said: cuda where torch has it.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads. Unless said: on a CPU one core is left free.")] = None,
    days: Annotated[int | None, typer.Option(help="Days of the daily training: 17 (--quick: 10).")] = None,
    only: Annotated[str | None, typer.Option(help="Judge these alone: 1,3,9.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of runs and of the trainings.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study. Unless said: studies/<time>-observations.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False,
) -> None:
    """Judge each of the twelve observations of the 2019 paper on this device: holds, does not, or cannot be judged.

    Each has a stated test, an effect with its interval of 95 %, and a figure (3 to 10 of the paper from own data).
    Without an accelerator the meaningful counterpart is judged and labelled so; a missing sensor is never a pass.
    Interrupt it as you like: the same command with the same --out goes on where it stopped.
    """
    from stepscope.commands._cells_shown import command_line, resumable
    from stepscope.commands._study_shown import concluded, study_out
    from stepscope.report.charts.study_observations import charts
    from stepscope.studies.observations.study import NAME
    from stepscope.studies.observations.study import observations as judged
    from stepscope.studies.study_folder import StudyFolder

    asked = _asked(quick, from_ or [], simulate, workloads, batch, repeats, seconds, device, threads, days, only, seed)
    folder = study_out(out, NAME)
    command = command_line(out, folder)
    with resumable(command), _watching(quiet) as watch:
        findings = judged(folder, asked, watch=watch, command=command)
    concluded(StudyFolder(folder, NAME, asked.to_dict()), findings, charts(findings.frames), quiet=quiet, json=json)


def _asked(
    fast: bool,
    sweeps: list[Path],
    simulate: str | None,
    workloads: str | None,
    batch: str | None,
    repeats: int | None,
    seconds: float | None,
    device: str | None,
    threads: int | None,
    days: int | None,
    only: str | None,
    seed: int,
) -> Asked:
    """Everything that can be refused is refused before anything runs."""
    from stepscope.studies.observations._plan import Asked, quick
    from stepscope.studies.suite.grid import numbers, words

    base = quick(Asked()) if fast else Asked()
    place = _device(device)
    given: dict[str, Any] = {
        "workloads": words("--workloads", workloads, _known_workloads(workloads)),
        "batches": numbers("--batch", batch),
        "repeats": repeats,
        "seconds": seconds,
        "threads": threads if threads is not None or place != "cpu" else _threads(),
        "simulate": _board(simulate),
        "sweeps": tuple(str(_read(sweep)) for sweep in sweeps),
        "only": numbers("--only", only),
        "daily": None if days is None else replace(base.daily, days=_at_least_one("--days", days)),
    }
    named = {name: value for name, value in given.items() if value not in (None, ())}
    if sweeps and "workloads" not in named:
        named |= _of_sweeps(sweeps)
    return replace(base, device=place, seed=seed, **named)


def _known_workloads(text: str | None) -> list[str] | None:
    if text is None:
        return None
    from stepscope import workloads

    return [workload.name for workload in workloads.every()]


def _device(asked: str | None) -> str:
    if asked not in (None, "cpu", "cuda"):
        raise UnknownName("device", str(asked), ("cpu", "cuda"))
    if asked == "cpu":
        return "cpu"
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise UsageError(
            "--device cuda: torch sees no CUDA device here", "leave --device out, or install torch for CUDA"
        )
    return "cuda" if there else "cpu"


def _threads() -> int:
    """One core less than there are, so that the cores that train can be told from the others."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, usable - 1)


def _board(name: str | None) -> str | None:
    from stepscope.simulate.boards import BOARDS

    if name is not None and name not in BOARDS:
        raise UnknownName("simulated board", name, BOARDS)
    return name


def _read(sweep: Path) -> Path:
    from stepscope.studies.observations._measuring import runs_in

    runs_in(sweep)
    return sweep.absolute()


def _of_sweeps(sweeps: list[Path]) -> dict[str, Any]:
    """The models and batch sizes of the runs, for the dry runs beside them; models of the user's own are left out."""
    from stepscope import workloads
    from stepscope.studies.observations._measuring import runs_in

    stated = [run.meta.get("workload") or {} for sweep in sweeps for run in runs_in(sweep)]
    known = {workload.name for workload in workloads.every()}
    names = tuple(dict.fromkeys(str(each.get("name")) for each in stated if each.get("name") in known))
    batches = tuple(sorted({int(each["batch_size"]) for each in stated if each.get("batch_size")}))
    return {"workloads": names, "batches": batches} if names and batches else {}


def _at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{option} {value}: must be 1 or more", f"for example {option} 10")
    return value


@contextmanager
def _watching(quiet: bool) -> Iterator[Watch]:
    """A live line on a terminal, a line a measurement elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from stepscope.studies.observations._measuring import Watch

    console = Console(stderr=True, highlight=False)
    if quiet:
        yield Watch()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    live = console.is_terminal
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not live) as progress:
        task = progress.add_task("", total=None)

        def begins(cell: Cell, place: int, count: int) -> None:
            progress.update(task, description=cell.called, completed=place, total=count, refresh=True)

        def ends(cell: Cell, place: int, count: int, found: Mapping[str, Any]) -> None:
            became = "ok" if found["status"] == "ok" else f"{found['status']}: {found['reason']}"
            line = f"{place + 1}/{count} {cell.called}: {became}, {found['wall_s'] or 0:.0f} s"
            if live:
                progress.console.print(line, markup=False)
            else:
                sys.stderr.write(f"{line}\n")

        yield Watch(begins, progress.refresh, ends)
