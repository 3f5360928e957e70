"""The power and energy channels of a run, each as growth in joules.

Readings of power are integrated by trapezoids over their own times (Eq. 4 of the 2019 paper).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import (
    CounterLimits,
    Growth,
    counter_growth,
    spans_without_growth,
    turn_spans_into_gaps,
)
from stepscope.analysis.time.steps import span_ns
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import RunReader

_TO_SI = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "Wh": 3600.0}
_KINDS = {"power": ("gauge", "estimate"), "energy": ("counter", "estimate")}
_STILL_REFRESHES, _STILL_NS = 50, 2_000_000_000  # a counter that stands for longer than both, stands still
_WHOLE, _FEW_STEPS = 1e-3, 2.0  # off a whole number of steps at most; steps at once, typically
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
    read_ns: Floats = field(default_factory=lambda: np.empty(0))  # when a gauge was read
    read_w: Floats = field(default_factory=lambda: np.empty(0))
    notes: tuple[str, ...] = ()
    channel: dict[str, Any] | None = None  # as channels.json describes it; None of what a power model estimates
    uncertainty: float | None = None  # of an estimate: half of its 95 % CI over its value, where that is known
    cut_off_w: float | None = None  # the end of a gauge's range, where power went beyond it

    @property
    def shortest_window_ns(self) -> float:
        """The shortest honest window: two refreshes, two readings, three constants of the filter."""
        return max(2.0 * self.refresh_ns, 2.0 * self.growth.period_ns, 3.0 * self.window_ns, 1.0)

    @property
    def lag_ns(self) -> float:
        """Return how far back a reading reaches, ns."""
        return self.refresh_ns + self.window_ns + (0.0 if self.kind == "counter" else self.growth.period_ns)

    def covered_share(self, t0_ns: float, t1_ns: float) -> float:
        """Share of a span in which this source knows the energy."""
        begin, end = self.growth.at(self.growth.covered_ns, np.array([t0_ns, t1_ns]))
        return float(end - begin) / max(t1_ns - t0_ns, 1.0)


def power_sources(run: RunReader) -> list[PowerSource]:
    """Every channel of power or energy that was read at least twice; time in which a machine slept is a gap."""
    interrupted = interruptions_ns(run)
    read = [replace(source, growth=turn_spans_into_gaps(source.growth, interrupted)) for source in _read_sources(run)]
    return [_without_still_spans(source, read, run) for source in read]


def _read_sources(run: RunReader) -> Iterator[PowerSource]:
    for channel in run.channels:
        if channel.get("kind") not in _KINDS.get(str(channel.get("quantity")), ()) or channel.get("unit") not in _TO_SI:
            continue
        if str(channel.get("id")) in run.sensor(str(channel.get("sensor"))).columns:
            t0_ns, t1_ns, values = channel_readings(run, channel)
            source = _power_source(channel, (t0_ns + t1_ns) / 2, values)
            if len(source.growth.t_ns) > 1:
                yield source


def channel_readings(run: RunReader, channel: dict[str, Any]) -> tuple[Ints, Ints, Floats]:
    """Return begin and end of each read of a channel, ns, and its value, W or J; NaN where nothing was read."""
    frame = run.sensor(str(channel["sensor"]))
    values = frame[str(channel["id"])].cast(pl.Float64).to_numpy() * _TO_SI[str(channel["unit"])]
    return frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy(), values


def _power_source(channel: dict[str, Any], t_ns: Floats, values: Floats) -> PowerSource:
    scale = _TO_SI[str(channel["unit"])]
    is_counter = channel["quantity"] == "energy"
    refresh_ns, step = float(channel.get("refresh_ns") or 0), float(channel.get("step_size") or 0) * scale
    if is_counter:
        full, most = (None if not channel.get(key) else float(channel[key]) * scale for key in _LIMIT_KEYS)
        growth = counter_growth(t_ns, values, CounterLimits(full, most, refresh_ns, step))
        step = step or _observed_resolution_j(growth.steps)
    else:
        growth = integrate_power(t_ns, values, refresh_ns, step)
    kind = "estimate" if channel["kind"] == "estimate" else "counter" if is_counter else "gauge"
    _, once = np.unique(t_ns, return_index=True)  # of two readings of one moment, one counts
    once = once[:0] if is_counter else once[np.isin(t_ns[once], growth.t_ns)]
    updates = values[once]
    cut_off = cut_off_w(updates) if kind == "gauge" else None
    if kind == "gauge" and not refresh_ns:
        refresh_ns = observed_refresh_ns(growth.t_ns, updates)
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
        spread_w=float(np.ptp(updates)) if len(updates) else 0.0,
        read_ns=t_ns[once],
        read_w=updates,
        notes=(
            *_fault_notes(channel, growth),
            *_stale_notes(channel, growth.t_ns, updates, refresh_ns),
            *([] if cut_off is None else [f"{channel['id']}: {cut_off_sentence(cut_off)}"]),
        ),
        channel=channel,
        cut_off_w=cut_off,
    )


def _observed_resolution_j(steps: Floats) -> float:
    """The step of a counter that states none, J: of a plug that counts watt-hours, say; 0 where it moves by any amount.

    Such a counter mostly moves by one step, now and then by a few, and each time by the same amount.
    """
    moved = steps[np.nan_to_num(steps) > 0]
    if not len(moved):
        return 0.0
    times = moved / moved.min()
    whole = np.abs(times - np.rint(times)) < _WHOLE
    return float(moved.min()) if whole.all() and np.median(times) <= _FEW_STEPS else 0.0


_LIMIT_KEYS = ("counter_range", "most_per_s")


def _fault_notes(channel: dict[str, Any], growth: Growth) -> Iterator[str]:
    if growth.refused:
        times = "once" if growth.refused == 1 else f"{growth.refused:,} times"
        yield f"{channel['id']} gave what cannot be true {times} (set back, too fast, out of range): excluded as gaps"


def _stale_notes(channel: dict[str, Any], t_ns: Floats, watts: Floats, refresh_ns: float) -> Iterator[str]:
    """Return a note that a gauge which moves at other times gave one and the same value for long."""
    if len(watts) < 2 or float(np.ptp(watts)) == 0:
        return
    edges = np.concatenate([[0], np.flatnonzero(np.diff(watts)) + 1, [len(watts) - 1]])
    longest = float(np.diff(t_ns[edges]).max())
    if longest > max(_STILL_GAUGE_NS, _STILL_REFRESHES * refresh_ns):
        yield f"{channel['id']} gave one and the same value for {longest / 1e9:.3g} s: it may have been stale"


_FINE, _BESIDE = 50, 10  # different values of a gauge that tells; of them next below the highest
_FEWEST_VISITS, _OFTENER = 10, 4.0  # times that it came to the highest; than to any of those
_NEAR_TOP, _LEAST_NEAR = 0.1, 0.5  # of the range of its values; visits there, of those to the highest


def cut_off_w(watts: Floats) -> float | None:
    """Return the end of a gauge's range, W, where power went beyond it; None where no reading shows that.

    It then comes to its highest value again and again, and never above; of power itself the highest is a rare chance.
    Work of one and the same power, higher than all other, has nothing near it.
    """
    levels, place = np.unique(watts[np.append(True, np.diff(watts) != 0)[: len(watts)]], return_inverse=True)
    if len(levels) < _FINE:
        return None
    visits = np.bincount(place)
    near = levels[:-1] > levels[-1] - _NEAR_TOP * float(np.ptp(levels))
    often = max(_FEWEST_VISITS, _OFTENER * float(visits[-1 - _BESIDE : -1].max()))
    is_end = often <= visits[-1] <= float(visits[:-1][near].sum()) / _LEAST_NEAR
    return float(levels[-1]) if is_end else None


def cut_off_sentence(watts: float) -> str:
    """Return what a gauge that is cut off leaves out."""
    return f"its readings are cut off at {watts:.4g} W: power above it is not seen, and the energy is at least so much"


def _without_still_spans(source: PowerSource, everything: list[PowerSource], run: RunReader) -> PowerSource:
    """A counter that stands still while others, or the training, go on: those times are gaps, and it is said.

    Built-in graphics are mostly off: a part of what goes on meanwhile may stand for most of the time.
    """
    growth = source.growth
    if source.kind != "counter" or len(growth.t_ns) < 3:
        return source
    moves = np.flatnonzero(np.nan_to_num(growth.steps) > 0)
    usual = float(np.median(np.diff(growth.t_ns[moves]))) if len(moves) > 1 else 0.0
    spans = spans_without_growth(growth, max(_STILL_NS, _STILL_REFRESHES * max(source.refresh_ns, usual)))
    if not len(moves):
        spans = np.array([[growth.t_ns[0], growth.t_ns[-1]]])
    lasted = float(np.diff(spans).sum())
    mostly = lasted > (growth.t_ns[-1] - growth.t_ns[0]) / 2
    if not lasted or (mostly and _is_part_of_another(source, everything)):
        return source
    going_on = [span for span in spans if _do_other_sources_grow(span, source, everything, run)]
    if not going_on:
        return source
    dark = np.array(going_on)
    seconds = float(np.diff(dark).sum()) / 1e9
    note = f"{source.id} stood still for {seconds:.3g} s while others went on: excluded as a gap"
    if not len(moves):
        note = f"{source.id} never moved: it is no meter here"
    return replace(source, growth=turn_spans_into_gaps(growth, dark, is_known=True), notes=(*source.notes, note))


def _is_part_of_another(source: PowerSource, everything: list[PowerSource]) -> bool:
    """Return whether what contains this one was measured, and moved: its energy is known whatever this one shows."""
    above = [other for other in everything if other.scope == source.parent_scope and other.id != source.id]
    return any(np.nan_to_num(other.growth.steps).any() for other in above)


def _do_other_sources_grow(span: Floats, source: PowerSource, everything: list[PowerSource], run: RunReader) -> bool:
    for other in everything:
        begin, end = other.growth.at(other.growth.known_growth, span)
        if other.id != source.id and end > begin:
            return True
    steady = span_ns(run)
    return steady is not None and span[0] < steady[1] and span[1] > steady[0]


MOST_W = 5000.0  # more than any machine draws that this is for: a reading above is garbage
_OFFSET_STEPS, _OFFSET = 3.0, 0.05  # below 0: steps of a gauge, or of its largest reading
_BACKWARDS, _BACKWARDS_W = 0.9, 0.1  # of the readings, below 0 by more than an offset: a shunt the other way round
_NOTHING_NEWER = 2.2  # refreshes
_LONG_PERIODS, _LONG_NS = 20, 500_000_000  # a longer silence than both is a gap even where no row says so


def _lowest_plausible_w(power_w: Floats, step_w: float) -> float:
    """The lowest power that the offset of a sensor explains, W: at idle a rail reads as much below 0 as above it."""
    plausible = power_w[np.isfinite(power_w) & (power_w <= MOST_W)]
    return -max(_OFFSET_STEPS * step_w, _OFFSET * float(plausible.max(initial=0.0)))


def plausible_watts(power_w: Floats, step_w: float = 0.0) -> Flags:
    """Return which readings of power can be true, (n,): not those that no offset explains, or beyond reason."""
    return np.asarray(np.isfinite(power_w) & (power_w >= _lowest_plausible_w(power_w, step_w)) & (power_w <= MOST_W))


def reversed_shunts(run: RunReader) -> Iterator[str]:
    """Yield the id of every gauge of power that reads below 0 nearly always, by more than an offset."""
    for channel in run.channels:
        if (channel.get("quantity"), channel.get("kind"), channel.get("unit")) != ("power", "gauge", "W"):
            continue
        if str(channel.get("id")) in run.sensor(str(channel.get("sensor"))).columns:
            watts = channel_readings(run, channel)[2]
            watts, step_w = watts[np.isfinite(watts)], float(channel.get("step_size") or 0)
            if len(watts) > 1 and np.mean(watts < min(_lowest_plausible_w(watts, step_w), -_BACKWARDS_W)) >= _BACKWARDS:
                yield str(channel["id"])


def integrate_power(t_ns: Floats, power_w: Floats, refresh_ns: float = 0.0, step_w: float = 0.0) -> Growth:
    """Energy between good readings of power, J; power that no offset explains, or beyond reason, was not read.

    t_ns, power_w: (n,), NaN where not read. A gap is where a reading failed, or where none was taken for long;
    not where the sensor had nothing newer to give, which it says by the same NaN: readings two refreshes apart.
    """
    good = plausible_watts(power_w, step_w)
    read = np.flatnonzero(good)
    read = read[np.argsort(t_ns[read], kind="stable")]
    t, first, size = np.unique(t_ns[read], return_index=True, return_counts=True)
    if len(read) < 2:
        return Growth(t, np.empty(0), np.empty(0, dtype=np.bool_))
    watts = np.add.reduceat(power_w[read], first) / size  # of several readings under one stamp, their mean
    apart = np.diff(t)
    usual = float(np.median(apart)) if len(apart) else 0.0
    silent = apart > max(_LONG_PERIODS * usual, _LONG_NS)
    gap = ((read[first[1:]] - read[first[1:] - 1] > 1) & (apart > _NOTHING_NEWER * refresh_ns)) | silent
    refused = int((~good & np.isfinite(power_w)).sum())
    steps = np.where(gap, np.nan, apart * (watts[1:] + watts[:-1]) / 2e9)
    return Growth(t, steps, gap, refused=refused)


def observed_refresh_ns(t_ns: Floats, values: Floats) -> float:
    """Return the update interval of a gauge that does not state it, ns: the typical time between changes.

    0 where it never changes, or with nearly every reading: then the readings themselves are the limit.
    """
    moved = np.flatnonzero(np.diff(values)) + 1
    if not len(moved):
        return 0.0
    between = np.diff(t_ns[moved]) if len(moved) > 1 else np.diff(t_ns[[0, moved[0], -1]])
    typical = float(np.median(between)) if len(moved) > 1 else float(between.max())
    return typical if typical > _NOTHING_NEWER * float(np.median(np.diff(t_ns))) else 0.0


_INTERRUPTION_KINDS = ("suspend", "jump", "slept")
_NOTICED_WITHIN_NS = 500_000_000  # the sampler looks for it a few times a second


def interruptions_ns(run: RunReader) -> Floats:
    """Begin and end of each, (m, 2) ns: from when all was still well to when it was noticed."""
    spans = []
    for event in run.events:
        if any(word in str(event.get("kind", "")) for word in _INTERRUPTION_KINDS) and isinstance(
            event.get("t_ns"), int | float
        ):
            noticed = float(event["t_ns"])
            since = event.get("since_ns")
            spans.append((float(since) if isinstance(since, int | float) else noticed - _NOTICED_WITHIN_NS, noticed))
    return np.array(spans, dtype=np.float64).reshape(-1, 2)
