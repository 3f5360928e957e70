"""Charts of steps: their times, a step by phase, the anatomy of one, its layers as an icicle, and its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from stepscope.analysis.time.layers import slice_names
from stepscope.analysis.time.tracks import OPERATOR_POWER
from stepscope.report.charts.style import CATEGORY, LIGHT, NARROW, PHASE, WIDE, axis, panel_title, plot_width
from stepscope.units import CATEGORY_LEGEND, number

if TYPE_CHECKING:
    from stepscope.report.page.parts import Icicle


STEP_KINDS = ("warm-up", "profiled", "time only")
_STEP_COLOURS = [LIGHT["residual"], LIGHT["accent"], LIGHT["muted"]]
_STEP_TIMES_HEIGHT = 240


def build_step_times(
    points: pl.DataFrame, bars: pl.DataFrame, median_ms: float | None, top_ms: float, low_ms: float, width: int
) -> Any:
    """Scatter of `points` (step, ms, kind, above, hover) and histogram of `bars` (ms0, ms1, steps, hover).

    Points marked `above` lie over `top_ms` and are drawn as arrows at the upper edge.
    """
    beside = 70 if width <= NARROW else 150
    scale = alt.Scale(domain=[low_ms, top_ms], nice=False, zero=False)
    y = alt.Y("ms:Q", scale=scale, axis=axis("step time, ms"))
    scatter = _scatter(points, y, width <= NARROW)
    if median_ms is not None:
        level = alt.Chart(pl.DataFrame({"ms": [median_ms]}))
        scatter = alt.layer(scatter, level.mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(y="ms:Q"))
    plot = scatter.properties(width=plot_width(width) - beside - 14, height=_STEP_TIMES_HEIGHT)
    return alt.hconcat(
        plot, _histogram(bars, scale, median_ms).properties(width=beside, height=_STEP_TIMES_HEIGHT), spacing=10
    )


def _scatter(points: pl.DataFrame, y: alt.Y, narrow: bool) -> Any:
    colour = alt.Color("kind:N", scale=alt.Scale(domain=list(STEP_KINDS), range=_STEP_COLOURS))
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=list(STEP_KINDS), range=["cross", "circle", "diamond"]))
    x = alt.X("step:Q", axis=axis("step", grid=False, tickCount=4 if narrow else 8, format="d"))
    x = x.scale(nice=False, zero=False, padding=6)
    size = 34 if len(points) <= 200 else 16
    inside = alt.Chart(points.filter(~pl.col("above"))).mark_point(filled=True, size=size, opacity=0.8)
    over = alt.Chart(points.filter(pl.col("above"))).mark_point(shape="triangle-up", filled=True, size=46, yOffset=4)
    return alt.layer(
        inside.encode(x=x, y=y, color=colour, shape=shape, description="hover:N"),
        over.encode(x=x, y=y, color=colour, description="hover:N"),
    )


def _histogram(bars: pl.DataFrame, scale: alt.Scale, median_ms: float | None) -> Any:
    y = alt.Y("ms0:Q", scale=scale, axis=axis("", labels=False))
    x = alt.X("steps:Q", axis=axis("steps", grid=False, tickCount=2, tickMinStep=1, format="d"))
    layers = [
        alt.Chart(bars)
        .mark_rect(color=LIGHT["other"], opacity=0.75)
        .encode(y=y, y2="ms1:Q", x=x, x2=alt.datum(0), description="hover:N")
    ]
    if median_ms is not None:
        level = alt.Chart(pl.DataFrame({"ms0": [median_ms]}))
        layers.append(level.mark_rule(color=LIGHT["ink"], strokeWidth=1.2).encode(y="ms0:Q"))
    return alt.layer(*layers)


def build_step_band(bands: pl.DataFrame, top_ms: float, low_ms: float, width: int) -> Any:
    """Line and band of `bands` (step, low_ms, middle_ms, high_ms, hover), one row for several steps."""
    y = alt.Y("low_ms:Q", scale=alt.Scale(domain=[low_ms, top_ms], nice=False), axis=axis("step time, ms"))
    x = alt.X("step:Q", axis=axis("step", grid=False, tickCount=6, format="d"), scale=alt.Scale(nice=False, zero=False))
    chart = alt.Chart(bands)
    band = chart.mark_area(color=LIGHT["muted"], opacity=0.22, clip=True).encode(x=x, y=y, y2="high_ms:Q")
    line = chart.mark_line(color=LIGHT["muted"], strokeWidth=1.6, clip=True).encode(x=x, y="middle_ms:Q")
    return alt.layer(band, line).properties(width=plot_width(width), height=240)


def build_phases(phases: pl.DataFrame, width: int) -> Any:
    """A bar of `phases` (columns phase, t0_ms, t1_ms, label, hover), as wide as a median step."""
    present = [phase for phase in PHASE if phase in phases["phase"].to_list()]
    legend = alt.Legend(columns=3 if width <= NARROW else len(present))
    scale = alt.Scale(domain=present, range=[PHASE[name] for name in present])
    colour = alt.Color("phase:N", scale=scale, legend=legend)
    span = alt.X("t0_ms:Q", axis=alt.Axis(title="time in a median step, ms", grid=False, tickCount=6))
    span = span.scale(nice=False, domainMin=0)
    bars = (
        alt.Chart(phases)
        .mark_bar(height=34, stroke=LIGHT["paper"], strokeWidth=1.5)
        .encode(x=span, x2="t1_ms:Q", color=colour, description="hover:N")
    )
    return alt.layer(bars).properties(width=plot_width(width, 24), height=38)


_STEP_PHASES_HEIGHT, _TIMED_ONLY = 46, "time only"


def build_step_phases(parts: pl.DataFrame, top_ms: float, width: int) -> Any:
    """A stacked bar for each step of `parts` (step, at, phase, t0_ms, t1_ms, hover), cut at `top_ms`."""
    colours = {**PHASE, _TIMED_ONLY: LIGHT["share"]}
    present = [phase for phase in colours if phase in set(parts["phase"])]
    scale = alt.Scale(domain=present, range=[colours[name] for name in present])
    inner = plot_width(width, 48)
    count = int(parts["at"].max() or 0) + 1  # type: ignore[arg-type]
    x = alt.X("left:Q", axis=None, scale=alt.Scale(domain=[0, count], nice=False))
    y = alt.Y("t0_ms:Q", axis=axis("ms", tickCount=2), scale=alt.Scale(domain=[0, top_ms], nice=False))
    gap = 0.12 if inner / count > 4 else 0.0
    drawn = parts.with_columns(left=pl.col("at").cast(pl.Float64), right=pl.col("at") + 1.0 - gap)
    legend = None if width == WIDE else alt.Legend(columns=3)  # on the page the bar above is its key
    colour = alt.Color("phase:N", scale=scale, legend=legend)
    marks = alt.Chart(drawn).mark_rect(clip=True)
    bars = marks.encode(x=x, x2="right:Q", y=y, y2="t1_ms:Q", color=colour, description="hover:N")
    return alt.layer(bars).properties(width=inner, height=_STEP_PHASES_HEIGHT)


_LEVEL, _TRACK, _LANE_LETTER = 15, 34, 5.6  # px
_THINNEST_OP = 0.35  # px: narrower ops would be an even grey on paper
_MOST_OPS = 4_000  # ops on paper, the longest
_ABOVE: dict[str, Any] = {"anchor": "start", "fontSize": 11, "offset": 2}  # of a title


def build_anatomy(ops: pl.DataFrame, tracks: pl.DataFrame, length_ns: int, width: int) -> Any:
    """Lanes of `ops` (columns of `analysis.step_lanes`), then a row for each of `tracks` (`analysis.step_tracks`)."""
    inner = plot_width(width)
    time = alt.Scale(domain=[0, length_ns / 1e6], nice=False)
    lanes = ops.group_by("lane", "label", maintain_order=True)
    rows = [_lane(frame, str(label), time, length_ns, inner) for (_, label), frame in lanes]
    sampled = tracks.filter(pl.col("track") != "memory")
    rows += [
        _anatomy_track(frame, f"{name} of ops" if track == OPERATOR_POWER else str(name), time, inner)
        for (track, name), frame in sampled.group_by(["track", "name"], maintain_order=True)
    ]
    memory = tracks.filter(pl.col("track") == "memory")
    if not memory.is_empty():
        rows.append(_memory_track(memory, time, inner))
    rule = alt.Chart(pl.DataFrame({"at": [0.0]})).mark_rule(opacity=0)
    time_axis = axis("time since the step began, ms", grid=False, tickCount=8)
    rows.append(rule.encode(x=alt.X("at:Q", scale=time, axis=time_axis)).properties(width=inner, height=1))
    return alt.vconcat(*rows, spacing=8).resolve_scale(color="independent")


def _lane(ops: pl.DataFrame, label: str, time: alt.Scale, length_ns: int, width: int) -> Any:
    per_px = length_ns / width
    levels = int(ops.select(pl.col("level").max()).item()) + 1
    lasted = pl.col("end_ns") - pl.col("start_ns")
    slices = ops.filter(lasted > _THINNEST_OP * per_px).sort(lasted, descending=True).head(_MOST_OPS)
    room = (lasted / per_px / _LANE_LETTER).cast(pl.Int64) - 1
    slices = slices.with_columns(
        t0=pl.col("start_ns") / 1e6,
        t1=pl.col("end_ns") / 1e6,
        y0=pl.col("level") + 0.06,
        y1=pl.col("level") + 0.94,
        full=slice_names(slices),
    )
    fits = [pl.when(pl.col(text).str.len_chars() <= room).then(text) for text in ("full", "name")]
    slices = slices.with_columns(label=pl.coalesce(*fits, pl.lit(""))).select("t0", "t1", "y0", "y1", "label", "phase")
    rows = alt.Chart(alt.InlineData(values=slices.to_dicts()))
    y = alt.Y("y0:Q", scale=alt.Scale(domain=[levels, 0], nice=False), axis=None)
    present = [phase for phase in PHASE if phase in set(slices["phase"])]
    colour = alt.Color("phase:N", scale=alt.Scale(domain=present, range=[PHASE[phase] for phase in present]))
    x = alt.X("t0:Q", scale=time, axis=None)
    boxes = rows.mark_rect(stroke=LIGHT["paper"], strokeWidth=0.4).encode(x=x, x2="t1:Q", y=y, y2="y1:Q", color=colour)
    texts = rows.mark_text(align="left", baseline="middle", dx=3, dy=_LEVEL / 2, fontSize=9, color=LIGHT["paper"])
    layered = alt.layer(boxes, texts.encode(x=x, y=y, text="label:N"))
    return layered.properties(width=width, height=_LEVEL * levels, title=panel_title(label, **_ABOVE))


def _anatomy_track(frame: pl.DataFrame, name: str, time: alt.Scale, width: int) -> Any:
    unit, kind = frame["unit"][0], frame["kind"][0]
    windows = frame.select("value", "known", t0=pl.col("start_ns") / 1e6, t1=pl.col("end_ns") / 1e6)
    read = windows.filter(pl.col("value").is_not_null())
    top = 1.0 if unit == "1" else (float(read["value"].to_numpy().max()) if len(read) else 0.0) or 1.0
    ticks = axis("" if unit == "1" else unit, values=[0, top], format=".0%" if unit == "1" else ".3~g", grid=False)
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0, top], nice=False), axis=ticks)
    x = alt.X("t0:Q", scale=time, axis=None)
    sure, unsure = LIGHT["estimated" if kind == "estimated" else "load" if unit == "1" else "power"], LIGHT["other"]
    colour = alt.condition(alt.datum.known, alt.value(sure), alt.value(unsure))
    bars = alt.Chart(read).mark_rect(clip=True).encode(x=x, x2="t1:Q", y=y, y2=alt.datum(0), color=colour)
    gaps = alt.Chart(windows.filter(pl.col("value").is_null())).mark_rect(color=LIGHT["gap"], clip=True)
    gaps = gaps.encode(x=x, x2="t1:Q", y=alt.value(0), y2=alt.value(_TRACK))
    title = name.replace(":", " ") + ("" if kind == "measured" else f" ({kind})")
    return alt.layer(gaps, bars).properties(width=width, height=_TRACK, title=panel_title(title, **_ABOVE))


def _memory_track(memory: pl.DataFrame, time: alt.Scale, width: int) -> Any:
    present = [name for name in CATEGORY if name in set(memory["name"])]
    order = {name: index for index, name in enumerate(present)}
    stacked = memory.select(
        "name",
        t=pl.col("start_ns") / 1e6,
        mb=pl.col("value") / 1e6,
        place=pl.col("name").replace_strict(order, return_dtype=pl.Int64),
    )
    colours = alt.Scale(domain=present, range=[CATEGORY[name] for name in present])
    colour = alt.Color("name:N", scale=colours, legend=alt.Legend(labelExpr=CATEGORY_LEGEND))
    areas = alt.Chart(stacked).mark_area(interpolate="step-after", strokeWidth=0, clip=True)
    y = alt.Y("mb:Q", stack="zero", axis=axis("MB", tickCount=2, grid=False))
    drawn = areas.encode(x=alt.X("t:Q", scale=time, axis=None), y=y, color=colour, order="place:Q")
    step = int(memory["step"][0])
    return drawn.properties(width=width, height=2 * _TRACK, title=panel_title(f"live tensors of step {step}", **_ABOVE))


_ICICLE_HEIGHT, _CELL_LETTER, _CELL_LINE, _THINNEST_CELL = 360, 6.2, 14, 0.25  # px
_PHASES = ("forward", "backward", "optimizer")
_ROOT_COLUMN, _INNER_COLUMN, _LAST_COLUMN = 0.3, 0.5, 1.0  # widths: what computes has the most room
_TINT = 0.55  # of the colours of phases beneath letters


def build_icicle(cells: pl.DataFrame, width: int) -> Any:
    """Cells (depth, t0_ms, t1_ms, label, leaf, hover): containers are grey, what has no children is in its phases."""
    deep, end = int(cells.select(pl.col("depth").max()).item()) + 1, float(cells.select(pl.col("t1_ms").max()).item())
    cells = cells.filter(pl.col("t1_ms") - pl.col("t0_ms") > _THINNEST_CELL * end / _ICICLE_HEIGHT)
    inner = plot_width(width)
    edges = _column_edges(deep, inner)
    right = pl.when("leaf").then(edges[-1]).otherwise(pl.col("depth").replace_strict(dict(enumerate(edges[1:]))))
    cells = cells.with_columns(left=pl.col("depth").replace_strict(dict(enumerate(edges[:-1]))), right=right)
    across, time = alt.Scale(domain=[0, edges[-1]], nice=False), alt.Scale(domain=[end, 0], nice=False)
    x, y = (
        alt.X("left:Q", scale=across, axis=None),
        alt.Y("t0_ms:Q", scale=time, axis=axis("time in a median step, ms", grid=False)),
    )
    place = {"x": x, "x2": "right:Q", "y": y, "y2": "t1_ms:Q"}
    boxes = alt.Chart(_inline_data(cells)).mark_rect(color=LIGHT["grid"]).encode(**place, description="hover:N")
    legend = alt.Legend(symbolOpacity=_TINT)
    colour = alt.Color(
        "phase:N", legend=legend, scale=alt.Scale(domain=list(_PHASES), range=[LIGHT[kind] for kind in _PHASES])
    )
    stripes = (
        alt.Chart(_inline_data(_stripes(cells.filter("leaf")))).mark_rect(opacity=_TINT).encode(**place, color=colour)
    )
    frames = alt.Chart(_inline_data(cells)).mark_rect(fill=None, stroke="white", strokeWidth=1.2).encode(**place)
    labels = alt.Chart(_inline_data(_fit_cell_labels(cells, end))).mark_text(
        align="left", baseline="top", dx=4, dy=3, fontSize=11, color=LIGHT["ink"]
    )
    text = labels.encode(x=x, y=y, text="label:N")
    return alt.layer(boxes, stripes, frames, text).properties(width=inner, height=_ICICLE_HEIGHT)


def _column_edges(deep: int, inner: int) -> list[float]:
    """Left edges of the columns of an icicle and the right one of the last, px."""
    widths = [_ROOT_COLUMN, *[_INNER_COLUMN] * (deep - 2), _LAST_COLUMN][:deep] if deep > 1 else [_LAST_COLUMN]
    edges = [0.0]
    for part in widths:
        edges.append(edges[-1] + part * inner / sum(widths))
    return edges


def _fit_cell_labels(cells: pl.DataFrame, end: float) -> pl.DataFrame:
    """The cells that have room for a line: their names, cut where they are longer, and the time where it fits too."""
    rows = []
    for row in cells.filter(pl.col("t1_ms") - pl.col("t0_ms") > _CELL_LINE * end / _ICICLE_HEIGHT).iter_rows(
        named=True
    ):
        room, name = int((row["right"] - row["left"] - 8) / _CELL_LETTER), row["label"]
        name = "model" if row["depth"] == 0 and len(name) > room else name
        timed = f"{name}  {number(row['t1_ms'] - row['t0_ms'])} ms"
        rows.append(
            {
                **row,
                "label": timed if len(timed) <= room else name if len(name) <= room else f"{name[: max(room - 1, 1)]}…",
            }
        )
    return pl.DataFrame(rows, schema=cells.schema)


def icicle_cells(icicle: Icicle) -> pl.DataFrame:
    """Cells of the page's icicle by its first quantity, time: each lies below its elder siblings."""
    name, parent = icicle.columns.index("name"), icicle.columns.index("parent")
    free: list[float] = []  # where the next child of each row begins, ms
    cells: list[dict[str, Any]] = []
    below = 0.0
    for row, values in zip(icicle.rows, icicle.layers[0].rows, strict=True):
        total, *split = ((value or 0) / 1e6 for value in (values or [None] * (1 + len(_PHASES)))[: 1 + len(_PHASES)])
        begin = below if row[parent] is None else free[row[parent]]
        if row[parent] is None:
            below += total
        else:
            free[row[parent]] += total
        free.append(begin)
        depth = 0 if row[parent] is None else cells[row[parent]]["depth"] + 1
        module = row[name] or "the model"
        label = _last_names(module) if depth else module
        about = {"label": label, "hover": f"{module}: {total:.3f} ms"}
        cells.append(
            {"depth": depth, "t0_ms": begin, "t1_ms": begin + total, **about, **dict(zip(_PHASES, split, strict=True))}
        )
    parents = {above for row, cell in zip(icicle.rows, cells, strict=True)
               if (above := row[parent]) is not None and cell["t1_ms"] > cell["t0_ms"]}  # fmt: skip
    frame = pl.DataFrame(cells).with_columns(leaf=pl.Series([place not in parents for place in range(len(cells))]))
    return frame.filter(pl.col("t1_ms") > pl.col("t0_ms"))


def _last_names(module: str) -> str:
    """Return the last part of a module's name; of one that is a number also the part before it."""
    *above, last = module.split(".")
    return f"{above[-1]}.{last}" if above and last.isdigit() else last


def _inline_data(frame: pl.DataFrame) -> Any:
    """Rows as they are: of a frame altair takes 5,000, and a large model has more cells."""
    return alt.InlineData(values=frame.to_dicts())


def _stripes(cells: pl.DataFrame) -> pl.DataFrame:
    """The time of each cell divided by phase, from the top."""
    parts, begin = [], pl.col("t0_ms")
    for kind in _PHASES:
        end = pl.min_horizontal(begin + pl.col(kind), "t1_ms")  # medians of parts need not add up to that of the whole
        stripe = cells.select("left", "right", t0_ms=begin, t1_ms=end, phase=pl.lit(kind))
        parts.append(stripe.filter(pl.col("t1_ms") > pl.col("t0_ms")))
        begin = end
    return pl.concat(parts)


_SHORTEST_SPAN = 0.002  # of the step: what is shorter, or less apart, is drawn as one bar


def build_schedules(timeline: pl.DataFrame, width: int) -> Any:
    """Bars of `timeline` (schedule, lane, phase, t0_ns, t1_ns), a row a lane of each schedule."""
    drawn = join_near_spans(timeline).with_columns(
        pl.format("{}, {}", "schedule", "lane").alias("row"), t0_ms=pl.col("t0_ns") / 1e6, t1_ms=pl.col("t1_ns") / 1e6
    )
    present = [phase for phase in PHASE if phase in drawn["phase"].to_list()]
    legend = alt.Legend(columns=3 if width <= NARROW else len(present))
    colour = alt.Color(
        "phase:N", scale=alt.Scale(domain=present, range=[PHASE[name] for name in present]), legend=legend
    )
    rows = drawn["row"].unique(maintain_order=True).to_list()
    y = alt.Y("row:N", sort=rows, axis=alt.Axis(title=None, labelLimit=220, ticks=False, domain=False))
    x = alt.X("t0_ms:Q", axis=axis("time in the step, ms")).scale(nice=False, domainMin=0)
    chart = alt.Chart(drawn).mark_bar().encode(x=x, x2="t1_ms:Q", y=y, color=colour)
    return chart.properties(width=plot_width(width) - (90 if width <= NARROW else 200), height=alt.Step(22))


def join_near_spans(timeline: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with neighbours of one phase as one, where less lies between them than a picture shows."""
    near = _SHORTEST_SPAN * float(timeline["t1_ns"].max() or 0.0)  # type: ignore[arg-type]
    lanes = ["schedule", "lane"]
    order = timeline["schedule"].unique(maintain_order=True).to_list()
    ordered = timeline.sort("lane", "t0_ns", maintain_order=True)
    apart = (pl.col("t0_ns") - pl.col("t1_ns").shift(1) > near).over(lanes)
    other = (pl.col("phase") != pl.col("phase").shift(1)).over(lanes)
    run = (apart | other).fill_null(True).cum_sum().over(lanes)
    spans = ordered.with_columns(run=run).group_by(*lanes, "run", maintain_order=True)
    spans_of_runs = spans.agg(pl.col("phase").first(), pl.col("t0_ns").min(), pl.col("t1_ns").max())
    wide = spans_of_runs.filter(pl.col("t1_ns") - pl.col("t0_ns") >= near / 2)
    places = pl.col("schedule").replace_strict(order, range(len(order)), return_dtype=pl.Int64)
    return wide.sort(places, "lane", "t0_ns").drop("run")
