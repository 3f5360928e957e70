"""`stepscope study power-modes` in Python: train in each power mode, and say which is best for what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from stepscope.analysis.findings import Findings
from stepscope.studies.power_modes.nvpmodel import Board, kept
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.sweet_spots.study import CHILD
from stepscope.studies.trainings.costs import JOULES, LEARNING, SPEED
from stepscope.studies.trainings.found import Question, found
from stepscope.studies.trainings.measuring import Means, trained
from stepscope.studies.trainings.setting import Point, Rules, Setting

NAME = "power-modes"


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs. modes: their numbers; all, unless said."""

    base: Setting
    modes: tuple[int, ...]
    rules: Rules = field(default_factory=Rules)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def power_modes(
    out: str | Path, jetson: Board, asked: Asked, *, means: Means | None = None, command: str = ""
) -> Findings:
    """Train in every mode; the mode of before is set again at the end, however it comes."""
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    title, judged = f"The power modes for {asked.base.workload}", (SPEED, *JOULES.values(), *LEARNING)
    question = Question(NAME, title, "mode", lambda setting: called(jetson, setting), judged)
    settings = [replace(asked.base, mode=mode) for mode in asked.modes]
    inside = replace(
        means or Means(CHILD),
        around=lambda setting: _in_mode(jetson, setting),
        order=lambda todo: _by_mode(todo, asked),
    )
    with folder.locked(), kept(jetson, folder.path):
        runs = trained(folder, settings, asked.rules, inside, question.called)
    notes = ["the mode of before was set again at the end"]
    said = command or f"stepscope study {NAME} {asked.base.workload} --apply --out {out}"
    return found(question, runs, asked.rules, asked.to_dict(), said, notes=notes)


def called(jetson: Board, setting: Setting) -> str:
    """A mode by its number and name."""
    return f"{setting.mode} {jetson.modes.get(setting.mode or 0, '')}".strip()


def _by_mode(todo: list[Point], asked: Asked) -> list[Point]:
    """Mode after mode within each round: setting one takes its time, and the board settles in it."""
    order = {mode: place for place, mode in enumerate(asked.modes)}
    return sorted(todo, key=lambda point: (point.repeat, order[point.setting.mode or 0]))


@contextlib.contextmanager
def _in_mode(jetson: Board, setting: Setting) -> Iterator[None]:
    if setting.mode is not None:
        jetson.set(setting.mode)
    yield
