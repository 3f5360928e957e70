"""Makes the measurements of the study one after the other, and reads runs that were made elsewhere."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.run import Run
from stepscope.errors import RunError, RunNotFound
from stepscope.studies.observations._plan import Asked, Cell, cells
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.suite.run_one import run_one
from stepscope.studies.suite.state import SweepFolder

Found = dict[str, Any]


@dataclass(frozen=True)
class Watch:
    """What is told meanwhile: about to begin (cell, place, of how many), a second has passed, how it ended."""

    begins: Callable[[Cell, int, int], None] = lambda cell, place, count: None
    ticks: Callable[[], None] = lambda: None
    ends: Callable[[Cell, int, int, Mapping[str, Any]], None] = lambda cell, place, count, found: None


@dataclass
class Measured:
    """Runs, frames by name, why a kind of evidence is lacking, and sentences on what did not come out."""

    runs: list[Run] = field(default_factory=list)
    frames: dict[str, pl.DataFrame] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def measured(folder: StudyFolder, asked: Asked, child: Sequence[str], watch: Watch) -> Measured:
    """Every cell as it was answered before, or answered now; an interrupted one leaves nothing and is made again."""
    todo, result = cells(asked), Measured()
    rows: dict[str, list[Any]] = {"memory": [], "days": []}
    for place, cell in enumerate(todo):
        known = folder.cell(cell.id)
        if known is None:
            watch.begins(cell, place, len(todo))
            known = folder.answered(cell.id, lambda cell=cell: _made(folder, asked, cell, child, watch))  # type: ignore[misc]
            watch.ends(cell, place, len(todo), known)
        what = str(cell.orders["what"])
        if known["status"] != "ok":
            result.notes.append(f"{cell.called}: {known['status']}: {known['reason']}")
            result.absent.setdefault(what, f"{cell.called}: {known['reason']}")
        elif what == "run":
            try:
                result.runs.append(Run(folder.path / known["run"]))
            except RunError as error:  # removed by hand: the others still say something
                result.notes.append(f"{cell.called}: left out: {error}")
        else:
            rows[what] += known["rows"]
    result.frames = {name: pl.DataFrame(found) for name, found in rows.items() if found}
    result.runs += [run for sweep in asked.sweeps for run in runs_in(Path(sweep))]
    return result


def runs_in(path: Path) -> list[Run]:
    """The runs that ended well in a sweep, a study, or any folder of run folders; RunNotFound where there is none."""
    if (path / "sweep.json").exists():
        ended = SweepFolder(path).ended().values()
        places = [path / result["run"] for result in ended if result["status"] == "ok" and result.get("run")]
    else:
        places = [header.parent for header in sorted({*path.glob("*/run.json"), *path.glob("runs/*/*/run.json")})]
    found = list(_well(places))
    if not found:
        raise RunNotFound(f"no run that ended well in '{path}'", "give the folder of a sweep: stepscope suite list")
    return found


def _well(places: Sequence[Path]) -> Iterator[Run]:
    for place in places:
        with contextlib.suppress(RunError):
            run = Run(place)
            if run.status == "ok":
                yield run


def _made(folder: StudyFolder, asked: Asked, cell: Cell, child: Sequence[str], watch: Watch) -> Found:
    where = folder.path / "runs" / cell.id
    outcome = run_one(child, cell.orders, where, asked.time_limit_s, watch.ticks)
    found: Found = {"status": outcome.status, "reason": outcome.reason, "wall_s": outcome.wall_s}
    if outcome.run is not None:
        found["run"] = str(outcome.run.relative_to(folder.path))
    if outcome.status == "ok" and cell.orders["what"] != "run":
        found["rows"] = json.loads((where / "found.json").read_text(encoding="utf-8"))["rows"]
    return found
