"""Several runs of a folder over each other by time: which ones, and their lines as the page's script draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.over_time import QUANTITIES, Line, lines_over_time
from stepscope.analysis.run import Run
from stepscope.arrays import Floats
from stepscope.errors import StepscopeError, UsageError
from stepscope.quantities import simulated_badge
from stepscope.report.run_figures import labels
from stepscope.report.view.listing import ListedRun, leads_out

MOST_RUNS = 10  # as many as there are colours that can be told apart
_NEWEST = 6
_DIGITS = 5


def newest(listed: Sequence[ListedRun], root: Path) -> list[ListedRun]:
    """Return the newest runs with steps of a list, at most six, oldest first."""
    known = [row for row in listed if row.facts.get("steps") and not leads_out(row.path, root)]
    return sorted(known, key=lambda row: row.facts.get("started_s") or 0.0)[-_NEWEST:]


def data_of(chosen: Sequence[ListedRun]) -> dict[str, Any]:
    """Return runs and lines, ready for JSON; what cannot be read is named in `absent`.

    Raises UsageError for more runs than there are colours, and where no run has a step.
    """
    if len(chosen) > MOST_RUNS:
        raise UsageError(f"{len(chosen)} runs in one picture", f"tick at most {MOST_RUNS}")
    found: list[tuple[ListedRun, Run, list[Line]]] = []
    absent: list[str] = []
    for listed in chosen:
        try:
            run = Run(listed.path)
            lines = lines_over_time(run)
        except StepscopeError as error:
            absent.append(f"{listed.key} ({error})")
            continue
        if lines:
            found.append((listed, run, lines))
        else:
            absent.append(f"{listed.key} (no step)")
    if not found:
        raise UsageError("none of these runs has a step to draw", "tick runs whose list has a step time")
    named = zip(found, labels([run for _, run, _ in found]), strict=True)
    runs = [_run(listed, run, lines, label) for (listed, run, lines), label in named]
    return {"quantities": [{"name": name, "unit": unit} for name, unit in QUANTITIES.items()], "runs": runs,
            "absent": absent}  # fmt: skip


def _run(listed: ListedRun, run: Run, lines: Sequence[Line], label: str) -> dict[str, Any]:
    drawn = {
        line.quantity: {"kind": line.kind, "t": _numbers(line.t_s), "step": _numbers(line.step),
                        "values": _numbers(line.values)}
        for line in lines
    }  # fmt: skip
    return {"key": listed.key, "label": label, "badge": simulated_badge(run.simulated) or "", "lines": drawn}


def _numbers(values: Floats) -> list[float | None]:
    """Values with as many digits as a line shows; null is a gap."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
