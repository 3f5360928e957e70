"""Charts for the page and for `stepscope figure`, from one definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.report.page.parts import Figure


def figure(chart: Callable[[int], Any], caption: str, name: str = "") -> Figure:
    """A figure from a function that builds its altair chart for a width in px; `name`: one of the section's FIGURES."""
    return Figure(chart, caption, name)
