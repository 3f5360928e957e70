"""`stepscope study partial` in Python: train every way with every seed, and hand back Findings."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.analysis.findings import Findings, FoundTable
from stepscope.errors import UsageError
from stepscope.studies.here import device_name, versions
from stepscope.studies.partial.outcome import Outcome, outcome
from stepscope.studies.partial.plan import FRACTIONAL, Asked, Setting, jobs, settings
from stepscope.studies.partial.tables import before_table, frames, front, reference_table, saving_table, way_table
from stepscope.studies.seed_means import energy_notes
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.watch import Job, Watch, ended_early, make_missing

NAME = "partial"
CHILD = (sys.executable, "-m", "stepscope.commands._training_child")


def partial(
    out: str | Path,
    asked: Asked | None = None,
    *,
    child: Sequence[str] = CHILD,
    watch: Watch | None = None,
    command: str = "",
) -> Findings:
    """Train a workload in parts in a study's folder, which is begun or gone on with.

    `child`: how the trainings of a setting are started in a process of their own; `command`: the line to repeat it.
    UsageError where no training came about, with the reason of the first.
    """
    asked = with_checkpoint(asked or Asked())
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    todo = jobs(asked)
    with folder.locked():
        make_missing(folder, todo, child, asked.time_limit_s, watch or Watch())
    return found(folder, asked, todo, command or f"stepscope study partial {asked.workload} --out {out}")


def with_checkpoint(asked: Asked) -> Asked:
    """The same with the hash of the checkpoint; a file that is not plain weights is refused before anything runs."""
    if asked.checkpoint is None or asked.checkpoint_sha256 is not None:
        return asked
    from stepscope.studies.partial.checkpoint import read_weights

    path = Path(asked.checkpoint)
    read_weights(path)
    return replace(
        asked, checkpoint=str(path.absolute()), checkpoint_sha256=hashlib.sha256(path.read_bytes()).hexdigest()
    )


def found(folder: StudyFolder, asked: Asked, todo: Sequence[Job], command: str) -> Findings:
    """The findings from the cells that are there."""
    from stepscope.studies.partial.ways import WAYS

    outcomes, unmade = list[Outcome](), list[tuple[Setting, Mapping[str, Any]]]()
    for setting, job in zip(settings(asked), todo, strict=True):
        cells = [cell for cell in map(folder.cell, job.cells.values()) if cell is not None]
        if cells:
            outcomes.append(outcome(setting, cells))
        ended = ended_early(folder, job)
        if ended is not None:
            unmade.append((setting, ended))
    if not outcomes:
        raise UsageError(f"no way could be trained: {unmade[0][1]['reason'] if unmade else 'nothing was made'}")
    kinds = {cell["energy_kind"] for each in outcomes for cell in each.cells}
    kind = next(iter(kinds)) if len(kinds) == 1 else None
    tables = [way_table(outcomes, kind), saving_table(outcomes)]
    before = before_table(outcomes)
    tables += [before] if before is not None else []
    tables += [reference_table(outcomes)] if asked.preset else []
    tables += [_unmade_table(unmade)] if unmade else []
    made = {setting.way for setting in settings(asked)}
    meaning = tuple((name, way.trains, way.saves) for name, way in WAYS.items() if name in made)
    return Findings(
        study=NAME,
        title=f"Training only a part of {asked.workload}",
        answer=_answer(outcomes),
        tables=(*tables, FoundTable("meaning", "What each way trains", ("way", "trains", "can save"), meaning)),
        settings=asked.to_dict(),
        device=device_name(),
        versions=versions(),
        command=command,
        notes=tuple(_notes(outcomes, asked)),
        simulated=asked.simulate,
        frames=frames(outcomes),
    )


def _answer(outcomes: Sequence[Outcome]) -> str:
    """What all of it gives, and the parts that nothing beats in time or memory."""
    whole = next((each for each in outcomes if each.setting.way == "all"), None)
    said = [] if whole is None else [f"Training all gives {_accuracy(whole)} in {whole.time_s.value:.3g} s."]
    for cost, word in (("time_s", "time"), ("peak_mb", "memory")):
        names = [each for each in outcomes if each.setting.name in front(outcomes, cost)]
        if names:
            listed = ", ".join(f"{each.setting.name} ({each.accuracy.value:.1f} %)" for each in names)
            said.append(f"For its {word} unbeaten: {listed}.")
    return " ".join(said)


def _accuracy(found: Outcome) -> str:
    mean = found.accuracy
    bounds = "" if mean.low is None or mean.high is None else f" ({mean.low:.1f} to {mean.high:.1f})"
    return f"{mean.value:.1f} %{bounds}"


def _unmade_table(unmade: Sequence[tuple[Setting, Mapping[str, Any]]]) -> FoundTable:
    rows = tuple((setting.name, str(ended["status"]), str(ended["reason"])) for setting, ended in unmade)
    note = "What was not refused but failed is tried again by the same command."
    return FoundTable("unmade", "Not trained", ("way", "status", "why"), rows, note)


def _notes(outcomes: Sequence[Outcome], asked: Asked) -> Iterator[str]:
    cell = outcomes[0].cells[0]
    data = cell["data"]
    yield f"data: {data['name']} ({data['kind']}), {data['train_size']} to train, {data['test_size']} to test"
    yield f"{cell['steps']} steps of {cell['batch']} samples, {cell['optimizer']}; the time of looking is not counted"
    seeds = {len(each.cells) for each in outcomes}
    if min(seeds) < 2:
        yield "one seed gives no interval: --seeds 5"
    yield from energy_notes([cell for each in outcomes for cell in each.cells])
    if 1.0 in asked.fractions and set(FRACTIONAL) & set(asked.ways):
        yield "100 % of layers or filters is the same training as all, and is shown as such"
    yield from dict.fromkeys(
        f"{each.setting.name}: {note}" for each in outcomes for one in each.cells for note in one["notes"]
    )
