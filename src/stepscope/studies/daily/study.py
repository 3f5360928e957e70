"""`stepscope study daily` in Python: let a model live through the days with every seed, and hand back Findings."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.analysis.findings import Findings, FoundTable
from stepscope.errors import UsageError
from stepscope.studies.daily.lives import Lives, lives
from stepscope.studies.daily.routine import Asked, Setting, jobs, settings
from stepscope.studies.daily.tables import accuracy_table, cost_table, frames
from stepscope.studies.here import device_name, versions
from stepscope.studies.seed_means import energy_notes
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.watch import Job, Watch, ended_early, make_missing

NAME = "daily"
CHILD = (sys.executable, "-m", "stepscope.commands._training_child")


def daily(
    out: str | Path,
    asked: Asked | None = None,
    *,
    child: Sequence[str] = CHILD,
    watch: Watch | None = None,
    command: str = "",
) -> Findings:
    """Train day by day in a study's folder, which is begun or gone on with.

    `child`: how the trainings of a setting are started in a process of their own; `command`: the line to repeat it.
    UsageError where no training came about, with the reason of the first.
    """
    asked = asked or Asked()
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    todo = jobs(asked)
    with folder.locked():
        make_missing(folder, todo, child, asked.time_limit_s, watch or Watch())
    return found(folder, asked, todo, command or f"stepscope study daily {asked.workload} --out {out}")


def found(folder: StudyFolder, asked: Asked, todo: Sequence[Job], command: str) -> Findings:
    """The findings from the cells that are there."""
    made, unmade = list[Lives](), list[tuple[Setting, Mapping[str, Any]]]()
    for setting, job in zip(settings(asked), todo, strict=True):
        cells = [cell for cell in map(folder.cell, job.cells.values()) if cell is not None]
        if cells:
            made.append(lives(setting, cells, asked.days))
        ended = ended_early(folder, job)
        if ended is not None:
            unmade.append((setting, ended))
    if not made:
        raise UsageError(f"no day could be trained: {unmade[0][1]['reason'] if unmade else 'nothing was made'}")
    tables = [accuracy_table(made), cost_table(made, asked)]
    if unmade:
        rows = tuple((setting.name, str(ended["status"]), str(ended["reason"])) for setting, ended in unmade)
        note = "What was not refused but failed is tried again by the same command."
        tables.append(FoundTable("unmade", "Not trained", ("setting", "status", "why"), rows, note))
    return Findings(
        study=NAME,
        title=f"{asked.workload} through {asked.days} days of {asked.images} new images",
        answer=_answer(made, asked),
        tables=tuple(tables),
        settings=asked.to_dict(),
        device=device_name(),
        versions=versions(),
        command=command,
        notes=tuple(_notes(made, asked)),
        simulated=asked.simulate,
        frames=frames(made, asked),
    )


def _answer(made: Sequence[Lives], asked: Asked) -> str:
    best = max(made, key=lambda each: each.end.value)
    bounds = "" if best.slope.low is None else f" ({best.slope.low:.2f} to {best.slope.high:.2f})"
    said = (
        f"Best after {asked.days} days: {best.setting.name}, from {best.start.value:.1f} to {best.end.value:.1f} %, "
        f"{best.slope.value:.2f} points a day{bounds}, at {best.day_s.value:.3g} s of training on its longest day."
    )
    if asked.charging_s is None:
        return said
    fitting = sum(each.fits(asked.charging_s) is True for each in made)
    return f"{said} {fitting} of {len(made)} settings fit while the device charges."


def _notes(made: Sequence[Lives], asked: Asked) -> Iterator[str]:
    cell = made[0].cells[0]
    data = cell["data"]
    yield f"data: {data['name']} ({data['kind']}), judged each evening on all {data['test_size']} test images"
    yield f"pre-trained on {cell['pretrained_on']} other images until {asked.start:.0%} of the test images were right"
    yield "every setting of a seed begins with the same weights and gets the same images each day"
    yield "time and energy are those of the training steps; looking at the accuracy is not counted"
    if min(len(each.cells) for each in made) < 2:
        yield "one seed gives no interval: --seeds 5"
    yield from energy_notes([cell for each in made for cell in each.cells])
    if asked.battery_j is not None and all(each.day_j is None for each in made):
        yield "--battery cannot be judged without energy"
