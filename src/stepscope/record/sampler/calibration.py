"""Calibrate power sensors against a meter: gain, offset, delay and window under a square load, kept for the device.

The meter (a plug, a command, a log) sees what the device takes from its supply; each channel of power or energy is
compared with it over the plateaus of a load that goes on and off. Standard library only. What is kept lies outside of
runs and goes into the channels of each run that follows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepscope.errors import UsageError
from stepscope.files import read_json_object, replace_json, user_data
from stepscope.record.device import describe_device
from stepscope.record.sampler.characterise import Trace, lasting_source, measures_power
from stepscope.record.sampler.sensor_response import (
    Load,
    filter_of,
    load_share,
    loaders,
    one_reading_per_refresh,
    refresh_period_ns,
)
from stepscope.record.sensors import Survey
from stepscope.record.sensors.contract import Channel, OpenSensor, Target, read_line_or_empty

FORMAT = 1
_PLATEAU_S = (5.0, 7.0)  # shortest and longest: of unequal lengths, so that a log without stamps fits at one place
_SETTLED_S = 2.5  # after a change of load: what plugs and fans need, longer than any window of a sensor
_GUARD_S = 0.8  # before the next change: a plug's delay is known to within its own interval
_POLL_NS, _POLL_WAITING_NS = 5_000_000, 200_000_000
_COUNTED_NS = 250_000_000  # of a counter at least: 50 polls
_GOLDEN = 0.6180339887498949
_FOLLOWS = 0.7  # correlation with the load: less, and it is another device's log, or another time
_FEWEST_PLATEAUS = 4
_OF_LOG = 1.7  # so much of a log's end, in lengths of the load: 0.8 of an earlier load does not lie in it as well
_LATEST_S, _SHIFT_S = 5.0, 0.1  # how late a meter may be, and the grid of what is tried
_T = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 15: 2.13, 20: 2.09}
_AGAIN = "let the meter log before, during and after the minute, at least a reading a second"
_SERIALS = ("proc/device-tree/serial-number", "etc/machine-id")
Progress = Callable[[str], None]
Readings = Sequence[tuple[int, float]]  # ns of the monotonic clock, and W, in order


@dataclass(frozen=True)
class Calibration:
    """Result of a meter beside a channel: meter W = meter_w + (shown - shown_w) / gain; halves of 95 % CIs."""

    gain: float  # W shown by the sensor for each W more at the meter
    gain_half: float
    shown_w: float  # mean of the plateaus, of the sensor
    meter_w: float  # of the meter
    meter_half_w: float  # of the meter's power where the sensor shows `shown_w`
    accuracy: float  # of the meter itself, as a share
    plateaus: int
    delay_ns: int | None  # of the sensor's readings behind the load; None where its window could not be fitted
    filter: str | None
    window_ns: int | None
    meter: str
    at: str  # ISO 8601, UTC
    channel: dict[str, str | None] | None = None  # source, rail and card of it; None in files of older versions

    @property
    def offset_w(self) -> float:
        """Return what the sensor would show where the meter shows 0 W."""
        return self.shown_w - self.gain * self.meter_w


@dataclass(frozen=True)
class LoadRecording:
    """The minute: when all cores were busy, and the readings of each channel, W, without what was not read."""

    load: Load
    end_ns: int
    power: Mapping[str, Readings]  # by channel id


def square_load(start_ns: int, seconds: float) -> list[tuple[int, int]]:
    """Return when the cores are busy, (on, off) in ns: plateaus of 5 to 7 s, idle at first and at the end."""
    edges, turn = [0.0], 0
    while edges[-1] + _PLATEAU_S[1] <= seconds:
        turn += 1
        edges.append(edges[-1] + _PLATEAU_S[0] + (_PLATEAU_S[1] - _PLATEAU_S[0]) * (turn * _GOLDEN % 1))
    inner = edges[1:] if len(edges) % 2 else edges[1:-1]
    on, off = inner[::2], inner[1::2]
    return [(start_ns + int(a * 1e9), start_ns + int(b * 1e9)) for a, b in zip(on, off, strict=False)]


def record_square(
    sensors: Mapping[str, OpenSensor], target: Target, seconds: float, progress: Progress
) -> LoadRecording:
    """Read all power sensors and meters while the load goes on and off. Raises UsageError where no core takes load."""
    meters = {name: sensor for name, sensor in sensors.items() if measures_power(sensor)}
    traces = {name: Trace(sensor.channels) for name, sensor in meters.items()}
    with loaders() as ready:
        if not len(ready):
            raise UsageError("no process that loads a core could be started", "free some memory and try again")
        start_ns = target.clock()
        end_ns = start_ns + int(seconds * 1e9)
        load = square_load(start_ns, seconds)
        ready.send_schedule(load)
        pollers = [
            threading.Thread(target=_poll_sensor, args=(sensor, traces[name], target.clock, end_ns), daemon=True)
            for name, sensor in meters.items()
        ]
        for poller in pollers:
            poller.start()
        while (now := target.clock()) < end_ns:
            busy = any(on <= now < off for on, off in load)
            progress(f"{'load' if busy else 'idle'}, {(now - start_ns) / 1e9:.0f} of {seconds:.0f} s")
            time.sleep(min(0.2, (end_ns - now) / 1e9))
        for poller in pollers:
            poller.join(0.5)
    power = {
        channel.id: _watts_of_channel(channel, trace, index)
        for trace in traces.values()
        for index, channel in enumerate(trace.channels)
        if channel.quantity in ("power", "energy")
    }
    return LoadRecording(load, end_ns, power)


def _poll_sensor(sensor: OpenSensor, trace: Trace, clock: Callable[[], int], end_ns: int) -> None:
    gap_ns = _POLL_WAITING_NS if sensor.blocking else _POLL_NS
    while clock() < end_ns:
        time.sleep(max(gap_ns, trace.read(sensor, clock)) / 1e9)


def _watts_of_channel(channel: Channel, trace: Trace, place: int) -> Readings:
    """Power of a channel; of a counter, between two of its changes, at their middle.

    A change is seen up to a poll late: over a short time that makes the mean of such powers too large, not only noisy.
    """
    times, values = trace.readings_of_channel(place)
    if channel.kind != "counter":
        return list(zip(times, values, strict=True))
    apart: list[tuple[int, float]] = []
    for number, (t, value) in enumerate(zip(times, values, strict=True)):
        moved = number == 0 or value != values[number - 1]
        if moved and (not apart or t - apart[-1][0] >= _COUNTED_NS):
            apart.append((t, value))
    return [
        ((a + b) // 2, (high - low) / (b - a) * 1e9) for (a, low), (b, high) in itertools.pairwise(apart) if high > low
    ]


def calibrate_channels(
    recorded: LoadRecording, channels: Sequence[Channel], meter: Readings, name: str, accuracy: float
) -> tuple[dict[str, Calibration], dict[str, str]]:
    """Fit each channel to the meter: (calibrations, why there is none), by channel id.

    meter: its readings on the clock of the load, W; accuracy: of the meter itself, as a share. Raises UsageError where
    the meter does not follow the load.
    """
    shift_ns = meter_delay_ns(meter, recorded.load, recorded.end_ns)
    on_our_clock = [(t - shift_ns, watts) for t, watts in meter]
    calibrations: dict[str, Calibration] = {}
    refused: dict[str, str] = {}
    for channel in channels:
        readings = recorded.power.get(channel.id, ())
        pairs = [
            (x, y) for begin, end in _settled_spans(recorded)
            if (x := _mean_between(on_our_clock, begin, end)) is not None
            and (y := _mean_between(readings, begin, end)) is not None
        ]  # fmt: skip
        fitted = _fit_gain_line(pairs)
        if fitted is None:
            moved = len({round(value, 9) for _, value in readings}) > 1
            refused[channel.id] = "it does not follow the load" if moved else "it does not move"
            continue
        refresh_ns = refresh_period_ns(*_times_and_watts(readings), counter=False)
        window = None
        if channel.kind != "counter":
            window = filter_of(
                one_reading_per_refresh(*_times_and_watts(readings), refresh_ns), recorded.load, refresh_ns
            )
        calibrations[channel.id] = Calibration(
            *fitted,
            accuracy=accuracy,
            plateaus=len(pairs),
            delay_ns=window.lag_ns if window else None,
            filter=window.kind if window else None,
            window_ns=window.window_ns if window else None,
            meter=name,
            at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            channel=_channel_facts(channel),
        )
    return calibrations, refused


def meter_delay_ns(meter: Readings, load: Load, end_ns: int) -> int:
    """Return how late the meter's readings are, ns: where they follow the load best. Raises UsageError where nowhere.

    A log is laid over the load by the caller; here 5 s on either side are tried.
    """
    begin_ns = load[0][0] - int(_PLATEAU_S[0] * 1e9) if load else 0
    inside = [(t, watts) for t, watts in meter if begin_ns - _LATEST_S * 1e9 <= t <= end_ns + _LATEST_S * 1e9]
    if len(inside) < 2 * _FEWEST_PLATEAUS:
        raise UsageError("the meter has next to no readings in the time of the load: no overlap in time", _AGAIN)
    if len({watts for _, watts in inside}) < 2:
        raise UsageError(
            f"the meter shows {inside[0][1]:g} W all the time, with and without load",
            "is this device behind it? give a meter that shows tenths of a watt",
        )
    shifts = [round(n * _SHIFT_S * 1e9) for n in range(-round(_LATEST_S / _SHIFT_S), round(_LATEST_S / _SHIFT_S) + 1)]
    best, shift_ns = max((_load_correlation(inside, load, shift), -abs(shift), shift) for shift in shifts)[::2]
    if best < _FOLLOWS:
        raise UsageError(
            f"the meter does not follow the load (best correlation {best:.2f})",
            "is this device behind it, and does nothing else large switch on and off there?",
        )
    return shift_ns


def align_log_to_load(
    times_s: Sequence[float], watts: Sequence[float], unix: bool, load: Load, end_ns: int
) -> Readings:
    """Lay a meter's log over the load, on the monotonic clock: by its stamps, or where it follows the load best.

    times_s: seconds since 1970 where `unix`, else of the meter's own clock; then the load lies at the end of the log,
    which is read when the load is over. Raises UsageError without overlap.
    """
    pairs = [(t, w) for t, w in zip(times_s, watts, strict=True) if w == w]
    if unix:
        zero_s = time.time() - time.monotonic()
        return [(round((t - zero_s) * 1e9), w) for t, w in pairs]
    since_s = pairs[-1][0] - _OF_LOG * (end_ns - load[0][0]) / 1e9 if pairs else 0.0
    pairs = [(t, w) for t, w in pairs if t >= since_s]
    if not pairs or pairs[-1][0] - pairs[0][0] < (end_ns - load[0][0]) / 2e9:
        raise UsageError("the meter's log is shorter than half of the load: no overlap in time", _AGAIN)
    least, most = pairs[0][0] * 1e9 - end_ns, pairs[-1][0] * 1e9 - load[0][0]
    steps = range(round(least / 2e8), round(most / 2e8))
    thin = pairs[:: max(1, len(pairs) // 2000)]
    _, at = max(
        (_load_correlation([(round(t * 1e9) - n * 200_000_000, w) for t, w in thin], load, 0, end_ns), n) for n in steps
    )
    return [(round(t * 1e9) - at * 200_000_000, w) for t, w in pairs]


def _load_correlation(readings: Readings, load: Load, shift_ns: int, end_ns: int | None = None) -> float:
    """Correlation of power with the load, 0 where either does not move or too little lies over it."""
    moved = [(t - shift_ns, w) for t, w in readings]
    if end_ns is not None:
        moved = [(t, w) for t, w in moved if load[0][0] - 3_000_000_000 <= t <= end_ns]
        if not moved or moved[-1][0] - moved[0][0] < 0.8 * (end_ns - load[0][0]):
            return 0.0
    x = load_share([float(t) for t, _ in moved], load, 1e8)
    y = [w for _, w in moved]
    if len(y) < 2 or len(set(x)) < 2 or len(set(y)) < 2:
        return 0.0
    return statistics.correlation(x, y)


def _settled_spans(recorded: LoadRecording) -> list[tuple[int, int]]:
    """Return where power has settled, (begin, end) ns: each stretch of load or idle without its transient."""
    edges = [edge for pair in recorded.load for edge in pair]
    settled = int(_SETTLED_S * 1e9)
    first = edges[0] - int(_PLATEAU_S[0] * 1e9) if edges else 0
    bounds = [first, *edges, recorded.end_ns]
    spans = [(a + settled, b - round(_GUARD_S * 1e9)) for a, b in itertools.pairwise(bounds)]
    return [(a, b) for a, b in spans if b - a >= 1_000_000_000]


def _mean_between(readings: Readings, begin_ns: int, end_ns: int) -> float | None:
    inside = [watts for t, watts in readings if begin_ns <= t <= end_ns]
    return statistics.fmean(inside) if inside else None


def _fit_gain_line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float, float, float] | None:
    """(gain, its half, mean shown, mean at the meter, half of the meter's level) of shown = offset + gain x meter.

    None where fewer than four plateaus were seen, or the gain is not certain to be above 0.
    """
    n = len(pairs)
    if n < _FEWEST_PLATEAUS:
        return None
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    if spread == 0:
        return None
    slope, intercept = statistics.linear_regression(x, y)
    variance = sum((b - intercept - slope * a) ** 2 for a, b in pairs) / (n - 2)
    t = _T[max(freedom for freedom in _T if freedom <= n - 2)]
    half = t * math.sqrt(variance / spread)
    if slope <= half:
        return None
    return slope, half, statistics.fmean(y), statistics.fmean(x), t * math.sqrt(variance / n) / slope


def _times_and_watts(readings: Readings) -> tuple[list[int], list[float]]:
    return [t for t, _ in readings], [watts for _, watts in readings]


def save_calibrations(root: Path, calibrations: Mapping[str, Calibration]) -> Path:
    """Keep calibrations for this device, beside those of other channels; the file. Raises OSError, RuntimeError."""
    path = _calibration_file(_device_facts(root))
    merged = {**load_calibrations(root), **calibrations}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, {"format": FORMAT, "device": _device_facts(root),
                        "channels": {name: asdict(calibration) for name, calibration in merged.items()}})  # fmt: skip
    return path


def load_calibrations(root: Path) -> dict[str, Calibration]:
    """The calibrations kept for this device, by channel id; empty where there is none, or none that is sound."""
    return _read_calibrations(_device_facts(root))


def refused_calibrations(channels: Iterable[Channel], root: Path) -> dict[str, str]:
    """Return why a calibration is kept and not used, by channel id."""
    calibrations = load_calibrations(root)
    again = "calibrate again"
    refused = {
        channel.id: f"it was of {_facts_text(calibration.channel)}, "
        f"and this is {_facts_text(_channel_facts(channel))}: {again}"
        for channel in channels
        if (calibration := calibrations.get(channel.id)) is not None and calibration.channel != _channel_facts(channel)
    }
    older = _read_calibrations(_kind_of_device(root)).keys() - calibrations.keys()
    return {**dict.fromkeys(older, f"an older version kept it without noting for which device: {again}"), **refused}


def _read_calibrations(device: Mapping[str, Any]) -> dict[str, Calibration]:
    try:
        content = read_json_object(_calibration_file(device))
        if content["format"] != FORMAT:
            return {}
        return {name: Calibration(**facts) for name, facts in content["channels"].items()}
    except (KeyError, TypeError, AttributeError, RuntimeError):
        return {}


def with_calibrations(survey: Survey, root: Path) -> Survey:
    """The sensors with what a meter showed of their channels on this device."""
    calibrations = load_calibrations(root) if survey.sensors else {}
    if not calibrations:
        return survey

    def calibrated(channel: Channel) -> Channel:
        calibration = calibrations.get(channel.id)
        fits = calibration is not None and calibration.channel == _channel_facts(channel)
        return replace(channel, calibration=asdict(calibration)) if fits and calibration else channel

    sensors = {
        name: replace(sensor, channels=tuple(map(calibrated, sensor.channels)))
        for name, sensor in survey.sensors.items()
    }
    return replace(survey, sensors=sensors)


def _channel_facts(channel: Channel) -> dict[str, str | None]:
    """What a channel is beside its id."""
    return {"source": lasting_source(channel), "rail": channel.rail, "card": channel.card}


def _facts_text(facts: Mapping[str, str | None] | None) -> str:
    return ", ".join(filter(None, (facts or {}).values()))


def _device_facts(root: Path) -> dict[str, Any]:
    """What a gain belongs to: this board, not its kernel."""
    return {**_kind_of_device(root), "serial": _serial_hash(root)}


def _kind_of_device(root: Path) -> dict[str, Any]:
    facts = describe_device(root)
    return {key: facts[key] for key in ("board", "compatible", "cpu", "machine")}


def _serial_hash(root: Path) -> str | None:
    """What tells this device from others of its kind: of the board, else of the installed system."""
    texts = (read_line_or_empty(root / path).strip("\0 ") for path in _SERIALS)
    serial = next((text for text in texts if text.strip("0")), None)
    return None if serial is None else hashlib.sha256(serial.encode()).hexdigest()[:16]


def _calibration_file(device: Mapping[str, Any]) -> Path:
    """Return the file of a device below XDG_DATA_HOME; RuntimeError without a home."""
    key = hashlib.sha256(json.dumps(device, sort_keys=True).encode()).hexdigest()[:16]
    return user_data() / "calibration" / f"{key}.json"
