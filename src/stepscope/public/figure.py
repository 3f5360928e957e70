"""`stepscope.figure` and `stepscope.figures`: a chart of the page as a picture, as `stepscope figure` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.run import opened
from stepscope.report import figures as drawn

if TYPE_CHECKING:
    from stepscope import Run


def figure(
    name: str,
    run: str | Path | Run = "last",
    out: str | Path = ".",
    *,
    form: str = "png",
    width_mm: float = drawn.DOUBLE_COLUMN_MM,
) -> Path:
    """Write one chart of a run into the folder `out`, which is made, and return the path of the picture.

    name: one of `stepscope.figures()`. run: a Run, the path of its folder, its name in `runs`, or "last". form: png,
    svg, pdf or vega. width_mm: on paper, 60 to 420; 85 fills one column, 170 two. Raises UnknownName and UsageError,
    StepscopeError with the reason where the run has nothing to draw, MissingDependency without the extra `report`,
    OutputNotWritable.
    """
    drawn.check(name, [form], width_mm)
    return drawn.write(name, opened(run), Path(out), form, width_mm)


def figures() -> dict[str, str]:
    """The charts that `figure` can draw: their names, in the order of the page, and the section each is of."""
    return {entry.name: entry.title for entry in drawn.entries()}
