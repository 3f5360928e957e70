"""A forecast that follows a training: 20 measured steps of every 500, at random places; the totals at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np

from stepscope.analysis.forecast import WATCHED, Forecast, forecast, watch_starts, watched_step_flags
from stepscope.analysis.metrics import Measured
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.errors import StepscopeError

_POLL_S = 0.5


@dataclass(frozen=True)
class ForecastUpdate:
    """Forecast that was made after so many steps."""

    made: int
    forecast: Forecast


def follow_forecasts(
    path: Path, steps: int, battery_j: float | None, carbon_g_per_j: float | None
) -> Iterator[ForecastUpdate]:
    """A forecast after each block of measured steps, until the run has ended; of an ended run, all of them."""
    block, seed = 0, crc32(path.name.encode())  # places of its own in each run
    chosen = partial(watched_step_flags, seed=seed)
    while True:
        run = Run(path)
        running = run.status == "running"
        made = len(steps_after_warmup(run))
        while (upto := int(watch_starts(block + 1, seed)[-1]) + WATCHED) <= made:
            yield ForecastUpdate(upto, forecast(run, steps, battery_j, carbon_g_per_j, chosen, upto))
            block += 1
        if not running:
            return
        time.sleep(_POLL_S)


def start_training(arguments: Sequence[str], out: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `stepscope run` in a process of its own: (process, run folder). Raises StepscopeError if it ends first."""
    before = set(out.glob("*/run.json"))
    command = [sys.executable, "-m", "stepscope", "run", *arguments, "--quiet", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while True:
        new = set(out.glob("*/run.json")) - before
        if new:
            return process, new.pop().parent
        if process.poll() is not None:
            said = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
            raise StepscopeError(f"the training did not start: {said}", f"try `stepscope run {' '.join(arguments)}`")
        time.sleep(0.05)


def measured_totals(path: Path) -> list[Measured]:
    """Return what the steps after warm-up of a run really took: time in s, and energy in J where it is known.

    A step that a gap of the sensor touches counts with the mean energy of the others.
    """
    from stepscope.analysis.forecast import step_energy, with_simulated_name

    run = Run(path)
    made = steps_after_warmup(run)
    totals = [Measured("time", "training", float(made["length_ns"].sum()) / 1e9, "s", n=len(made))]
    joules = step_energy(run, made)
    if joules is not None and not np.isnan(joules.values).all():
        total = float(np.nanmean(joules.values)) * len(made)
        totals.append(with_simulated_name(run, Measured(joules.metric, joules.scope, total, "J", n=len(made))))
    return totals
