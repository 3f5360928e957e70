"""`stepscope runs`: many runs in one place, a folder or an object store, with an index."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.api.requests import RunsRequest
from stepscope.cli._options import AsJson, make_command, print_json, with_privacy_options
from stepscope.errors import UsageError
from stepscope.request import parse_amount

if TYPE_CHECKING:
    import polars as pl

    from stepscope.store import Store
    from stepscope.store.transfer import Pushed
    from stepscope.store.upkeep import Verified

ENVIRONMENT = "STEPSCOPE_STORE"
StoreOption = Annotated[
    str | None,
    typer.Option("--store", help=f"A folder, or an address such as s3://bucket/runs. [default: ${ENVIRONMENT}]"),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", help="Timeout in seconds for one answer of the store.")]
RunsArgument = Annotated[list[str], typer.Argument(help="Names of runs in the store.")]
_COLUMNS = {
    **{"id": "run", "status": "status", "workload": "workload", "batch_size": "batch", "board": "board"},
    **{"steps": "steps", "step_time_ns": "step", "energy_per_step_j": "energy", "tags": "tags"},
}
_FIRST_TO_GO = ("board", "workload", "batch_size", "steps", "energy_per_step_j", "status")  # on a narrow terminal


def runs() -> None:
    """Keep many runs in one place: a folder, or an object store that fsspec opens.

    A run is listed when all of it is there. The index is a Parquet file that Polars and DuckDB query in place.
    """


def _list(
    request: RunsRequest,
    as_json: Annotated[bool, typer.Option("--json", help="Print all columns as JSON.")] = False,
) -> None:
    from stepscope.store import Choice, listed

    choice = Choice(request.workload, request.board, request.status, request.tag, request.since, request.where)
    frame = listed(_open_store(request.store, request.timeout), choice)
    if as_json:
        typer.echo(frame.head(request.most).write_json())
        if len(frame) > request.most:
            typer.echo(f"{len(frame) - request.most:,} more not shown: --most {len(frame)}", err=True)
        return
    _table(frame, request.most)


def show(
    run: Annotated[str, typer.Argument(help="The name of a run in the store.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON is the default here.")] = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Show what a store says of one run, as JSON: its facts, tags, files and checksums."""
    from dataclasses import asdict

    from stepscope.store import find

    _, manifest = find(_open_store(store, timeout), run)
    print_json({**asdict(manifest), "digest": manifest.digest, "folder": manifest.folder})


def tag(
    names: RunsArgument,
    add: Annotated[list[str] | None, typer.Option("--add", help="A tag to add, such as baseline or power=15W.")] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="A tag to take away.")] = None,
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Add tags to runs of a store, or take them away."""
    if not add and not drop:
        raise UsageError("no tag was given", "--add baseline, or --drop baseline")
    from stepscope.store import tag as tagged

    tags_by_run = tagged(_open_store(store, timeout), names, add or (), drop or ())
    if as_json:
        print_json([{"id": run_id, "tags": list(tags)} for run_id, tags in tags_by_run.items()])
        return
    for run_id, tags in tags_by_run.items():
        typer.echo(f"{run_id}: {' '.join(tags) or 'no tags'}")


def rm(
    names: RunsArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Remove runs from a store for good."""
    from stepscope.store import remove
    from stepscope.units import plural

    opened = _open_store(store, timeout)
    question = f"remove {plural(len(names), 'run')} from {opened.address} for good?"
    try:
        if not yes and not typer.confirm(question, err=as_json):
            raise typer.Abort
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        raise UsageError("nothing was removed: it asks first, and nobody answered", "add --yes") from None
    removed_runs = list(remove(opened, names))
    if as_json:
        print_json({"removed": removed_runs})
        return
    for run_id in removed_runs:
        typer.echo(f"{run_id}: removed")


@with_privacy_options
def push(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, names in runs/, 'last', or folders of runs.")],
    tag: Annotated[list[str] | None, typer.Option(help="A tag for all of them; may be given again.")] = None,
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Push runs into a store. Pushing a run again is harmless; a push that breaks off is gone on with."""
    from stepscope.store import push as pushed

    pushed_runs: list[Pushed] = []
    try:
        pushed(
            _open_store(store, timeout), _folders(folders), tag or (), pushed_runs.append if as_json else _print_pushed
        )
    finally:  # also where some were refused
        if as_json:
            print_json([vars(run) for run in pushed_runs])


def pull(
    names: RunsArgument,
    out: Annotated[Path, typer.Option("--out", help="The folder that the runs are put into.")] = Path("runs"),
    max_size: Annotated[str, typer.Option(help="Refuse a run that is larger.")] = "16GB",
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Pull runs out of a store, every checksum verified before a run is seen."""
    from stepscope.store import pull as pulled

    paths: list[Path] = []
    most_bytes = round(parse_amount("--max-size", max_size, "B"))
    try:
        pulled(_open_store(store, timeout), names, out, most_bytes, paths.append if as_json else typer.echo)
    finally:  # also where a later one was refused
        if as_json:
            print_json({"written": paths})


def verify(
    names: Annotated[list[str] | None, typer.Argument(help="Names of runs in the store; none: all.")] = None,
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Read every file of a store and compare it with what was pushed; nothing is changed."""
    from stepscope.errors import StoreError
    from stepscope.store import verify as verified
    from stepscope.units import bytes_, plural

    checks = verified(_open_store(store, timeout), names or None, None if as_json else _print_verified)
    damaged = [run.id for run in checks if run.wrong]
    files, read = sum(run.files for run in checks), sum(run.bytes for run in checks)
    if as_json:
        print_json([vars(run) for run in checks])
    else:
        typer.echo(f"{plural(files, 'file')} of {plural(len(checks), 'run')}, {bytes_(read)}: {len(damaged)} damaged")
    if damaged:
        raise StoreError(
            f"{len(damaged)} of {len(checks):,} runs are not what was pushed: {', '.join(damaged[:3])}",
            "push them again from where they were recorded, or remove them: stepscope runs rm",
        )


def gc(
    older_than: Annotated[
        float, typer.Option(min=0.0, help="Hours without a write after which a left-over is one.")
    ] = 24.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    as_json: AsJson = False,
    store: StoreOption = None,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Remove what broken pushes left in a store, and write its index anew."""
    from stepscope.store import collect
    from stepscope.units import bytes_, plural

    garbage = collect(_open_store(store, timeout), older_than * 3600, dry_run)
    if as_json:
        print_json({**vars(garbage), "dry_run": dry_run})
        return
    for path in garbage.removed:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {path}")
    if garbage.too_young:
        typer.echo(f"{len(garbage.too_young)} left-over(s) are younger than {older_than:g} h: a push may be going on")
    typer.echo(f"{bytes_(garbage.bytes)} {'to free' if dry_run else 'freed'}, {plural(garbage.runs, 'run')}")


SUBCOMMANDS = {
    "list": make_command(RunsRequest, _list, "list"),
    "show": show,
    "tag": tag,
    "rm": rm,
    "push": push,
    "pull": pull,
    "verify": verify,
    "gc": gc,
}


def _open_store(store: str | None, timeout_s: float) -> Store:
    address = store or os.environ.get(ENVIRONMENT)
    if not address:
        raise UsageError("no store was given", f"--store FOLDER or s3://bucket/runs, or set {ENVIRONMENT}")
    from stepscope.store import open_store

    return open_store(address, timeout_s)


def _folders(paths: list[Path]) -> list[Path]:
    """The run folders that are meant; a folder without a run.json stands for the runs in it."""
    from stepscope.run_paths import find_run, run_folders

    folders: list[Path] = []
    for path in map(find_run, paths):
        inside = sorted(run_folders(path))
        folders.extend([path] if (path / "run.json").exists() or not inside else inside)
    return folders


def _print_pushed(pushed: Pushed) -> None:
    from stepscope.units import bytes_

    typer.echo(f"{pushed.id}: {pushed.outcome} ({bytes_(pushed.bytes)})")
    if pushed.left:
        from stepscope.runfolder.validation import clean_text

        named = [" ".join(clean_text(name).split()) for name in pushed.left[:_MOST_NAMED]]
        more = f" and {len(pushed.left) - _MOST_NAMED:,} more" if len(pushed.left) > _MOST_NAMED else ""
        typer.echo(f"  not pushed, since it could hold private names: {', '.join(named)}{more}", err=True)


_MOST_NAMED = 3  # files


def _print_verified(run: Verified) -> None:
    for path, what in run.wrong.items():
        typer.echo(f"{run.id}: {path}: {what}")


def _table(frame: pl.DataFrame, most: int) -> None:
    from rich.console import Console

    from stepscope.report.table import FittedTable, Table, number_column, text_column
    from stepscope.units import duration, plural, si

    forms: dict[str, Any] = {
        "step_time_ns": duration,
        "energy_per_step_j": lambda joules: si(joules, "J"),
        "tags": " ".join,
    }
    columns = [
        (number_column if name in ("batch_size", "steps") else text_column)(
            title, name, forms.get(name, str), missing="-"
        )
        for name, title in _COLUMNS.items()
    ]
    table = Table.from_rows("runs", columns, frame.head(most).iter_rows(named=True))
    # A name or a number that is broken cannot be used: columns go, and --json has them.
    removals = [_FIRST_TO_GO[:count] for count in range(len(_FIRST_TO_GO) + 1)]
    choices = [[name for name in list(_COLUMNS)[1:] if name not in removed] for removed in removals]
    longest = max((len(row[0].text) for row in table.rows), default=0)
    Console(highlight=False).print(FittedTable(table, choices, names=longest))
    more, simulated = len(frame) - most, len(frame) - frame["simulated"].null_count()
    if simulated:
        typer.echo(f"{plural(simulated, 'run')} with SIMULATED sensors: --json names the boards")
    hidden = f", {more:,} of them not shown: --most {len(frame)}" if more > 0 else ""
    typer.echo(f"{plural(len(frame), 'run')}{hidden}")
