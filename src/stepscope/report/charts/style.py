"""The look that all charts share: no frame, quiet grid, labels in the page's own type."""

from __future__ import annotations

from typing import Any

import altair as alt

from stepscope.report.charts.palette import LIGHT

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
WIDE, NARROW = 940, 400  # drawn widths, px: the page scales each within its range of screens


def styled(chart: Any) -> Any:
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


def plot_width(width: int, beside: int = 66) -> int:
    """Width of the plot itself in a drawing of this width, px, with so much beside it for the axis."""
    return width - beside


def axis(title: str, **settings: Any) -> alt.Axis:
    """An axis without its own line; the title carries the unit."""
    return alt.Axis(title=title, **{"domain": False, "ticks": False, "tickCount": 5, **settings})
