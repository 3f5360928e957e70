"""`stepscope.log`: a run for the tool in which a team keeps its results, as `stepscope log` hands it over."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.analysis.run import opened
from stepscope.errors import UnknownName
from stepscope.integrations import logger

if TYPE_CHECKING:
    from stepscope import Run


def log(run: str | Path | Run = "last", to: str = "tensorboard", out: str | Path | None = None, **options: Any) -> Any:
    """Hand a run to a tool and return where it went.

    run: a Run, the path of its folder, its name in `runs`, or "last". to: mlflow, wandb, tensorboard, prometheus,
    codecarbon or a logger of a plug-in. out: file, folder or tracking address; what that tool has unless said.
    options: of that tool, such as page=False, experiment=, project=, carbon_intensity= (g of CO2 a kWh). Raises
    UnknownName for a tool or an option that is not there, MissingDependency, RunError and OutputNotWritable.
    """
    chosen = logger(to)
    known = [name for name in inspect.signature(chosen.log_run).parameters if name not in ("run", "out")]
    for name in options:
        if name not in known:
            raise UnknownName(f"option of '{to}'", name, known)
    return chosen.log_run(opened(run), None if out is None else str(out), **options)
