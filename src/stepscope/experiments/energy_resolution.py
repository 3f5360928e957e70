"""One measured run: how its power is metered, and training until a share of its energy is within 10 %.

The share is computed now and then by a process beside the training and at a lower priority, because a pause in the
training would be a part of what is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.errors import RunError, StepscopeError, UsageError
from stepscope.files import read_json_object
from stepscope.record.meters import parse_meters
from stepscope.record.settings import Metering
from stepscope.run_paths import find_run
from stepscope.units import roughly

FIRST, MOST = 60, 2_000  # steps before the first question; the bound where --steps gives none
_NICE = 5  # behind the training, but at 19 it would starve beside a training that keeps all cores in use
_LEAST_GROWTH, _MOST_GROWTH = 1.25, 2.0  # of the steps, from one question to the next


class StopWhenEnergyResolved:
    """Called after every step: True once the wanted share is within 10 %. `out`: where this process makes its run
    folder.

    `share` is the last answer, None before the first; `why` says why there is none.
    """

    def __init__(self, out: Path, share: float) -> None:
        self._out, self._target_share = out, share
        self._steps, self._next = 0, float(FIRST)
        self._checked_at = 0
        self._child: subprocess.Popen[str] | None = None
        self.share: float | None = None
        self.more_steps: int | None = None
        self.why = ""

    def __call__(self) -> bool:
        self._steps += 1
        if self._child is not None:
            if self._child.poll() is not None:
                self._read_check_result(self._child)
        elif self._steps >= self._next:
            self._start_check()
        return self.reached

    @property
    def reached(self) -> bool:
        return self.share is not None and self.share >= self._target_share

    @property
    def progress(self) -> str:
        """Return the text of the progress bar: the share within 10 % so far."""
        return "" if self.share is None else f"{self.share:.0%} of {self._target_share:.0%} within 10 %"

    @property
    def sentence(self) -> str:
        """Return how it ended."""
        if self.reached:
            return f"{self.share:.0%} of the energy was within 10 % after {self._checked_at} of {self._steps} steps"
        if self.share is None:
            return (
                f"the share of the energy within 10 % is not known after {self._steps} steps: {self.why or 'no answer'}"
            )
        more = (
            "" if not self.more_steps else f"; about {roughly(self.more_steps)} more steps would bring 90 % within 10 %"
        )
        bound = f"stopped at the bound of {self._steps} steps (--steps)"
        return f"{bound}: {self.share:.0%} of the energy is within 10 %{more}"

    def close(self) -> None:
        """End a question that is still open."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def _start_check(self) -> None:
        command = [sys.executable, "-m", "stepscope.experiments.energy_resolution", str(self._out), str(os.getpid())]
        try:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            self._checked_at = self._steps
        except OSError as error:
            self.why, self._next = f"it could not be asked: {error}", float("inf")

    def _read_check_result(self, child: subprocess.Popen[str]) -> None:
        self._child = None
        answer = _parse_answer(child.communicate()[0])
        self.why = str(answer.get("why") or "")
        self.share, self.more_steps = answer.get("share", self.share), answer.get("more_steps")
        least, most = (growth * self._checked_at for growth in (_LEAST_GROWTH, _MOST_GROWTH))
        expected = most if self.more_steps is None else self._checked_at + self.more_steps
        self._next = max(min(max(expected, least), most), self._steps + 1)


@contextmanager
def stop_when_resolved(share: float | None, out: Path) -> Iterator[StopWhenEnergyResolved | None]:
    """Yield what is called after each step: is this share of the energy within 10 %? None where none is wanted."""
    if share is None:
        yield None
        return
    resolved = StopWhenEnergyResolved(out, share)
    try:
        yield resolved
    finally:
        resolved.close()


def _parse_answer(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {"why": "the process that was to find out gave no answer"}
    return answer if isinstance(answer, dict) else {}


def resolved_so_far(path: Path) -> dict[str, Any]:
    """Share of the energy of the device's own rails that is within 10 %, and how many more steps 90 % would need."""
    from dataclasses import replace

    from stepscope.analysis.energy.fit_inputs import RunTimelines
    from stepscope.analysis.energy.operators import resolution_table
    from stepscope.analysis.energy.rail_fits import fit_rails
    from stepscope.analysis.run import Run

    run = Run(path)
    measured = tuple(line for line in run.rails.lines if not line.estimated)
    lines = tuple(line for line in run.rails.total or () if not line.estimated) or measured
    if not lines:
        return {"why": "no power is measured"}
    timelines = RunTimelines(run, lambda: run.step_times)
    rows = resolution_table(fit_rails(run, replace(run.rails, lines=lines), timelines))
    resolved = rows.filter(rows["resolved_share"].is_not_null())
    if resolved.is_empty():
        return {"why": rows["note"][0] if len(rows) else "no step has been written yet"}
    worst = resolved.sort("resolved_share").row(0, named=True)
    return {"share": worst["resolved_share"], "more_steps": worst["more_steps"], "why": worst["note"]}


def run_of_process(out: Path, pid: int) -> Path | None:
    """The run folder in `out` that a process is writing."""
    for header in sorted(out.glob("*/run.json"), reverse=True):
        stated = read_json_object(header)
        if stated.get("pid") == pid and stated.get("status") == "running":
            return header.parent
    return None


def main() -> None:
    """Answer for `out` and `pid` on stdout, as one line of JSON."""
    os.nice(_NICE)
    path = run_of_process(Path(sys.argv[1]), int(sys.argv[2]))
    try:
        answer = {"why": "the run folder is not there yet"} if path is None else resolved_so_far(path)
    except (StepscopeError, OSError) as error:
        answer = {"why": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


def parse_metering(
    plugs: Sequence[str] = (),
    commands: Sequence[str] = (),
    power_model: str | None = None,
    characterise: bool = True,
    dither: bool = True,
) -> Metering:
    """Meters by address, commands that print watts, a model such as cpu=2W..15W or the runs to learn it from.

    UsageError where one cannot be.
    """
    if power_model is not None and "=" not in power_model and power_model.strip():
        from stepscope.analysis.energy.learned_power import learn_power_model

        try:
            named = [find_run(name.strip()) for name in power_model.split(",") if name.strip()]
        except RunError as error:
            hint = "--power-model cpu=2W..15W, or the folders of runs with a meter: runs/a,runs/b,runs/c"
            raise UsageError(f"--power-model {power_model}: neither a model nor runs ({error})", hint) from error
        power_model = str(learn_power_model(named))
    elif power_model is not None:
        from stepscope.analysis.energy.power_model import parse_power_model

        parse_power_model(power_model)
    return Metering(parse_meters(plugs, commands), power_model, characterise, dither)


if __name__ == "__main__":
    main()
