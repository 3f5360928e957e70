"""Charts of sensors over time: power, utilisation, clocks and temperatures, and how a sensor answers a load step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import polars as pl

from stepscope.quantities import find_quantity, sort_metrics
from stepscope.report.charts.style import LIGHT, axis, panel_title, plot_width, vega_lite

_TALLEST_RAIL, _LOWEST_RAIL, _ALL_ROWS = 84, 36, 620  # px


def build_power(windows: pl.DataFrame, width: int, boundaries: pl.DataFrame | None = None) -> Any:
    """Rows of `windows` (rail, t0_s, t1_s, watts, estimated, hover); null watts are gaps.

    boundaries: starts of steps (t_s), which are marked.
    """
    rails = windows["rail"].unique(maintain_order=True).to_list()
    height = max(_LOWEST_RAIL, min(_TALLEST_RAIL, _ALL_ROWS // max(len(rails), 1)))
    time = alt.Scale(domain=[0, float(windows.select(pl.col("t1_s").max()).item())], nice=False)
    rows = []
    for index, rail in enumerate(rails):
        rail_windows = windows.filter(pl.col("rail") == rail)
        row = _rail_row(rail_windows, time, index == len(rails) - 1, height)
        if boundaries is not None:
            row = alt.layer(row, _step_marks(boundaries).encode(x=alt.X("t_s:Q", scale=time)))
        title = panel_title(rail, anchor="start", frame="group", offset=2)
        rows.append(row.properties(width=plot_width(width, 76), height=height, title=title))
    return alt.vconcat(*rows, spacing=10)


def _step_marks(boundaries: pl.DataFrame) -> Any:
    return alt.Chart(boundaries).mark_rule(color=LIGHT["ink"], strokeDash=[2, 3], opacity=0.55)


def _rail_row(windows: pl.DataFrame, time: alt.Scale, last: bool, height: int) -> Any:
    ticks = axis("time since the first step, s", grid=False, tickCount=8) if last else None
    x = alt.X("t0_s:Q", scale=time, axis=ticks)
    read = windows.filter(pl.col("watts").is_not_null())
    top = float(read["watts"].to_numpy().max()) if len(read) else 1.0
    y = alt.Y("watts:Q", scale=alt.Scale(domain=[0, (top or 1.0) * 1.05], nice=False), axis=axis("W", tickCount=3))
    colour = LIGHT["estimated"] if bool(windows["estimated"].any()) else LIGHT["power"]
    bars = alt.Chart(read).mark_rect(color=colour, stroke=colour, strokeWidth=0.6, clip=True)
    bars = bars.encode(x=x, x2="t1_s:Q", y=y, y2=alt.datum(0), description="hover:N")
    gaps = alt.Chart(windows.filter(pl.col("watts").is_null())).mark_rect(color=LIGHT["gap"], clip=True)
    gaps = gaps.encode(x=x, x2="t1_s:Q", y=alt.value(0), y2=alt.value(height), description="hover:N")
    return alt.layer(gaps, bars)


_PARTS = {"above idle": LIGHT["power"], "idle": LIGHT["other"], "idle unknown": LIGHT["estimated"]}
_BAR_ROW = 26  # px


def build_energy(parts: pl.DataFrame, width: int) -> Any:
    """Bars of `parts` (rail, part, joules, hover); part is one of "above idle", "idle" and "idle unknown"."""
    present = [name for name in _PARTS if name in parts["part"].to_list()]
    colours = alt.Scale(domain=present, range=[_PARTS[name] for name in present])
    rails = parts["rail"].unique(maintain_order=True).to_list()
    bars = alt.Chart(parts).mark_bar(height=_BAR_ROW - 8)
    bars = bars.encode(
        x=alt.X("joules:Q", axis=axis("energy of a step, J", grid=True)),
        y=alt.Y("rail:N", sort=rails, axis=axis("", grid=False, labelLimit=150)),
        color=alt.Color("part:N", scale=colours),
        order=alt.Order("place:Q"),
        description="hover:N",
    )
    return alt.layer(bars).properties(width=plot_width(width, 180), height=_BAR_ROW * len(rails))


_TALLEST_CORE, _LOWEST_CORE, _ALL_ROWS = 64, 16, 620  # px


def build_utilisation(windows: pl.DataFrame, boundaries: pl.DataFrame, width: int) -> Any:
    """Rows of `windows` (core, label, t0_ms, t1_ms, percent, hover); `boundaries` (t_ms) are starts of steps."""
    cores = windows.select("core", "label").unique(maintain_order=True).rows()
    height = max(_LOWEST_CORE, min(_TALLEST_CORE, _ALL_ROWS // max(len(cores), 1)))
    end = float(windows.select(pl.col("t1_ms").max()).item())
    time = alt.Scale(domain=[0, end], nice=False)
    rows = []
    for index, (core, label) in enumerate(cores):
        last = index == len(cores) - 1
        core_windows = windows.filter(pl.col("core") == core)
        rows.append(
            _core_row(core_windows, boundaries, label, time, last).properties(
                width=plot_width(width, 106), height=height
            )
        )
    return alt.vconcat(*rows, spacing=8)


def _core_row(windows: pl.DataFrame, boundaries: pl.DataFrame, label: str, time: alt.Scale, last: bool) -> Any:
    ticks = axis("time since the first step shown, ms", grid=False, tickCount=8) if last else None
    x = alt.X("t0_ms:Q", scale=time, axis=ticks)
    settings = {"titleAngle": 0, "titleAlign": "right", "titleX": -50, "titleY": 14, "values": [0, 50, 100]}
    y = alt.Y("percent:Q", scale=alt.Scale(domain=[0, 100]), axis=axis(label, labelExpr=_LABELS, **settings))
    read = alt.Chart(windows.filter(pl.col("percent").is_not_null()))
    bars = read.mark_rect(color=LIGHT["load"], stroke=LIGHT["load"], strokeWidth=0.6, clip=True).encode(
        x=x, x2="t1_ms:Q", y=y, y2=alt.datum(0), description="hover:N"
    )
    gap = alt.Chart(windows.filter(pl.col("percent").is_null()))
    gaps = gap.mark_rect(color=LIGHT["gap"], clip=True).encode(
        x=x, x2="t1_ms:Q", y=alt.datum(0), y2=alt.datum(100), description="hover:N"
    )
    return alt.layer(gaps, bars, _step_marks(boundaries).encode(x=alt.X("t_ms:Q", scale=time)))


_LABELS = "datum.value == 50 ? '' : datum.value + ' %'"


_CLOCK_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "other", "warn", "held-saved")]
_CLOCK_HEIGHT, _MOST_POINTS = 120, 400  # px; points a line


def build_clocks(watched: pl.DataFrame, width: int) -> Any:
    """A panel a quantity of `watched` (quantity, scope, unit, t_s, value), a line a scope; a null breaks the line."""
    quantities = [name for name in sort_metrics(watched["quantity"].unique()) if is_clock_or_temperature(name)]
    rows = [
        _clock_panel(watched.filter(pl.col("quantity") == name), _clock_title(name), plot_width(width))
        for name in quantities
    ]
    return alt.vconcat(*rows, spacing=12).resolve_scale(color="independent")


def is_clock_or_temperature(quantity: str) -> bool:
    """Return whether it is a clock or a temperature, and no flag."""
    return find_quantity(quantity).unit in ("Hz", "degC")


def _clock_title(quantity: str) -> str:
    definition = find_quantity(quantity)
    return "°C" if definition.unit == "degC" else f"{definition.label_within}, GHz"


def _clock_panel(rows: pl.DataFrame, title: str, width: int) -> Any:
    every = max(1, math.ceil(len(rows) / rows["scope"].n_unique() / _MOST_POINTS))
    points = rows.with_columns(
        value=pl.when(pl.col("unit") == "Hz").then(pl.col("value") / 1e9).otherwise("value"),
        name=pl.col("scope").str.replace("^(zone|core):", ""),
        piece=pl.col("value").is_null().cum_sum().over("scope"),
        turn=pl.int_range(pl.len()).over("scope") % every,
    ).filter((pl.col("turn") == 0) & pl.col("value").is_not_null())
    points = points.select("t_s", "value", "name", piece=pl.format("{} {}", "name", "piece"))
    names = points["name"].unique(maintain_order=True).to_list()
    colours = [_CLOCK_COLOURS[at % len(_CLOCK_COLOURS)] for at in range(len(names))]
    dashes = [[1, 0] if at < len(_CLOCK_COLOURS) else [4, 2] for at in range(len(names))]
    scale = alt.Scale(domain=names, range=colours)
    x = alt.X("t_s:Q", axis=axis("time since the first step, s", grid=False, tickCount=8), scale=alt.Scale(nice=False))
    y = alt.Y("value:Q", axis=axis(title, tickCount=3), scale=alt.Scale(zero=False))
    line = alt.Chart(points).mark_line(strokeWidth=1.4, interpolate="step-after")
    legend = alt.Legend(columns=3 if width < 500 else 6, labelLimit=120)
    dash = alt.StrokeDash("name:N", scale=alt.Scale(domain=names, range=dashes), legend=None)
    drawn = line.encode(
        x=x, y=y, color=alt.Color("name:N", scale=scale, legend=legend), strokeDash=dash, detail="piece:N"
    )
    return drawn.properties(width=width, height=_CLOCK_HEIGHT)


_RESPONSE_HEIGHT = 130


@dataclass(frozen=True)
class Panel:
    """One channel: its name with what is known of it, the unit, and readings as (time s, value)."""

    title: str
    unit: str
    readings: Sequence[tuple[float, float]]


def build_response(panels: Sequence[Panel], load_s: Sequence[tuple[float, float]], width: int) -> Any:
    """Panels over each other on one time axis; `load_s`: from when to when all cores were busy, s."""
    end_s = max((t for panel in panels for t, _ in panel.readings), default=1.0)
    x_scale = alt.Scale(domain=[0, end_s], nice=False)
    busy = alt.InlineData(values=[{"on": on, "off": off} for on, off in load_s])
    drawn = []
    for panel in panels:
        values = [{"t": t, "value": value} for t, value in panel.readings]
        shade = alt.Chart(busy).mark_rect(color=LIGHT["rule"], opacity=0.45, clip=True)
        x = alt.X("t:Q", scale=x_scale, axis=axis("s", grid=False))
        y = alt.Y("value:Q", scale=alt.Scale(zero=False), axis=axis(panel.unit))
        line = alt.Chart(alt.InlineData(values=values)).mark_line(
            color=LIGHT["forward"], strokeWidth=1.2, interpolate="step-after", clip=True
        )
        layers = alt.layer(shade.encode(x=alt.X("on:Q", scale=x_scale), x2="off:Q"), line.encode(x=x, y=y))
        title = alt.Title(panel.title, anchor="start", fontSize=13, fontWeight="normal")
        drawn.append(layers.properties(width=plot_width(width), height=_RESPONSE_HEIGHT, title=title))
    return alt.vconcat(*drawn)


def write_response(chart: Any, path: Path) -> None:
    """Write the chart as the suffix says (png, svg or html), with all that it needs inside. Raises OSError."""
    import vl_convert  # charts of a notebook are drawn without it

    specification = vega_lite(chart)
    specification["config"]["background"] = "white"
    if path.suffix == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(specification, scale=2, allowed_base_urls=[]))
    elif path.suffix == ".svg":
        path.write_text(vl_convert.vegalite_to_svg(specification, allowed_base_urls=[]), encoding="utf-8")
    else:
        path.write_text(vl_convert.vegalite_to_html(specification, bundle=True), encoding="utf-8")
