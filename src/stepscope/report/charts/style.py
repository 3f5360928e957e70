"""The look that all charts share: colours, frame, grid and type, and a chart as SVG text in the page's variables.

The colours are told apart in the common colour blindnesses (after Okabe and Ito, 2008). A name is a CSS variable of the
page. Charts use the light values; each value is unique, so that a drawn SVG can be taken back to names.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt

from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.runfolder import CATEGORIES, PHASES
from stepscope.units import escape_control_characters, row_label

LIGHT = {
    "paper": "#fdfdfb",
    "panel": "#f4f4f0",
    "ink": "#1c2127",
    "muted": "#5d666f",
    "rule": "#dedfda",
    "grid": "#ebebe6",
    "forward": "#0067a6",
    "backward": "#d1570a",
    "optimizer": "#00866b",
    "data": "#a8518a",
    "communication": "#c2a300",
    "other": "#8d959b",
    "residual": "#d3d6d4",
    "accent": "#0a5f99",
    "gap": "#efdcc3",
    "warn": "#a33a00",
    "power": "#5d4fb0",
    "load": "#5f7f9a",
    "estimated": "#b07aa1",
    "share": "#b9c4cd",
    "rail-1": "#5d4fb1",
    "rail-2": "#8f86d0",
    "rail-3": "#3d6f8e",
    "rail-4": "#c3bde8",
    "rail-5": "#83a9bf",
    "rail-6": "#9a9fb0",
    "held-parameter": "#2f4b7c",
    "held-buffer": "#8aa0c8",
    "held-gradient": "#b5482a",
    "held-optimizer": "#0b7a62",
    "held-input": "#9c4f8c",
    "held-saved": "#e0a030",
    "held-temporary": "#cf9a78",
    "held-workspace": "#7f6a9e",
    "held-other": "#aab0b4",
}
DARK = {
    "paper": "#14171a",
    "panel": "#1c2024",
    "ink": "#e8e9e6",
    "muted": "#9da5ac",
    "rule": "#33393f",
    "grid": "#262b30",
    "forward": "#5ab4e8",
    "backward": "#f0954c",
    "optimizer": "#3cc49f",
    "data": "#d991bf",
    "communication": "#e6cf4a",
    "other": "#868e95",
    "residual": "#41484e",
    "accent": "#6cbcf0",
    "gap": "#4a3a26",
    "warn": "#ffa465",
    "power": "#a89af0",
    "load": "#8fb0c9",
    "estimated": "#d9a9cc",
    "share": "#4d5a66",
    "rail-1": "#a89af1",
    "rail-2": "#7b70c4",
    "rail-3": "#7fb3d0",
    "rail-4": "#564d8f",
    "rail-5": "#4d7d96",
    "rail-6": "#7d8296",
    "held-parameter": "#7f9fd8",
    "held-buffer": "#a9bbe0",
    "held-gradient": "#e88a66",
    "held-optimizer": "#4cc7a4",
    "held-input": "#d692c4",
    "held-saved": "#f0bd5a",
    "held-temporary": "#ddb094",
    "held-workspace": "#b3a0d6",
    "held-other": "#6d757b",
}
PHASE = {**{phase: LIGHT[phase] for phase in PHASES}, row_label(FRAMEWORK_OVERHEAD): LIGHT["residual"]}
CATEGORY = {category: LIGHT[f"held-{category}"] for category in CATEGORIES}  # memory
_SERIES = ("forward", "backward", "optimizer", "data", "held-saved", "held-workspace", "held-parameter", "other")
SERIES = [LIGHT[name] for name in _SERIES]  # of lines and marks of a figure


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDE, NARROW = 940, 400  # drawn widths, px: the page scales each within its range of screens


Chart = Callable[[int], Any]  # draws an altair chart for a width, px
DrawnFigures = Mapping[str, tuple[Callable[[Any, int], Any], str]]  # what draws a frame for a width, and the caption


def charts_of(frames: Mapping[str, Any], figures: DrawnFigures) -> dict[str, tuple[Chart, str]]:
    """Return the chart and caption of every figure that has numbers."""
    return {name: (partial(draw, frames[name]), text) for name, (draw, text) in figures.items() if name in frames}


DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 1], [1, 3])  # of lines


def dashes(field: str, names: Sequence[str], colours: int, **legend: Any) -> dict[str, alt.StrokeDash]:
    """Return the encoding that tells lines apart where colours come again: another dash each time; else none."""
    if len(names) <= colours:
        return {}
    kinds = [DASHES[place // colours % len(DASHES)] for place in range(len(names))]
    scale = alt.Scale(domain=names, range=kinds)
    return {"strokeDash": alt.StrokeDash(field, sort=names, scale=scale, legend=alt.Legend(**legend))}


def apply_style(chart: Any) -> Any:
    """The chart with the house's configuration; `chart` is any altair chart."""
    muted = LIGHT["muted"]
    return (
        chart.configure(background="transparent", font=FONT, padding={"left": 2, "right": 6, "top": 4, "bottom": 2})
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=muted,
            titleColor=muted,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            gridColor=LIGHT["grid"],
            domainColor=LIGHT["rule"],
            tickColor=LIGHT["rule"],
            labelPadding=5,
            titlePadding=12,
            tickSize=4,
        )
        .configure_header(labelColor=LIGHT["ink"], titleColor=muted, labelFontSize=12, titleFontWeight="normal")
        .configure_legend(
            labelColor=LIGHT["ink"],
            labelFontSize=12,
            orient="top",
            title=None,
            symbolSize=70,
            symbolOpacity=1,
            columnPadding=18,
            padding=0,
            offset=10,
        )
        .configure_concat(spacing=14)
    )


def vega_lite(chart: Any) -> dict[str, Any]:
    """Return any altair chart in the house's style as a Vega-Lite specification, however many rows it has.

    Altair's own limit of rows is for notebooks; it stays as it was for charts of the user's.
    """
    with _ROW_LIMIT, alt.data_transformers.enable("default", max_rows=None):
        specification: dict[str, Any] = apply_style(chart).to_dict()
    return specification


_ROW_LIMIT = threading.Lock()  # altair's transformer is one for the process, and the view answers in threads


def panel_title(text: str, **settings: Any) -> alt.TitleParams:
    """Return the title of one panel of several, in the size of the axes' texts."""
    return alt.TitleParams(text, **{"fontSize": 12, "fontWeight": "normal", "color": LIGHT["ink"], **settings})


def plot_width(width: int, beside: int = 66) -> int:
    """Width of the plot itself in a drawing of this width, px, with so much beside it for the axis."""
    return width - beside


def axis(title: str, **settings: Any) -> alt.Axis:
    """An axis without its own line; the title carries the unit."""
    return alt.Axis(title=title, **{"domain": False, "ticks": False, "tickCount": 5, **settings})


_COLOUR = re.compile(r'"(#[0-9a-fA-F]{6})"')
_LONG_NUMBER = re.compile(r"(-?\d+\.\d\d)\d+")
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"')
_HIDDEN_FRAME = re.compile(r'<path class="(?:background|foreground)"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>')
_NAMELESS = re.compile(r' role="graphics-(?:symbol|object)"(?: aria-roledescription="[^"]*")?')
_VARIABLE = {value: f'"var(--{name})"' for name, value in LIGHT.items()}


def draw_svg(chart: Any) -> str:
    """SVG of an altair chart; it scales to its place, and `aria-label`s carry what hovering shows."""
    import vl_convert  # charts of a notebook are drawn without it

    svg = vl_convert.vegalite_to_svg(vega_lite(chart), allowed_base_urls=[])
    svg = _SIZE.sub(r"\1", svg, count=1)
    svg = _HIDDEN_FRAME.sub("", svg)
    svg = _COLOUR.sub(lambda match: _VARIABLE.get(match[1].lower(), match[0]), svg)
    return escape_control_characters(_shorten_svg_numbers(svg))


def _shorten_svg_numbers(svg: str) -> str:
    """Two decimals of a pixel are enough; only tags are touched, never text."""
    parts = re.split(r"(<[^>]*>)", svg)
    return "".join(_shorten_tag(part) if part.startswith("<") else part for part in parts)


def _shorten_tag(tag: str) -> str:
    if "aria-label=" not in tag:
        tag = _NAMELESS.sub("", tag)  # a mark that says nothing is no picture for a screen reader
    if 'aria-label="' in tag:
        head, label, tail = re.split(r'(aria-label="[^"]*")', tag, maxsplit=1)
        return _LONG_NUMBER.sub(r"\1", head) + label + _LONG_NUMBER.sub(r"\1", tail)
    return _LONG_NUMBER.sub(r"\1", tag)
