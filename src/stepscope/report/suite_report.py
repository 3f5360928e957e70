"""A suite and a fleet: their tables on the terminal and as Markdown, log lines for MLPerf's checkers, and a page.

The page of a sweep is in the style of that of a run: its table, its scores, and the numbers against the batch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from stepscope.quantities import SUITE_COLUMNS, SuiteColumn
from stepscope.report.page.parts import Facts, Figure, Items, Part, Section
from stepscope.report.table import Cell, Column, Table, escaped_markdown, number_column, text_column
from stepscope.report.table import markdown as table_markdown
from stepscope.units import (
    NOT_MEASURED,
    amount,
    capitalize_first,
    escape_control_characters,
    estimate,
    number,
    percent,
    plural,
    si,
)

_COLOURS = {"ok": "green", "not run yet": "dim"}


def results_table(table: pl.DataFrame, caption: str = "") -> Table:
    """A row for each setting, and of a fleet for each board."""
    several = differing_axes(table)
    columns = [
        text_column("Workload", "workload"),
        *([Column("Setting", False, of=lambda row: setting_words(row, several), fold=True)] if several else []),
        number_column("Batch", "batch", str, missing="own"),
        *([text_column("board", "board", fold=True)] if "board" in table.columns else []),
        *map(_column_with_interval, measured_columns(table)),
        Column(
            "Status",
            False,
            of=lambda row: Cell(row["status"], row["status"], style=_COLOURS.get(row["status"], "yellow")),
            fold=True,
        ),
        text_column("Data", "data", missing=NOT_MEASURED),
    ]
    named = 2 + bool(several) + ("board" in table.columns)
    return Table.from_rows("results", columns, table.iter_rows(named=True), caption, first_rows=40, named=named)


def _column_with_interval(column: tuple[str, str, Any]) -> Column:
    title, name, form = column
    return Column(title, of=lambda row: Cell(with_interval(row, name, form), row[name]), fold=True)


def changes_table(table: pl.DataFrame, caption: str = "") -> Table:
    """A row for each setting that was tuned, and of a fleet for each board: what helps and what it gains."""
    several = differing_axes(table)
    columns = [
        text_column("Workload", "workload"),
        *([Column("Setting", False, of=lambda row: setting_words(row, several), fold=True)] if several else []),
        number_column("Batch", "batch", str, missing="own"),
        *([text_column("board", "board", fold=True)] if "board" in table.columns else []),
        text_column("What helps", "changes", missing="cannot tell", fold=True),
        *(
            number_column(title, name, number, fold=True)
            for title, name in (("ms as is", "as_is_ms"), ("ms", "step_ms"))
        ),
        Column("less time", of=_gain_cell, fold=True),
        text_column("measured again", "checked", fold=True),
    ]
    named = 2 + bool(several) + ("board" in table.columns)
    return Table.from_rows("changes", columns, table.iter_rows(named=True), caption, first_rows=40, named=named)


def _gain_cell(row: Mapping[str, Any]) -> Cell:
    value, low, high = (row[f"gain_percent{end}"] for end in ("", "_low", "_high"))
    if value is None:
        return Cell(NOT_MEASURED, None)
    bounds = "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"
    return Cell(f"{value:.1f} %{bounds}", value)


def change_notes(table: pl.DataFrame) -> list[str]:
    """A sentence for each setting whose best changes are not known, or of which nothing helps."""
    several = differing_axes(table)
    return [
        f"{_setting_name(row, several)}: {' '.join(str(row['answer']).split())}"
        for row in table.iter_rows(named=True)
        if row["answer"] and row["gain_percent"] is None
    ]


def setting_notes(table: pl.DataFrame) -> list[str]:
    """A sentence for each setting that did not end well, and one for each kind of flag with all that have it."""
    failed, kinds, several = [], dict[str, dict[str, str]](), differing_axes(table)
    for row in table.iter_rows(named=True):
        who = _setting_name(row, several)
        if row["reason"]:
            failed.append(f"{who}: {row['status']}: {escape_control_characters(' '.join(row['reason'].split()))}")
        for flag in (row["flags"] or "").split("; "):
            if flag:
                kind = re.sub(r"\d[\d.,]*", "#", flag.partition(":")[0])
                kinds.setdefault(kind, {})[who] = flag
    return failed + [_flag_sentence(flags, table.height) for flags in kinds.values()]


def _flag_sentence(flags: Mapping[str, str], settings: int) -> str:
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


def _setting_name(row: Mapping[str, Any], axes: Sequence[str]) -> str:
    """The workload, its batch and the values of these axes."""
    batch = "" if row["batch"] is None else f" batch {row['batch']}"
    return f"{row['workload']}{batch} {setting_words(row, axes)}".strip()


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
    return Table.from_rows("models", columns, rows, "FLOPs per sample; 1 multiply-add = 2 FLOPs.", first_rows=40)


def score_table(parts: pl.DataFrame, sentence: str = "") -> Table:
    """The parts of a score; those that do not count say why."""
    columns = (
        *(
            text_column(title, title.lower(), fold=title != "Workload")
            for title in ("Workload", "Optimizer", "Precision")
        ),
        number_column("Batch", "batch", str, fold=True),
        *(number_column(title, title.lower(), number, fold=True) for title in ("Reference", "Here")),
        Column("Times better", of=_ratio_cell, fold=True),
        text_column("Remark", "remark", fold=True),
    )
    return Table.from_rows(sentence, columns, parts.iter_rows(named=True), sentence)


def _ratio_cell(row: Mapping[str, Any]) -> Cell:
    return Cell(
        with_interval({**row, "ratio_low": row["low"], "ratio_high": row["high"]}, "ratio", number), row["ratio"]
    )


def with_interval(row: Mapping[str, Any], column: str, form: Any) -> str:
    """A value with half the width of its interval; with both ends where it is wider than the value."""
    value, low, high = row[column], row[f"{column}_low"], row[f"{column}_high"]
    if value is None or low is None or high is None or not value:
        return str(form(value))
    half = (high - low) / 2 / abs(value)
    if half > 1:
        return f"{form(value)} [{form(low)}, {form(high)}]"
    return f"{form(value)} ±{percent(half, 0)}".replace(" %", "%")


def fleet_status_table(rows: Sequence[Sequence[str]]) -> Table:
    """A row for each device: name, board, state, Stepscope, torch, clock less ours."""
    titles = ("device", "board", "state", "stepscope", "torch", "clock")
    return Table(
        "fleet", tuple(Column(title, False, fold=True) for title in titles), [tuple(map(Cell, row)) for row in rows]
    )


_SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")


def markdown(table: pl.DataFrame, heading: str, lines: Sequence[str], changes: pl.DataFrame | None = None) -> str:
    """A page with a table, and one of what helps if that was measured; columns that nobody measured are excluded."""
    columns = [column for column in SUITE_COLUMNS if column.title and table[column.name].is_not_null().any()]
    listed = Table.from_rows("results", [
        *(text_column(name, name) for name in _SETTING),
        *(Column(column.name.replace("_", " "), of=partial(_value_within, column=column)) for column in columns),
        *(text_column(name, name) for name in ("status", "data", "flags")),
    ], table.iter_rows(named=True))  # fmt: skip
    above = [f"# {escaped_markdown(heading)}", "", *(f"- {escaped_markdown(line)}" for line in lines), ""]
    below = [] if changes is None or changes.is_empty() else ["", *table_markdown(changes_table(changes, _CHANGES))]
    return "\n".join([*above, *table_markdown(listed), *below]) + "\n"


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
            ends = {f"{end}_95": measured[end] for end in ("low", "high") if measured[end] is not None}
            yield _log_line(time_ms, f"stepscope_{name}", measured["value"], {**about, **ends})
        status = "success" if run["status"] == "ok" else "aborted"
        yield _log_line(
            time_ms, "run_stop", None, {**about, "status": status, "reason": run.get("reason") or run["status"]}
        )


def _log_line(time_ms: int, key: str, value: Any, metadata: Mapping[str, Any]) -> str:
    log_line = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return f":::MLLOG {json.dumps({**log_line, 'metadata': dict(metadata)}, default=str)}"


def _value_within(row: Mapping[str, Any], column: SuiteColumn) -> str:
    name = column.name
    return estimate(row[name], row[f"{name}_low"], row[f"{name}_high"], column.unit)


_DRAWN = (
    ("samples_per_s", "samples a second"),
    ("energy_per_sample_j", "energy of a sample, J"),
    ("simulated_energy_per_sample_j", "SIMULATED energy of a sample, J"),
    ("estimated_energy_per_sample_j", "ESTIMATED energy of a sample, J"),
    ("peak_process_bytes", "peak memory of the process, B"),
)
_MOST_LINES = 20
_MEANS = "Means over the repeats with half the width of their 95 % CI; of a single run, the one within it."
_MODELS = "What papers print of the models, what it means, and what is true."


def render(
    name: str,
    facts: Sequence[tuple[str, str]],
    table: pl.DataFrame,
    notes: Sequence[str] = (),
    scores: Sequence[tuple[str, pl.DataFrame]] = (),
    models: Sequence[Mapping[str, Any]] = (),
    changes: pl.DataFrame | None = None,
) -> str:
    """Return the page as HTML text. table: as `suite.results.table`; scores: sentence and parts of each."""
    from stepscope.report.html import PageSection, render_page

    entries = [PageSection("overview", "Overview", _overview(table, facts, scores))]
    entries.append(
        PageSection("results", "Results", Section("A row for each setting.", (results_table(table, _MEANS),)))
    )
    if changes is not None and not changes.is_empty():
        entries.append(PageSection("changes", "What to change", _changes_section(changes)))
    curves = tuple(_batch_charts(table))
    if curves:
        lede = "How the numbers grow with the batch: logarithmic scales, bars are 95 % CIs."
        entries.append(PageSection("batches", "Batches", Section(lede, curves)))
    if scores:
        parts = tuple(score_table(frame, sentence) for sentence, frame in scores)
        entries.append(
            PageSection("scores", "Scores", Section("Reference / here, above 1 is better than the reference.", parts))
        )
    if models:
        entries.append(PageSection("models", "Models", Section(_MODELS, (model_table(models),))))
    if notes:
        rows = tuple((note, "") for note in notes)
        entries.append(PageSection("notes", "Notes", Section("What was wrong with runs, and flags.", (Items(rows),))))
    about = [plural(table["workload"].n_unique(), "workload"), plural(len(table), "setting")]
    return render_page(name, about, None, entries)


_CHANGES = "Measured in pairs of blocks of steps against the training as it is, each with its 95 % CI."


def _changes_section(changes: pl.DataFrame) -> Section:
    """What helps each setting: picture, table, code to paste, and why nothing is known of others."""
    several = differing_axes(changes)
    helping = changes.filter(pl.col("gain_percent").is_not_null())
    parts: list[Part] = [_gains_figure(helping, several)] if len(helping) else []
    parts.append(changes_table(changes))
    codes = [
        {
            "who": _setting_name(row, several),
            "changes": row["changes"],
            "code": row["code"],
        }
        for row in changes.iter_rows(named=True)
        if row["code"]
    ]
    titles = (("Workload", "who"), ("Change", "changes"), ("Code, or line to start with", "code"))
    if codes:
        columns = [text_column(title, key, fold=True) for title, key in titles]
        parts.append(Table.from_rows("code", columns, codes, "To paste.", first_rows=40))
    if notes := change_notes(changes):
        parts.append(Items(tuple((note, "") for note in notes)))
    return Section(_CHANGES, tuple(parts))


def _gains_figure(helping: pl.DataFrame, several: Sequence[str]) -> Figure:
    from stepscope.report.charts import comparison

    rows = [
        {
            "change": _setting_name(row, several),
            "gain": row["gain_percent"], "low": row["gain_percent_low"], "high": row["gain_percent_high"],
            "kind": "checked at the end" if row["checked"] == "yes" else "helps",
        }
        for row in helping.iter_rows(named=True)
    ]  # fmt: skip
    chart, caption = comparison.tuning_charts({"gains": pl.DataFrame(rows)})["gains"]
    return Figure(chart, caption)


def _overview(
    table: pl.DataFrame, facts: Sequence[tuple[str, str]], scores: Sequence[tuple[str, pl.DataFrame]]
) -> Section:
    well = len(table.filter(pl.col("status") == "ok"))
    lede = f"{well} of {plural(len(table), 'setting')} ended well in every repeat."
    score_items = [Items(tuple((sentence, "") for sentence, _ in scores))] if scores else []
    return Section(lede, (*score_items, Facts(tuple(facts))))


def _batch_charts(table: pl.DataFrame) -> Iterator[Part]:
    several = differing_axes(table)
    for column, title in _DRAWN:
        points = [
            _point(row, column, several)
            for row in table.iter_rows(named=True)
            if row["batch"] is not None and (row[column] or 0) > 0
        ]
        frame = pl.DataFrame(points, infer_schema_length=None)
        if frame.is_empty() or frame.group_by("line").len()["len"].max() == 1:
            continue
        lines = frame["line"].unique(maintain_order=True).head(_MOST_LINES)
        undrawn = frame["line"].n_unique() - len(lines)
        caption = f"{capitalize_first(title)}, by batch size." + (
            f" {undrawn} more lines are not drawn." if undrawn else ""
        )
        yield _batch_chart(frame.filter(pl.col("line").is_in(lines.to_list())), title, caption)


def _batch_chart(points: pl.DataFrame, title: str, caption: str) -> Figure:
    from stepscope.report.charts import comparison

    return Figure(lambda width: comparison.build_batches(points, title, width), caption)


def _point(row: Mapping[str, Any], column: str, several: Sequence[str]) -> dict[str, Any]:
    line = f"{row['workload']} {setting_words(row, several)}".strip()
    ends = {end: row[f"{column}_{end}"] for end in ("low", "high")}
    hover = f"{line}, batch {row['batch']}: {number(row[column])}"
    return {"line": line, "batch": row["batch"], "value": row[column], **ends, "hover": hover}
