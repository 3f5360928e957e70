"""Every rail of a run with the energy of its ops: fitted once, then asked by module, kind or phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.analysis.attribution.attribute import Attribution, Options, attribute
from stepscope.analysis.attribution.baselines import nearest, overlap
from stepscope.analysis.attribution.from_run import RunTimeline, run_pieces, run_readings, run_timeline
from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.energy import energy_over, idle_stretch
from stepscope.analysis.intervals import Floats
from stepscope.analysis.rails import Line, RailTree
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import RunReader

FEWEST = 2  # readings that the simpler ways need


@dataclass(frozen=True)
class AttributedRail:
    """A rail, what explains it, what was read of it, and the fit (None where it was not possible: `reason` says why).

    idle_w: its power before the training began, None where that was not seen.
    """

    line: Line
    ops: RunTimeline
    readings: Readings
    fit: Attribution | None
    reason: str
    idle_w: float | None

    @property
    def lag(self) -> float:
        """How late the readings are, s; 0 where no fit has found it."""
        return self.fit.calibration.model.lag if self.fit is not None else 0.0

    def by_nearest(self) -> Floats:
        """Energy of each key by the sample nearest in time, J."""
        return nearest(self.ops.timeline, self.readings)

    def by_overlap(self) -> Floats:
        """Energy of each key by power held between samples, J."""
        return overlap(self.ops.timeline, self.readings, self.lag)


def attributed(run: RunReader, tree: RailTree) -> list[AttributedRail]:
    """Each rail that was sampled while ops were recorded; estimates too, which the caller keeps apart."""
    if recorded_steps(run).is_empty() or not tree.lines:
        return []
    pieces, origin_ns = run_pieces(run)
    if not pieces.tracks:
        return []
    timelines: dict[str, RunTimeline | None] = {}
    found = []
    for line in tree.lines:
        if line.component not in timelines:
            timelines[line.component] = run_timeline(run, pieces, origin_ns, line.component)
        ops = timelines[line.component]
        if ops is not None:
            readings, options = run_readings(run, line.best, origin_ns)
            found.append(_attributed(run, line, ops, readings, options))
    return found


def _attributed(run: RunReader, line: Line, ops: RunTimeline, readings: Readings, options: Options) -> AttributedRail:
    inside = readings.kept(_within_steps(ops, readings))
    idle = idle_stretch(run, [line.best])
    idle_w = energy_over(line.best, idle).watts if len(idle) else None
    if line.estimated:
        return AttributedRail(line, ops, inside, None, "an estimate is handed out, not fitted", idle_w)
    if inside.count < FEWEST:
        reason = f"{inside.count} readings of this rail fall into the steps: train longer"
        return AttributedRail(line, ops, inside, None, reason, idle_w)
    fit = attribute(ops.timeline, readings, options)
    reason = "" if fit is not None else _why_not(inside)
    return AttributedRail(line, ops, inside, fit, reason, idle_w)


def _why_not(readings: Readings) -> str:
    if np.ptp(readings.watts) == 0:
        return f"the sensor gave {readings.watts[0]:.3g} W throughout: it stands still or is too coarse"
    return f"{readings.count} readings are too few to tell ops apart: train more steps"


def _within_steps(ops: RunTimeline, readings: Readings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    at = readings.at
    return np.asarray((at >= ops.timeline.begin) & (at <= ops.timeline.end))
