"""`stepscope export`: a run as files that other tools open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stepscope.run_paths import NEWEST

if TYPE_CHECKING:
    from stepscope.report.exports._excerpt import Excerpt, ExportPlan


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
    from stepscope.report.exports._excerpt import plan_export, write_export

    plan = plan_export(run, to, steps, out)
    typer.echo(_announcement(plan), err=True)
    for line in _missing_parts(plan.part):
        typer.echo(line, err=True)
    typer.echo(write_export(plan))


def _announcement(plan: ExportPlan) -> str:
    from stepscope.units import bytes_

    part = plan.part
    counts = f"{part.op_count:,} op calls, {part.sample_count:,} readings, {len(part.steps):,} steps"
    return f"{plan.kind.TITLE}: {counts}, about {bytes_(plan.kind.estimate(part))} to {plan.target}"


def _missing_parts(part: Excerpt) -> list[str]:
    """Yield what a reader would otherwise look for in vain."""
    said = []
    if part.run.status == "running":
        said.append("the run has not ended: what is on disk now is exported")
    if part.op_count == 0:
        said.append("no operator was recorded in these steps: the file shows steps and samples only")
    if part.sample_count == 0:
        said.append("nothing was sampled in these steps: the file has no counters")
    if part.run.damaged:
        said.append(f"cannot be read and is excluded: {', '.join(part.run.damaged)}")
    return said
