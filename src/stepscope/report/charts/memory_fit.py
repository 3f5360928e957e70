"""What fits: peak memory of every batch size under every option, and where the limit runs between them."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

_ROW = 34  # px
_BESIDE = 190  # px, for the names of the options
FITS, CLOSE = "fits", "too close"
_INK = alt.Color("ink:N", scale=None)


def build(rows: pl.DataFrame, width: int) -> Any:
    """Cells of `rows` (batch, option, peak_bytes, limit_bytes, verdict), the share of the limit as colour.

    A bold edge runs where "fits" ends; "close" is too close to say; a cell without a peak could not be run: it is grey.
    """
    options, batches = rows["option"].unique(maintain_order=True).to_list(), rows["batch"].unique().sort().to_list()
    cells = _cells(rows, options, batches)
    x = alt.X("column:Q", scale=alt.Scale(domain=[0, len(batches)], nice=False), axis=_ticks(batches, "batch size"))
    y = alt.Y("row:Q", scale=alt.Scale(domain=[0, len(options)], nice=False, reverse=True), axis=_ticks(options, ""))
    share = alt.Scale(domain=[0, 1, 2], range=[LIGHT["panel"], LIGHT["gap"], LIGHT["warn"]], clamp=True)
    known = alt.Chart(cells.filter(pl.col("share").is_not_null())).mark_rect(stroke=LIGHT["paper"], strokeWidth=2)
    unknown = alt.Chart(cells.filter(pl.col("share").is_null())).mark_rect(color=LIGHT["residual"])
    place = {"x": x, "x2": "column_end:Q", "y": y, "y2": "row_end:Q"}
    words = alt.Chart(cells).mark_text(fontSize=11)
    edges = alt.Chart(_edges(cells)).mark_rule(color=LIGHT["ink"], strokeWidth=2.5)
    return alt.layer(
        known.encode(**place, color=alt.Color("share:Q", scale=share, legend=None), description="hover:N"),
        unknown.encode(**place, description="hover:N"),
        words.encode(x=alt.X("column_middle:Q"), y=alt.Y("row_middle:Q"), text="text:N", color=_INK),
        edges.encode(x="column:Q", x2="column_end:Q", y="row:Q", y2="row_end:Q"),
    ).properties(width=plot_width(width, _BESIDE), height=_ROW * len(options))


def _ticks(names: list[Any], title: str) -> alt.Axis:
    words = json.dumps([str(name) for name in names])
    middles = [place + 0.5 for place in range(len(names))]
    return axis(
        title,
        values=middles,
        labelExpr=f"{words}[floor(datum.value)]",
        grid=False,
        labelLimit=_BESIDE - 20,
        labelOverlap=False,
    )


def _cells(rows: pl.DataFrame, options: list[str], batches: list[int]) -> pl.DataFrame:
    columns = {batch: place for place, batch in enumerate(batches)}
    lines = {option: place for place, option in enumerate(options)}
    return rows.select(
        "verdict",
        share=pl.col("peak_bytes") / pl.col("limit_bytes"),
        column=pl.col("batch").replace_strict(columns, return_dtype=pl.Int64),
        row=pl.col("option").replace_strict(lines, return_dtype=pl.Int64),
        ink=pl.when(pl.col("peak_bytes") > 1.6 * pl.col("limit_bytes"))
        .then(pl.lit(LIGHT["paper"]))
        .otherwise(pl.lit(LIGHT["ink"])),
        text=pl.when(pl.col("peak_bytes").is_null())
        .then(pl.lit("?"))
        .when(pl.col("verdict") == CLOSE)
        .then(pl.format("{}, close", _size(pl.col("peak_bytes"))))
        .otherwise(_size(pl.col("peak_bytes"))),
        hover=pl.format(
            "{}, batch {}: {}, {}", "option", "batch", _size(pl.col("peak_bytes")).fill_null("?"), "verdict"
        ),
    ).with_columns(
        column_end=pl.col("column") + 1,
        row_end=pl.col("row") + 1,
        column_middle=pl.col("column") + 0.5,
        row_middle=pl.col("row") + 0.5,
    )


def _size(peak: pl.Expr) -> pl.Expr:
    giga = pl.format("{} GB", (peak / 1e9).round(2))
    return pl.when(peak >= 1e9).then(giga).otherwise(pl.format("{} MB", (peak / 1e6).round(0).cast(pl.Int64)))


def _edges(cells: pl.DataFrame) -> pl.DataFrame:
    """The sides between a cell that fits and a neighbour that does not: where the limit is drawn."""
    fits = {(row["column"], row["row"]): row["verdict"] == FITS for row in cells.iter_rows(named=True)}
    sides = []
    for (column, row), fit in fits.items():
        if fits.get((column + 1, row), fit) != fit:
            sides.append({"column": column + 1, "column_end": column + 1, "row": row, "row_end": row + 1})
        if fits.get((column, row + 1), fit) != fit:
            sides.append({"column": column, "column_end": column + 1, "row": row + 1, "row_end": row + 1})
    schema = dict.fromkeys(("column", "column_end", "row", "row_end"), pl.Int64)
    return pl.DataFrame(sides, schema=schema)
