"""Which of the listed runs are meant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone

import polars as pl

from stepscope.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """Runs that fulfil all that is given; in a text, * stands for any characters, and case does not count.

    where: a condition of SQL on the columns, such as "batch_size >= 32 AND step_time_ns < 1e7".
    """

    workload: str | None = None
    board: str | None = None
    status: str | None = None
    tags: tuple[str, ...] = ()
    since: str | None = None  # a date, UTC where it states no zone
    where: str | None = None


def chosen(frame: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """The rows that are meant; UsageError for a date or a condition that cannot be understood."""
    for column in ("workload", "board", "status"):
        pattern = getattr(choice, column)
        if pattern is not None:
            parts = (pl.escape_regex(part) for part in pattern.split("*"))
            frame = frame.filter(pl.col(column).str.contains(f"(?is)^{'.*'.join(parts)}$"))
    for tag in choice.tags:
        frame = frame.filter(pl.col("tags").list.contains(tag))
    if choice.since is not None:
        frame = frame.filter(pl.col("started_s") >= _seconds(choice.since))
    return frame if choice.where is None else _asked(frame, choice.where)


def _seconds(date: str) -> float:
    try:
        stated = datetime.fromisoformat(date)
    except ValueError as error:
        raise UsageError(f"'{date}' is no date: {error}", "for example 2026-01-31 or 2026-01-31T12:00") from error
    return (stated if stated.tzinfo else stated.replace(tzinfo=timezone.utc)).timestamp()


def _asked(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    try:
        with pl.SQLContext({"runs": frame}) as context:
            answer = context.execute(f"SELECT * FROM runs WHERE {where}", eager=True)
    except pl.exceptions.PolarsError as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"--where {json.dumps(where)}: {said}", f"columns: {', '.join(frame.columns)}") from error
    if answer.columns != frame.columns:
        raise UsageError(f"--where {json.dumps(where)} is more than a condition", "for example 'batch_size >= 32'")
    return answer
