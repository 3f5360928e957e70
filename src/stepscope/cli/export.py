"""`stepscope export`: a run as files that other tools open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from stepscope.api.requests import ExportRequest
from stepscope.cli._options import AsJson, make_command, print_written, with_privacy_options

if TYPE_CHECKING:
    from stepscope.report.exports._excerpt import Excerpt, ExportPlan


def _export(request: ExportRequest, as_json: AsJson = False) -> None:
    from stepscope.report.exports._excerpt import plan_export, write_export

    plan = plan_export(request.run, request.to, request.steps, request.out)
    typer.echo(_announcement(plan), err=True)
    for line in _missing_parts(plan.part):
        typer.echo(line, err=True)
    print_written(write_export(plan), as_json)


export = with_privacy_options(make_command(ExportRequest, _export, "export"))


def _announcement(plan: ExportPlan) -> str:
    from stepscope.units import bytes_, plural

    part = plan.part
    counted = ((part.op_count, "op call"), (part.sample_count, "reading"), (len(part.steps), "step"))
    counts = ", ".join(plural(count, noun) for count, noun in counted)
    return f"{plan.kind.TITLE}: {counts}, about {bytes_(plan.kind.estimate(part))} to {plan.target}"


def _missing_parts(part: Excerpt) -> list[str]:
    parts = []
    if part.run.status == "running":
        parts.append("the run has not ended: what is on disk now is exported")
    if part.op_count == 0:
        parts.append("no operator was recorded in these steps: the file shows steps and samples only")
    if part.sample_count == 0:
        parts.append("nothing was sampled in these steps: the file has no counters")
    if part.run.damaged:
        parts.append(f"damaged: {', '.join(part.run.damaged)}")
    return parts
