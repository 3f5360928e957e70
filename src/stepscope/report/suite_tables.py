"""The tables of a suite and of a fleet: on the terminal, as Markdown, and as log lines for MLPerf's checkers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from stepscope.quantities import SUITE_COLUMNS, SuiteColumn
from stepscope.report.table import Cell, Column, Table, escaped_markdown, number_column, text_column
from stepscope.report.table import markdown as table_markdown
from stepscope.units import NOT_MEASURED, amount, escape_control_characters, estimate, number, percent, si

_COLOURS = {"ok": "green", "not run yet": "dim"}


def results_table(table: pl.DataFrame, caption: str = "") -> Table:
    """A row for each setting, and of a fleet for each board."""
    several = differing_axes(table)
    columns = [
        text_column("Workload", "workload"),
        *([Column("Setting", False, of=lambda row: setting_words(row, several), fold=True)] if several else []),
        number_column("Batch", "batch", str, missing="own"),
        *([text_column("board", "board", fold=True)] if "board" in table.columns else []),
        *map(_measured, measured_columns(table)),
        Column(
            "Status", False, of=lambda row: Cell(row["status"], row["status"], style=_style(row["status"])), fold=True
        ),
        text_column("Data", "data", missing=NOT_MEASURED),
    ]
    named = 2 + bool(several) + ("board" in table.columns)
    return Table.from_rows("results", columns, table.iter_rows(named=True), caption, shown=40, named=named)


def _style(status: str) -> str:
    return _COLOURS.get(status, "yellow")


def _measured(column: tuple[str, str, Any]) -> Column:
    title, name, form = column
    return Column(title, of=lambda row: Cell(with_interval(row, name, form), row[name]), fold=True)


def setting_notes(table: pl.DataFrame) -> list[str]:
    """A sentence for each setting that did not end well, and one for each kind of flag with all that have it."""
    failed, kinds, several = [], dict[str, dict[str, str]](), differing_axes(table)
    for row in table.iter_rows(named=True):
        batch = "" if row["batch"] is None else f" batch {row['batch']}"
        who = f"{row['workload']}{batch} {setting_words(row, several)}".strip()
        if row["reason"]:
            failed.append(f"{who}: {row['status']}: {escape_control_characters(' '.join(row['reason'].split()))}")
        for flag in (row["flags"] or "").split("; "):
            if flag:
                kind = re.sub(r"\d[\d.,]*", "#", flag.partition(":")[0])
                kinds.setdefault(kind, {})[who] = flag
    return failed + [_flagged(flags, table.height) for flags in kinds.values()]


def _flagged(flags: Mapping[str, str], settings: int) -> str:
    """A flag in the words of the first setting that has it, and which others have one of its kind."""
    (who, flag), *others = flags.items()
    if not others:
        return f"{who}: {flag}"
    also = f"all {settings} settings" if len(flags) == settings else ", ".join(name for name, _ in others)
    return f"{who}: {flag}; of the same kind: {also}"


def measured_columns(table: pl.DataFrame) -> list[tuple[str, str, Any]]:
    """Title, column and format of what somebody measured."""
    titled = [column for column in SUITE_COLUMNS if column.title and table[column.name].is_not_null().any()]
    return [(column.title, column.name, partial(_value_text, column.unit)) for column in titled]


def _value_text(unit: str, value: float | None) -> str:
    return percent(value, 0) if unit == "1" else amount(value, unit)


def differing_axes(table: pl.DataFrame) -> list[str]:
    """The axes on which some workload has more than one value: the others are the same in every row of it."""
    axes = ("optimizer", "precision", "threads", "device")
    return [axis for axis in axes if any(part[axis].n_unique() > 1 for part in table.partition_by("workload"))]


def setting_words(row: Mapping[str, Any], axes: Sequence[str]) -> str:
    """The values of these axes, in few words."""
    words = {axis: str(row[axis]) for axis in axes if row[axis] is not None}
    if "threads" in words:
        words["threads"] += " threads"
    return " ".join(words.values())


def model_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Numbers that papers print of the models, and what is true."""
    parts = (("Workload", "workload"), ("Quantity", "quantity"), ("Printed", "printed"), ("What it means", "meaning"))
    columns = (
        *(text_column(title, key, fold=title != "Workload") for title, key in parts),
        number_column("True parameters", "parameters", "{:,}".format, fold=True),
        *(number_column(f"{what.capitalize()} FLOPs", f"flops_{what}", lambda flops: si(flops, "", 4), fold=True)
          for what in ("forward", "training")),
    )  # fmt: skip
    return Table.from_rows("models", columns, rows, "FLOPs per sample; 1 multiply-add = 2 FLOPs.", shown=40)


def score_table(parts: pl.DataFrame, sentence: str = "") -> Table:
    """The parts of a score; those that do not count say why."""
    columns = (
        *(
            text_column(title, title.lower(), fold=title != "Workload")
            for title in ("Workload", "Optimizer", "Precision")
        ),
        number_column("Batch", "batch", str, fold=True),
        *(number_column(title, title.lower(), number, fold=True) for title in ("Reference", "Here")),
        Column("Times better", of=_ratio, fold=True),
        text_column("Remark", "remark", fold=True),
    )
    return Table.from_rows(sentence, columns, parts.iter_rows(named=True), sentence)


def _ratio(row: Mapping[str, Any]) -> Cell:
    return Cell(
        with_interval({**row, "ratio_low": row["low"], "ratio_high": row["high"]}, "ratio", number), row["ratio"]
    )


def with_interval(row: Mapping[str, Any], column: str, form: Any) -> str:
    """A value with half the width of its interval."""
    value, low, high = row[column], row[f"{column}_low"], row[f"{column}_high"]
    if value is None or low is None or high is None or not value:
        return str(form(value))
    return f"{form(value)} ±{percent((high - low) / 2 / abs(value), 0)}".replace(" %", "%")


def fleet_status_table(rows: Sequence[Sequence[str]]) -> Table:
    """A row for each device: name, board, state, Stepscope, torch, clock less ours."""
    titles = ("device", "board", "state", "stepscope", "torch", "clock")
    return Table(
        "fleet", tuple(Column(title, False, fold=True) for title in titles), [tuple(map(Cell, row)) for row in rows]
    )


_SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")


def markdown(table: pl.DataFrame, heading: str, lines: Sequence[str]) -> str:
    """A page with one table; intervals stand in brackets, columns that nobody measured are excluded."""
    columns = [column for column in SUITE_COLUMNS if column.title and table[column.name].is_not_null().any()]
    listed = Table.from_rows("results", [
        *(text_column(name, name) for name in _SETTING),
        *(Column(column.name.replace("_", " "), of=partial(_value_within, column=column)) for column in columns),
        *(text_column(name, name) for name in ("status", "data", "flags")),
    ], table.iter_rows(named=True))  # fmt: skip
    above = [f"# {escaped_markdown(heading)}", "", *(f"- {escaped_markdown(line)}" for line in lines), ""]
    return "\n".join([*above, *table_markdown(listed)]) + "\n"


def mlperf_log_lines(
    runs: Sequence[Mapping[str, Any]], device: Mapping[str, Any], versions: Mapping[str, Any]
) -> Iterator[str]:
    """Lines of MLPerf's logging format (`:::MLLOG`); the keys of ours begin with `stepscope_`.

    This is no MLPerf result: no run trains to a target quality. The time of a line is when its run had ended.
    """
    first_ms = min((run["ended_unix_ms"] for run in runs if run.get("ended_unix_ms")), default=0)
    yield _log_line(first_ms, "submission_platform", device.get("board") or device.get("cpu"), {})
    yield _log_line(first_ms, "stepscope_versions", dict(versions), {})
    for run in runs:
        point = run["point"]
        about = {key: point[key] for key in ("workload", "precision", "threads", "device", "repeat")}
        time_ms = run.get("ended_unix_ms") or first_ms
        yield _log_line(time_ms, "submission_benchmark", point["workload"], about)
        if point["batch"] is not None:
            yield _log_line(time_ms, "global_batch_size", point["batch"], about)
        yield _log_line(time_ms, "opt_name", point["optimizer"], about)
        for name, measured in (run.get("numbers") or {}).items():
            yield _log_line(time_ms, f"stepscope_{name}", measured["value"], {**about, **_interval(measured)})
        status = "success" if run["status"] == "ok" else "aborted"
        yield _log_line(
            time_ms, "run_stop", None, {**about, "status": status, "reason": run.get("reason") or run["status"]}
        )


def _log_line(time_ms: int, key: str, value: Any, metadata: Mapping[str, Any]) -> str:
    log_line = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return f":::MLLOG {json.dumps({**log_line, 'metadata': dict(metadata)}, default=str)}"


def _interval(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{end}_95": measured[end] for end in ("low", "high") if measured[end] is not None}


def _value_within(row: Mapping[str, Any], column: SuiteColumn) -> str:
    name = column.name
    return estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], column.unit)
