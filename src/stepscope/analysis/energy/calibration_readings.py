"""Readings that a calibration looks at: those that tell of the sensor, and no more of them than it can bear."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.energy.readings import Readings
from stepscope.analysis.energy.sensor_model import BLUR_SIGMAS
from stepscope.analysis.energy.timeline import Timeline

FIRST, POLISH = 1_500, 6_000  # readings used to find the model, and to refine it
FIRST_PIECES, POLISH_PIECES = 120_000, 600_000  # pieces in their windows: wide windows need fewer readings
_STEPS_SEEN = 40  # the first readings are spread over so many steps, if there are
_ENOUGH = 300  # readings in profiled steps


def readings_near_profiled(timeline: Timeline, readings: Readings, noise: float = 0.0) -> Readings:
    """Readings in profiled steps; where those are few, and in as many steps beside them.

    All filled-in steps share the errors of the template, so that more of them tell no more than the profiled ones.
    noise: variance of a reading over what those errors make of it: the more of it there is, the more steps tell.
    """
    step = timeline.step_of(readings.at)
    recorded = timeline.recorded[step]
    count = int(recorded.sum())
    if (count >= _ENOUGH and noise < 1) or count == readings.count or not timeline.recorded.any():
        return readings.select(recorded) if count else readings
    number, places = np.arange(timeline.steps), np.flatnonzero(timeline.recorded)
    after = np.searchsorted(places, number)
    distance = np.minimum(
        np.abs(number - places[np.minimum(after, len(places) - 1)]), np.abs(number - places[np.maximum(after - 1, 0)])
    )
    order = np.argsort(distance, kind="stable")
    read = np.cumsum(np.bincount(step, minlength=timeline.steps)[order])
    near = np.zeros(timeline.steps, dtype=bool)
    near[order[: int(np.searchsorted(read, max((2 + noise) * count, _ENOUGH // 2))) + 1]] = True
    return readings.select(near[step])


def thin_readings(timeline: Timeline, readings: Readings) -> Readings:
    """Return the readings, fewer where they come so fast that the first ones would see a few steps alone."""
    span = min(_STEPS_SEEN, timeline.steps) * timeline.step_length
    stride = max(int(span / max(readings.period, 1e-9) / FIRST), 1)
    return readings if stride == 1 else readings.select(np.arange(readings.count) % stride == 0)


def readings_within_budget(timeline: Timeline, readings: Readings, width: float, most: int, pieces: int) -> Readings:
    """Return the first readings whose windows hold no more than so many pieces; those of profiled steps come first.

    A filled-in step is blurred: a reading of it sees many times more pieces, and tells hardly anything of the sensor.
    """
    blur = timeline.time_sd_at(readings.at)
    if blur is None:
        a_second = sum(len(lane.t0) for lane in timeline.lanes) / (timeline.end - timeline.begin)
        return readings.first(int(np.clip(pieces / max(a_second * width, 1), most // 5, most)))
    inside = np.ones(readings.count)
    for lane in timeline.lanes:
        reach = BLUR_SIGMAS * blur
        inside += np.searchsorted(lane.t0, readings.at + reach) - np.searchsorted(lane.t1, readings.at - width - reach)
    order = np.argsort(blur > 0, kind="stable")
    count = int(np.clip(np.searchsorted(np.cumsum(inside[order]), min(pieces, FIRST_PIECES)), most // 5, most))
    chosen = np.zeros(readings.count, dtype=bool)
    chosen[order[:count]] = True
    return readings.select(chosen)
