"""The figures of `study observations`: 3 to 10 of the 2019 paper from own data, and use folded by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts import sensors
from stepscope.report.charts.style import CATEGORY, LIGHT, SERIES, Chart, axis, panel_title, plot_width

_HEIGHT, _BESIDE = 200, 24  # px
_PARTS = {
    "parameters": CATEGORY["parameter"],
    "gradients": CATEGORY["gradient"],
    "input data": CATEGORY["input"],
    "intermediate data": CATEGORY["saved"],
    "optimizer and buffers": CATEGORY["optimizer"],
}
_COMPONENTS = {
    "gpu": LIGHT["forward"],
    "cpu": LIGHT["backward"],
    "memory": LIGHT["optimizer"],
    "soc": LIGHT["data"],
    "rest": LIGHT["residual"],
}
_IDLE = ("idle_percent", alt.Scale(domain=[0, 100]), "windows in which it does nothing, %")
_BUSY = ("percent", alt.Scale(domain=[0, 100]), "busy, % of the time")


def observation_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """The chart and caption of every figure that has numbers."""
    return {name: (partial(_DRAW[name], frames), _caption(name, frames)) for name in _DRAW if name in frames}


def paper_charts(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[Chart, str]]:
    """Return the charts of the observations, preceded by which models fit at which batch size."""
    name = "paper-feasibility"
    fits = {name: (partial(_feasibility, frames), _FEASIBILITY)} if name in frames else {}
    return {**fits, **observation_charts(frames)}


_FEASIBILITY = (
    "Which batch sizes fit into the memory of the board; in the paper, models with a cross could not be trained."
)
_VERDICTS = {
    "fits": LIGHT["optimizer"],
    "likely fits": LIGHT["optimizer"],
    "too close": LIGHT["data"],
    "does not fit": LIGHT["backward"],
}


def _feasibility(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    mark = pl.when("trained").then(pl.lit("")).otherwise(pl.lit(" \u00d7"))
    rows = frames["paper-feasibility"].with_columns(model=pl.col("model") + mark)
    models = rows["model"].unique(maintain_order=True).to_list()
    verdicts = [name for name in _VERDICTS if name in set(rows["verdict"])]
    colours = alt.Scale(domain=verdicts, range=[_VERDICTS[name] for name in verdicts])
    x = alt.X("batch:O", axis=axis("batch size", labelAngle=0))
    y = alt.Y("model:N", sort=models, axis=axis(""))
    cells = alt.Chart(rows).mark_rect(stroke="white").encode(x=x, y=y, color=alt.Color("verdict:N", scale=colours))
    return cells.properties(width=plot_width(width) - 80, height=22 * len(models))


def _caption(name: str, frames: Mapping[str, pl.DataFrame]) -> str:
    sentence = _CAPTIONS[name]
    return sentence.format(workload=frames[name]["workload"][0]) if "{workload}" in sentence else sentence


def _use_over_steps(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-3-use-over-steps"]
    return sensors.build_utilisation(
        rows.with_columns(hover=_hover("label", "percent", "%")), frames["figure-3-steps"], width
    )


def _power_over_steps(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-7-power-over-steps"]
    rows = rows.with_columns(hover=_hover("rail", "watts", "W"))
    return sensors.build_power(rows, width, frames["figure-7-steps"])


def _use_by_batch(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-4-use-by-batch"]
    kinds = rows["what"].unique(maintain_order=True).to_list()
    panels = [_with_paper_points(_by_batch(rows.filter(what=kind), _BUSY, "workload", index == 0), frames,
                           "figure-4-use-by-batch", ("Q", _BUSY[1]), kind).properties(
        width=plot_width(width) // len(kinds) - _BESIDE, height=_HEIGHT, title=panel_title(kind))
        for index, kind in enumerate(kinds)]  # fmt: skip
    return alt.hconcat(*panels).resolve_scale(color="shared")


def _cores_by_batch(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-5-cores-by-batch"]
    name = pl.col("core").str.replace(":", " ")
    several = rows["cluster"].n_unique() > 1
    rows = rows.with_columns(core=pl.format("{} ({})", name, "cluster") if several else name)
    idle = rows.drop_nulls("idle_percent")
    drawn = [_core_panels(cores, width, value) for cores, value in ((rows, _BUSY), (idle, _IDLE)) if len(cores)]
    return alt.vconcat(*drawn).resolve_scale(color="shared") if len(drawn) > 1 else drawn[0]


def _core_panels(rows: pl.DataFrame, width: int, value: tuple[str, alt.Scale, str]) -> Any:
    return _panels(rows, width, lambda part, first: _by_batch(part, value, "core", first))


def _throughput(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-8-throughput-by-batch"]
    value = ("samples_per_s", alt.Scale(type="log"), "samples a second")
    drawn = _with_paper_points(
        _by_batch(rows, value, "workload", True), frames, "figure-8-throughput-by-batch", ("Q", value[1])
    )
    return drawn.properties(width=plot_width(width), height=_HEIGHT + 60)


def _memory_by_batch(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-9-memory-by-batch"].rename({"part": "holder"})

    def panel(part: pl.DataFrame, first: bool) -> Any:
        of = str(part["workload"][0])
        bars = _stacked_bars_by_batch(part, "mb", "holder", "MB", _PARTS)
        return _with_paper_points(bars, frames, "figure-9-memory-by-batch", ("O", None), workload=of)

    return _panels(rows, width, panel, own_axis=True)


def _energy_by_batch(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-6-energy-by-batch"]
    return _panels(
        rows,
        width,
        lambda part, first: _stacked_bars_by_batch(part, "joules", "component", "J a step", _COMPONENTS),
        own_axis=True,
    )


def _accuracy(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["figure-10-accuracy-by-day"].with_columns(series=pl.format("batch {}", "batch"))
    ends = [*rows["low"], *rows["high"], *_points_of(frames, "figure-10-accuracy-by-day")["value"]]
    low, high = min(ends), max(ends)
    scale = alt.Scale(domain=[max(low - 2, 0), min(high + 2, 100)], nice=False)
    colour = alt.Color("series:N", scale=alt.Scale(range=SERIES))
    x = alt.X("day:Q", axis=axis("day", grid=False, tickMinStep=1))
    y = alt.Y("percent:Q", scale=scale, axis=axis("accuracy on the test data, %"))
    band = alt.Chart(rows).mark_area(opacity=0.16).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour)
    line = alt.Chart(rows).mark_line(point=True, strokeWidth=2).encode(x=x, y=y, color=colour)
    drawn = _with_paper_points(alt.layer(band, line), frames, "figure-10-accuracy-by-day", ("day", scale))
    return drawn.properties(width=plot_width(width), height=_HEIGHT + 60)


def _use_by_step_phase_chart(frames: Mapping[str, pl.DataFrame], width: int) -> Any:
    rows = frames["rhythm-use"]

    def panel(part: pl.DataFrame, first: bool) -> Any:
        scale = alt.Scale(domain=[0, max(100.0, float(part["high"].to_numpy().max()))])
        x = alt.X("phase:Q", scale=alt.Scale(domain=[0, 100]), axis=axis("part of the step, %", grid=False))
        title = "busy, %" if first else ""
        band = alt.Chart(part).mark_area(color=LIGHT["forward"], opacity=0.2)
        line = alt.Chart(part).mark_line(color=LIGHT["forward"], strokeWidth=2)
        y = alt.Y("percent:Q", scale=scale, axis=axis(title))
        return alt.layer(band.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"), line.encode(x=x, y=y))

    return _panels(rows, width, panel)


def _by_batch(rows: pl.DataFrame, value: tuple[str, alt.Scale, str], series: str, first: bool) -> Any:
    """Lines of a value (column, scale, title) over the batch; with the range over the repeats where it is known."""
    batches = rows["batch"].unique().sort().to_list()
    ticks = axis("batch size", values=batches, grid=False, format="d")
    x = alt.X("batch:Q", scale=alt.Scale(type="log", base=2, nice=False), axis=ticks)
    colour = alt.Color(f"{series}:N", scale=alt.Scale(range=SERIES), legend=alt.Legend(columns=4))
    column, scale, title = value
    y = alt.Y(f"{column}:Q", scale=scale, axis=axis(title if first else "", labels=first, format=",~r"))
    layers = [alt.Chart(rows).mark_line(point=True, strokeWidth=2).encode(x=x, y=y, color=colour)]
    if "low" in rows.columns:
        ranges = alt.Chart(rows).mark_rule(strokeWidth=1.4, opacity=0.6)
        layers.append(ranges.encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q", color=colour))
    return alt.layer(*layers)


def _points_of(frames: Mapping[str, pl.DataFrame], figure: str) -> pl.DataFrame:
    schema = {"figure": pl.String, "model": pl.String, "workload": pl.String, "what": pl.String, "value": pl.Float64}
    return frames.get("paper-points", pl.DataFrame(schema={**schema, "x": pl.Int64})).filter(figure=figure)


def _with_paper_points(
    drawn: Any,
    frames: Mapping[str, pl.DataFrame],
    figure: str,
    place: tuple[str, Any],
    what: str = "",
    workload: str = "",
) -> Any:
    """A chart with the paper's own points on it: crosses with their model's name. place: kind of x, scale of y."""
    points = _points_of(frames, figure)
    points = points.filter(what=what) if what else points
    if workload:
        points = points.filter(pl.lit(workload).str.starts_with(pl.col("workload")))
    if points.is_empty():
        return drawn
    kind, scale = place
    rows = points.with_columns(label=pl.format("{} (2019 paper)", "model"), batch=pl.col("x"))
    x = {"O": alt.X("batch:O"), "day": alt.X("x:Q")}.get(
        kind, alt.X("x:Q", scale=alt.Scale(type="log", base=2, nice=False))
    )
    y = alt.Y("value:Q") if scale is None else alt.Y("value:Q", scale=scale)
    shared = alt.Chart(rows).encode(x=x, y=y, tooltip=["label:N", "x:Q", "value:Q"])
    ink = LIGHT["ink"]
    last = rows.filter(pl.col("x") == pl.col("x").max().over("model"))
    named = (
        alt.Chart(last).mark_text(align="right", dx=-8, dy=-7, fontSize=10, color=ink).encode(x=x, y=y, text="label:N")
    )
    return alt.layer(drawn, shared.mark_point(shape="cross", size=70, filled=True, color=ink), named)


def _stacked_bars_by_batch(rows: pl.DataFrame, value: str, part: str, title: str, colours: Mapping[str, str]) -> Any:
    names = [name for name in colours if name in set(rows[part])]
    names += [name for name in rows[part].unique(maintain_order=True) if name not in colours]
    order = {name: index for index, name in enumerate(names)}
    drawn = rows.with_columns(place=pl.col(part).replace_strict(order, return_dtype=pl.Int64))
    palette = [*colours.items(), *((name, LIGHT["other"]) for name in names if name not in colours)]
    scale = alt.Scale(domain=[name for name, _ in palette], range=[colour for _, colour in palette])
    batches = [str(batch) for batch in rows["batch"].unique().sort()]
    x = alt.X("batch:O", sort=batches, axis=axis("batch size", labelAngle=0))
    y = alt.Y(f"{value}:Q", stack="zero", axis=axis(title))
    return alt.Chart(drawn).mark_bar().encode(x=x, y=y, color=alt.Color(f"{part}:N", scale=scale), order="place:Q")


def _panels(rows: pl.DataFrame, width: int, panel: Callable[[pl.DataFrame, bool], Any], own_axis: bool = False) -> Any:
    """A panel a model, four in a line; `own_axis` where models are of different size."""
    models = rows["workload"].unique(maintain_order=True).to_list()
    columns = min(len(models), 4)
    panel_width = plot_width(width) // columns - (2 * _BESIDE + 10 if own_axis else _BESIDE)
    drawn = [panel(rows.filter(workload=name), index % columns == 0).properties(
        width=panel_width, height=_HEIGHT, title=panel_title(name)) for index, name in enumerate(models)]  # fmt: skip
    return alt.concat(*drawn, columns=columns).resolve_scale(color="shared")


def _hover(name: str, value: str, unit: str) -> pl.Expr:
    return pl.when(pl.col(value).is_null()).then(pl.lit("not read")).otherwise(
        pl.format("{}: {} {}", name, pl.col(value).round(1), pl.lit(unit)))  # fmt: skip


_DRAW: dict[str, Callable[[Mapping[str, pl.DataFrame], int], Any]] = {
    "figure-3-use-over-steps": _use_over_steps,
    "figure-4-use-by-batch": _use_by_batch,
    "figure-5-cores-by-batch": _cores_by_batch,
    "figure-6-energy-by-batch": _energy_by_batch,
    "figure-7-power-over-steps": _power_over_steps,
    "figure-8-throughput-by-batch": _throughput,
    "figure-9-memory-by-batch": _memory_by_batch,
    "figure-10-accuracy-by-day": _accuracy,
    "rhythm-use": _use_by_step_phase_chart,
}
_CAPTIONS = {
    "figure-3-use-over-steps": "Figure 3: use of accelerator or training process, and of each core, in {workload}.",
    "figure-4-use-by-batch": "Figure 4: use against batch size; bars are the range over the repeats.",
    "figure-5-cores-by-batch": "Figure 5: use of each core, and windows in which it does nothing, by batch.",
    "figure-6-energy-by-batch": "Figure 6: energy of one step by component against batch size.",
    "figure-7-power-over-steps": "Figure 7: power of each rail over some steps of {workload}, whose starts are marked.",
    "figure-8-throughput-by-batch": "Figure 8: throughput against batch size; bars are the range over the repeats.",
    "figure-9-memory-by-batch": "Figure 9: the most of each in a step, at its own time, against batch size.",
    "figure-10-accuracy-by-day": "Figure 10: accuracy after each day of new images; band: the range over the seeds.",
    "rhythm-use": "Use folded by step: median and the middle 80 % of the readings at each part of the step.",
}
