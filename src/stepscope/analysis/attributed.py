"""Every rail of a run with the energy of its ops: fitted once, then asked by module, kind or phase."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepscope.analysis.attribution.attribute import Attribution, Options, attribute
from stepscope.analysis.attribution.baselines import nearest, overlap
from stepscope.analysis.attribution.from_run import RunTimeline, RunTimelines, run_readings
from stepscope.analysis.attribution.known import Known
from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.energy import energy_over, idle_stretch
from stepscope.analysis.intervals import Floats
from stepscope.analysis.kept_calibrations import keep_calibrations, kept_calibrations
from stepscope.analysis.rails import Line, RailTree
from stepscope.analysis.steady import recorded_steps
from stepscope.runfolder import RunReader

FEWEST = 2  # readings that the simpler ways need


@dataclass(frozen=True)
class AttributedRail:
    """A rail, what explains it, what was read of it, and the fit (None where it was not possible: `reason` says why).

    idle_w: its power before the training began, None where that was not seen; make, chip: what the channel says of its
    sensor, and which chip it is a channel of; stuck_s: for how long it stood still, which is left out.
    """

    line: Line
    ops: RunTimeline
    readings: Readings
    fit: Attribution | None
    reason: str
    idle_w: float | None
    make: tuple[object, ...] = ()
    chip: str = ""
    stuck_s: float = 0.0

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


def attributed(run: RunReader, tree: RailTree, timelines: RunTimelines | None = None) -> list[AttributedRail]:
    """Each rail that was sampled while ops were recorded; estimates too, which the caller keeps apart."""
    if recorded_steps(run).is_empty() or not tree.lines:
        return []
    of = timelines or RunTimelines(run)
    read = [_read(run, line, ops, of.origin_ns) for line in tree.lines if (ops := of.of(line.component)) is not None]
    kept = kept_calibrations(run)
    found: dict[str, AttributedRail] = {}
    known: dict[str, Known] = {}
    # The strongest signal first: the other channels of its chip, and other chips of its make, start from what it tells.
    for rail in sorted(read, key=lambda rail: -rail.strength):
        source = rail.line.best.id
        options = replace(rail.options, known=kept.get(source), **_like(rail, known, found))
        found[source] = _attributed(run, rail, options)
        if (fit := found[source].fit) is not None:
            known[source] = fit.known
    if known and known.keys() - kept.keys():
        keep_calibrations(run, {**kept, **known})
    return [found[rail.line.best.id] for rail in read]


@dataclass(frozen=True)
class _Rail:
    """A rail before it is fitted; chip: where the source says which one it is a channel of."""

    line: Line
    ops: RunTimeline
    readings: Readings
    options: Options
    make: tuple[object, ...]
    chip: str

    @property
    def strength(self) -> float:
        """How much it moves, W: the channels of a make have about the same noise."""
        watts = self.readings.watts
        return float(watts.std()) if len(watts) and not self.line.estimated else 0.0


def _read(run: RunReader, line: Line, ops: RunTimeline, origin_ns: int) -> _Rail:
    readings, options = run_readings(run, line.best, origin_ns)
    channel = next((entry for entry in run.channels if entry.get("id") == line.best.id), {})
    make = tuple(channel.get(name) for name in ("sensor", "kind", "filter", "refresh_ns", "window_ns"))
    return _Rail(line, ops, readings, options, make, str(channel.get("source") or "").rpartition("/")[0])


def _like(rail: _Rail, known: dict[str, Known], found: dict[str, AttributedRail]) -> dict[str, Any]:
    """What was found of a rail of the same make that has a filter to be found: of the same chip where there is one."""
    if "counter" in rail.make:
        return {}
    alike = [one for source, one in found.items() if source in known and one.make == rail.make]
    if not alike:
        return {}
    nearest = next((one for one in alike if rail.chip and one.chip == rail.chip), alike[0])
    return {"near": known[nearest.line.best.id], "same_chip": nearest.chip == rail.chip != ""}


def _attributed(run: RunReader, rail: _Rail, options: Options) -> AttributedRail:
    line, ops, readings = rail.line, rail.ops, rail.readings
    inside = readings.kept(_within_steps(ops, readings))
    idle = idle_stretch(run, [line.best])
    idle_w = energy_over(line.best, idle).watts if len(idle) else None
    fit = None
    if line.estimated:
        reason = "an estimate is handed out, not fitted"
    elif inside.count < FEWEST:
        reason = f"{inside.count} readings of this rail fall into the steps: train longer"
    else:
        fit = attribute(ops.timeline, readings, options)
        reason = "" if fit is not None else _why_not(inside)
    return AttributedRail(line, ops, inside, fit, reason, idle_w, rail.make, rail.chip, options.stuck_s)


def _why_not(readings: Readings) -> str:
    if readings.still:
        return f"the sensor gave {readings.watts[0]:.3g} W throughout: it stands still or is too coarse"
    return f"{readings.count} readings are too few to tell ops apart: train more steps"


def _within_steps(ops: RunTimeline, readings: Readings) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    at = readings.at
    return np.asarray((at >= ops.timeline.begin) & (at <= ops.timeline.end))
