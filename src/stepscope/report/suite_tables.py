"""The tables of a suite and of a fleet: on the terminal, as Markdown, and as log lines for MLPerf's checkers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.quantities import SUITE_COLUMNS, SuiteColumn
from stepscope.units import NOT_MEASURED, amount, estimate, number, percent, si

_COLOURS = {"ok": "green", "not run yet": "dim"}


def results_table(table: pl.DataFrame) -> RenderableType:
    """A row for each setting; notes on what went wrong follow below."""
    shown = measured_columns(table)
    several = differing_axes(table)
    drawn = _table("workload", *(["setting"] if several else []))
    drawn.add_column("batch", justify="right")
    for title, _, _ in shown:
        drawn.add_column(title, justify="right")
    drawn.add_column("status", overflow="fold")
    drawn.add_column("data", no_wrap=True)
    for row in table.iter_rows(named=True):
        values = [with_interval(row, column, form) for _, column, form in shown]
        status = Text(row["status"], style=_COLOURS.get(row["status"], "yellow"))
        what = [setting_words(row, several)] if several else []
        drawn.add_row(row["workload"], *what, str(row["batch"]), *values, status, row["data"] or NOT_MEASURED)
    return drawn


def notes(table: pl.DataFrame) -> list[str]:
    """A sentence for each setting that did not end well, and one for each kind of flag with all that have it."""
    failed, kinds, several = [], dict[str, dict[str, str]](), differing_axes(table)
    for row in table.iter_rows(named=True):
        who = f"{row['workload']} batch {row['batch']} {setting_words(row, several)}".strip()
        if row["reason"]:
            failed.append(f"{who}: {row['status']}: {row['reason']}")
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
    return [(column.title, column.name, partial(_shown, column.unit)) for column in titled]


def _shown(unit: str, value: float | None) -> str:
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


def model_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Numbers that papers print of the models, and what is true; FLOPs are per sample, 1 MAC = 2 FLOPs."""
    drawn = _table("workload", "quantity", "printed", "what it means")
    for title in ("true parameters", "forward FLOPs", "training FLOPs"):
        drawn.add_column(title, justify="right")
    for row in rows:
        whole = [row["flops_forward"], row["flops_training"]]
        true = [NOT_MEASURED if row["parameters"] is None else f"{row['parameters']:,}", *(si(v, "", 4) for v in whole)]
        drawn.add_row(row["workload"], row["quantity"], row["printed"], row["meaning"], *true)
    drawn.caption, drawn.caption_justify = "FLOPs per sample; 1 multiply-add = 2 FLOPs", "left"
    return drawn


def score_table(parts: pl.DataFrame) -> RenderableType:
    """The parts of a score; those that do not count say why."""
    drawn = _table("workload", "optimizer", "precision")
    for title in ("batch", "reference", "here", "times better"):
        drawn.add_column(title, justify="right")
    drawn.add_column("", overflow="fold")
    for row in parts.iter_rows(named=True):
        ratio = with_interval({**row, "ratio_low": row["low"], "ratio_high": row["high"]}, "ratio", number)
        figures = [number(row["reference"]), number(row["here"]), ratio]
        drawn.add_row(
            row["workload"], row["optimizer"], row["precision"], str(row["batch"]), *figures, row["why_not"] or ""
        )
    return drawn


def with_interval(row: Mapping[str, Any], column: str, form: Any) -> str:
    """A value with half the width of its interval."""
    value, low, high = row[column], row[f"{column}_low"], row[f"{column}_high"]
    if value is None or low is None or high is None or not value:
        return str(form(value))
    return f"{form(value)} ±{percent((high - low) / 2 / abs(value), 0)}".replace(" %", "%")


def _table(*titles: str) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for title in titles:
        drawn.add_column(title, no_wrap=title == "workload", overflow="fold")
    return drawn


def fleet_status_table(rows: Sequence[Sequence[str]]) -> RenderableType:
    """A row for each device: name, board, state, Stepscope, torch, clock less ours."""
    return _fleet_table(("device", "board", "state", "stepscope", "torch", "clock"), rows)


def fleet_results_table(frame: pl.DataFrame) -> RenderableType:
    """A row for each setting and board."""
    shown, several = measured_columns(frame), differing_axes(frame)
    titles = ("workload", "batch", *(["setting"] if several else []), "board", *(title for title, *_ in shown))
    rows = []
    for row in frame.iter_rows(named=True):
        what = [setting_words(row, several)] if several else []
        values = [with_interval(row, column, form) for _, column, form in shown]
        ends = (row["status"], row["data"] or NOT_MEASURED)
        rows.append((row["workload"], str(row["batch"]), *what, row["board"], *values, *ends))
    return _fleet_table((*titles, "status", "data"), rows)


def _fleet_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    drawn = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for title in titles:
        drawn.add_column(title, overflow="fold")
    for row in rows:
        drawn.add_row(*(cell.replace("[", r"\[") for cell in row))
    return drawn


_SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")


def markdown(table: pl.DataFrame, heading: str, lines: Sequence[str]) -> str:
    """A page with one table; intervals stand in brackets, columns that nobody measured are excluded."""
    columns = [column for column in SUITE_COLUMNS if column.title and table[column.name].is_not_null().any()]
    titles = [*_SETTING, *(column.name.replace("_", " ") for column in columns), "status", "data", "flags"]
    rows = [_markdown_row([*(row[name] for name in _SETTING), *(_value_within(row, column) for column in columns),
            row["status"], row["data"], row["flags"]]) for row in table.iter_rows(named=True)]  # fmt: skip
    body = [_markdown_row(titles), _markdown_row(["---"] * len(titles)), *rows]
    return "\n".join([f"# {heading}", "", *(f"- {line}" for line in lines), "", *body]) + "\n"


def mlperf(runs: Sequence[Mapping[str, Any]], device: Mapping[str, Any], versions: Mapping[str, Any]) -> Iterator[str]:
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


def _markdown_row(values: Sequence[Any]) -> str:
    texts = (NOT_MEASURED if value in (None, "") else str(value).replace("|", "\\|") for value in values)
    return f"| {' | '.join(texts)} |"
