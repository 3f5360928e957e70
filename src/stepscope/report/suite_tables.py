"""The tables of a sweep: what was measured, the corrected model table, the score and its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.units import NOT_MEASURED, bytes_, number, percent, si

_COLOURS = {"ok": "green", "not run yet": "dim"}
# (title, column, format); a column that nobody measured is left out
_COLUMNS = (
    ("ms a step", "step_time_ms", number),
    ("samples/s", "samples_per_s", number),
    ("frames/s", "frames_per_s", number),
    *((f"{kind} J a {per}".strip(), f"{kind}{'_' if kind else ''}energy_per_{per}_j", number)
      for kind in ("", "estimated", "simulated") for per in ("step", "sample")),
    ("live", "peak_live_bytes", bytes_),
    ("reserved", "peak_reserved_bytes", bytes_),
    ("process", "peak_process_bytes", bytes_),
    ("CPU", "cpu_utilisation", lambda value: percent(value, 0)),
    ("GPU", "gpu_utilisation", lambda value: percent(value, 0)),
)  # fmt: skip


def results_table(table: pl.DataFrame) -> RenderableType:
    """A row for each setting; notes on what went wrong follow below."""
    shown = shown_columns(table)
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


def shown_columns(table: pl.DataFrame) -> list[tuple[str, str, Any]]:
    """Title, column and format of what somebody measured."""
    return [column for column in _COLUMNS if table[column[1]].is_not_null().any()]


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
    """What papers print of the models, what it means, and what is true; FLOPs are per sample, 1 MAC = 2 FLOPs."""
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
    for title in ("batch", "reference", "here", "times as good"):
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
