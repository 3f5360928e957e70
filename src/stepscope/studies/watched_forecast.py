"""A forecast that goes along with the training: 20 measured steps of every 500, and the truth at the end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.analysis.forecast import WATCH_EVERY, WATCHED, Forecast, forecast, watched_steps
from stepscope.analysis.measured import Measured
from stepscope.analysis.run import Run
from stepscope.analysis.steady import steady_steps
from stepscope.errors import StepscopeError

_POLL_S = 0.5


@dataclass(frozen=True)
class Said:
    """What was foretold once so many steps had been made."""

    made: int
    forecast: Forecast


def follow(path: Path, steps: int, battery_j: float | None, carbon_g_per_j: float | None) -> Iterator[Said]:
    """A forecast after each block of measured steps, until the run has ended; of an ended run, all of them."""
    block = 0
    while True:
        run = Run(path)
        running = run.status == "running"
        made = len(steady_steps(run))
        while block * WATCH_EVERY + WATCHED <= made:
            upto = block * WATCH_EVERY + WATCHED
            yield Said(upto, forecast(run, steps, battery_j, carbon_g_per_j, watched_steps, upto))
            block += 1
        if not running:
            return
        time.sleep(_POLL_S)


def train_aside(arguments: Sequence[str], out: Path) -> tuple[subprocess.Popen[bytes], Path]:
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


def truth(path: Path) -> list[Measured]:
    """What the steady steps of a run really took: time in s, and energy in J where it was measured."""
    from stepscope.analysis.step_energy import step_energy

    run = Run(path)
    made = steady_steps(run)
    totals = [Measured("time", "training", float(made["length_ns"].sum()) / 1e9, "s", n=len(made))]
    joules = step_energy(run, made)
    if joules is not None:
        totals.append(Measured("energy", joules.scope, float(joules.values.sum()), "J", n=len(made)))
    return totals
