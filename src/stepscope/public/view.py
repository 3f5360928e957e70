"""`stepscope.view`: a folder of runs as a local web page, as `stepscope view` serves it."""

from __future__ import annotations

import secrets
from pathlib import Path

from stepscope.report.view.access import is_loopback
from stepscope.report.view.server import DEFAULT_PORT, ViewServer, make_server


def view(
    folder: str | Path = "runs", *, host: str = "127.0.0.1", port: int = DEFAULT_PORT, token: str | None = None
) -> ViewServer:
    """A server that shows a folder of runs at its `address`: call `serve_forever()`, `server_close()` ends it.

    port: 0 takes any free one. token: what visitors need; beyond this machine a new one is made unless said, and it is
    part of the address. Nothing is written and nothing outside the folder is shown. Raises RunNotFound and UsageError.
    """
    needed = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
    return make_server(folder, host, port, needed)
