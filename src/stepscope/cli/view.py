"""`stepscope view`: a local web page over a folder of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def view(
    folder: Annotated[Path, typer.Argument(help="Folder of runs; sweeps in it are listed with their runs.")] = Path(
        "runs"
    ),
    host: Annotated[str, typer.Option(help="Address to listen at; default: this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes any free one.", min=0, max=65535)] = 8321,
    token: Annotated[
        str | None, typer.Option(help="Token that visitors need. Default: none on this machine, else a new one.")
    ] = None,
    over_time: Annotated[
        bool, typer.Option("--over-time", help="Begin with the newest runs over each other by time, not the list.")
    ] = False,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in the browser.")] = False,
) -> None:
    """Show a folder of runs as a local web page: a list with filters, pages, comparison by ticking, running runs.

    The folder is only read, and nothing outside it is shown. It listens on this machine alone unless --host says
    otherwise; a token is needed then, and is part of the address that is printed. Traffic is not encrypted: between
    machines, `ssh -L 8321:localhost:8321 board` is safer than --host. Ctrl-C ends it.
    """
    import secrets

    from stepscope.report.view.access import is_loopback
    from stepscope.report.view.server import make_server

    needed = token if token is not None or is_loopback(host) else secrets.token_urlsafe(24)
    server = make_server(folder, host, port, needed)
    address = server.address_of("over-time") if over_time else server.address
    typer.echo(f"{folder} is shown at {address} (Ctrl-C ends this)")
    if open_page:
        typer.launch(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("")
    finally:
        server.server_close()
