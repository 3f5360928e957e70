"""Drawing a chart for the page: once for wide screens and paper, once for phones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.report.charts.style import NARROW, WIDE
from stepscope.report.charts.svg import draw
from stepscope.report.page.parts import Figure


def figure(chart: Callable[[int], Any], caption: str) -> Figure:
    """A figure from a function that builds its altair chart for a width in px."""
    return Figure(draw(chart(WIDE)), draw(chart(NARROW)), caption)
