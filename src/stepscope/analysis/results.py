"""The result of a study, as data: an answer, tables, the numbers behind its figures, and notes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl

Value = str | float | int | bool | None


@dataclass(frozen=True)
class ResultTable:
    """Rows under named columns; a column's name ends with its unit, and null is "not measured".

    meanings: what a column holds, by its name, for whoever hovers or reads the notes.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    note: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """The result of one study on one device.

    answer: one or two sentences, the first thing that anybody reads. notes: what limits it, and what could not be
    judged and why. frames: the numbers that the figures are drawn from, by the figure's name. simulated: the board
    whose sensors were simulated, if any. The engine fills in the rest: settings is all that a repetition needs, and
    command the line that repeats it.
    """

    title: str
    answer: str
    tables: tuple[ResultTable, ...]
    notes: tuple[str, ...] = ()
    simulated: str | None = None
    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    study: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def to_json(self) -> str:
        """Return everything as JSON except the frames, which are stored beside it as Parquet."""
        order = (
            "study",
            "title",
            "answer",
            "tables",
            "settings",
            "device",
            "versions",
            "command",
            "notes",
            "simulated",
        )
        plain = {name: getattr(self, name) for name in order} | {"tables": [asdict(table) for table in self.tables]}
        return json.dumps(plain, indent=1, default=str) + "\n"
