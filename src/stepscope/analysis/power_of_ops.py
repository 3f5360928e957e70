"""Power of each rail over one step, as its operations were given it: finer than any sensor could see it."""

from __future__ import annotations

import numpy as np
import polars as pl
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.attributed import AttributedRail
from stepscope.analysis.attribution.attribute import Attribution
from stepscope.analysis.attribution.parts import parts
from stepscope.analysis.attribution.timeline import Flags, Ints, Timeline
from stepscope.analysis.attribution.verdicts import COARSE, trouble
from stepscope.analysis.intervals import Floats
from stepscope.analysis.steady import steady_steps
from stepscope.runfolder import RunReader

SCHEMA = {
    "rail": pl.String,
    "start_ns": pl.Int64,  # from the start of the step
    "end_ns": pl.Int64,
    "power_w": pl.Float64,
    "known": pl.Boolean,  # half of the 90 % interval of what ran is at most 30 % of its power
    "step": pl.Int64,
}
_MOST_PIECES = 1500


def power_of_ops(run: RunReader, rails: list[AttributedRail], step: int) -> pl.DataFrame:
    """Mean power of what ran, W, from piece to piece of a step; a row a piece and rail that was measured and fitted.

    The power of an operation is its mean over all steps: what differs from step to step is not in it. A rail of which
    nothing can be resolved has no rows.
    """
    steps = steady_steps(run)
    found = steps.filter(pl.col("step") == step)
    if found.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    t0, t1 = ((int(found[name][0]) - int(steps["t0_ns"][0])) / 1e9 for name in ("t0_ns", "t1_ns"))
    frames = [
        _of_rail(rail.line.name, rail.fit, t0, t1).with_columns(step=pl.lit(step, dtype=pl.Int64))
        for rail in rails
        if rail.fit is not None and not rail.line.estimated and not trouble(rail.fit)
    ]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *frames])


def _of_rail(name: str, fit: Attribution, t0: float, t1: float) -> pl.DataFrame:
    timeline = fit.timeline
    known = parts(fit, sparse.identity(timeline.keys.count, format="csr")).resolved(COARSE)
    edges = _edges(timeline, t0, t1)
    keys = [_running(timeline, lane, (edges[:-1] + edges[1:]) / 2) for lane in range(len(timeline.lanes))]
    watts, sure = _drawn(np.nan_to_num(fit.watts), known, keys, timeline.keys.gap)
    edges, watts, sure = _fewer(edges, watts, sure)
    at_ns = np.round((edges - t0) * 1e9).astype(np.int64)
    return pl.DataFrame(
        {"rail": [name] * len(watts), "start_ns": at_ns[:-1], "end_ns": at_ns[1:], "power_w": watts, "known": sure}
    )


def _edges(timeline: Timeline, t0: float, t1: float) -> Floats:
    every = np.concatenate([np.concatenate([lane.t0, lane.t1]) for lane in timeline.lanes])
    return np.unique(np.concatenate([[t0, t1], every[(every > t0) & (every < t1)]]))


def _running(timeline: Timeline, lane: int, at: Floats) -> Ints:
    """Key of what runs in a lane at each instant, -1 for nothing."""
    pieces = timeline.lanes[lane]
    if not len(pieces.t0):
        return np.full(len(at), -1)
    place = np.searchsorted(pieces.t0, at, side="right") - 1
    inside = (place >= 0) & (at < pieces.t1[place])
    return np.where(inside, pieces.key[place], -1)


def _drawn(watts: Floats, known: Flags, keys: list[Ints], gap: int) -> tuple[Floats, Flags]:
    """The first lane always draws power, also between its pieces; the others' comes on top of it."""
    first = np.where(keys[0] >= 0, keys[0], gap)
    power, sure = watts[first], known[first]
    for key in keys[1:]:
        power = power + np.where(key >= 0, watts[key], 0.0)
        sure = sure & np.where(key >= 0, known[key], True)
    return power, sure


def _fewer(edges: Floats, watts: Floats, sure: Flags) -> tuple[Floats, Floats, Flags]:
    """Neighbours that are alike as one; and where they are still too many, means over even windows."""
    new = np.append(True, (np.diff(watts) != 0) | (sure[1:] != sure[:-1]))
    at = np.append(edges[:-1][new], edges[-1])
    watts, sure = watts[new], sure[new]
    if len(watts) <= _MOST_PIECES:
        return at, watts, sure
    even = np.linspace(at[0], at[-1], _MOST_PIECES + 1)
    means = [np.diff(np.interp(even, at, np.append(0.0, np.cumsum(of * np.diff(at))))) for of in (watts, sure)]
    width = np.diff(even)
    return even, means[0] / width, means[1] / width > 1 / 2
