"""Clocks that something held down while steps ran, and what says so: one answer for page, headline and verdict."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.channels import Series, board_computes, series_of
from stepscope.analysis.device.contract import is_throttling_flag
from stepscope.analysis.estimate import Estimate, mean_of_stretches
from stepscope.analysis.metrics import core_utilisation
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.steps import is_in_steps
from stepscope.analysis.unused_cards import is_of_unused_card
from stepscope.arrays import Floats
from stepscope.runfolder import RunReader
from stepscope.units import percent, plural

_LEAST_RUNNING = 0.3  # of the time: a thread that runs less lets clocks sink by itself
_SLOWER = 0.85  # of the maximum: a clock below that is no fluctuation
_BUSY = _SLOWER / 1.25  # of the time: of a thread that runs less Linux's schedutil alone takes the clock so low
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

    Sentences. acting: of what throttled for a notable part of the steps; events: of throttling that was counted, and
    for how long is not known; limits: of a limit below the maximum that the clock reached; hints: of what could be one.
    """

    share: Estimate
    first: float  # of the first fifth of the steps
    last: float
    acting: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def signs(self) -> tuple[str, ...]:
        """Return all sentences."""
        return (*self.acting, *self.events, *self.limits, *self.hints)

    @property
    def has_dropped(self) -> bool:
        """Return whether the last steps ran at a clearly lower clock than the first ones."""
        return self.last <= _SLOWER * self.first

    @property
    def is_sure(self) -> bool:
        """Return whether more than a count of events says that it was held down."""
        return bool(self.acting or self.limits or self.hints or self.has_dropped)

    def is_held_down(self, runs: Estimate | None) -> bool:
        """Return whether it was low, and not since its governor lowers that of a thread that waits.

        runs: share of the time in which the training thread ran; None where that was not read.
        """
        if self.share.value > _SLOWER or (runs is not None and runs.value < _LEAST_RUNNING):
            return False
        is_busy = runs is None or runs.value >= _BUSY
        return bool(self.acting or self.events or self.limits or (is_busy and self.is_sure))


@cached_per_run
def detect_throttling(run: RunReader) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether clocks were held down while steps ran (None: nothing was read that tells), and sentences why."""
    clock = None if board_computes(run) else clock_of(run)
    acting = (*_throttling_reports(run), *_throttling_events(run))
    of_gpus = tuple(text for share, text in _gpu_throttling_shares(run) if share >= _NOTABLE)
    acting = (*acting, *of_gpus)
    reported = any(len(_values_in_steps(run, series)) for name in _REPORTING for series in series_of(run, name))
    seldom = tuple(text for share, text in _gpu_throttling_shares(run) if share < _NOTABLE)
    sentences = seldom or (("no sensor reported throttling",) if reported else ())
    if clock is not None:
        low = f"the fastest core's clock was {percent(clock.share.value, 0)} of its maximum"
        fell = f"{low}, {percent(clock.first, 0)} in the first steps and {percent(clock.last, 0)} in the last"
        if clock.is_held_down(_share_running(run)):
            return True, (*acting, *clock.limits, *clock.hints, fell)
        sentences = (*sentences, low)
    if acting:
        return True, acting
    return (False, sentences) if sentences else (None, ())


def _share_running(run: RunReader) -> Estimate | None:
    from stepscope.analysis.device.occupancy import occupancy

    return occupancy(run).runs


def clock_of(run: RunReader) -> CoreClock | None:
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
    t_ns = shares[0][0][is_in_steps(run, shares[0][0])]
    if not len(t_ns):
        return None
    top = np.max([np.interp(t_ns, times, values) for times, values in shares], axis=0)
    fifth = max(len(top) // 5, 1)
    first, last = float(np.median(top[:fifth])), float(np.median(top[-fifth:]))
    share = mean_of_stretches(top).clipped()
    limits, hints = _clock_limit_sentences(run, {scope: most[scope] for scope in fastest}, share.value)
    acting, events = tuple(_throttling_reports(run)), tuple(_throttling_events(run))
    return CoreClock(share, first, last, acting, events, limits, (*hints, *_hot_zones(run)))


def _fastest_cores_in_use(run: RunReader, most: dict[str, float]) -> set[str]:
    """Return the cores of the fastest cluster among those that were busy; among all where that was not read."""
    busy = {row.scope for row in core_utilisation(run) if row.value is not None and row.value >= _USED}
    used = {scope: hertz for scope, hertz in most.items() if hertz and scope in busy} or most
    highest = max(used.values(), default=0.0)
    return {scope for scope, hertz in used.items() if hertz and hertz >= _ALIKE * highest}


def _values_in_steps(run: RunReader, series: Series) -> Floats:
    inside: Floats = series.values[is_in_steps(run, series.t_ns)]
    return inside


def _throttling_reports(run: RunReader) -> Iterator[str]:
    """Yield what kernel and firmware reported as throttling of the cores for a notable part of the steps."""
    for series in series_of(run, "cooling_state"):
        states = _values_in_steps(run, series)
        if len(states) and (states > 0).mean() >= _NOTABLE:
            yield f"the kernel cools by {series.scope.removeprefix('cooling:')} (state {states.max():.0f})"
            break
    for series in series_of(run, "throttled"):
        flags = _values_in_steps(run, series)
        if len(flags) and (flags > 0).mean() >= _NOTABLE and is_throttling_flag(series.scope):
            name = series.scope.removeprefix("throttle:").replace("_", " ")
            share = percent(float((flags > 0).mean()))
            yield f"the firmware reports {name} in {share} of {plural(len(flags), 'reading')}"


def _throttling_events(run: RunReader) -> Iterator[str]:
    """Yield how often the hardware throttled a core while steps ran; for how long is not read."""
    for series in series_of(run, "throttle_events"):
        counts = _values_in_steps(run, series)
        if len(counts) and counts[-1] > counts[0]:
            yield f"{series.scope.replace(':', ' ')} was throttled {plural(int(counts[-1] - counts[0]), 'time')}"
            break


def gpu_slowdown(run: RunReader) -> Estimate | None:
    """Return the share of the readings at which a GPU says that heat or power slow it down, of the one slowed most.

    Its power cap is not among these: it sets the clock of every GPU under full load. None: it was not read.
    """
    shares = [
        mean_of_stretches(np.array([bool(int(value) & _SLOWDOWNS) for value in flags], dtype=np.float64))
        for series in series_of(run, "throttle_reasons")
        if not is_of_unused_card(run, series.scope) and len(flags := _values_in_steps(run, series))
    ]
    return max(shares, key=lambda share: share.value, default=None)


def _gpu_throttling_shares(run: RunReader) -> Iterator[tuple[float, str]]:
    """Yield the share of the readings at which each GPU reports throttling, and the sentence; none where it never does.

    A load that comes or goes can set the flag of the power cap for a moment.
    """
    for series in series_of(run, "throttle_reasons"):
        if is_of_unused_card(run, series.scope):
            continue
        flags = _values_in_steps(run, series)
        share = float(np.mean([bool(int(value) & _REASONS) for value in flags])) if len(flags) else 0.0
        if share > 0:
            yield share, f"the GPU reports throttling in {percent(share)} of {plural(len(flags), 'reading')}"


def _clock_limit_sentences(
    run: RunReader, most: dict[str, float], share: float
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what allows less than the maximum, where the clock, a share of that, reached it; and what may do so.

    A power mode lowers the limit of the clock. Where that was read, it says whether the mode matters to these cores.
    """
    mode = run.device.get("power_mode")
    modes = (f"the power mode is {mode}",) if mode and "MAXN" not in str(mode).upper() else ()
    highest, limit = max(most.values()), _lowest_limit(run, most)
    if limit is None:
        return (), modes
    if limit >= _STEADY * highest or share < _STEADY * limit / highest:
        return (), ()
    return (f"the clock's limit is {limit / 1e9:.2f} GHz of {highest / 1e9:.2f} GHz", *modes), ()


def _lowest_limit(run: RunReader, cores: Collection[str]) -> float | None:
    """Return the lowest limit, Hz, of the clock of these cores, of the one that may run fastest; None: not read.

    A policy is named after the first of its cores.
    """
    read = {series.scope: float(np.min(series.values)) for series in series_of(run, "core_frequency_limit")}
    lowest = {int(number): hertz for scope, hertz in read.items() if (number := scope.removeprefix("policy")).isdigit()}
    first = [max((number for number in lowest if number <= _core_number(core)), default=-1) for core in cores]
    return max((lowest[number] for number in first if number in lowest), default=None)


def _core_number(scope: str) -> int:
    number = scope.removeprefix("core:")
    return int(number) if number.isdigit() else -1


def _hot_zones(run: RunReader) -> Iterator[str]:
    """Yield the zones that came within some degrees of the temperature at which the kernel takes clocks away."""
    trips = run.device.get("trip_points_celsius") or {}
    passive = {zone.rpartition(" (")[2].rstrip(")"): kinds.get("passive") for zone, kinds in trips.items()}
    for series in series_of(run, "temperature"):
        zone, read = series.scope.removeprefix("zone:"), _values_in_steps(run, series)
        number = re.search(r"thermal_zone\d+", series.source)
        trip = passive.get(number[0]) if number and zone.partition("#")[0] not in _NOTIFY else None
        if trip is not None and len(read) and read.max() >= trip - _NEAR_TRIP:
            yield f"zone {zone} reached {read.max():.0f} °C, and the kernel slows down at {trip:.0f} °C"
