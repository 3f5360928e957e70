"""Charts of memory: over a step that was run or planned, at the peak by module, over the run, and those of `fit`.

One step is the first figure of many of its kind in the paper on training for edge devices (2020, figures 2 to 6, there
from massif): training against inference, and models against each other, are the same drawing with several panels.
`stepscope fit` draws what fits, memory against batch size, and what each allocator costs.
"""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import CATEGORY, LIGHT, NARROW, axis, dashes, plot_width
from stepscope.units import CATEGORY_LEGEND, category_label

_TALL, _LOW = 280, 150  # px, of one panel and of several
_NARROW = 400  # px: fewer numbers have room below


def build_step_memory(series: pl.DataFrame, width: int, limit_mb: float | None = None, across: str = "t_ms") -> Any:
    """Areas of `series` (t_ms or of a dry run op, category, mb); a dashed rule where a limit is given."""
    title = _OP_AXIS if across == "op" else "time since the step began, ms"
    return panel(series, plot_width(width), _TALL, title, None, limit_mb, across)


def categories_in(series: pl.DataFrame) -> list[str]:
    """Categories of a table in the order in which they are stacked."""
    return [name for name in CATEGORY if name in set(series["category"])]


def panel(
    series: pl.DataFrame,
    width: int,
    height: int,
    title: str,
    top: float | None,
    limit_mb: float | None = None,
    across: str = "t_ms",
    names: list[str] | None = None,
) -> Any:
    """Stacked areas over the column `across`, named by `title`; panels that share scales share `top` and `names`."""
    names = categories_in(series) if names is None else names
    order = {name: index for index, name in enumerate(names)}
    categories = series.with_columns(place=pl.col("category").replace_strict(order, return_dtype=pl.Int64))
    scale = alt.Scale(domainMin=0) if top is None else alt.Scale(domain=[0, top])
    x = alt.X(
        f"{across}:Q", axis=axis(title, grid=False, tickCount=8 if width > _NARROW else 4), scale=alt.Scale(nice=False)
    )
    y = alt.Y("mb:Q", axis=axis("live tensors, MB"), scale=scale, stack="zero")
    colours = alt.Scale(domain=names, range=[CATEGORY[name] for name in names])
    legend = alt.Legend(columns=3 if width <= NARROW else len(names), labelExpr=CATEGORY_LEGEND)
    areas = (
        alt.Chart(categories)
        .mark_area(interpolate="step-after", strokeWidth=0)
        .encode(x=x, y=y, color=alt.Color("category:N", scale=colours, legend=legend), order="place:Q")
    )
    if limit_mb is None:
        return areas.properties(width=width, height=height)
    rule = alt.Chart(pl.DataFrame({"mb": [limit_mb]})).mark_rule(
        color=LIGHT["warn"], strokeDash=[5, 4], strokeWidth=1.5
    )
    return alt.layer(areas, rule.encode(y="mb:Q")).properties(width=width, height=height)


# Side by side: training against inference, a row a model, as the figures 2 to 6 of the 2020 paper on training for edge
# devices (there from massif). What runs across is the number of the op, because a dry run takes no time.

_COLUMN_GAP = 24  # px, for the axis of a further column
_OP_AXIS = "op of the step"


def build_side_by_side(series: pl.DataFrame, width: int) -> Any:
    """Panels of `series` (model, kind, op, category, mb): a row a model, a column a kind, one scale of MB for all."""
    most = series.group_by("model", "kind", "op").agg(pl.col("mb").sum())["mb"]
    top = float(most.to_numpy().max()) if len(most) else 1.0
    models, kinds = (series[name].unique(maintain_order=True).to_list() for name in ("model", "kind"))
    panel_width = plot_width(width) // len(kinds) - _COLUMN_GAP
    rows = []
    for model in models:
        last, panels = model == models[-1], []
        for kind in kinds:
            panel_rows = series.filter((pl.col("model") == model) & (pl.col("kind") == kind))
            title = alt.Title(f"{model}, {kind}", anchor="start", fontSize=12, color=LIGHT["ink"])
            below, names = _OP_AXIS if last else "", categories_in(series)
            drawn = panel(panel_rows, panel_width, _LOW, below, top, None, "op", names)
            panels.append(drawn.properties(title=title))
        rows.append(alt.hconcat(*panels, spacing=12))
    return alt.vconcat(*rows, spacing=10).resolve_scale(color="shared")


Box = tuple[float, float, float, float]  # x0, y0, x1, y1
_TREEMAP_HEIGHT = 360  # px
_LETTER, _LINE = 6.2, 15.0  # px, of a label
_PALE = ("buffer", "saved", "temporary", "other")  # colours on which dark letters read better
_INK = alt.Color("ink:N", scale=None)
_OUTSIDE = "outside any layer"


def build_treemap(rows: pl.DataFrame, width: int, parts: int = 80) -> Any:
    """Rectangles of `rows` (module, category, bytes): modules, and categories within each; the smallest are joined."""
    across = plot_width(width, 8)
    boxes = pl.DataFrame(_boxes(_largest_parts(rows, parts), across))
    x, y = alt.Scale(domain=[0, across], nice=False), alt.Scale(domain=[0, _TREEMAP_HEIGHT], nice=False, reverse=True)
    names = [name for name in CATEGORY if name in set(boxes["category"])]
    legend = alt.Legend(columns=3 if width <= NARROW else len(names), labelExpr=CATEGORY_LEGEND)
    scale = alt.Scale(domain=names, range=[CATEGORY[name] for name in names])
    colour = alt.Color("category:N", scale=scale, legend=legend)
    frame = {"x": alt.X("x0:Q", scale=x, axis=None), "x2": "x1:Q", "y": alt.Y("y0:Q", scale=y, axis=None), "y2": "y1:Q"}
    areas = alt.Chart(boxes).mark_rect(stroke=LIGHT["paper"], strokeWidth=1)
    labels = alt.Chart(boxes.filter(pl.col("label") != "")).mark_text(
        align="left", baseline="top", dx=4, dy=4, fontSize=11
    )
    return alt.layer(
        areas.encode(**frame, color=colour, description="hover:N"),
        labels.encode(
            x=alt.X("x0:Q", scale=x, axis=None), y=alt.Y("y0:Q", scale=y, axis=None), text="label:N", color=_INK
        ),
    ).properties(width=across, height=_TREEMAP_HEIGHT)


def _largest_parts(rows: pl.DataFrame, parts: int) -> pl.DataFrame:
    """The largest parts, and the rest of each category as one."""
    named = rows.select(
        pl.col("module").fill_null(_OUTSIDE).replace({"": "(the model)"}),
        "category",
        pl.col("bytes").cast(pl.Float64),
    ).sort("bytes", "module", descending=[True, False])
    smaller = named[parts:].group_by("category").agg(pl.col("bytes").sum()).with_columns(module=pl.lit("smaller parts"))
    return pl.concat([named[:parts], smaller.select(named.columns)]).filter(pl.col("bytes") > 0)


def _boxes(rows: pl.DataFrame, across: float) -> list[dict[str, Any]]:
    modules = rows.group_by("module").agg(pl.col("bytes").sum()).sort("bytes", "module", descending=[True, False])
    outer = squarified(modules["bytes"].to_list(), (0.0, 0.0, across, float(_TREEMAP_HEIGHT)))
    boxes = []
    for module, box in zip(modules["module"], outer, strict=True):
        inside = rows.filter(pl.col("module") == module).sort("bytes", descending=True)
        drawn = zip(inside.iter_rows(named=True), squarified(inside["bytes"].to_list(), box), strict=True)
        boxes += [_box(row, inner, largest=index == 0) for index, (row, inner) in enumerate(drawn)]
    return boxes


def _box(row: dict[str, Any], box: Box, *, largest: bool) -> dict[str, Any]:
    """A rectangle; the largest of a layer's has its name, those beside it what they are."""
    x0, y0, x1, y1 = box
    name = str(row["module"])
    label = _label(name if largest else category_label(row["category"]), x1 - x0) if y1 - y0 >= _LINE + 4 else ""
    hover = f"{name}, {category_label(row['category'])}: {row['bytes'] / 1e6:.3g} MB"
    return {
        "x0": x0, "y0": y0, "x1": x1, "y1": y1,
        "category": row["category"], "label": label, "hover": hover,
        "ink": LIGHT["ink" if row["category"] in _PALE else "paper"],
    }  # fmt: skip


def _label(name: str, across: float) -> str:
    """Return the end of a module's name that fits into a rectangle; its last parts tell most."""
    room = int((across - 8) / _LETTER)
    parts = name.split(".")
    for first in range(len(parts)):
        label = ".".join(parts[first:])
        if len(label) + (first > 0) <= room:
            return f"…{label}" if first else label
    return ""


def squarified(sizes: list[float], box: Box) -> list[Box]:
    """Rectangles of these areas (descending) that fill a box, as near to squares as rows of them allow.

    Bruls, Huizing, van Wijk: Squarified Treemaps (2000).
    """
    total = sum(sizes)
    x0, y0, x1, y1 = box
    if not sizes or total <= 0:
        return [box] * len(sizes)
    scale = (x1 - x0) * (y1 - y0) / total
    areas = [size * scale for size in sizes]
    placed: list[Box] = []
    first = 0
    while first < len(areas):
        short = min(x1 - x0, y1 - y0)
        last = first + 1
        while last < len(areas) and _worst_aspect_ratio(areas[first : last + 1], short) <= _worst_aspect_ratio(
            areas[first:last], short
        ):
            last += 1
        row, (x0, y0, x1, y1) = _treemap_row(areas[first:last], (x0, y0, x1, y1))
        placed += row
        first = last
    return placed


def _worst_aspect_ratio(areas: list[float], short: float) -> float:
    """The largest ratio of sides in a row of these areas along a side of this length."""
    total = sum(areas)
    if total <= 0 or short <= 0:
        return float("inf")
    return max(max(short**2 * area / total**2, total**2 / (short**2 * max(area, 1e-12))) for area in areas)


def _treemap_row(areas: list[float], box: Box) -> tuple[list[Box], Box]:
    """The rectangles of a row along the shorter side of a box, and what of the box is left."""
    x0, y0, x1, y1 = box
    total, placed = sum(areas), []
    if x1 - x0 >= y1 - y0:
        deep, at = total / max(y1 - y0, 1e-12), y0
        for area in areas:
            end = at + area / max(deep, 1e-12)
            placed.append((x0, at, x0 + deep, end))
            at = end
        return placed, (x0 + deep, y0, x1, y1)
    deep, at = total / max(x1 - x0, 1e-12), x0
    for area in areas:
        end = at + area / max(deep, 1e-12)
        placed.append((at, y0, end, y0 + deep))
        at = end
    return placed, (x0, y0 + deep, x1, y1)


_COLOURS = [LIGHT["forward"], LIGHT["backward"], LIGHT["optimizer"], LIGHT["data"]]


def build_memory(points: pl.DataFrame, width: int) -> Any:
    """Lines of `points` (series, piece, t_s, mb); a new `piece` begins after a gap."""
    names = points["series"].unique(maintain_order=True).to_list()
    palette = [_COLOURS[place % len(_COLOURS)] for place in range(len(names))]
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, range=palette))
    x = alt.X("t_s:Q", axis=axis("time since the first step, s", grid=False, tickCount=6), scale=alt.Scale(nice=False))
    y = alt.Y("mb:Q", axis=axis("memory, MB"), scale=alt.Scale(domainMin=0))
    line = alt.Chart(points).mark_line(strokeWidth=1.6, strokeJoin="round")
    drawn = line.encode(x=x, y=y, color=colour, detail="piece:N", **dashes("series:N", names, len(_COLOURS)))
    return drawn.properties(width=plot_width(width), height=220)


_ROW = 34  # px
_NAME_WIDTH = 190  # px, for the names of the options
FITS, CLOSE = "fits", "too close"


def build_options(rows: pl.DataFrame, width: int) -> Any:
    """Cells of `rows` (batch, option, peak_bytes, limit_bytes, verdict), the share of the limit as colour.

    A bold edge runs where "fits" ends; "close" is too close to say; a cell without a peak could not be run: it is grey.
    """
    options, batches = rows["option"].unique(maintain_order=True).to_list(), rows["batch"].unique().sort().to_list()
    cells = _cells(rows, options, batches)
    across, down = _category_axis(batches, "batch size"), _category_axis(options, "")
    x = alt.X("column:Q", scale=alt.Scale(domain=[0, len(batches)], nice=False), axis=across)
    y = alt.Y("row:Q", scale=alt.Scale(domain=[0, len(options)], nice=False, reverse=True), axis=down)
    share = alt.Scale(domain=[0, 1, 2], range=[LIGHT["panel"], LIGHT["gap"], LIGHT["warn"]], clamp=True)
    predicted = alt.Chart(cells.filter(pl.col("share").is_not_null())).mark_rect(stroke=LIGHT["paper"], strokeWidth=2)
    unknown = alt.Chart(cells.filter(pl.col("share").is_null())).mark_rect(color=LIGHT["residual"])
    place = {"x": x, "x2": "column_end:Q", "y": y, "y2": "row_end:Q"}
    words = alt.Chart(cells).mark_text(fontSize=11)
    edges = alt.Chart(_edges(cells)).mark_rule(color=LIGHT["ink"], strokeWidth=2.5)
    return alt.layer(
        predicted.encode(**place, color=alt.Color("share:Q", scale=share, legend=None), description="hover:N"),
        unknown.encode(**place, description="hover:N"),
        words.encode(x=alt.X("column_middle:Q"), y=alt.Y("row_middle:Q"), text="text:N", color=_INK),
        edges.encode(x="column:Q", x2="column_end:Q", y="row:Q", y2="row_end:Q"),
    ).properties(width=plot_width(width, _NAME_WIDTH), height=_ROW * len(options))


def _category_axis(names: list[Any], title: str) -> alt.Axis:
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
    columns = {batch: index for index, batch in enumerate(batches)}
    lines = {option: index for index, option in enumerate(options)}
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
        .then(pl.format("{}, close", _peak_text_expr(pl.col("peak_bytes"))))
        .otherwise(_peak_text_expr(pl.col("peak_bytes"))),
        hover=pl.format(
            "{}, batch {}: {}, {}", "option", "batch", _peak_text_expr(pl.col("peak_bytes")).fill_null("?"), "verdict"
        ),
    ).with_columns(
        column_end=pl.col("column") + 1,
        row_end=pl.col("row") + 1,
        column_middle=pl.col("column") + 0.5,
        row_middle=pl.col("row") + 0.5,
    )


def _peak_text_expr(peak: pl.Expr) -> pl.Expr:
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
        _panel(rows.filter(pl.col("model") == model), names, top, limit_mb, index == 0).properties(
            width=every, height=_HEIGHT, title=alt.Title(model, fontSize=12, color=LIGHT["ink"])
        )
        for index, model in enumerate(models)
    ]
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _panel(rows: pl.DataFrame, names: list[str], top: float, limit_mb: float | None, first: bool) -> Any:
    order = {name: index for index, name in enumerate(names)}
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


def build_plan(rows: pl.DataFrame, width: int, limit_mb: float | None = None) -> Any:
    """Points of `rows` (words, peak_mb, price, verdict, nothing_beats): those that nothing beats joined and named."""
    x = alt.X("price:Q", axis=axis("time of an update, s (or FLOPs against the present step)", grid=False))
    y = alt.Y("peak_mb:Q", axis=axis("process at the most, MB"), scale=alt.Scale(zero=False, padding=20))
    best = alt.Chart(rows.filter(pl.col("nothing_beats")))
    layers = [
        alt.Chart(rows).mark_point(filled=True, size=40, color=LIGHT["other"], opacity=0.6).encode(x=x, y=y),
        best.mark_line(color=LIGHT["accent"], strokeWidth=1).encode(x=x, y=y, order="price:Q"),
        best.mark_point(filled=True, size=80, color=LIGHT["accent"], opacity=1).encode(x=x, y=y, tooltip="words:N"),
        best.mark_text(align="left", dx=8, dy=-8, fontSize=11, color=LIGHT["ink"]).encode(x=x, y=y, text="words:N"),
    ]
    if limit_mb is not None:
        layers.append(alt.Chart(pl.DataFrame({"at": [limit_mb]})).mark_rule(strokeDash=[4, 3]).encode(y="at:Q"))
    return alt.layer(*layers).properties(width=plot_width(width), height=300)
