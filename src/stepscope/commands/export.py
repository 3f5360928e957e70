"""`stepscope export`: a run as files that other tools open."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.commands.report import NEWEST, find_run
from stepscope.errors import OutputNotWritable, UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from stepscope.analysis.run import Run
    from stepscope.report.exports._excerpt import Excerpt


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")] = Path(NEWEST),
    to: Annotated[
        str, typer.Option("--to", help="What for: perfetto, chrome, csv, parquet, speedscope or json.")
    ] = "perfetto",
    steps: Annotated[str, typer.Option(help="Which steps: 10:20 (10 to 19), first:50 or all.")] = "all",
    out: Annotated[
        Path | None, typer.Option("--out", help="File, or folder of tables. [default: in the run folder]")
    ] = None,
) -> None:
    """Write a run as a file that another tool opens, or as a folder of tables.

    Perfetto shows ops by thread and device with every sampled channel under them; speedscope shows flame graphs. What
    will be written is said, with its rough size, before it is; long runs are better exported for a few steps.
    """
    from stepscope.analysis.run import Run
    from stepscope.report import exports
    from stepscope.report.exports._excerpt import excerpt

    chosen = exports.find(to)
    opened = Run(find_run(run))
    part = excerpt(opened, steps)
    target = _target(opened, out, f"export-{to}{_stem(steps)}{chosen.SUFFIX}", bool(chosen.SUFFIX))
    _refuse_the_run_itself(opened, chosen, target)
    typer.echo(_announced(part, chosen, target), err=True)
    for line in _lacks(part):
        typer.echo(line, err=True)
    _write(chosen, part, target)
    typer.echo(target)


def _target(run: Run, out: Path | None, name: str, is_file: bool) -> Path:
    """The path that is meant: a file goes into a folder that is there, a folder of tables becomes what is named."""
    if out is None:
        return run.path / name
    return out / name if is_file and out.is_dir() else out


def _stem(steps: str) -> str:
    """Part of the file name, so that two choices of steps do not overwrite each other."""
    return "" if steps == "all" else f"-{steps.replace(':', '-')}"


def _refuse_the_run_itself(run: Run, chosen: ModuleType, target: Path) -> None:
    if not chosen.SUFFIX and target.resolve() == run.path.resolve():
        raise UsageError(f"--out {target}: that is the run itself", "choose another folder")


def _announced(part: Excerpt, chosen: ModuleType, target: Path) -> str:
    from stepscope.units import bytes_

    counts = f"{part.op_count:,} op instances, {part.sample_count:,} readings, {len(part.steps):,} steps"
    return f"{chosen.TITLE}: {counts}, about {bytes_(chosen.estimate(part))} to {target}"


def _lacks(part: Excerpt) -> list[str]:
    """What a reader would otherwise look for in vain."""
    said = []
    if part.run.status == "running":
        said.append("the run has not ended: what is on disk now is exported")
    if part.op_count == 0:
        said.append("no operation was recorded in these steps: the file shows steps and samples only")
    if part.sample_count == 0:
        said.append("nothing was sampled in these steps: the file has no counters")
    if part.run.damaged:
        said.append(f"cannot be read and is left out: {', '.join(part.run.damaged)}")
    return said


def _write(chosen: ModuleType, part: Excerpt, target: Path) -> None:
    """Write beside the target and move it into place: a disk that fills up leaves no half of a file."""
    unfinished = target.with_name(f".{target.name}.part")
    try:
        if not chosen.SUFFIX:
            chosen.write(part, target)
            return
        chosen.write(part, unfinished)
        unfinished.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise OutputNotWritable(
            f"cannot write '{target}': {error.strerror or error}", "choose another place with --out, or fewer --steps"
        ) from error
