"""One step on a time axis: operations by thread and device, and below them what was sampled while they ran."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.analysis.step_tracks import OF_OPS
from stepscope.report.charts.palette import HELD, LIGHT, PHASE
from stepscope.report.charts.style import axis, plot_width

_LEVEL, _TRACK, _LETTER = 15, 34, 5.6  # px
_THINNEST = 0.35  # px: narrower operations would be an even grey on paper
_MOST = 4_000  # operations on paper, the longest


def build(ops: pl.DataFrame, tracks: pl.DataFrame, length_ns: int, width: int) -> Any:
    """Lanes of `ops` (columns of `analysis.step_lanes`), then a row for each of `tracks` (`analysis.step_tracks`)."""
    inner = plot_width(width)
    time = alt.Scale(domain=[0, length_ns / 1e6], nice=False)
    lanes = ops.group_by("lane", "label", maintain_order=True)
    rows = [_lane(frame, str(label), time, length_ns, inner) for (_, label), frame in lanes]
    sampled = tracks.filter(pl.col("track") != "memory")
    rows += [
        _track(frame, f"{name} of operations" if track == OF_OPS else str(name), time, inner)
        for (track, name), frame in sampled.group_by(["track", "name"], maintain_order=True)
    ]
    memory = tracks.filter(pl.col("track") == "memory")
    if not memory.is_empty():
        rows.append(_memory(memory, time, inner))
    rule = alt.Chart(pl.DataFrame({"at": [0.0]})).mark_rule(opacity=0)
    shown = axis("time since the step began, ms", grid=False, tickCount=8)
    rows.append(rule.encode(x=alt.X("at:Q", scale=time, axis=shown)).properties(width=inner, height=1))
    return alt.vconcat(*rows, spacing=8).resolve_scale(color="independent")


def _title(text: str) -> alt.TitleParams:
    return alt.TitleParams(text, anchor="start", fontSize=11, fontWeight="normal", color=LIGHT["ink"], offset=2)


def _lane(ops: pl.DataFrame, label: str, time: alt.Scale, length_ns: int, width: int) -> Any:
    per_px = length_ns / width
    levels = int(ops.select(pl.col("level").max()).item()) + 1
    lasted = pl.col("end_ns") - pl.col("start_ns")
    shown = ops.filter(lasted > _THINNEST * per_px).sort(lasted, descending=True).head(_MOST)
    room = (lasted / per_px / _LETTER).cast(pl.Int64) - 1
    shown = shown.with_columns(
        t0=pl.col("start_ns") / 1e6,
        t1=pl.col("end_ns") / 1e6,
        y0=pl.col("level") + 0.06,
        y1=pl.col("level") + 0.94,
        label=pl.when(pl.col("name").str.len_chars() <= room).then("name").otherwise(pl.lit("")),
    ).select("t0", "t1", "y0", "y1", "label", "phase")
    rows = alt.Chart(alt.InlineData(values=shown.to_dicts()))
    y = alt.Y("y0:Q", scale=alt.Scale(domain=[levels, 0], nice=False), axis=None)
    present = [phase for phase in PHASE if phase in set(shown["phase"])]
    colour = alt.Color("phase:N", scale=alt.Scale(domain=present, range=[PHASE[phase] for phase in present]))
    x = alt.X("t0:Q", scale=time, axis=None)
    boxes = rows.mark_rect(stroke=LIGHT["paper"], strokeWidth=0.4).encode(x=x, x2="t1:Q", y=y, y2="y1:Q", color=colour)
    texts = rows.mark_text(align="left", baseline="middle", dx=3, dy=_LEVEL / 2, fontSize=9, color=LIGHT["paper"])
    layered = alt.layer(boxes, texts.encode(x=x, y=y, text="label:N"))
    return layered.properties(width=width, height=_LEVEL * levels, title=_title(label))


def _track(frame: pl.DataFrame, name: str, time: alt.Scale, width: int) -> Any:
    unit, kind = frame["unit"][0], frame["kind"][0]
    shown = frame.select("value", "known", t0=pl.col("start_ns") / 1e6, t1=pl.col("end_ns") / 1e6)
    read = shown.filter(pl.col("value").is_not_null())
    top = 1.0 if unit == "1" else (float(read["value"].to_numpy().max()) if len(read) else 0.0) or 1.0
    ticks = axis("" if unit == "1" else unit, values=[0, top], format=".0%" if unit == "1" else ".3~g", grid=False)
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0, top], nice=False), axis=ticks)
    x = alt.X("t0:Q", scale=time, axis=None)
    sure, unsure = LIGHT["data" if kind == "estimated" else "forward"], LIGHT["other"]
    colour = alt.condition(alt.datum.known, alt.value(sure), alt.value(unsure))
    bars = alt.Chart(read).mark_rect(clip=True).encode(x=x, x2="t1:Q", y=y, y2=alt.datum(0), color=colour)
    gaps = alt.Chart(shown.filter(pl.col("value").is_null())).mark_rect(color=LIGHT["gap"], clip=True)
    gaps = gaps.encode(x=x, x2="t1:Q", y=alt.value(0), y2=alt.value(_TRACK))
    said = name.replace(":", " ") + ("" if kind == "measured" else f" ({kind})")
    return alt.layer(gaps, bars).properties(width=width, height=_TRACK, title=_title(said))


def _memory(memory: pl.DataFrame, time: alt.Scale, width: int) -> Any:
    present = [name for name in HELD if name in set(memory["name"])]
    order = {name: place for place, name in enumerate(present)}
    shown = memory.select(
        "name",
        t=pl.col("start_ns") / 1e6,
        mb=pl.col("value") / 1e6,
        place=pl.col("name").replace_strict(order, return_dtype=pl.Int64),
    )
    colour = alt.Color("name:N", scale=alt.Scale(domain=present, range=[HELD[name] for name in present]))
    areas = alt.Chart(shown).mark_area(interpolate="step-after", strokeWidth=0, clip=True)
    y = alt.Y("mb:Q", stack="zero", axis=axis("MB", tickCount=2, grid=False))
    drawn = areas.encode(x=alt.X("t:Q", scale=time, axis=None), y=y, color=colour, order="place:Q")
    step = int(memory["step"][0])
    return drawn.properties(width=width, height=2 * _TRACK, title=_title(f"live tensors of step {step}"))
