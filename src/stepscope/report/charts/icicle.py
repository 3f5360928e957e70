"""The module tree as an icicle: from left to right a module and what it is made of, height is time in a median step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width

if TYPE_CHECKING:
    from stepscope.report.page.parts import Icicle

_HEIGHT, _LETTER, _LINE, _THINNEST = 420, 6.2, 13, 0.25  # px
_KINDS = ("forward", "backward", "optimizer")


def build(cells: pl.DataFrame, width: int) -> Any:
    """Cells (depth, t0_ms, t1_ms, label, hover) and their stripes by phase (as `cells_of` makes them)."""
    deep, end = int(cells.select(pl.col("depth").max()).item()) + 1, float(cells.select(pl.col("t1_ms").max()).item())
    cells = cells.filter(pl.col("t1_ms") - pl.col("t0_ms") > _THINNEST * end / _HEIGHT)
    inner = plot_width(width)
    x = alt.Scale(domain=[0, deep], nice=False)
    y = alt.Y(
        "t0_ms:Q", scale=alt.Scale(domain=[end, 0], nice=False), axis=axis("time in a median step, ms", grid=False)
    )
    names = alt.Axis(title="depth in the module tree", grid=False, domain=False, ticks=False, labels=False)
    boxes = alt.Chart(_rows(cells)).mark_rect(stroke=LIGHT["paper"], strokeWidth=1, color=LIGHT["rule"])
    boxes = boxes.encode(
        x=alt.X("depth:Q", scale=x, axis=names), x2="right:Q", y=y, y2="t1_ms:Q", description="hover:N"
    )
    colour = alt.Color("phase:N", scale=alt.Scale(domain=list(_KINDS), range=[LIGHT[kind] for kind in _KINDS]))
    stripes = alt.Chart(_rows(_stripes(cells))).mark_rect().encode(
        x=alt.X("depth:Q", scale=x), x2="right:Q", y=y, y2="t1_ms:Q", color=colour
    )  # fmt: skip
    room = int(inner / deep / _LETTER) - 3
    tall = pl.col("t1_ms") - pl.col("t0_ms") > _LINE * end / _HEIGHT
    long = pl.col("label").str.len_chars() > room
    short = pl.when(long).then(pl.format("{}…", pl.col("label").str.slice(0, max(room - 1, 1)))).otherwise("label")
    labels = alt.Chart(_rows(cells.filter(tall).with_columns(label=short))).mark_text(
        align="left", baseline="top", dx=12, dy=3, fontSize=11, color=LIGHT["ink"]
    )
    text = labels.encode(x=alt.X("depth:Q", scale=x), y=y, text="label:N")
    return alt.layer(boxes, stripes, text).properties(width=inner, height=_HEIGHT)


def cells_of(icicle: Icicle) -> pl.DataFrame:
    """Cells of the page's icicle by its first quantity, time: each lies below its elder siblings."""
    name, parent = icicle.columns.index("name"), icicle.columns.index("parent")
    free: list[float] = []  # where the next child of each row begins, ms
    cells: list[dict[str, Any]] = []
    below = 0.0
    for row, values in zip(icicle.rows, icicle.layers[0].rows, strict=True):
        total, *split = ((value or 0) / 1e6 for value in (values or [None] * (1 + len(_KINDS)))[: 1 + len(_KINDS)])
        begin = below if row[parent] is None else free[row[parent]]
        if row[parent] is None:
            below += total
        else:
            free[row[parent]] += total
        free.append(begin)
        depth = 0 if row[parent] is None else cells[row[parent]]["depth"] + 1
        said = row[name] or "the model"
        label = said.rpartition(".")[2] if depth else said
        about = {"label": label, "hover": f"{said}: {total:.3f} ms"}
        cells.append(
            {"depth": depth, "t0_ms": begin, "t1_ms": begin + total, **about, **dict(zip(_KINDS, split, strict=True))}
        )
    frame = pl.DataFrame(cells).filter(pl.col("t1_ms") > pl.col("t0_ms"))
    return frame.with_columns(right=pl.col("depth") + 1)


def _rows(frame: pl.DataFrame) -> Any:
    """Rows as they are: of a frame altair takes 5,000, and a large model has more cells."""
    return alt.InlineData(values=frame.to_dicts())


def _stripes(cells: pl.DataFrame) -> pl.DataFrame:
    """At the left of each cell, its time divided by phase."""
    parts, begin = [], pl.col("t0_ms")
    for kind in _KINDS:
        end = pl.min_horizontal(begin + pl.col(kind), "t1_ms")  # medians of parts need not add up to that of the whole
        stripe = cells.select("depth", right=pl.col("depth") + 0.03, t0_ms=begin, t1_ms=end, phase=pl.lit(kind))
        parts.append(stripe.filter(pl.col("t1_ms") > pl.col("t0_ms")))
        begin = end
    return pl.concat(parts)
