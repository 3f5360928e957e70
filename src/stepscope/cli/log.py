"""`stepscope log`: hand a run to the tool in which a team keeps its results."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from stepscope.errors import UsageError
from stepscope.run_paths import NEWEST


def log(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")] = Path(NEWEST),
    to: Annotated[
        str, typer.Option("--to", help="What takes it: mlflow, wandb, tensorboard, prometheus or codecarbon.")
    ] = "tensorboard",
    out: Annotated[
        str | None, typer.Option("--out", help="File, folder or tracking address. [default: what that tool has]")
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Hand over the page as well.")] = True,
    carbon_intensity: Annotated[
        float | None, typer.Option("--carbon-intensity", help="g of CO2 a kWh, for codecarbon; none is assumed.")
    ] = None,
) -> None:
    """Hand a run to MLflow, Weights & Biases, TensorBoard, Prometheus or a CodeCarbon table.

    Figures carry their unit in their name and their 95 % bounds beside them; what was not measured is excluded. Where
    the run went is printed. Nothing leaves this machine unless --out or the tool's own settings name a server.
    """
    from stepscope.analysis.run import Run
    from stepscope.integrations import logger

    chosen = logger(to)
    opened = Run(run)
    options = _tool_options(chosen.log_run, {"carbon_intensity": carbon_intensity}, to)
    if "page" in inspect.signature(chosen.log_run).parameters:
        options["page"] = page
    if opened.status == "running":
        typer.echo("the run has not ended: what is on disk now is handed over", err=True)
    typer.echo(chosen.log_run(opened, out, **options))


def _tool_options(function: Any, asked: dict[str, Any], name: str) -> dict[str, Any]:
    """The options that were given; UsageError for one that means nothing to this tool."""
    known = inspect.signature(function).parameters
    given = {key: value for key, value in asked.items() if value is not None}
    for key in given:
        if key not in known:
            raise UsageError(f"--{key.replace('_', '-')} means nothing to {name}", "it belongs to --to codecarbon")
    return given
