"""What a study tells whoever waits for it, and how it makes the points that it lacks in child processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.suite.run_one import Outcome, run_one


@dataclass(frozen=True)
class Watch:
    """Told: about to begin (what, place, of how many), a second has passed, how it ended (and why, unless well)."""

    begins: Callable[[str, int, int], None] = lambda called, place, count: None
    ticks: Callable[[], None] = lambda: None
    ends: Callable[[str, int, int, Outcome], None] = lambda called, place, count, outcome: None


@dataclass(frozen=True)
class Job:
    """Points of a study that one process makes, one after the other, and writes down as each is done.

    cells: the points by the seed that makes each. orders: what the process is told, but for the seeds that are left.
    """

    name: str
    called: str
    cells: Mapping[int, str]
    orders: Mapping[str, Any]


def ended_early(folder: StudyFolder, job: Job) -> dict[str, Any] | None:
    """How a job ended that did not make all its points: status and reason; null where nothing is missing."""
    missing = [cell for cell in job.cells.values() if folder.cell(cell) is None]
    if not missing:
        return None
    unsaid = {"status": "unfinished", "reason": f"{', '.join(missing)} cannot be read or was not made"}
    return folder.cell(f"{job.name}-ended") or unsaid


def make_missing(
    folder: StudyFolder, jobs: Sequence[Job], child: Sequence[str], time_limit_s: float, watch: Watch
) -> None:
    """Start a process for each job with points that are not there; one that cannot make them is kept with its reason.

    Ctrl-C ends the process; the points that it had finished stay. What was refused would be refused again; a job that
    ended for any other reason (memory, time, a crash) is tried again by the next call.
    """
    for place, job in enumerate(jobs):
        left = [seed for seed, cell in job.cells.items() if folder.cell(cell) is None]
        ended = ended_early(folder, job)
        if not left or (ended is not None and ended["status"] == "refused"):
            continue
        watch.begins(job.called, place, len(jobs))
        cells = {str(seed): str((folder.path / "cells" / f"{job.cells[seed]}.json").absolute()) for seed in left}
        orders = {**job.orders, "seeds": left, "cells": cells, "study": str(folder.path.absolute())}
        outcome = run_one(child, orders, _where(folder, job), time_limit_s, watch.ticks)
        if outcome.status != "ok":
            folder.keep(f"{job.name}-ended", {"status": outcome.status, "reason": outcome.reason})
        watch.ends(job.called, place, len(jobs), outcome)


def _where(folder: StudyFolder, job: Job) -> Path:
    """A place of its own for each try: the runs of seeds that were finished before stay where they are."""
    tries = len(list((folder.path / "runs").glob(f"{job.name}.*")))
    return (folder.path / "runs" / f"{job.name}.{tries}").absolute()
