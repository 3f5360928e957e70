"""`stepscope log`: hand a run to the tool in which a team keeps its results."""

from __future__ import annotations

import inspect
from typing import Any

import typer

from stepscope.api.requests import LogRequest
from stepscope.cli._options import AsJson, make_command, print_json
from stepscope.errors import UsageError


def _log(request: LogRequest, as_json: AsJson = False) -> None:
    """Hand the run over, and print where it went."""
    from stepscope.analysis.run import Run
    from stepscope.integrations import logger

    chosen = logger(request.to)
    opened = Run(request.run)
    options = _tool_options(chosen.log_run, {"carbon_intensity": request.carbon_intensity}, request.to)
    if "page" in inspect.signature(chosen.log_run).parameters:
        options["page"] = request.page
    if opened.status == "running":
        typer.echo("the run has not ended: what is on disk now is handed over", err=True)
    went = chosen.log_run(opened, request.out, **options)
    if as_json:
        print_json({"run": opened.id, "to": request.to, "went": went})
    else:
        typer.echo(went)


log = make_command(LogRequest, _log, "log")


def _tool_options(function: Any, settings: dict[str, Any], name: str) -> dict[str, Any]:
    """The options that were given; UsageError for one that means nothing to this tool."""
    parameters = inspect.signature(function).parameters
    options = {key: value for key, value in settings.items() if value is not None}
    for key in options:
        if key not in parameters:
            raise UsageError(f"--{key.replace('_', '-')} means nothing to {name}", "it belongs to --to codecarbon")
    return options
