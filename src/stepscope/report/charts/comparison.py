"""Charts of comparisons: of runs, of a suite's settings, of the studies that vary one training, and of `tune`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.style import (
    CATEGORY,
    LIGHT,
    NARROW,
    SERIES,
    Chart,
    DrawnFigures,
    axis,
    charts_of,
    dashes,
    panel_title,
    plot_width,
)
from stepscope.units import number

_SIDE_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "accent", "warn", "muted",
                                     "held-parameter", "held-saved")]  # fmt: skip
_SIDE_ROW = 15  # px an side


def build_ratios(rows: pl.DataFrame, width: int) -> Any:
    """Points of `rows` (label, letter, ratio, low, high, hover), low and high null where there is no interval."""
    labels = rows["label"].unique(maintain_order=True).to_list()
    letters = rows["letter"].unique(maintain_order=True).to_list()
    label = 130 if width <= NARROW else 250
    room = label + 40  # a browser's font may be wider than the one that this is measured with
    y = alt.Y("label:N", sort=labels, axis=axis("", grid=False, labelLimit=label, minExtent=room))
    offset = alt.YOffset("letter:N", sort=letters)
    colour = alt.Color("letter:N", sort=letters, scale=alt.Scale(domain=letters, range=_SIDE_COLOURS[: len(letters)]))
    reached = [*rows["ratio"], *rows["low"].drop_nulls(), *rows["high"].drop_nulls()]
    low, high = min([0.5, *(value for value in reached if value > 0)]), max([2.0, *reached])
    scale = alt.Scale(type="log", domain=[low / 1.05, high * 1.05], nice=False)
    x = alt.X("ratio:Q", scale=scale, axis=axis("times A", grid=True, format=",~r"))
    line = alt.Chart(pl.DataFrame({"ratio": [1.0]})).mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(x="ratio:Q")
    bounded = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(strokeWidth=2)
    points = alt.Chart(rows).mark_point(filled=True, size=48, opacity=1)
    layers = [
        line,
        bounded.encode(x=alt.X("low:Q"), x2="high:Q", y=y, yOffset=offset, color=colour),
        points.encode(x=x, y=y, yOffset=offset, color=colour, description="hover:N"),
    ]
    height = max(len(labels) * (_SIDE_ROW * len(letters) + 8), 60)
    return alt.layer(*layers).properties(width=plot_width(width, room + 20), height=height)


_PART_ROW = 22  # px
_WAY_COLOURS = {"more": LIGHT["warn"], "less": LIGHT["accent"], "unattributed": LIGHT["other"]}


def build_parts(rows: pl.DataFrame, unit: str, width: int) -> Any:
    """Bars of `rows` (name, way, difference, low, high, hover) in this unit; way is more, less or unattributed."""
    names = rows["name"].to_list()
    label = 130 if width <= NARROW else 260
    room = label + 40  # as above
    y = alt.Y("name:N", sort=names, axis=axis("", grid=False, labelLimit=room, minExtent=room))
    ways = [way for way in _WAY_COLOURS if way in rows["way"].to_list()]
    scale = alt.Scale(domain=ways, range=[_WAY_COLOURS[way] for way in ways])
    x = alt.X("difference:Q", axis=axis(f"difference, {unit}", grid=True))
    bars = alt.Chart(rows).mark_bar(height=_PART_ROW - 8)
    bars = bars.encode(x=x, y=y, color=alt.Color("way:N", scale=scale), description="hover:N")
    bounded = alt.Chart(rows.filter(pl.col("low").is_not_null())).mark_rule(color=LIGHT["ink"])
    ends = bounded.encode(x=alt.X("low:Q"), x2="high:Q", y=y)
    return alt.layer(bars, ends).properties(width=plot_width(width, room + 14), height=_PART_ROW * len(names))


_HEIGHT = 280
_LINE_COLOURS = [LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "warn", "muted", "held-parameter",
                                     "held-saved", "held-workspace", "held-gradient")]  # fmt: skip


def build_batches(points: pl.DataFrame, title: str, width: int) -> Any:
    """Lines of `points` (line, batch, value, low, high, hover) on logarithmic scales; title carries the unit."""
    lines = points["line"].unique(maintain_order=True).to_list()
    palette = [_LINE_COLOURS[place % len(_LINE_COLOURS)] for place in range(len(lines))]
    look: dict[str, Any] = {"columns": 4, **({"symbolType": "stroke"} if len(lines) > len(_LINE_COLOURS) else {})}
    scale = alt.Scale(domain=lines, range=palette)
    colour = alt.Color("line:N", sort=lines, scale=scale, legend=alt.Legend(**look))
    batches = sorted(points["batch"].unique().to_list())
    x = alt.X("batch:Q", scale=alt.Scale(type="log", base=2), axis=axis("batch size", grid=False, values=batches))
    y = alt.Y("value:Q", scale=alt.Scale(type="log", nice=False, padding=12), axis=axis(title, grid=True))
    chart = alt.Chart(points)
    spread = alt.Chart(points.filter(pl.col("low").is_not_null() & (pl.col("low") > 0))).mark_rule(strokeWidth=2)
    layers = [
        chart.mark_line(strokeWidth=1.6).encode(
            x=x, y=y, color=colour, **dashes("line:N", lines, len(_LINE_COLOURS), **look)
        ),
        spread.encode(x=x, y="low:Q", y2="high:Q", color=colour),
        chart.mark_point(filled=True, size=42, opacity=1).encode(x=x, y=y, color=colour, description="hover:N"),
    ]
    return alt.layer(*layers).properties(width=plot_width(width), height=_HEIGHT)


_SETTING_HEIGHT, _PANEL_MARGIN, _PANEL_COLUMNS, _ROW = 170, 60, 3, 24
_MOST_OF_VALUES = 2.5  # times the largest value: where the axis ends that a CI would stretch
_NAME_WIDTH = 150  # px beside bars, for the names of settings


def setting_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    caption = "What each setting costs; rules are 95 % CIs, and one that ends at the edge is cut."
    loss = "Loss, the mean of ten steps; first repeat."
    return charts_of(frames, {"by-setting": (_setting_panels, caption), "loss-by-step": (_loss_chart, loss)})


def _setting_panels(rows: pl.DataFrame, width: int) -> Any:
    numeric = rows["at"].null_count() == 0 and rows["at"].n_unique() > 1
    quantities = rows["quantity"].unique(maintain_order=True).to_list()
    columns = _PANEL_COLUMNS if numeric else 1
    panel_width = (
        plot_width(width) // columns - _PANEL_MARGIN if numeric else plot_width(width, _NAME_WIDTH + _PANEL_MARGIN)
    )
    draw = _line if numeric else _bars
    panels = [draw(rows.filter(pl.col("quantity") == name), name, panel_width) for name in quantities]
    return alt.concat(*panels, columns=columns)


def _line(rows: pl.DataFrame, name: str, width: int) -> Any:
    ticks = axis(rows["label"][0].rpartition(" ")[0], values=rows["at"].unique().sort().to_list(), grid=False)
    x = alt.X("at:Q", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks)
    y = alt.Y("value:Q", scale=_scale_of_values(rows), axis=axis(name))
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=2, color=LIGHT["forward"]).encode(x=x, y=y)
    rule = alt.Chart(rows).mark_rule(strokeWidth=1.4, opacity=0.6, color=LIGHT["forward"], clip=True)
    return alt.layer(line, rule.encode(x=x, y="low:Q", y2="high:Q")).properties(width=width, height=_SETTING_HEIGHT)


def _bars(rows: pl.DataFrame, name: str, width: int) -> Any:
    y = alt.Y("label:N", sort=rows["label"].to_list(), axis=axis("", grid=False, labelLimit=_NAME_WIDTH))
    x = alt.X("value:Q", scale=_scale_of_values(rows), axis=axis(name))
    bars = alt.Chart(rows).mark_bar(color=LIGHT["forward"], height={"band": 0.6}).encode(x=x, y=y)
    rule = alt.Chart(rows).mark_rule(strokeWidth=1.6, color=LIGHT["ink"], clip=True)
    return alt.layer(bars, rule.encode(x="low:Q", x2="high:Q", y=y)).properties(width=width, height=_ROW * len(rows))


def _scale_of_values(rows: pl.DataFrame, high: str = "high") -> alt.Scale:
    """Return a scale from 0 on which the values are told apart: a CI far beyond them, as of two repeats, is cut."""
    most = _MOST_OF_VALUES * (rows["value"].to_numpy().max(initial=0.0))
    cut = any(end > most > 0 for end in rows[high].drop_nulls())
    return alt.Scale(zero=True, domainMax=most, nice=False) if cut else alt.Scale(zero=True, nice=True)


def _loss_chart(rows: pl.DataFrame, width: int) -> Any:
    labels = rows["label"].unique(maintain_order=True).to_list()
    colour = alt.Color("label:N", scale=alt.Scale(domain=labels, range=SERIES), legend=alt.Legend(columns=4))
    ticks = min(5, max(rows["step"].n_unique() - 1, 1))  # none between two steps
    x = alt.X("step:Q", axis=axis("step", grid=False, tickCount=ticks))
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=axis("loss"))
    line = alt.Chart(rows).mark_line(strokeWidth=1.8).encode(x=x, y=y, color=colour)
    return line.properties(width=plot_width(width), height=_SETTING_HEIGHT + 70)


_DAILY_HEIGHT = 240
_REPLAYS = {"none": LIGHT["forward"], "reservoir": LIGHT["backward"], "all": LIGHT["optimizer"]}
_DAILY_FIGURES = {  # whether the axis begins with 0, and the caption
    "accuracy-by-day": (
        False,
        "Accuracy each evening by what is played again of older images; mean over seeds and its 95 % CI.",
    ),
    "time-by-day": (True, "Training time of each day; mean over seeds and its 95 % CI."),
    "energy-by-day": (True, "Energy of each day's training; mean over seeds and its 95 % CI."),
}


def daily_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    return charts_of(
        frames, {name: (partial(_daily_panels, zero=zero), text) for name, (zero, text) in _DAILY_FIGURES.items()}
    )


def _daily_panels(rows: pl.DataFrame, width: int, zero: bool) -> Any:
    """All panels have the same scale, so that batch sizes can be compared."""
    title, batches = rows["title"][0], rows["batch"].unique(maintain_order=True).to_list()
    columns = min(len(batches), 3)
    panel_width = plot_width(width) // columns - 26
    scale = alt.Scale(zero=zero, domain=_domain(rows, zero), nice=True)
    drawn = [
        _daily_panel(rows.filter(batch=batch), scale, title if index % columns == 0 else "").properties(
            width=panel_width, height=_DAILY_HEIGHT, title=panel_title(f"batch {batch}")
        )
        for index, batch in enumerate(batches)
    ]
    return alt.concat(*drawn, columns=columns)


def _domain(rows: pl.DataFrame, zero: bool) -> list[float]:
    ends = [value for name in ("value", "low", "high") for value in rows[name].drop_nulls().to_list()]
    return [0.0 if zero else min(ends), max(ends)]


def _daily_panel(rows: pl.DataFrame, scale: alt.Scale, title: str) -> Any:
    colour = alt.Color("replay:N", scale=alt.Scale(domain=list(_REPLAYS), range=list(_REPLAYS.values())))
    x = alt.X("day:Q", axis=axis("day", grid=False, tickMinStep=1, format="d"))
    y = alt.Y("value:Q", scale=scale, axis=axis(title))
    band = alt.Chart(rows.drop_nulls("low")).mark_area(opacity=0.14)
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=2)
    tooltip = ["replay:N", "day:Q", "value:Q", "low:Q", "high:Q"]
    return alt.layer(
        band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour),
        line.encode(x=x, y=y, color=colour, tooltip=tooltip),
    )


_PARTIAL_HEIGHT = 300
_SETTING_COLOURS = [
    *(LIGHT[name] for name in ("forward", "backward", "optimizer", "data", "other")),
    *(CATEGORY[name] for name in ("saved", "parameter", "gradient", "workspace", "buffer", "temporary", "input")),
    LIGHT["ink"], LIGHT["muted"], LIGHT["accent"], LIGHT["warn"],
]  # fmt: skip


def partial_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    return charts_of(frames, _PARTIAL_FIGURES)


def _against_cost(rows: pl.DataFrame, width: int) -> Any:
    """A panel a cost; the ways that nothing beats are named and joined by a line."""
    panels = rows["cost"].unique(maintain_order=True).to_list()
    panel_width = plot_width(width) // len(panels) - 24
    names = rows["way"].unique(maintain_order=True).to_list()
    colour, scale = _way_colour(names), _accuracy_scale(rows)
    drawn = [
        _cost_panel(rows.filter(cost=name), colour, scale, index == 0).properties(
            width=panel_width, height=_PARTIAL_HEIGHT
        )
        for index, name in enumerate(panels)
    ]
    return alt.hconcat(*drawn)


def _way_colour(names: list[str]) -> alt.Color:
    scale = alt.Scale(domain=names, range=_SETTING_COLOURS)
    return alt.Color("way:N", sort=names, scale=scale, legend=alt.Legend(columns=6))


def _accuracy_scale(rows: pl.DataFrame) -> alt.Scale:
    ends = [value for name in ("percent", "low", "high") for value in rows[name].drop_nulls().to_list()]
    return alt.Scale(domain=[max(0.0, min(ends) - 2), min(100.0, max(ends) + 4)], nice=False)


def _cost_panel(rows: pl.DataFrame, colour: alt.Color, scale: alt.Scale, first: bool) -> Any:
    x = alt.X("value:Q", scale=_scale_of_values(rows, "value_high"), axis=axis(rows["cost"][0], tickCount=4))
    y = alt.Y("percent:Q", scale=scale, axis=axis("accuracy, %" if first else ""))
    best = rows.filter("unbeaten").sort("value")
    up, along = rows.drop_nulls("low"), rows.drop_nulls("value_low")
    tooltip = ["way:N", "value:Q", "percent:Q", "low:Q", "high:Q"]
    ring = alt.Chart(best).mark_point(size=150, color=LIGHT["ink"], opacity=0.7)
    name = alt.Chart(best).mark_text(align="right", dx=-8, dy=-9, fontSize=10.5, color=LIGHT["ink"])
    layers = [
        alt.Chart(best).mark_line(color=LIGHT["muted"], opacity=0.5, interpolate="step-after").encode(x=x, y=y),
        alt.Chart(up).mark_rule(opacity=0.5).encode(x=x, y="low:Q", y2="high:Q", color=colour),
        alt.Chart(along)
        .mark_rule(opacity=0.5, clip=True)
        .encode(x="value_low:Q", x2="value_high:Q", y=y, color=colour),
        alt.Chart(rows).mark_circle(size=75, opacity=1).encode(x=x, y=y, color=colour, tooltip=tooltip),
        ring.encode(x=x, y=y),
        name.encode(x=x, y=y, text="way:N"),
    ]
    return alt.layer(*layers)


def _accuracy_over_cost(rows: pl.DataFrame, width: int) -> Any:
    colour = _way_colour(rows["way"].unique(maintain_order=True).to_list())
    x = alt.X("cost:Q", axis=axis(rows["title"][0]))
    y = alt.Y("percent:Q", axis=axis("accuracy, %"))
    line = alt.Chart(rows).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, order="step:Q")
    last_points = rows.filter(pl.col("step") == pl.col("step").max().over("way")).drop_nulls("low")
    bars = alt.Chart(last_points).mark_rule(opacity=0.7).encode(x=x, y="low:Q", y2="high:Q", color=colour)
    return alt.layer(line, bars).properties(width=plot_width(width), height=_PARTIAL_HEIGHT)


def _savings(rows: pl.DataFrame, width: int) -> Any:
    kinds = rows["what"].unique(maintain_order=True).to_list()
    ways = rows["way"].unique(maintain_order=True).to_list()
    panel_width = (plot_width(width, 150)) // len(kinds) - 14
    drawn = []
    for index, kind in enumerate(kinds):
        part = rows.filter(what=kind)
        y = alt.Y("way:N", sort=ways, axis=axis("", labels=index == 0))
        bars = alt.Chart(part).mark_bar(color=LIGHT["forward"], height={"band": 0.62})
        x = alt.X("percent:Q", axis=axis("% of training all", tickCount=3))
        whole = (
            alt.Chart(pl.DataFrame({"x": [100.0]})).mark_rule(color=LIGHT["muted"], strokeDash=[3, 3]).encode(x="x:Q")
        )
        title = panel_title(kind)
        panel = alt.layer(bars.encode(x=x, y=y, tooltip=["way:N", "percent:Q"]), whole)
        drawn.append(panel.properties(width=panel_width, height=22 * len(ways), title=title))
    return alt.hconcat(*drawn)


_PARTIAL_FIGURES: DrawnFigures = {
    "accuracy-and-cost": (
        _against_cost,
        "Accuracy against what it cost. Ringed and named: no other way is as accurate for less. Bars: 95 % CIs, cut at "
        "the edge.",
    ),
    "accuracy-over-time": (
        _accuracy_over_cost,
        "Accuracy over training time, means over seeds; bars: 95 % over seeds at the end.",
    ),
    "accuracy-over-energy": (
        _accuracy_over_cost,
        "Accuracy over energy, means over seeds; bars: 95 % over seeds at the end.",
    ),
    "savings": (
        _savings,
        "What a step costs in % of a step that trains all: where a bar reaches 100, nothing is saved.",
    ),
}


_CHANGE_ROW, _CHANGE_WIDTH = 22, 190
_LEAST_GAIN = -60.0  # %, where the axis begins at the latest
_GAIN_COLOURS = {"helps": "optimizer", "checked at the end": "forward", "no certain gain": "other"}


def tuning_charts(frames: Mapping[str, pl.DataFrame], quantity: str = "time") -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers; quantity: what gains are of, time or energy."""
    worse = "is slower" if quantity == "time" else "takes more"
    caption = f"Less {quantity} a step than as is, with the 95 % CI; left of the line a change {worse}."
    losses = "Loss as is and with the best configuration."
    return charts_of(frames, {"gains": (_forest, caption), "losses": (_losses, losses)})


def _forest(rows: pl.DataFrame, width: int) -> Any:
    order, kinds = rows["change"].to_list(), list(_GAIN_COLOURS)
    colours = alt.Scale(domain=kinds, range=[LIGHT[_GAIN_COLOURS[kind]] for kind in kinds])
    y = alt.Y("change:N", sort=order, axis=axis("", grid=False, labelLimit=_CHANGE_WIDTH - 12, minExtent=_CHANGE_WIDTH))
    # A change that is many times slower would leave no room for the others: its gain stands at the edge, as text.
    lows, highs = ([*rows[column].drop_nulls(), *rows["gain"].drop_nulls()] for column in ("low", "high"))
    scale = alt.Scale(domain=[max(_LEAST_GAIN, min([-5.0, *lows])), min(100.0, max([5.0, *highs]))], clamp=True)
    x = axis("gain, %", format=".0f")
    colour = alt.Color("kind:N", scale=colours)
    points = alt.Chart(rows.filter(pl.col("gain") >= _LEAST_GAIN)).mark_point(filled=True, size=70).encode(
        x=alt.X("gain:Q", scale=scale, axis=x), y=y, color=colour
    )  # fmt: skip
    slow = rows.filter(pl.col("gain") < _LEAST_GAIN)
    slow = slow.with_columns(text=pl.Series([f"◀ {number(gain)} %" for gain in slow["gain"]], dtype=pl.String))
    texts = alt.Chart(slow).mark_text(align="left", dx=4, color=LIGHT["ink"]).encode(
        x=alt.X("gain:Q", scale=scale, axis=x), y=y, text="text:N"
    )  # fmt: skip
    rules = alt.Chart(rows).mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", scale=scale, axis=x), x2="high:Q", y=y, color=colour
    )  # fmt: skip
    zero = (
        alt.Chart(pl.DataFrame({"at": [0.0]}))
        .mark_rule(color=LIGHT["ink"])
        .encode(x=alt.X("at:Q", scale=scale, axis=x))
    )
    return alt.layer(zero, rules, points, texts).properties(
        width=plot_width(width, _CHANGE_WIDTH + 40), height=_CHANGE_ROW * len(rows)
    )


def _losses(rows: pl.DataFrame, width: int) -> Any:
    names = rows["configuration"].unique(maintain_order=True).to_list()
    colours = alt.Scale(domain=names, range=[LIGHT["forward"], LIGHT["backward"]])
    line = alt.Chart(rows).mark_line(strokeWidth=2).encode(
        x=alt.X("step:Q", axis=axis("step")), y=alt.Y("loss:Q", scale=alt.Scale(zero=False), axis=axis("loss")),
        color=alt.Color("configuration:N", scale=colours), strokeDash=alt.StrokeDash("configuration:N", legend=None),
    )  # fmt: skip
    return line.properties(width=plot_width(width), height=_SETTING_HEIGHT)
