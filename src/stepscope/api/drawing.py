"""`stepscope.figure`, `figures` and `view`: charts as pictures and runs as web pages, with the extra `report`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.analysis.run import open_run
from stepscope.report import figures as drawn
from stepscope.report.view.server import DEFAULT_PORT, ViewServer, make_server
from stepscope.report.view.site import is_loopback

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
    return drawn.write(name, open_run(run), Path(out), form, width_mm)


def figures() -> dict[str, str]:
    """The charts that `figure` can draw: their names, in the order of the page, and the section each is of."""
    return {entry.name: entry.title for entry in drawn.entries()}


def view(
    folder: str | Path = "runs", *, host: str = "127.0.0.1", port: int = DEFAULT_PORT, token: str | None = None
) -> ViewServer:
    """A server that shows a folder of runs at its `address`: call `serve_forever()`, `server_close()` ends it.

    port: 0 takes any free one. token: what visitors need; beyond this machine the default is a new one, and it is
    part of the address. Nothing is written and nothing outside the folder is shown. Raises RunNotFound and UsageError.
    """
    needed = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
    return make_server(folder, host, port, needed)
