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
    from stepscope.api.run_reports import view as make_server

    server = make_server(folder, host=host, port=port, token=token)
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
