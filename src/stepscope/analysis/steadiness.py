"""Whether a run stayed as it was: levels of the step time, clocks, temperatures, and what throttled it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.change_points import Change, change_points
from stepscope.analysis.channel_timeline import channel_timeline
from stepscope.analysis.intervals import Floats, median_interval
from stepscope.analysis.steady import FEW, timed_steps
from stepscope.runfolder import RunReader

SCHEMA = {
    "quantity": pl.String,
    "scope": pl.String,
    "unit": pl.String,
    "t_ns": pl.Int64,
    "value": pl.Float64,  # null begins a gap
}
_WATCHED = ("temperature", "frequency", "core_frequency", "throttled")
LEVEL_STEPS = 60  # fewer are not judged
_END = 0.2  # of the run: its first and its last part are compared


@dataclass(frozen=True)
class Drift:
    """Median step time of the first and the last fifth of the steady steps, ns, each with its interval of 95 %."""

    first: tuple[float, float | None, float | None]
    last: tuple[float, float | None, float | None]
    steps: int  # in each of the two

    @property
    def ratio(self) -> float:
        """Last over first."""
        return self.last[0] / self.first[0]

    @property
    def is_clear(self) -> bool:
        """Whether the two intervals lie apart."""
        (_, low, high), (_, later_low, later_high) = self.first, self.last
        if low is None or high is None or later_low is None or later_high is None:
            return False
        return later_low > high or later_high < low


def drift(run: RunReader) -> Drift | None:
    """The end of the run against its beginning; None where either would be fewer than six steps."""
    lengths = timed_steps(run)[0]["length_ns"].to_numpy().astype(np.float64)
    count = int(len(lengths) * _END)
    if count < FEW:
        return None
    return Drift(_median(lengths[:count]), _median(lengths[-count:]), count)


def _median(lengths: Floats) -> tuple[float, float | None, float | None]:
    value, low, high = (float(x) for x in median_interval(lengths))
    return value, None if np.isnan(low) else low, None if np.isnan(high) else high


def levels(run: RunReader) -> list[tuple[int, Change]] | None:
    """Changes of the level of the step time: the number of the step at which each begins, and the change (ns).

    None: there are too few steps to judge.
    """
    steps = timed_steps(run)[0]
    if len(steps) < LEVEL_STEPS:
        return None
    found = change_points(steps["length_ns"].to_numpy().astype(np.float64))
    return [(int(steps["step"][change.step]), change) for change in found if change.step < len(steps)]


def clocks_and_heat(run: RunReader) -> pl.DataFrame:
    """Every temperature, frequency and throttle channel over the run, as read; a gap begins with a null."""
    frames = [pl.DataFrame(schema=SCHEMA)]
    frames += [_watched(run, channel) for channel in run.channels if channel.get("quantity") in _WATCHED]
    return pl.concat(frames).sort("quantity", "scope", "t_ns", maintain_order=True)


def _watched(run: RunReader, channel: dict[str, Any]) -> pl.DataFrame:
    samples = run.sensor(str(channel["sensor"]))
    if str(channel["id"]) not in samples.columns:
        return pl.DataFrame(schema=SCHEMA)
    line = channel_timeline(channel, samples.select("t0_ns", "t1_ns", value=pl.col(str(channel["id"]))))
    t_ns = np.concatenate([line.t_ns, line.gaps_ns[:, 0] + 1]).astype(np.int64)
    values = np.concatenate([line.values, np.full(len(line.gaps_ns), np.nan)])
    frame = pl.DataFrame({"t_ns": t_ns, "value": values}, nan_to_null=True)
    texts = {"quantity": str(channel["quantity"]), "scope": str(channel.get("scope")), "unit": line.unit}
    placed = frame.with_columns(**{key: pl.lit(text) for key, text in texts.items()})
    return placed.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def throttled(watched: pl.DataFrame) -> pl.DataFrame:
    """Channels that said "throttled" at any time, and in which part of their readings: scope, share, readings."""
    seen = watched.filter((pl.col("quantity") == "throttled") & pl.col("value").is_not_null())
    shares = seen.group_by("scope", maintain_order=True).agg(share=(pl.col("value") > 0).mean(), readings=pl.len())
    return shares.filter(pl.col("share") > 0)
