"""`stepscope log`: hand a run to the tool in which a team keeps its results."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from stepscope.api.requests import LogRequest
from stepscope.cli._options import AsJson, make_command, print_json
from stepscope.errors import UsageError


def _log(request: LogRequest, as_json: AsJson = False) -> None:
    from stepscope.analysis.run import Run
    from stepscope.integrations import logger

    chosen = logger(request.to)
    opened = Run(request.run)
    parameters, options = inspect.signature(chosen.log_run).parameters, dict[str, Any]()
    if request.carbon_intensity is not None:
        if "carbon_intensity" not in parameters:
            raise UsageError(f"--carbon-intensity means nothing to {request.to}", "it belongs to --to codecarbon")
        options["carbon_intensity"] = request.carbon_intensity
    if "page" in parameters:
        options["page"] = request.page
    if opened.status == "running":
        typer.echo("the run has not ended: what is on disk now is handed over", err=True)
    went = chosen.log_run(opened, request.out, **options)
    if as_json:
        print_json({"run": opened.id, "to": request.to, "went": went})
    else:
        typer.echo(went)


log = make_command(LogRequest, _log, "log")
