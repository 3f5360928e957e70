"""Two simpler ways to hand out samples, kept for comparison: both blur what is shorter than the sensor's period."""

from __future__ import annotations

import numpy as np

from stepscope.analysis.attribution.readings import Readings
from stepscope.analysis.attribution.timeline import Lane, Timeline
from stepscope.analysis.intervals import Floats


def nearest(timeline: Timeline, readings: Readings) -> Floats:
    """Energy of each key (P,), J: each piece is given the reading nearest to its middle, times its length.

    The way of the published measurements on a Jetson TX2, with true stamps. The gap gets what is left of mean x time.
    """
    at = readings.at
    joules = np.zeros(timeline.keys.count)
    for lane in timeline.lanes:
        middle = (lane.t0 + lane.t1) / 2
        after = np.clip(np.searchsorted(at, middle), 1, len(at) - 1)
        place = np.where(middle - at[after - 1] < at[after] - middle, after - 1, after)
        joules += np.bincount(lane.key, readings.watts[place] * (lane.t1 - lane.t0), timeline.keys.count)
    whole = float(np.average(readings.watts, weights=readings.weight)) * (timeline.end - timeline.begin)
    joules[timeline.keys.gap] += whole - joules.sum()
    return joules


def overlap(timeline: Timeline, readings: Readings, lag: float) -> Floats:
    """Energy of each key (P,), J: power held between readings, integrated over each piece. lag: of the stamps, s.

    Where lanes overlap, each piece is given all of the power: the sum is then above the total.
    """
    at = readings.at - lag
    edges = np.concatenate([[min(timeline.begin, at[0]) - 1.0], at, [max(timeline.end, at[-1]) + 1.0]])
    held = np.append(readings.watts, readings.watts[-1])
    energy = np.append(0.0, np.cumsum(held * np.diff(edges)))
    joules = np.zeros(timeline.keys.count)
    for lane in timeline.lanes:
        joules += _between(lane, edges, energy, timeline.keys.count)
    first = _between(timeline.lanes[0], edges, energy, timeline.keys.count).sum()
    whole = np.diff(np.interp([timeline.begin, timeline.end], edges, energy))[0]
    joules[timeline.keys.gap] += whole - first
    return joules


def _between(lane: Lane, edges: Floats, energy: Floats, count: int) -> Floats:
    own = np.interp(lane.t1, edges, energy) - np.interp(lane.t0, edges, energy)
    return np.asarray(np.bincount(lane.key, own, count))
