"""Clocks that something held down while steps ran, and what says so: one answer for page, headline and verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.channels import Series, board_computes, series_of
from stepscope.analysis.device.contract import is_throttling_flag
from stepscope.analysis.estimate import Estimate, mean_of_stretches
from stepscope.analysis.metrics import core_utilisation
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.steps import span_ns
from stepscope.analysis.unused_cards import card_of, unused_cards
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader
from stepscope.units import percent, plural

LEAST_RUNNING = 0.3  # of the time: a thread that runs less lets clocks sink by itself
SLOWER = 0.85  # of the maximum: a clock below that is no fluctuation
_STEADY = 0.97  # of its limit: a clock that reaches it
_SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80  # of NVML: slowdown, thermal, power brake
_REASONS = _SLOWDOWNS | 0x4  # and power cap
_USED = 0.3  # utilisation of a core, from which on its clock is the training's
_ALIKE = 0.9  # of the highest clock: cores of one cluster, of which some are made to be a little faster
_NOTABLE = 0.05  # of the readings: a flag that is set more seldom holds no clock down
_NEAR_TRIP = 3.0  # degrees below a passive trip point
_NOTIFY = ("x86_pkg_temp",)  # zones whose passive trip points only notify a program
_REPORTING = ("throttled", "throttle_reasons", "throttle_events", "cooling_state")


@dataclass(frozen=True)
class CoreClock:
    """The clock of the fastest core while steps ran, as a share of the hardware's maximum, and what may hold it down.

    acting: sentences of what throttled while steps ran; limits: of what could, a limit below the maximum for one.
    """

    share: Estimate
    first: float  # of the first fifth of the steps
    last: float
    acting: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def has_dropped(self) -> bool:
        """Return whether the last steps ran at a clearly lower clock than the first ones."""
        return self.last <= SLOWER * self.first

    @property
    def is_reduced(self) -> bool:
        """Return whether the clock was low, and something says why or it fell."""
        return self.share.value <= SLOWER and bool(self.acting or self.limits or self.has_dropped)


@cached_per_run
def detect_throttling(run: RunReader) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether clocks were held down while steps ran (None: nothing was read that tells), and sentences why."""
    span = span_ns(run)
    if span is None:
        return None, ()
    clock = None if board_computes(run) else clock_of(run, span)
    acting = tuple(_throttling_reports(run, span)) if clock is None else clock.acting
    of_gpus = tuple(text for share, text in _gpu_throttling_shares(run, span) if share >= _NOTABLE)
    acting = (*acting, *of_gpus)
    reported = any(len(_values_in_span(series, span)) for name in _REPORTING for series in series_of(run, name))
    seldom = tuple(text for share, text in _gpu_throttling_shares(run, span) if share < _NOTABLE)
    sentences = seldom or (("no sensor reported throttling",) if reported else ())
    if clock is not None:
        low = f"the fastest core's clock was {percent(clock.share.value, 0)} of its maximum"
        fell = f"{low}, {percent(clock.first, 0)} in the first steps and {percent(clock.last, 0)} in the last"
        if clock.is_reduced and _keeps_core_busy(run):
            return True, (*acting, *clock.limits, fell)
        sentences = (*sentences, low)
    if acting:
        return True, acting
    return (False, sentences) if sentences else (None, ())


def _keeps_core_busy(run: RunReader) -> bool:
    """Return whether the training keeps its core busy, as far as that was read: of one that waits clocks may sink."""
    from stepscope.analysis.device.occupancy import occupancy

    runs = occupancy(run).runs
    return runs is None or runs.value >= LEAST_RUNNING


def clock_of(run: RunReader, span: tuple[int, int]) -> CoreClock | None:
    """The highest clock of the fastest cores in use at each reading, as a share of their maximum; None: none was read.

    A little core at its own maximum says nothing of a big one that is held down.
    """
    stated = {f"core:{core['core']}": core.get("max_frequency_hz") for core in run.device.get("cores") or []}
    lines = list(series_of(run, "core_frequency"))
    most = {series.scope: stated.get(series.scope) or float(series.values.max()) for series in lines}
    fastest = _fastest_cores_in_use(run, most)
    shares = [(series.t_ns, series.values / most[series.scope]) for series in lines if series.scope in fastest]
    if not shares:
        return None
    t_ns = shares[0][0]
    inside = (t_ns >= span[0]) & (t_ns <= span[1])
    if not inside.any():
        return None
    top = np.max([np.interp(t_ns[inside], times, values) for times, values in shares], axis=0)
    fifth = max(len(top) // 5, 1)
    first, last = float(np.median(top[:fifth])), float(np.median(top[-fifth:]))
    limits = (*_clock_limit_sentences(run, stated), *_hot_zones(run, span))
    return CoreClock(mean_of_stretches(top).clipped(), first, last, tuple(_throttling_reports(run, span)), limits)


def _fastest_cores_in_use(run: RunReader, most: dict[str, float]) -> set[str]:
    """Return the cores of the fastest cluster among those that were busy; among all where that was not read."""
    busy = {row.scope for row in core_utilisation(run) if row.value is not None and row.value >= _USED}
    used = {scope: hertz for scope, hertz in most.items() if hertz and scope in busy} or most
    highest = max(used.values(), default=0.0)
    return {scope for scope, hertz in used.items() if hertz and hertz >= _ALIKE * highest}


def _values_in_span(series: Series, span: tuple[int, int]) -> Floats:
    inside: Floats = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
    return inside


def _throttling_reports(run: RunReader, span: tuple[int, int]) -> Iterator[str]:
    """Yield what hardware, kernel and firmware reported as throttling of the cores while steps ran."""
    for series in series_of(run, "throttle_events"):
        counts = _values_in_span(series, span)
        if len(counts) and counts[-1] > counts[0]:
            yield f"{series.scope.replace(':', ' ')} was throttled {counts[-1] - counts[0]:.0f} times"
            break
    for series in series_of(run, "cooling_state"):
        states = _values_in_span(series, span)
        if len(states) and states.max() > 0:
            yield f"the kernel cools by {series.scope.removeprefix('cooling:')} (state {states.max():.0f})"
            break
    for series in series_of(run, "throttled"):
        flags = _values_in_span(series, span)
        if len(flags) and flags.max() > 0 and is_throttling_flag(series.scope):
            name = series.scope.removeprefix("throttle:").replace("_", " ")
            share = percent(float((flags > 0).mean()))
            yield f"the firmware reports {name} in {share} of {plural(len(flags), 'reading')}"


def gpu_slowdown(run: RunReader, span: tuple[int, int]) -> Estimate | None:
    """Return the share of the readings at which a GPU says that heat or power slow it down, of the one slowed most.

    Its power cap is not among these: it sets the clock of every GPU under full load. None: it was not read.
    """
    shares = [
        mean_of_stretches(np.array([bool(int(value) & _SLOWDOWNS) for value in flags], dtype=np.float64))
        for series in series_of(run, "throttle_reasons")
        if card_of(series.scope) not in unused_cards(run)[0] and len(flags := _values_in_span(series, span))
    ]
    return max(shares, key=lambda share: share.value, default=None)


def _gpu_throttling_shares(run: RunReader, span: tuple[int, int]) -> Iterator[tuple[float, str]]:
    """Yield the share of the readings at which each GPU reports throttling, and the sentence; none where it never does.

    A load that comes or goes can set the flag of the power cap for a moment.
    """
    for series in series_of(run, "throttle_reasons"):
        if card_of(series.scope) in unused_cards(run)[0]:
            continue
        flags = _values_in_span(series, span)
        share = float(np.mean([bool(int(value) & _REASONS) for value in flags])) if len(flags) else 0.0
        if share > 0:
            yield share, f"the GPU reports throttling in {percent(share)} of {plural(len(flags), 'reading')}"


def _clock_limit_sentences(run: RunReader, most: dict[str, int | None]) -> Iterator[str]:
    """Yield what allows less than the maximum, whether or not it was reached."""
    highest = max((hertz for hertz in most.values() if hertz), default=None)
    limits = [float(np.min(series.values)) for series in series_of(run, "core_frequency_limit")]
    if limits and highest and max(limits) < _STEADY * highest:
        yield f"the clock's limit is {max(limits) / 1e9:.2f} GHz of {highest / 1e9:.2f} GHz"
    mode = run.device.get("power_mode")
    if mode and "MAXN" not in str(mode).upper():
        yield f"the power mode is {mode}"


def _hot_zones(run: RunReader, span: tuple[int, int]) -> Iterator[str]:
    """Yield the zones that came within some degrees of the temperature at which the kernel takes clocks away."""
    trips = run.device.get("trip_points_celsius") or {}
    passive = {zone.rpartition(" (")[2].rstrip(")"): kinds.get("passive") for zone, kinds in trips.items()}
    for series in series_of(run, "temperature"):
        zone, read = series.scope.removeprefix("zone:"), _values_in_span(series, span)
        number = re.search(r"thermal_zone\d+", series.source)
        trip = passive.get(number[0]) if number and zone.partition("#")[0] not in _NOTIFY else None
        if trip is not None and len(read) and read.max() >= trip - _NEAR_TRIP:
            yield f"zone {zone} reached {read.max():.0f} °C, and the kernel slows down at {trip:.0f} °C"
