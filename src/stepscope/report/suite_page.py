"""The page of a sweep, in the style of the page of a run: its table, its scores, and the numbers against the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.report.charts import comparison
from stepscope.report.html import PageSection, render_page
from stepscope.report.page.parts import Facts, Figure, Items, Part, Section
from stepscope.report.suite_tables import differing_axes, model_table, results_table, score_table, setting_words
from stepscope.units import number, plural

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
) -> str:
    """Return the page as HTML text. table: as `suite.results.table`; scores: sentence and parts of each."""
    entries = [PageSection("overview", "Overview", _overview(table, facts, scores))]
    entries.append(
        PageSection("results", "Results", Section("A row for each setting.", (results_table(table, _MEANS),)))
    )
    curves = tuple(_curves(table))
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


def _overview(
    table: pl.DataFrame, facts: Sequence[tuple[str, str]], scores: Sequence[tuple[str, pl.DataFrame]]
) -> Section:
    well = len(table.filter(pl.col("status") == "ok"))
    lede = f"{well} of {plural(len(table), 'setting')} ended well in every repeat."
    said = [Items(tuple((sentence, "") for sentence, _ in scores))] if scores else []
    return Section(lede, (*said, Facts(tuple(facts))))


def _curves(table: pl.DataFrame) -> Iterator[Part]:
    """A chart for each number of which a workload has two batch sizes."""
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
