"""The page of a sweep, in the style of the page of a run: its table, its scores, and the numbers against the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.report.charts import comparison
from stepscope.report.html import Entry, page_of
from stepscope.report.page.parts import Cell, Column, Facts, Figure, Items, Part, Section, Table
from stepscope.report.suite_tables import differing_axes, measured_columns, setting_words, with_interval
from stepscope.units import NOT_MEASURED, number, plural, si

_DRAWN = (
    ("samples_per_s", "samples a second"),
    ("energy_per_sample_j", "energy of a sample, J"),
    ("simulated_energy_per_sample_j", "SIMULATED energy of a sample, J"),
    ("estimated_energy_per_sample_j", "ESTIMATED energy of a sample, J"),
    ("peak_process_bytes", "peak memory of the process, B"),
)
_MOST_LINES = 20


def render(
    name: str,
    facts: Sequence[tuple[str, str]],
    table: pl.DataFrame,
    notes: Sequence[str] = (),
    scores: Sequence[tuple[str, pl.DataFrame]] = (),
    models: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the page as HTML text. table: as `suite.results.table`; scores: sentence and parts of each."""
    entries = [Entry("overview", "Overview", _overview(table, facts, scores))]
    entries.append(Entry("results", "Results", _results(table)))
    curves = tuple(_curves(table))
    if curves:
        lede = "How the numbers grow with the batch: logarithmic scales, bars are 95 % CIs."
        entries.append(Entry("batches", "Batches", Section(lede, curves)))
    if scores:
        parts = tuple(_score(sentence, frame) for sentence, frame in scores)
        entries.append(
            Entry("scores", "Scores", Section("Reference / here, above 1 is better than the reference.", parts))
        )
    if models:
        entries.append(Entry("models", "Models", _models(models)))
    if notes:
        rows = tuple((note, "") for note in notes)
        entries.append(Entry("notes", "Notes", Section("What was wrong with runs, and flags.", (Items(rows),))))
    about = [plural(table["workload"].n_unique(), "workload"), plural(len(table), "setting")]
    return page_of(name, about, None, entries)


def _overview(
    table: pl.DataFrame, facts: Sequence[tuple[str, str]], scores: Sequence[tuple[str, pl.DataFrame]]
) -> Section:
    well = len(table.filter(pl.col("status") == "ok"))
    lede = f"{well} of {plural(len(table), 'setting')} ended well in every repeat."
    said = [Items(tuple((sentence, "") for sentence, _ in scores))] if scores else []
    return Section(lede, (*said, Facts(tuple(facts))))


def _results(table: pl.DataFrame) -> Section:
    several, shown = differing_axes(table), measured_columns(table)
    columns = [Column("Workload", numeric=False), *([Column("Setting", numeric=False)] if several else [])]
    columns += [Column("Batch"), *(Column(title) for title, _, _ in shown)]
    columns += [Column(title, numeric=False) for title in ("Status", "Data")]
    rows = []
    for row in table.iter_rows(named=True):
        words = [Cell(said := setting_words(row, several), said)] if several else []
        values = [Cell(with_interval(row, column, form), row[column]) for _, column, form in shown]
        last = (Cell(row["status"], row["status"]), Cell(row["data"] or NOT_MEASURED, row["data"]))
        rows.append(
            (Cell(row["workload"], row["workload"]), *words, Cell(str(row["batch"]), row["batch"]), *values, *last)
        )
    caption = "Means over the repeats with half the width of their 95 % CI; of a single run, the one within it."
    return Section("A row for each setting.", (Table("results", tuple(columns), rows, caption, shown=40),))


def _curves(table: pl.DataFrame) -> Iterator[Part]:
    """A chart for each number of which a workload has two batch sizes."""
    several = differing_axes(table)
    for column, title in _DRAWN:
        points = [_point(row, column, several) for row in table.iter_rows(named=True) if (row[column] or 0) > 0]
        frame = pl.DataFrame(points, infer_schema_length=None)
        if frame.is_empty() or frame.group_by("line").len()["len"].max() == 1:
            continue
        kept = frame["line"].unique(maintain_order=True).head(_MOST_LINES)
        left = frame["line"].n_unique() - len(kept)
        caption = f"{title[:1].upper()}{title[1:]}, by batch size." + (
            f" {left} more lines are not drawn." if left else ""
        )
        yield _curve(frame.filter(pl.col("line").is_in(kept.to_list())), title, caption)


def _curve(points: pl.DataFrame, title: str, caption: str) -> Figure:
    return Figure(lambda width: comparison.build_batches(points, title, width), caption)


def _point(row: Mapping[str, Any], column: str, several: Sequence[str]) -> dict[str, Any]:
    line = f"{row['workload']} {setting_words(row, several)}".strip()
    ends = {end: row[f"{column}_{end}"] for end in ("low", "high")}
    hover = f"{line}, batch {row['batch']}: {number(row[column])}"
    return {"line": line, "batch": row["batch"], "value": row[column], **ends, "hover": hover}


def _score(sentence: str, parts: pl.DataFrame) -> Table:
    columns = (
        *(Column(title, numeric=False) for title in ("Workload", "Optimizer", "Precision")),
        *(Column(title) for title in ("Batch", "Reference", "Here", "Times better")),
        Column("Why not", numeric=False),
    )
    rows = []
    for row in parts.iter_rows(named=True):
        said = with_interval({**row, "ratio_low": row["low"], "ratio_high": row["high"]}, "ratio", number)
        words = [Cell(str(row[name]), str(row[name])) for name in ("workload", "optimizer", "precision")]
        figures = [Cell(number(row[name]), row[name]) for name in ("reference", "here")]
        rows.append((*words, Cell(str(row["batch"]), row["batch"]), *figures, Cell(said, row["ratio"]),
                     Cell(row["why_not"] or "", row["why_not"])))  # fmt: skip
    return Table(sentence, columns, rows, sentence)


def _models(models: Sequence[Mapping[str, Any]]) -> Section:
    columns = (
        *(Column(title, numeric=False) for title in ("Workload", "Quantity", "Printed", "What it means")),
        *(Column(title) for title in ("True parameters", "Forward FLOPs", "Training FLOPs")),
    )
    rows = [
        (
            *(Cell(str(row[name]), str(row[name])) for name in ("workload", "quantity", "printed", "meaning")),
            Cell(number(row["parameters"], 6), row["parameters"]),
            *(Cell(si(row[name], "", 4), row[name]) for name in ("flops_forward", "flops_training")),
        )
        for row in models
    ]
    lede = "What papers print of the models, what it means, and what is true; FLOPs a sample, 1 multiply-add = 2 FLOPs."
    return Section(lede, (Table("models", columns, rows, shown=40),))
