"""`stepscope data`: the data sets that workloads are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from stepscope.api.requests import DataRequest
from stepscope.cli._options import make_command, print_json
from stepscope.errors import DataUnavailable, UsageError


def _data(
    request: DataRequest,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    if request.action == "list":
        _list(json)
    elif request.action == "fetch":
        _fetch(request.names, json)
    else:
        _verify(request.names, json)


data = make_command(DataRequest, _data, "data")


def _list(json: bool) -> None:
    from rich.console import Console

    from stepscope.report.table import Table, text_column
    from stepscope.workloads.data import cache, catalogue

    rows = catalogue.listed()
    if json:
        print_json(rows)
        return
    columns = (
        text_column("data set", "name"),
        text_column("here", "present", lambda present: "yes" if present else "no"),
        text_column("what it is", "summary", fold=True),
        text_column("how to get it", "get", fold=True),
    )
    Console().print(Table.from_rows("data sets", columns, rows, f"downloads lie in {cache.data_root()}"))


def _fetch(names: Sequence[str], json: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from stepscope.workloads.data import cache, catalogue

    if not names:
        all_names = ", ".join(data_set.name for data_set in catalogue.DATA_SETS)
        raise UsageError("fetch needs the name of a data set", f"one or more of: {all_names}")
    chosen = [catalogue.find(name) for name in names]
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        tasks: dict[str, Any] = {}

        def advance(name: str, done: int, size: int | None) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
            progress.update(tasks[name], completed=done, total=size)

        fetched = {}
        for dataset in chosen:
            fetched[dataset.name] = paths = cache.fetch(dataset, advance)
            if not json:
                files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
                typer.echo(f"{dataset.name}: {files} in {paths[0].parent}")
    if json:
        print_json([{"name": name, "files": paths} for name, paths in fetched.items()])


def _verify(names: Sequence[str], json: bool) -> None:
    from stepscope.workloads.data import cache, catalogue

    rows = catalogue.verify(names)
    if json:
        print_json(rows)
    for row in () if json else rows:
        typer.echo(f"{row['data set']}/{row['file']}: {row['state']}")
    if not rows and not json:
        typer.echo(f"no data set has been fetched yet into {cache.data_root()}")
    bad = sorted({row["data set"] for row in rows if row["state"] != "ok"})
    if bad:
        raise DataUnavailable(f"not whole: {', '.join(bad)}", f"stepscope data fetch {' '.join(bad)}")
