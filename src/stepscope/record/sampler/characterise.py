"""Characterise power sensors: poll each fast while a load steps up and down, and keep a profile of each channel.

Takes `seconds` and a little; standard library only. The estimators are pure functions in files of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from stepscope.clock import Clock
from stepscope.files import read_json_object, try_store_json, user_cache
from stepscope.record.device import describe_device
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.sensor_response import (
    Load,
    filter_of,
    load_schedule,
    loaders,
    one_reading_per_refresh,
    polled_every_ns,
    refresh_period_ns,
    step_size,
)
from stepscope.record.sensors.contract import Channel, OpenSensor
from stepscope.units import plural

SECONDS = 4.0
_POLL_NS = 250_000  # finer than any refresh that is known (RAPL: 1 ms)
_POLL_WAITING_NS = 2_000_000  # of a sensor whose reads wait: a network or a driver's lock is not to be stormed
_PARTS_OF_OWN_PERIOD = 20
_LEAST_READS = 5
_HANGS_S = 2.0  # after the end: a read that takes longer never returns
_MOST_DRAWN = 1500
_MOST_GAINS = 400  # of a counter: over a shorter time than 10 ms its refreshes show, not the power
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Trace:
    """All readings of one sensor during the load: middle of each read and its duration, ns; values by channel."""

    channels: tuple[Channel, ...]
    times_ns: list[int] = field(default_factory=list)
    costs_ns: list[int] = field(default_factory=list)
    values: list[Sequence[float]] = field(default_factory=list)

    def read(self, sensor: OpenSensor, clock: Clock) -> int:
        """Read the sensor once and return how long it took, ns. A read that fails leaves a gap."""
        before = clock()
        try:
            values = sensor.read()
        except Exception:
            values = [math.nan] * len(self.channels)
        after = clock()
        self.values.append(values)
        self.times_ns.append((before + after) // 2)
        self.costs_ns.append(after - before)
        return after - before

    def readings_of_channel(self, place: int) -> tuple[list[int], list[float]]:
        """Times and values of one channel, without what was not read."""
        pairs = [(t, row[place]) for t, row in zip(self.times_ns, self.values, strict=False)]
        read = [(t, value) for t, value in pairs if not math.isnan(value)]
        return [t for t, _ in read], [value for _, value in read]


@dataclass(frozen=True)
class LoadStepTraces:
    """Result of a characterisation: a trace a sensor, when the load was on, and on how many cores."""

    traces: dict[str, Trace]
    load: Load
    processes: int


def may_characterise(root: Path, asked_for: bool) -> bool:
    """Return whether a run may characterise: on the machine itself.

    STEPSCOPE_CHARACTERISE=0 forbids it, 1 adds any root.
    """
    setting = os.environ.get("STEPSCOPE_CHARACTERISE", "")
    return asked_for and setting != "0" and (root == Path("/") or setting == "1")


def recall_or_measure(
    root: Path, sensors: Mapping[str, OpenSensor], clock: Clock, announce: Callable[[float], None], events: EventLog
) -> Mapping[str, SensorProfile]:
    """The profiles kept for this device, or those measured now and kept; `announce(seconds)` is called before that.

    A machine without a power sensor loses no time; whatever fails here becomes an event, and the run goes on.
    """
    if not any(tells_power(sensor) for sensor in sensors.values()):
        return {}
    try:
        device = device_identity(root, sensors)
        profiles = load_profiles(device)
        if profiles is not None:
            return profiles
        announce(SECONDS)
        measured = build_profiles(poll_through_load_step(sensors, clock))
        if measured and not save_profiles(device, measured):
            events.write("not-kept", "the cache folder cannot be written: sensors are characterised in each run")
        return measured
    except Exception as error:
        events.write("not-characterised", f"the power sensors were not characterised: {type(error).__name__}: {error}")
        return {}


def poll_through_load_step(
    sensors: Mapping[str, OpenSensor], clock: Clock, seconds: float = SECONDS, progress: Progress | None = None
) -> LoadStepTraces:
    """Poll the power sensors, each in a thread of its own, through a load step that this makes itself.

    A read that never returns costs its own sensor's trace and nothing else.
    """
    meters = {name: sensor for name, sensor in sensors.items() if tells_power(sensor)}
    if not meters:
        return LoadStepTraces({}, [], 0)
    traces = {name: Trace(sensor.channels) for name, sensor in meters.items()}
    with loaders() as ready:
        start_ns = clock()
        end_ns = start_ns + int(seconds * 1e9)
        load = load_schedule(start_ns, seconds)
        pollers = [
            threading.Thread(target=_poll_sensor, args=(sensor, traces[name], clock, end_ns), daemon=True)
            for name, sensor in meters.items()
        ]
        ready.send_schedule(load)
        for poller in pollers:
            poller.start()
        _report_progress(
            clock,
            start_ns,
            end_ns,
            progress,
            f"{plural(len(meters), 'power sensor')}, load on {plural(len(ready), 'core')}",
        )
        for poller in pollers:
            poller.join(max(0.0, (end_ns - clock()) / 1e9) + _HANGS_S)
        return LoadStepTraces(traces, load, len(ready))


def build_profiles(polled: LoadStepTraces) -> dict[str, SensorProfile]:
    """A profile for every channel with enough readings."""
    profiles = {}
    for trace in polled.traces.values():
        if len(trace.values) < _LEAST_READS:
            continue
        costs = sorted(trace.costs_ns)
        median, p99 = costs[len(costs) // 2], costs[len(costs) * 99 // 100]
        for index, channel in enumerate(trace.channels):
            times_ns, values = trace.readings_of_channel(index)
            if len(values) >= _LEAST_READS:
                profiles[channel.id] = _profile(
                    channel, times_ns, values, polled.load if polled.processes else [], median, p99
                )
    return profiles


def power_responses(polled: LoadStepTraces) -> list[tuple[Channel, list[tuple[float, float]]]]:
    """Each power and energy channel with its readings for a picture, (time s, W); of a counter what it gained."""
    start_ns = min((trace.times_ns[0] for trace in polled.traces.values() if trace.times_ns), default=0)
    responses = []
    for trace in polled.traces.values():
        for index, channel in enumerate(trace.channels):
            if channel.quantity not in ("power", "energy"):
                continue
            times_ns, values = trace.readings_of_channel(index)
            counter = channel.kind == "counter"
            every = max(1, len(values) // (_MOST_GAINS if counter else _MOST_DRAWN))
            thinned = list(zip(times_ns, values, strict=True))[::every]
            if counter:
                thinned = _counter_rates(thinned)
            responses.append((channel, [((t_ns - start_ns) / 1e9, value) for t_ns, value in thinned]))
    return responses


def _counter_rates(readings: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Growth per second of a counter between two of its changes; a counter that starts anew leaves a hole."""
    moves: list[tuple[int, float]] = []
    for reading in readings:
        if not moves or moves[-1][1] != reading[1]:
            moves.append(reading)
    return [
        (t, (value - last) / (t - then) * 1e9) for (then, last), (t, value) in itertools.pairwise(moves) if value > last
    ]


def _profile(
    channel: Channel, times_ns: list[int], values: list[float], load: Load, cost_ns: int, cost_p99_ns: int
) -> SensorProfile:
    counter = channel.kind == "counter"
    refresh_ns = refresh_period_ns(times_ns, values, counter)
    averaged = None
    if not counter and channel.quantity == "power":  # a counter adds up: nothing is averaged away
        averaged = filter_of(one_reading_per_refresh(times_ns, values, refresh_ns), load, refresh_ns)
    return SensorProfile(
        read_cost_ns=cost_ns,
        read_cost_p99_ns=cost_p99_ns,
        polled_ns=polled_every_ns(times_ns) or 0,
        refresh_ns=refresh_ns,
        step_size=step_size(values, counter_of_joules=counter and channel.unit == "J"),
        filter=averaged.kind if averaged else None,
        window_ns=averaged.window_ns if averaged else None,
    )


def _poll_sensor(sensor: OpenSensor, trace: Trace, clock: Clock, end_ns: int) -> None:
    """Read until the end, and as often as a profile needs; half of the time at most goes into reading."""
    slowest_ns = sensor.every_ns // _PARTS_OF_OWN_PERIOD
    gap_ns = max(_POLL_WAITING_NS, slowest_ns) if sensor.blocking else _POLL_NS
    for reads in itertools.count():
        if reads >= _LEAST_READS and clock() >= end_ns:
            break
        cost_ns = trace.read(sensor, clock)
        time.sleep(max(gap_ns - cost_ns, cost_ns if sensor.blocking else 50_000) / 1e9)


def _report_progress(clock: Clock, start_ns: int, end_ns: int, progress: Progress | None, what: str) -> None:
    """Wait for the end, and say five times a second how far it is."""
    while (now := clock()) < end_ns:
        if progress is not None:
            progress(f"{what}: {(now - start_ns) / 1e9:.1f} of {(end_ns - start_ns) / 1e9:.1f} s")
        time.sleep(min(0.2, (end_ns - now) / 1e9))


FORMAT = 1  # of the cache file: another number is measured anew
A_LITTLE_FASTER = 0.8  # polling period over refresh period: no refresh is passed over
_POWER = ("power", "energy")


@dataclass(frozen=True)
class SensorProfile:
    """Measured facts of one channel; None is "not known": nothing changed, or finer than the polling could see."""

    read_cost_ns: int  # of a read of the whole sensor, median
    read_cost_p99_ns: int
    polled_ns: int  # median time between reads: a refresh finer than this cannot be seen
    refresh_ns: int | None = None
    step_size: float | None = None
    filter: str | None = None  # none, block average, running average
    window_ns: int | None = None  # width of the block, or time constant


def measures_power(sensor: OpenSensor) -> bool:
    """Return whether a sensor measures power or energy in some channel; estimates do not count."""
    return any(channel.quantity in _POWER and channel.kind != "estimate" for channel in sensor.channels)


def tells_power(sensor: OpenSensor) -> bool:
    """Return whether a sensor measures power now: all that do but a battery on mains, which is read once to know."""
    if not measures_power(sensor) or not all(channel.scope.startswith("battery:") for channel in sensor.channels):
        return measures_power(sensor)
    with contextlib.suppress(Exception):  # what it raises, each read of the run will say
        values = zip(sensor.channels, sensor.read(), strict=False)
        return any(channel.quantity in _POWER and not math.isnan(value) for channel, value in values)
    return False


def device_identity(root: Path, sensors: Mapping[str, OpenSensor]) -> dict[str, Any]:
    """Return what a profile depends on: board, kernel, driver, and where the channels come from."""
    facts = describe_device(root)
    driver = root / "proc/driver/nvidia/version"
    prefix = str(root).rstrip("/")
    return {
        **{key: facts[key] for key in ("board", "compatible", "cpu", "machine", "kernel", "l4t")},
        "driver": driver.read_text(errors="replace").split("\n")[0] if driver.is_file() else None,
        "sources": sorted(
            f"{channel.id} {lasting_source(channel).removeprefix(prefix)}"
            for sensor in sensors.values()
            if measures_power(sensor)
            for channel in sensor.channels
        ),
    }


_NUMBERED = re.compile(r"\b(hwmon|iio:device)\d+")


def lasting_source(channel: Channel) -> str:
    """Return where a channel comes from, without remarks in brackets and numbers that drivers get anew at each boot."""
    return _NUMBERED.sub(r"\1", channel.source.partition(" (")[0])


def load_profiles(device: Mapping[str, Any]) -> dict[str, SensorProfile] | None:
    """The profiles that were kept for this device, by channel id; None where there are none, or none that is sound."""
    try:
        content = read_json_object(_cache_file(device))
        if content["format"] != FORMAT or content["device"] != json.loads(json.dumps(device)):
            return None
        return {name: _profile_from_json(facts) for name, facts in content["channels"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def save_profiles(device: Mapping[str, Any], profiles: Mapping[str, SensorProfile]) -> bool:
    """Keep the profiles for the next run on this device; False where the cache cannot be written, which is no error."""
    content = {
        "format": FORMAT,
        "device": dict(device),
        "channels": {name: asdict(profile) for name, profile in profiles.items()},
    }
    with contextlib.suppress(RuntimeError):  # no home folder
        return try_store_json(_cache_file(device), content)
    return False


def with_profiles(sensor: OpenSensor, profiles: Mapping[str, SensorProfile], period_ns: int) -> OpenSensor:
    """The sensor with what was measured of its channels, read a little faster than the quickest of them refreshes.

    Its author's own period is kept to within a factor of two, since reading may have a cost that time does not show.
    What the driver states stands; `measured` names the fields that it left open and that were filled here.
    """
    channels = tuple(
        _channel_with_profile(channel, profiles[channel.id]) if channel.id in profiles else channel
        for channel in sensor.channels
    )
    refresh_times = [channel.refresh_ns for channel in channels if channel.refresh_ns]
    characterised = any(channel.id in profiles for channel in channels)
    every_ns = sensor.every_ns
    if measures_power(sensor) and refresh_times and (characterised or not every_ns):
        every_ns = max(int(A_LITTLE_FASTER * min(refresh_times)), period_ns, sensor.every_ns // 2)
    return replace(sensor, channels=channels, every_ns=every_ns)


def period_warning(sensor: OpenSensor, period_ns: int) -> str | None:
    """Return what to tell who chose a period finer than this sensor; None where it keeps up."""
    if not measures_power(sensor):
        return None
    refresh_ns = min((channel.refresh_ns for channel in sensor.channels if channel.refresh_ns), default=0)
    window_ns = max((channel.window_ns for channel in sensor.channels if channel.window_ns), default=0)
    parts = []
    if refresh_ns > period_ns:
        parts.append(f"refreshes every {refresh_ns / 1e6:.3g} ms")
    if window_ns > period_ns:
        parts.append(f"averages over {window_ns / 1e6:.3g} ms")
    if sensor.every_ns > period_ns:
        parts.append(f"is read every {sensor.every_ns / 1e6:.3g} ms")
    return " and ".join(parts) or None


def _channel_with_profile(channel: Channel, profile: SensorProfile) -> Channel:
    facts = {name: getattr(profile, name) for name in ("refresh_ns", "step_size", "filter", "window_ns")}
    if channel.filter is not None or channel.window_ns is not None:  # the two describe one thing: never mixed
        facts = {name: value for name, value in facts.items() if name not in ("filter", "window_ns")}
    fresh = {name: value for name, value in facts.items() if value is not None and getattr(channel, name) is None}
    return replace(
        channel,
        **fresh,
        read_cost_ns=profile.read_cost_ns,
        read_cost_p99_ns=profile.read_cost_p99_ns,
        measured=(*fresh, "read_cost_ns", "read_cost_p99_ns"),
    )


def _profile_from_json(facts: Mapping[str, Any]) -> SensorProfile:
    """A profile from the cache; raises TypeError or ValueError where a field is missing or of the wrong type."""
    words = {"filter"}
    for entry in fields(SensorProfile):
        value = facts.get(entry.name)
        sound = value is None or (isinstance(value, str) if entry.name in words else isinstance(value, (int, float)))
        if not sound:
            raise ValueError(f"{entry.name}: {value!r}")
    return SensorProfile(**facts)


def _cache_file(device: Mapping[str, Any]) -> Path:
    """Return the file of this device below XDG_CACHE_HOME; RuntimeError without a home."""
    key = hashlib.sha256(json.dumps(device, sort_keys=True).encode()).hexdigest()[:16]
    return user_cache() / "sensors" / f"{key}.json"
