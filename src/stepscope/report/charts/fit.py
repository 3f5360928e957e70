"""Charts of `stepscope fit`: what fits, memory against batch size, and what each allocator costs."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import CATEGORY, LIGHT, axis, plot_width
from stepscope.units import CATEGORY_LEGEND

_ROW = 34  # px
_NAME_WIDTH = 190  # px, for the names of the options
FITS, CLOSE = "fits", "too close"
_INK = alt.Color("ink:N", scale=None)


def build_options(rows: pl.DataFrame, width: int) -> Any:
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
    ).properties(width=plot_width(width, _NAME_WIDTH), height=_ROW * len(options))


def _ticks(names: list[Any], title: str) -> alt.Axis:
    words = json.dumps([str(name) for name in names])
    middles = [place + 0.5 for place in range(len(names))]
    return axis(
        title,
        values=middles,
        labelExpr=f"{words}[floor(datum.value)]",
        grid=False,
        labelLimit=_NAME_WIDTH - 20,
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


_HEIGHT = 240  # px


def build_batches(rows: pl.DataFrame, width: int, limit_mb: float | None = None) -> Any:
    """Bars of `rows` (model, batch, category, mb); a batch that did not fit has mb null and is marked."""
    models = rows["model"].unique(maintain_order=True).to_list()
    names = [name for name in CATEGORY if name in set(rows["category"])]
    every = plot_width(width) // max(len(models), 1) - 18
    fit = rows.filter(pl.col("mb").is_not_null())
    tops = fit.group_by("model", "batch").agg(pl.col("mb").sum())["mb"].to_list()
    top = max([*tops, limit_mb or 0.0, 1.0])
    panels = [
        _panel(rows.filter(pl.col("model") == model), names, top, limit_mb, place == 0).properties(
            width=every, height=_HEIGHT, title=alt.Title(model, fontSize=12, color=LIGHT["ink"])
        )
        for place, model in enumerate(models)
    ]
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _panel(rows: pl.DataFrame, names: list[str], top: float, limit_mb: float | None, first: bool) -> Any:
    order = {name: place for place, name in enumerate(names)}
    drawn = rows.filter(pl.col("mb").is_not_null())
    drawn = drawn.with_columns(place=pl.col("category").replace_strict(order, return_dtype=pl.Int64))
    batches = rows["batch"].unique().sort().to_list()
    x = alt.X("batch:O", sort=batches, scale=alt.Scale(domain=batches), axis=axis("batch size", labelAngle=0))
    scale = alt.Scale(domain=[0, top])
    y = alt.Y("mb:Q", scale=scale, axis=axis("memory at the peak, MB" if first else "", labels=first), stack="zero")
    colours = alt.Scale(domain=names, range=[CATEGORY[name] for name in names])
    colour = alt.Color("category:N", scale=colours, legend=alt.Legend(labelExpr=CATEGORY_LEGEND))
    bars = alt.Chart(drawn).mark_bar().encode(x=x, y=y, color=colour, order="place:Q")
    layers = [bars]
    failed = rows.filter(pl.col("mb").is_null()).select("batch").unique()
    if len(failed):
        marks = alt.Chart(failed).mark_text(
            text="does not fit", angle=270, align="left", color=LIGHT["warn"], fontSize=11
        )
        layers.append(marks.encode(x=x, y=alt.datum(top * 0.02, scale=scale)))
    if limit_mb is not None:
        rule = alt.Chart(pl.DataFrame({"mb": [limit_mb]})).mark_rule(color=LIGHT["warn"], strokeDash=[5, 4])
        layers.append(rule.encode(y=alt.Y("mb:Q", scale=scale)))
    return alt.layer(*layers)


def build_allocators(rows: pl.DataFrame, width: int) -> Any:
    """Points of `rows` (allocator, peak_mb, peak_low, peak_high, step_ms, step_low, step_high), named beside."""
    away = alt.Scale(zero=False, padding=30)
    x = alt.X("step_ms:Q", axis=axis("CPU time of a step, ms", grid=False), scale=away)
    y = alt.Y("peak_mb:Q", axis=axis("peak of the process, MB"), scale=away)
    drawn = alt.Chart(rows)
    across = drawn.mark_rule(color=LIGHT["other"]).encode(x="step_low:Q", x2="step_high:Q", y=y)
    upright = drawn.mark_rule(color=LIGHT["other"]).encode(x=x, y="peak_low:Q", y2="peak_high:Q")
    points = drawn.mark_point(filled=True, size=90, color=LIGHT["accent"], opacity=1).encode(x=x, y=y)
    names = drawn.mark_text(align="left", dx=10, dy=-8, fontSize=12, color=LIGHT["ink"])
    return alt.layer(across, upright, points, names.encode(x=x, y=y, text="allocator:N")).properties(
        width=plot_width(width), height=260
    )
