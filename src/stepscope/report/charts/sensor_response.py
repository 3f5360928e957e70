"""How each power channel of this machine answers a load step: a panel a channel, the load shaded behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from stepscope.report.charts.palette import LIGHT
from stepscope.report.charts.style import axis, plot_width, styled

FORMATS = (".png", ".svg", ".html")
_HEIGHT = 130


@dataclass(frozen=True)
class Panel:
    """One channel: its name with what is known of it, the unit, and readings as (time s, value)."""

    title: str
    unit: str
    readings: Sequence[tuple[float, float]]


def build(panels: Sequence[Panel], load_s: Sequence[tuple[float, float]], width: int) -> Any:
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
        drawn.append(layers.properties(width=plot_width(width), height=_HEIGHT, title=title))
    return alt.vconcat(*drawn)


def write(chart: Any, path: Path) -> None:
    """Write the chart as the suffix says (png, svg or html), with all that it needs inside. Raises OSError."""
    specification = styled(chart).to_dict()
    specification["config"]["background"] = "white"
    if path.suffix == ".png":
        path.write_bytes(vl_convert.vegalite_to_png(specification, scale=2, allowed_base_urls=[]))
    elif path.suffix == ".svg":
        path.write_text(vl_convert.vegalite_to_svg(specification, allowed_base_urls=[]), encoding="utf-8")
    else:
        path.write_text(vl_convert.vegalite_to_html(specification, bundle=True), encoding="utf-8")
