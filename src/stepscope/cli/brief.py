"""`stepscope brief`: a run in few words, for a script or an assistant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stepscope.cli._options import AsJson, print_json
from stepscope.run_paths import NEWEST


def brief(
    run: Annotated[Path, typer.Argument(help="A run folder, the name of one in runs/, or 'last'.")] = Path(NEWEST),
    as_json: AsJson = False,
) -> None:
    """Print a run in at most 1,500 tokens: findings with evidence, numbers with CI, what is unknown, what to do next.

    For a script or an assistant to read: plain text, a fact a line, names of the run in backticks.
    """
    from stepscope.api.run_reports import brief as briefly

    text = briefly(run)
    if as_json:
        print_json({"lines": text.splitlines()})
    else:
        typer.echo(text, nl=False)
