"""The peak by module as a treemap: the area of a rectangle is its bytes, its colour what they are."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from stepscope.report.charts.palette import HELD, LIGHT
from stepscope.report.charts.style import NARROW, plot_width

Box = tuple[float, float, float, float]  # x0, y0, x1, y1
_HEIGHT = 360  # px
_LETTER, _LINE = 6.2, 15.0  # px, of a label
_PALE = ("buffer", "saved", "temporary", "other")  # colours on which dark letters read better
_INK = alt.Color("ink:N", scale=None)
_OUTSIDE = "outside any module"


def build(rows: pl.DataFrame, width: int, parts: int = 80) -> Any:
    """Rectangles of `rows` (module, category, bytes): modules, and categories within each; the smallest are joined."""
    across = plot_width(width, 8)
    boxes = pl.DataFrame(_boxes(_joined(rows, parts), across))
    x, y = alt.Scale(domain=[0, across], nice=False), alt.Scale(domain=[0, _HEIGHT], nice=False, reverse=True)
    names = [name for name in HELD if name in set(boxes["category"])]
    legend = alt.Legend(columns=3 if width <= NARROW else len(names))
    scale = alt.Scale(domain=names, range=[HELD[name] for name in names])
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
    ).properties(width=across, height=_HEIGHT)


def _joined(rows: pl.DataFrame, parts: int) -> pl.DataFrame:
    """The largest parts, and the rest of each category as one."""
    named = rows.select(
        pl.col("module").fill_null(_OUTSIDE).replace({"": "the model itself"}),
        "category",
        pl.col("bytes").cast(pl.Float64),
    ).sort("bytes", "module", descending=[True, False])
    rest = named[parts:].group_by("category").agg(pl.col("bytes").sum()).with_columns(module=pl.lit("smaller parts"))
    return pl.concat([named[:parts], rest.select(named.columns)]).filter(pl.col("bytes") > 0)


def _boxes(rows: pl.DataFrame, across: float) -> list[dict[str, Any]]:
    modules = rows.group_by("module").agg(pl.col("bytes").sum()).sort("bytes", "module", descending=[True, False])
    outer = squarified(modules["bytes"].to_list(), (0.0, 0.0, across, float(_HEIGHT)))
    found = []
    for module, box in zip(modules["module"], outer, strict=True):
        inside = rows.filter(pl.col("module") == module).sort("bytes", descending=True)
        for row, inner in zip(inside.iter_rows(named=True), squarified(inside["bytes"].to_list(), box), strict=True):
            found.append(_box(row, inner))
    return found


def _box(row: dict[str, Any], box: Box) -> dict[str, Any]:
    x0, y0, x1, y1 = box
    name = str(row["module"])
    label = _label(name, x1 - x0) if y1 - y0 >= _LINE + 4 else ""
    hover = f"{name}, {row['category']}: {row['bytes'] / 1e6:.3g} MB"
    return {
        "x0": x0, "y0": y0, "x1": x1, "y1": y1,
        "category": row["category"], "label": label, "hover": hover,
        "ink": LIGHT["ink" if row["category"] in _PALE else "paper"],
    }  # fmt: skip


def _label(name: str, across: float) -> str:
    """As much of the end of a module's name as a rectangle has room for: its last parts tell most."""
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
        while last < len(areas) and _worst(areas[first : last + 1], short) <= _worst(areas[first:last], short):
            last += 1
        row, (x0, y0, x1, y1) = _row(areas[first:last], (x0, y0, x1, y1))
        placed += row
        first = last
    return placed


def _worst(areas: list[float], short: float) -> float:
    """The largest ratio of sides in a row of these areas along a side of this length."""
    total = sum(areas)
    if total <= 0 or short <= 0:
        return float("inf")
    return max(max(short**2 * each / total**2, total**2 / (short**2 * max(each, 1e-12))) for each in areas)


def _row(areas: list[float], box: Box) -> tuple[list[Box], Box]:
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
