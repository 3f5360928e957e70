"""The power and energy channels of a run, each as growth in joules with what is known of its sensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.counters import CounterLimits, counted
from stepscope.analysis.gauges import integrated, seen_refresh_ns
from stepscope.analysis.growth import Growth, cut, still_spans
from stepscope.analysis.interruptions import interruptions_ns
from stepscope.analysis.intervals import Floats
from stepscope.analysis.steady import span_ns
from stepscope.runfolder import RunReader

_TO_SI = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "Wh": 3600.0}
_KINDS = {"power": ("gauge", "estimate"), "energy": ("counter", "estimate")}
_STILL_REFRESHES, _STILL_NS = 50, 2_000_000_000  # a counter that stands for longer than both, stands still
_STILL_GAUGE_NS = 30_000_000_000  # coarse gauges rest on one value for long


@dataclass(frozen=True)
class PowerSource:
    """One channel as growth in J, and what it cannot resolve."""

    id: str
    sensor: str
    kind: str  # counter, gauge or estimate
    scope: str
    parent_scope: str | None
    rail: str | None
    growth: Growth
    refresh_ns: float = 0.0
    window_ns: float = 0.0  # that the hardware averages over
    step_size: float = 0.0  # W of a gauge, J of a counter
    spread_w: float = 0.0  # highest less lowest reading of a gauge
    notes: tuple[str, ...] = ()

    @property
    def resolved_ns(self) -> float:
        """The shortest honest window: two refreshes, two readings, three constants of the filter."""
        return max(2.0 * self.refresh_ns, 2.0 * self.growth.period_ns, 3.0 * self.window_ns, 1.0)

    @property
    def lag_ns(self) -> float:
        """How far back a reading reaches."""
        return self.refresh_ns + self.window_ns + (0.0 if self.kind == "counter" else self.growth.period_ns)

    def covered_share(self, t0_ns: float, t1_ns: float) -> float:
        """Share of a span in which this source knows the energy."""
        begin, end = self.growth.at(self.growth.covered_ns, np.array([t0_ns, t1_ns]))
        return float(end - begin) / max(t1_ns - t0_ns, 1.0)


def power_sources(run: RunReader) -> list[PowerSource]:
    """Every channel of power or energy that was read at least twice; time in which a machine slept is a gap."""
    interrupted = interruptions_ns(run)
    read = [replace(source, growth=cut(source.growth, interrupted)) for source in _read(run)]
    return [_without_still(source, read, run) for source in read]


def _read(run: RunReader) -> Iterator[PowerSource]:
    frames: dict[str, pl.DataFrame] = {}
    for channel in run.channels:
        sensor, unit = str(channel.get("sensor")), channel.get("unit")
        if channel.get("kind") not in _KINDS.get(str(channel.get("quantity")), ()) or unit not in _TO_SI:
            continue
        frame = frames.setdefault(sensor, run.sensor(sensor).sort("t0_ns"))
        if str(channel.get("id")) in frame.columns:
            t_ns = ((frame["t0_ns"] + frame["t1_ns"]) / 2).to_numpy()
            values = frame[str(channel["id"])].cast(pl.Float64).to_numpy() * _TO_SI[unit]
            source = _source(channel, t_ns, values)
            if len(source.growth.t_ns) > 1:
                yield source


def _source(channel: dict[str, Any], t_ns: Floats, values: Floats) -> PowerSource:
    scale = _TO_SI[str(channel["unit"])]
    is_counter = channel["quantity"] == "energy"
    refresh_ns, step = float(channel.get("refresh_ns") or 0), float(channel.get("step_size") or 0) * scale
    if is_counter:
        full, most = (None if not channel.get(key) else float(channel[key]) * scale for key in _LIMITS)
        growth = counted(t_ns, values, CounterLimits(full, most, refresh_ns, step))
    else:
        growth = integrated(t_ns, values, refresh_ns)
    kind = "estimate" if channel["kind"] == "estimate" else "counter" if is_counter else "gauge"
    seen = np.empty(0) if is_counter else values[np.isin(t_ns, growth.t_ns)]
    if kind == "gauge" and not refresh_ns:
        refresh_ns = seen_refresh_ns(growth.t_ns, seen)
    return PowerSource(
        id=str(channel["id"]),
        sensor=str(channel.get("sensor")),
        kind=kind,
        scope=str(channel.get("scope")),
        parent_scope=channel.get("parent_scope"),
        rail=channel.get("rail"),
        growth=growth,
        refresh_ns=refresh_ns,
        window_ns=float(channel.get("window_ns") or 0),
        step_size=step,
        spread_w=float(np.ptp(seen)) if len(seen) else 0.0,
        notes=(*_faults(channel, growth), *_rested(channel, growth.t_ns, seen, refresh_ns)),
    )


_LIMITS = ("counter_range", "most_per_s")


def _faults(channel: dict[str, Any], growth: Growth) -> Iterator[str]:
    if growth.refused:
        times = "once" if growth.refused == 1 else f"{growth.refused:,} times"
        yield f"{channel['id']} gave what cannot be true {times} (set back, too fast, out of range): left out as gaps"


def _rested(channel: dict[str, Any], t_ns: Floats, watts: Floats, refresh_ns: float) -> Iterator[str]:
    """That a gauge which moves at other times gave one and the same value for long."""
    if len(watts) < 2 or float(np.ptp(watts)) == 0:
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(watts)) + 1, [len(watts) - 1]])
    longest = float(np.diff(t_ns[edges]).max())
    if longest > max(_STILL_GAUGE_NS, _STILL_REFRESHES * refresh_ns):
        yield f"{channel['id']} gave one and the same value for {longest / 1e9:.3g} s: it may have been stale"


def _without_still(source: PowerSource, everything: list[PowerSource], run: RunReader) -> PowerSource:
    """A counter that stands still while others, or the training, go on: those times are gaps, and it is said.

    One that stands most of the time measures something that is mostly off, such as built-in graphics.
    """
    growth = source.growth
    if source.kind != "counter" or len(growth.t_ns) < 3:
        return source
    moves = np.flatnonzero(np.nan_to_num(growth.steps) > 0)
    usual = float(np.median(np.diff(growth.t_ns[moves]))) if len(moves) > 1 else 0.0
    spans = still_spans(growth, max(_STILL_NS, _STILL_REFRESHES * max(source.refresh_ns, usual)))
    lasted = float(np.diff(spans).sum())
    if not lasted or lasted > (growth.t_ns[-1] - growth.t_ns[0]) / 2 or not len(moves):
        return source
    going_on = [span for span in spans if _others_go_on(span, source, everything, run)]
    if not going_on:
        return source
    dark = np.array(going_on)
    note = (
        f"{source.id} stood still for {float(np.diff(dark).sum()) / 1e9:.3g} s while others went on: left out as a gap"
    )
    return replace(source, growth=cut(growth, dark, known=True), notes=(*source.notes, note))


def _others_go_on(span: Floats, source: PowerSource, everything: list[PowerSource], run: RunReader) -> bool:
    for other in everything:
        begin, end = other.growth.at(other.growth.grown, span)
        if other.id != source.id and end > begin:
            return True
    steady = span_ns(run)
    return steady is not None and span[0] < steady[1] and span[1] > steady[0]
