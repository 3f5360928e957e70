"""Weights & Biases, offline unless asked: a run with its settings, figures, a series a step and the page."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable
from stepscope.integrations._library_hooks import import_library
from stepscope.integrations._run_content import flatten_values, logged_values, settings, step_series, write_page

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Weights & Biases run, offline"
EXTRA = "wandb"


def log_run(
    run: Run, out: str | Path | None = None, *, project: str = "stepscope", mode: str | None = None, page: bool = True
) -> str:
    """Log a run and return the folder that `wandb sync` takes, or the address of the run where it is online.

    out: folder for wandb's files (its own `wandb/` below it). mode: "offline" (also by default, unless WANDB_MODE says
    otherwise) or "online".
    """
    library = import_library("wandb", EXTRA)
    folder = Path(out or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with library.init(
            project=project,
            name=run.id,
            config=settings(run),
            dir=str(folder),
            mode=mode or os.environ.get("WANDB_MODE") or "offline",
            settings=library.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
            reinit="create_new",
        ) as wandb_run:
            return _log(library, wandb_run, run, page)
    except (library.errors.Error, OSError) as error:
        raise OutputNotWritable(
            f"Weights & Biases did not take the run: {error}", "give a folder with --out"
        ) from error


def _log(library: Any, wandb_run: Any, run: Run, page: bool) -> str:
    for step, _, step_values in step_series(run):
        wandb_run.log(step_values, step=step, commit=True)
    wandb_run.summary.update(
        {**flatten_values(logged_values(run)), "status": run.status, "verdict": run.verdict().sentence}
    )
    if page:
        with tempfile.TemporaryDirectory() as folder:
            written = write_page(run, Path(folder))
            if written is not None:
                wandb_run.log({"page": library.Html(str(written))})
    return str(Path(wandb_run.dir).parent) if wandb_run.offline else str(wandb_run.url)
