"""A forecast that follows a training, from all steps that it has made; the totals at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.analysis.forecast import Forecast, forecast
from stepscope.analysis.metrics import Measured
from stepscope.analysis.pauses import steps_and_pauses
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.errors import StepscopeError

_POLL_S = 0.5
_FIRST_STEPS = 20  # that tell anything


@dataclass(frozen=True)
class ForecastUpdate:
    """Forecast that was made after so many steps."""

    made: int
    forecast: Forecast


def follow_forecasts(
    path: Path, steps: int, battery_j: float | None, carbon_g_per_j: float | None
) -> Iterator[ForecastUpdate]:
    """Forecasts from all steps made so far, until the run has ended; of an ended run, all that would have been made.

    The first after 20 steps, then after half as many more, at most a twentieth of the training, and none at its end.
    """
    due = _FIRST_STEPS
    while True:
        run = Run(path)
        running = run.status == "running"
        made = min(len(steps_after_warmup(run)), steps - 1)
        while due <= made:
            end, due = due, due + max(1, min(due // 2, steps // 20))
            if due > made or not running:  # of those that have passed meanwhile the newest
                yield ForecastUpdate(end, forecast(run, steps, battery_j, carbon_g_per_j, upto=end))
        if not running:
            return
        time.sleep(_POLL_S)


def start_training(arguments: Sequence[str], out: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `stepscope run` in a process of its own: (process, run folder). Raises StepscopeError if it ends first.

    It shares our stderr: what it refuses, or what its training raises, is said there by itself.
    """
    before = set(out.glob("*/run.json"))
    command = [sys.executable, "-m", "stepscope", "run", *arguments, "--quiet", "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while True:
        new = set(out.glob("*/run.json")) - before
        if new:
            return process, new.pop().parent
        if process.poll() is not None:
            raise StepscopeError("the training did not start", f"try `stepscope run {' '.join(arguments)}`")
        time.sleep(0.05)


def measured_totals(path: Path) -> list[Measured]:
    """Return what a run really took from the first step after warm-up to the end of the last: time in s, energy in J.

    A step or pause that a gap of the sensor touches counts with the mean of the others, and so does what lies beside
    a profiled step: there the profiler paused, too.
    """
    from stepscope.analysis.forecast import step_energy, with_simulated_name

    run = Run(path)
    between = steps_and_pauses(run, steps_after_warmup(run))
    count = len(between.steps)
    time = between.total(between.spans.select(pl.col("t1_ns") - pl.col("t0_ns")).to_series().to_numpy() / 1e9)
    totals = [Measured("time", "training", time, "s", n=count)]
    joules = step_energy(run, between.spans)
    total = None if joules is None else between.total(joules.values)
    if joules is not None and total is not None:
        totals.append(with_simulated_name(run, Measured(joules.metric, joules.scope, total, "J", n=count)))
    return totals
