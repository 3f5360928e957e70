"""Charts of operators: the roofline, and the figures of `study kernels` and `study breakdown`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts import memory
from stepscope.report.charts.comparison import partial_charts
from stepscope.report.charts.style import LIGHT, NARROW, SERIES, Chart, axis, charts_of, panel_title, plot_width
from stepscope.units import number, percent

_ROOFLINE_HEIGHT, _NAMED = 300, 6


def build_roofline(points: pl.DataFrame, roofs: pl.DataFrame, width: int) -> Any:
    """Marks of `points` (label, flop_per_byte, flops_per_s, share, hover) below `roofs` (roof, value) of one device.

    A column `group` of the points, where there is one, gives them their colours.
    """
    lowest, right = (10 ** f(points["flop_per_byte"].log10().to_numpy()) for f in (_floor, _ceiling))
    reached = [*points["flops_per_s"], *roofs.filter(pl.col("roof") == "compute")["value"]]
    low, high = (10 ** f(pl.Series(reached).log10().to_numpy()) for f in (_floor, _ceiling))
    x = alt.X(
        "flop_per_byte:Q",
        scale=alt.Scale(type="log", domain=[lowest, right], nice=False),
        axis=axis("floating-point operations per byte, FLOP/B", values=_decades(lowest, right), format=",~r"),
    )
    y = alt.Y(
        "flops_per_s:Q",
        scale=alt.Scale(type="log", domain=[low, high * 1.5], nice=False),
        axis=axis("FLOP/s", values=_decades(low, high), format=".0s"),
    )
    layers = [_roof_lines(roofs, lowest, right, x, y)] if {*roofs["roof"]} >= {"compute", "memory"} else []
    size = alt.Size("share:Q", scale=alt.Scale(type="sqrt", domain=[0, 1], range=[20, 1400]), legend=None)
    marks = alt.Chart(points).mark_circle(color=LIGHT["load"], opacity=0.75, clip=False)
    groups = alt.Color("group:N", scale=alt.Scale(range=SERIES), legend=alt.Legend(columns=4))
    coloured = {"color": groups} if "group" in points.columns else {}
    layers.append(marks.encode(x=x, y=y, size=size, description="hover:N", **coloured))
    named = points.sort("share", descending=True).head(3 if width <= NARROW else _NAMED).sort("flop_per_byte")
    for turn, dy in enumerate((-18, 20)):  # neighbours say their names above and below
        texts = alt.Chart(named.gather_every(2, turn)).mark_text(dy=dy, fontSize=11, color=LIGHT["ink"])
        layers.append(texts.encode(x=x, y=y, text="label:N"))
    return alt.layer(*layers).properties(width=plot_width(width, 76), height=_ROOFLINE_HEIGHT)


def _roof_lines(roofs: pl.DataFrame, lowest: float, right: float, x: alt.X, y: alt.Y) -> Any:
    """The slope of the highest byte rate, up to the level of the highest FLOP rate."""
    values = dict(roofs.select("roof", "value").iter_rows())
    ridge = min(max(values["compute"] / values["memory"], lowest), right)
    corners = [
        (lowest, lowest * values["memory"]),
        (ridge, min(ridge * values["memory"], values["compute"])),
    ]
    corners.append((right, min(right * values["memory"], values["compute"])))
    frame = pl.DataFrame(corners, schema=["flop_per_byte", "flops_per_s"], orient="row")
    line = alt.Chart(frame).mark_line(color=LIGHT["muted"], strokeDash=[5, 3], strokeWidth=1.3, clip=True)
    return line.encode(x=x, y=y)


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]


def _floor(exponents: Any) -> int:
    return int((exponents.min() - 0.2) // 1)


def _ceiling(exponents: Any) -> int:
    return int(-(-(exponents.max() + 0.2) // 1))


_PANEL_HEIGHT, _PANEL_MARGIN, _PANEL_COLUMNS = 190, 44, 3
_LINE_COLOURS = [*SERIES[:-1], LIGHT["held-gradient"], LIGHT["held-temporary"], SERIES[-1]]
_ACROSS = {
    "kernel": "side of the kernel", "batch": "batch size", "channels": "channels or features",
    "size": "side of the image, or length", "parameters": "parameters",
}  # fmt: skip


def kernel_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    drawn: dict[str, tuple[Chart, str]] = {}
    if "roofline" in frames:
        points = _with_hover(frames["roofline"])
        caption = "What each kernel reaches below the ceilings of this run; area: its part of the time."
        drawn["roofline"] = (lambda width: build_roofline(points, frames["roofs"], width), caption)
    if "axes" in frames:
        axes = frames["axes"]
        for op in axes["op"].unique(maintain_order=True):
            rows = axes.filter(pl.col("op") == op)
            caption = f"{op}: time for one useful FLOP along each axis, the others at their centre."
            drawn[f"time-per-flop-{op}"] = (partial(_axis_panels, rows), caption)
    return drawn


def _with_hover(points: pl.DataFrame) -> pl.DataFrame:
    hover = [
        f"{row['name']}: {number(row['flops_per_s'] / 1e9)} GFLOP/s, {number(row['bytes_per_s'] / 1e9)} GB/s, "
        f"{percent(row['share'])} of the time"
        for row in points.iter_rows(named=True)
    ]
    return points.with_columns(label=pl.lit(""), group=pl.col("op"), hover=pl.Series(hover))


def _axis_panels(rows: pl.DataFrame, width: int) -> Any:
    """A panel an axis; on each axis the line with the most points, of several the one at the centre of the others."""
    axes = rows["axis"].unique(maintain_order=True).to_list()
    columns = min(len(axes), _PANEL_COLUMNS)
    panel_width = plot_width(width) // columns - _PANEL_MARGIN
    panels = [_panel(_longest_lines(rows.filter(pl.col("axis") == name)), name, panel_width) for name in axes]
    return alt.concat(*panels, columns=columns).resolve_scale(color="shared")


def _longest_lines(rows: pl.DataFrame) -> pl.DataFrame:
    """One line for each part of each source; an optimizer has one for each rule, which is its part here."""
    if rows["op"][0] == "optimizer":
        return rows.with_columns(series=pl.col("beside").str.replace("rule ", ""))
    points, central = pl.col("at").n_unique().alias("points"), pl.col("central").any()
    counts = rows.group_by("source", "beside", maintain_order=True).agg(points, central)
    longest = counts.sort("points", "central", descending=True, maintain_order=True).unique(
        "source", keep="first", maintain_order=True
    )
    line_rows = rows.join(longest.select("source", "beside"), on=["source", "beside"], maintain_order="left")
    several = line_rows["source"].n_unique() > 1
    series = pl.format("{}, {}", "source", "part") if several else pl.col("part")
    return line_rows.with_columns(series=series)


def _panel(rows: pl.DataFrame, name: str, width: int) -> Any:
    ticks = rows["at"].unique().sort().to_list()
    x_axis = axis(_ACROSS.get(name, name), values=ticks, grid=False, format="~s")
    x = alt.X("at:Q", scale=alt.Scale(type="log", nice=False), axis=x_axis)
    scale = alt.Scale(type="log")
    y = alt.Y("ps_per_flop:Q", scale=scale, axis=axis("ps for a useful FLOP", format="~s"))
    colour = alt.Color("series:N", scale=alt.Scale(range=_LINE_COLOURS), legend=alt.Legend(columns=4))
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=1.8).encode(x=x, y=y, color=colour)
    return line.properties(width=width, height=_PANEL_HEIGHT)


_ROW, _NAME_WIDTH = 34, 210  # px: a bar, and room for the name of a model
_FAMILY_COLOURS = {
    "convolution": "forward", "batch norm": "backward", "other norms": "held-buffer", "attention": "held-parameter",
    "recurrent": "held-gradient", "matrix product": "held-workspace", "activation": "data", "pooling": "held-saved",
    "loss": "warn", "dropout": "accent", "data": "gap", "code of the layers": "rule",
    "embedding and indexing": "ink", "sums and products": "held-temporary",
    "moving and filling": "muted", "optimizer": "optimizer", "other": "held-other", "framework overhead": "residual",
}  # fmt: skip
_BARS = {
    "time-by-family": ("ms a step", "Time of a step by operator, training and inference."),
    "energy-by-family": ("mJ a step", "Energy of a step by operator, training and inference."),
    "saved-by-family": ("MB", "Activations live at peak, by the operator that made them."),
}


def breakdown_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    caption = "Live tensors over the operators of a step, training and inference, from a dry run."
    bars = {name: (partial(_bars, title=title), text) for name, (title, text) in _BARS.items()}
    return charts_of(frames, {"memory-over-step": (memory.build_side_by_side, caption), **bars})


def _bars(rows: pl.DataFrame, width: int, title: str) -> Any:
    """A stacked bar for each model and kind; the same family has the same colour in all of them."""
    bar_rows = rows.with_columns(bar=pl.format("{}, {}", "model", "kind"))
    names = bar_rows.sort("place")["family"].unique(maintain_order=True).to_list()
    bars = bar_rows["bar"].unique(maintain_order=True).to_list()
    scale = alt.Scale(domain=names, range=[LIGHT[_FAMILY_COLOURS.get(name, "other")] for name in names])
    y = alt.Y("bar:N", sort=bars, axis=axis("", grid=False, labelLimit=_NAME_WIDTH, minExtent=_NAME_WIDTH))
    x = alt.X("value:Q", stack="zero", axis=axis(title))
    colour = alt.Color("family:N", scale=scale, legend=alt.Legend(columns=4))
    chart = alt.Chart(bar_rows).mark_bar(height={"band": 0.7}).encode(x=x, y=y, color=colour, order="place:Q")
    return chart.properties(width=plot_width(width, _NAME_WIDTH + 20), height=_ROW * len(bars))


_HEAP_HEIGHT, _HEAP_GAP = 150, 24  # px, of a panel, and room for the axis of a further column
_BUILT_COLOUR = "residual"  # of what no operator of the step allocated


def paper_p744_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The figures of `study paper-p744`: the heap by call site, and those of each study that it makes."""
    drawn = charts_of(frames, {"heap-over-step": (_heap_panels, _HEAP)})
    parts = {"figure-1": breakdown_charts, "figures-7-to-9": kernel_charts}
    parts |= dict.fromkeys(("figure-10", "figure-11", "figure-12"), partial_charts)
    for part, charts in parts.items():
        own = {name.removeprefix(f"{part}-"): rows for name, rows in frames.items() if name.startswith(f"{part}-")}
        drawn |= {f"{part}-{name}": chart for name, chart in charts(own).items()}
    return drawn


_HEAP = (
    "Live tensors over a step by the operator that allocated them (figures 2 to 5 of the project, there from massif)."
)


def _heap_panels(series: pl.DataFrame, width: int) -> Any:
    """A row a network, training beside inference on one scale; `series` has model, kind, at, site, mb."""
    totals = series.group_by("site").agg(pl.col("mb").max()).sort("mb", descending=True)
    sites = totals["site"].to_list()
    colours = [LIGHT[_FAMILY_COLOURS.get(name, _BUILT_COLOUR)] for name in sites]
    colour = alt.Color("site:N", scale=alt.Scale(domain=sites, range=colours), legend=alt.Legend(columns=4))
    order = dict(zip(sites, range(len(sites)), strict=True))
    site_rows = series.with_columns(place=pl.col("site").replace_strict(order, return_dtype=pl.Int64))
    kinds = series["kind"].unique(maintain_order=True).to_list()
    rows = []
    for model in series["model"].unique(maintain_order=True):
        own = site_rows.filter(pl.col("model") == model)
        top = own.group_by("kind", "at").agg(pl.col("mb").sum())["mb"].to_numpy().max()
        y = alt.Y("mb:Q", axis=axis("live tensors, MB"), scale=alt.Scale(domain=[0, float(top)]), stack="zero")
        x = alt.X("at:Q", axis=axis("allocations and frees", grid=False, tickCount=4), scale=alt.Scale(nice=False))
        rows.append(
            alt.hconcat(
                *(
                    alt.Chart(own.filter(pl.col("kind") == kind))
                    .mark_area(interpolate="step-after", strokeWidth=0)
                    .encode(x=x, y=y, color=colour, order="place:Q")
                    .properties(
                        width=plot_width(width) // len(kinds) - _HEAP_GAP,
                        height=_HEAP_HEIGHT,
                        title=panel_title(f"{model}, {kind}", anchor="start", fontWeight="bold"),
                    )
                    for kind in kinds
                ),
                spacing=12,
            )
        )
    return alt.vconcat(*rows, spacing=10).resolve_scale(color="shared")
