"""Charts of several runs for a paper: layers, energy by component, memory at the peak, step times, trade-offs.

Each takes a table and a width in px; type is 12 px, which is 9 points on paper.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.memory import categories_in
from stepscope.report.charts.style import CATEGORY, DASHES, LIGHT, NARROW, PHASE, axis, plot_width
from stepscope.units import CATEGORY_LEGEND

# Told apart without colour too: the order is one of lightness, and lines and points differ in dash and shape.
RUNS = tuple(LIGHT[name] for name in ("accent", "warn", "held-temporary", "muted", "held-workspace", "held-saved"))
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_COMPONENTS = {
    name: LIGHT[colour]
    for name, colour in (
        ("whole device", "rail-1"), ("total", "rail-1"), ("CPU", "rail-3"), ("GPU", "rail-2"), ("memory", "rail-5"),
        ("SoC", "rail-4"), ("storage", "held-workspace"), ("io", "rail-6"), ("unattributed", "residual"),
    )
}  # fmt: skip
_LETTER, _ROW, _BAR, _SYMBOL = 6.6, 26, 13, 24  # px
_HEIGHT = 210


def _name_and_plot_width(labels: list[str], width: int) -> tuple[int, int]:
    longest = max((len(label) for label in labels), default=1)
    room = min(round(longest * _LETTER) + 8, round(0.42 * width))
    return room, plot_width(width, room + 16)


def _run_colours(runs: list[str], inner: int, **legend: Any) -> alt.Color:
    scale = alt.Scale(domain=runs, range=[RUNS[place % len(RUNS)] for place in range(len(runs))])
    return alt.Color("run:N", sort=runs, scale=scale, legend=_legend(runs, inner, **legend))


def _legend(runs: list[str], inner: int, **more: Any) -> alt.Legend:
    """A legend that begins where the plot does, and is at most as wide, px."""
    columns = max(1, int(inner / (_LETTER * max(map(len, runs)) + 46)))
    return alt.Legend(columns=columns, labelLimit=inner - _SYMBOL, **more)


def _run_dashes(values: tuple[Any, ...], runs: list[str], inner: int, **legend: Any) -> dict[str, Any]:
    """The dash or shape of each run; where colours come again, with the next one, and then the legend has it too."""
    kinds = [values[(place + place // len(RUNS)) % len(values)] for place in range(len(runs))]
    dash_legend = _legend(runs, inner, **legend) if len(runs) > len(RUNS) else None
    return {"sort": runs, "legend": dash_legend, "scale": alt.Scale(domain=runs, range=kinds)}


def build_layer_bars(rows: pl.DataFrame, unit: str, width: int) -> Any:
    """Bars of `rows` (run, layer, value, low, high) by layer, a bar a run, with whiskers of the 95 % CI."""
    layers, runs = (rows[name].unique(maintain_order=True).to_list() for name in ("layer", "run"))
    room, inner = _name_and_plot_width(layers, width)
    y = alt.Y("layer:N", sort=layers, axis=axis("", grid=False, labelLimit=room))
    offset = alt.YOffset("run:N", sort=runs, scale=alt.Scale(paddingInner=0.1))
    colour = _run_colours(runs, inner)
    x = alt.X("value:Q", axis=axis(unit))
    bounded = alt.Chart(rows.filter(pl.col("low").is_not_null()))
    whisker = bounded.mark_rule(color=LIGHT["ink"], strokeWidth=1.1)
    layered = [
        alt.Chart(rows).mark_bar().encode(x=x, y=y, yOffset=offset, color=colour),
        whisker.encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset),
    ]
    height = max(_BAR * len(runs) + 6, 18) * len(layers)
    return alt.layer(*layered).properties(width=inner, height=height)


def build_layer_phases(rows: pl.DataFrame, whole: pl.DataFrame, unit: str, width: int) -> Any:
    """Stacked bars of `rows` (layer, phase, value) of one run, with the CI of `whole` (layer, low, high)."""
    layers = whole["layer"].to_list()
    room, inner = _name_and_plot_width(layers, width)
    present = [phase for phase in PHASE if phase in set(rows["phase"])]
    order = {phase: index for index, phase in enumerate(present)}
    placed = rows.with_columns(place=pl.col("phase").replace_strict(order, return_dtype=pl.Int64))
    y = alt.Y("layer:N", sort=layers, axis=axis("", grid=False, labelLimit=room))
    scale = alt.Scale(domain=present, range=[PHASE[phase] for phase in present])
    bars = alt.Chart(placed).mark_bar(height=_BAR).encode(
        x=alt.X("value:Q", axis=axis(unit), stack="zero"), y=y, order="place:Q",
        color=alt.Color("phase:N", scale=scale, legend=alt.Legend(columns=len(present))),
    )  # fmt: skip
    bounded = alt.Chart(whole.filter(pl.col("low").is_not_null()))
    whisker = bounded.mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(bars, whisker).properties(width=inner, height=(_BAR + 7) * len(layers))


def build_stacks(
    rows: pl.DataFrame,
    names: list[str],
    colours: list[str],
    title: str,
    width: int,
    legend_text: str = "",
    whole: pl.DataFrame | None = None,
) -> Any:
    """A stacked bar of each run of `rows` (run, part, value), in the order of `names`; title carries the unit.

    whole: (run, low, high), the 95 % CI of the sum of its parts, as a whisker.
    """
    runs = rows["run"].unique(maintain_order=True).to_list()
    room, inner = _name_and_plot_width(runs, width)
    order = {name: index for index, name in enumerate(names)}
    placed = rows.with_columns(place=pl.col("part").replace_strict(order, return_dtype=pl.Int64))
    columns = 3 if width <= NARROW else len(names)
    legend = alt.Legend(columns=columns, labelExpr=legend_text) if legend_text else alt.Legend(columns=columns)
    colour = alt.Color("part:N", scale=alt.Scale(domain=names, range=colours), legend=legend)
    bars = alt.Chart(placed).mark_bar(height=_ROW - 8, stroke="white", strokeWidth=0.6)
    y = alt.Y("run:N", sort=runs, axis=axis("", grid=False, labelLimit=room))
    x = alt.X("value:Q", axis=axis(title), stack="zero")
    drawn = bars.encode(x=x, y=y, color=colour, order="place:Q")
    bounded = [] if whole is None else [whole.filter(pl.col("low").is_not_null())]
    ends = [
        alt.Chart(frame).mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(x="low:Q", x2="high:Q", y=y)
        for frame in bounded
    ]
    return alt.layer(drawn, *ends).properties(width=inner, height=_ROW * len(runs))


def build_energy(rows: pl.DataFrame, title: str, width: int, whole: pl.DataFrame | None = None) -> Any:
    """Stacked bars of `rows` (run, part, value), the components of each; whole: (run, low, high), of their sum."""
    components = rows["part"].unique(maintain_order=True).to_list()
    names = [name for name in _COMPONENTS if name in components] + [
        name for name in components if name not in _COMPONENTS
    ]
    colours = [_COMPONENTS.get(name, LIGHT["other"]) for name in names]
    return build_stacks(rows, names, colours, title, width, whole=whole)


def build_memory(rows: pl.DataFrame, width: int) -> Any:
    """Stacked bars of `rows` (run, part, value): live bytes at the peak by category, MB."""
    names = categories_in(rows.rename({"part": "category"}))
    return build_stacks(rows, names, [CATEGORY[name] for name in names], "live at the peak, MB", width, CATEGORY_LEGEND)


def build_ecdf(rows: pl.DataFrame, excluded: bool, width: int) -> Any:
    """Steps of `rows` (run, ms, share): the share of steps that took at most so long, a line a run."""
    runs = rows["run"].unique(maintain_order=True).to_list()
    lowest, highest = (float(rows["ms"].to_numpy().min()), float(rows["ms"].to_numpy().max()))
    wide = highest > 4 * lowest
    scale = alt.Scale(type="log" if wide else "linear", zero=False, nice=False, padding=4)
    title = "step time, ms (slowest 1 % beyond the edge)" if excluded else "step time, ms"
    inner = plot_width(width)
    dash = alt.StrokeDash("run:N", **_run_dashes(DASHES, runs, inner, symbolType="stroke"))
    shares = alt.Y("share:Q", axis=axis("share of steps", format="%"), scale=alt.Scale(domain=[0, 1]))
    x = alt.X("ms:Q", scale=scale, axis=axis(title, grid=False, format=",~r"))
    line = alt.Chart(rows).mark_line(interpolate="step-after", strokeWidth=1.6, clip=True)
    drawn = line.encode(x=x, y=shares, color=_run_colours(runs, inner, symbolType="stroke"), strokeDash=dash)
    return drawn.properties(width=inner, height=_HEIGHT)


def build_trade_off(rows: pl.DataFrame, x_title: str, y_title: str, width: int) -> Any:
    """Points of `rows` (run, x, x_low, x_high, y, y_low, y_high), a run each, with both CIs; lower left is better."""
    runs = rows["run"].to_list()
    colour = _run_colours(runs, plot_width(width))
    shape = alt.Shape("run:N", **_run_dashes(_SHAPES, runs, plot_width(width)))
    zero = alt.Scale(domainMin=0, nice=True)
    x, y = alt.X("x:Q", axis=axis(x_title), scale=zero), alt.Y("y:Q", axis=axis(y_title), scale=zero)
    across = alt.Chart(rows.filter(pl.col("x_low").is_not_null())).mark_rule(strokeWidth=1.2)
    upwards = alt.Chart(rows.filter(pl.col("y_low").is_not_null())).mark_rule(strokeWidth=1.2)
    layered = [
        across.encode(x=alt.X("x_low:Q"), x2="x_high:Q", y=y, color=colour),
        upwards.encode(x=x, y=alt.Y("y_low:Q"), y2="y_high:Q", color=colour),
        alt.Chart(rows).mark_point(filled=True, size=64, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    ]
    return alt.layer(*layered).properties(width=plot_width(width), height=_HEIGHT)
