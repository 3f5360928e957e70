"""Sensors that err as real ones do, the moments at which they are read, and what their drivers say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.signal import lfilter  # type: ignore[import-untyped]

from benchmarks.hostile.plant import REST_S, Plant, Timeline, first_order, logarithmic, warmed
from stepscope.arrays import Floats

Register = tuple[Floats, Floats]  # when it changes, s, and what it shows from then on
Model = Callable[[Timeline, Floats, np.random.Generator], Register]
GOLDEN = 0.6180339887498949
LEAST_S = 1e-4  # from one read to the next


@dataclass(frozen=True)
class Sensor:
    """A sensor: `model` from power to what its register shows; `says`: what its driver states, over `CHANNELS`."""

    title: str
    model: Model
    channel: str
    says: dict[str, Any] = field(default_factory=dict)
    quantum: float = 0.0
    noise: float = 0.3  # of a conversion, in steps of the converter


@dataclass(frozen=True)
class Faults:
    """Errors of reading and of the sensor as a whole."""

    every_s: float = 0.01
    dither: bool = True
    latency_s: float = 0.0005
    freezes_s: tuple[float, ...] = ()  # lengths; they begin anywhere
    lost: float = 0.0
    repeated: float = 0.0
    stamp_jitter_s: float = 0.0
    stamp_late_s: float = 0.0
    skew: float = 0.0
    gain: float = 1.0
    offset_w: float = 0.0
    second: float | None = None  # gain of another meter on the same rail
    late_more_s: float = 0.0  # how much later its register changes at the end of the run than at its begin
    warming: float = 0.0  # growth of the gain as it gets warm
    unread: tuple[float, float] | None = None  # from this share of the run to that one nothing is read
    changes_alone: bool = False  # a reading is kept only where it differs from the last one
    starved: float = 0.0  # share of reads that are lost while the operator that takes longest runs
    rounded_s: float = 0.0  # stamps are whole multiples of this
    ties: float = 0.0  # share of rows that have the stamp of the row before
    swapped: float = 0.0  # share of rows that come one place too early
    wraps_j: float = 0.0  # a counter begins anew after so much
    resets: bool = False  # a counter begins at 0 in mid-run


@dataclass(frozen=True)
class Readings:
    """Rows of a sample file: stamps around each read, and the value (NaN: not read)."""

    t0_s: Floats
    t1_s: Floats
    values: Floats


def ticks(
    span: Floats, every_s: float, rng: np.random.Generator, error: float = 0.004, jitter_s: float = 0.0
) -> Floats:
    """Moments of a clock of its own over the span, s."""
    every_s *= 1 + error * rng.uniform(-1, 1)
    t_s = np.arange(span[0] + rng.uniform(0, every_s), span[1], every_s)
    return np.sort(t_s + jitter_s * rng.standard_normal(len(t_s)))


def spot(width_s: float = 0.0011, every_s: float = 0.0066) -> Model:
    """One conversion, then a pause."""

    def model(power: Timeline, span: Floats, rng: np.random.Generator) -> Register:
        t_s = ticks(span, every_s, rng)
        return t_s, power.mean(t_s, width_s)

    return model


def block(width_s: float, every_s: float, delay_s: float = 0.0, exact: bool = False) -> Model:
    """The mean over a window, shown at each tick of its clock, and so much later; exact: the clock has no error."""

    def model(power: Timeline, span: Floats, rng: np.random.Generator) -> Register:
        t_s = ticks(span, every_s, rng, *((0.0, 0.0) if exact else (0.004, every_s * 1e-3)))
        return t_s + delay_s, power.mean(t_s, width_s)

    return model


def running(conversions: int, every_s: float = 0.0066, width_s: float = 0.0011) -> Model:
    """A register that approaches each conversion by a share."""

    def model(power: Timeline, span: Floats, rng: np.random.Generator) -> Register:
        t_s = ticks(span, every_s, rng)
        x = power.mean(t_s, width_s)
        share = 1 / conversions
        shown, _ = lfilter([share], [1, share - 1], x, zi=[x[0] * (1 - share)])
        return t_s, np.asarray(shown)

    return model


def through(kernel: Callable[[Floats], Floats], then: Model) -> Model:
    """An analog filter before a converter."""
    return lambda power, span, rng: then(power.filtered(kernel, 1e-4), span, rng)


def counter(every_s: float) -> Model:
    """Energy since boot at each tick of its clock, J."""

    def model(power: Timeline, span: Floats, rng: np.random.Generator) -> Register:
        t_s = ticks(span, every_s, rng)
        return t_s, power(t_s) + rng.uniform(0, 1e4)

    return model


def _power(sensor: str, scope: str, rail: str, parent: str = "board") -> dict[str, Any]:
    return {"id": f"{scope.replace(':', '.')}.power", "sensor": sensor, "quantity": "power", "unit": "W",
            "kind": "gauge", "scope": scope, "parent_scope": parent, "rail": rail, "source": "plant"}  # fmt: skip


ORIN = {"board": "NVIDIA Orin Nano Developer Kit", "compatible": "nvidia,p3767-0005 nvidia,tegra234"}
TX2 = {"board": "quill", "compatible": "nvidia,p2597-0000+p3310-1000 nvidia,quill nvidia,tegra186"}
# As the drivers of these sensors state themselves; and the board that they are on.
CHANNELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ina3221": ({**_power("ina3221", "rail:VDD_IN", "VDD_IN"), "refresh_ns": 7_000_000, "step_size": 0.04,
                 "filter": "none: one conversion a round"}, ORIN),
    "ina3221 average": ({**_power("ina3221", "rail:VDD_IN", "VDD_IN"), "refresh_ns": 6_600_000, "step_size": 0.038,
                         "filter": "running average of 64 conversions", "window_ns": 422_400_000}, TX2),
    "ina226": ({**_power("hwmon_power", "rail:ina226-1-0040/power1", "ina226-1-0040/power1"),
                "refresh_ns": 10_000_000, "filter": "block average", "window_ns": 10_000_000}, {"board": "a board"}),
    "rapl": ({**_power("rapl", "rapl:package-0", "package-0", "system"), "id": "rapl.package-0.energy",
              "quantity": "energy", "unit": "J", "kind": "counter", "refresh_ns": 1_000_000, "step_size": 6.1035e-05,
              "counter_range": 262143.32885, "most_per_s": 260.0}, {"board": "a laptop"}),
    "energy counter": ({**_power("hwmon_power", "gpu:0000:03:00.0", "card", "system"), "id": "gpu.card.energy",
                        "quantity": "energy", "unit": "J", "kind": "counter", "most_per_s": 1000.0},
                       {"board": "a computer"}),
    "battery": ({**_power("battery", "battery:BAT0", "BAT0", "system"), "step_size": 0.01}, {"board": "a laptop"}),
    "nvml": ({**_power("nvml", "gpu:0", "NVIDIA GPU", "system"), "refresh_ns": 20_000_000, "step_size": 0.001},
             {"board": "a computer", "accelerators": [{"name": "NVIDIA GPU", "index": 0}]}),
}  # fmt: skip
UNKNOWN = {"refresh_ns": None, "filter": None, "window_ns": None, "step_size": None}

SPOT = Sensor("spot gauge 6.6 ms", spot(), "ina3221", quantum=0.04)
BLOCK = Sensor("10 ms mean, stated", block(0.01, 0.01), "ina226", quantum=0.04)
MISSTATED = Sensor("10 ms mean, stated spot", block(0.01, 0.01), "ina3221", quantum=0.04)
UNSTATED = replace(BLOCK, title="10 ms mean, nothing stated", says=UNKNOWN)
REGISTER = Sensor("TX2 register of 64", running(64), "ina3221 average", quantum=0.038)
WRONG_REGISTER = replace(REGISTER, title="TX2 register of 76, stated 64", model=running(76))
RAPL = Sensor("RAPL 1 ms", counter(0.001), "rapl", quantum=6.1035e-05, noise=0.0)
COUNTER = Sensor("counter in 100 ms steps", counter(0.1), "energy counter", quantum=1e-3, noise=0.0)
GPU_100 = Sensor("GPU 100 of 100 ms, stated 20", block(0.1, 0.1, 0.003), "nvml", quantum=0.001)
GPU_25 = Sensor("GPU 25 of 100 ms, stated 20", block(0.025, 0.1, 0.003), "nvml", quantum=0.001)
GPU_100_KNOWN = replace(GPU_100, title="GPU 100 of 100 ms, stated 100", says={"refresh_ns": 100_000_000})
GPU_25_KNOWN = replace(GPU_25, title="GPU 25 of 100 ms, stated 100", says={"refresh_ns": 100_000_000})
LOGARITHMIC = Sensor(
    "GPU 15 ms, logarithmic over 0.3 s", through(logarithmic(0.3, 0.01), block(0.001, 0.015)), "nvml", UNKNOWN, 0.001
)
BATTERY = Sensor("battery gauge of 30 s", block(30.0, 30.0), "battery", quantum=0.01)
COARSE = replace(MISSTATED, title="10 ms mean in steps of 0.5 W", quantum=0.5, says={"step_size": 0.5}, noise=0.0)
COARSE_UNSTATED = replace(COARSE, says=UNKNOWN)
COARSE_REGISTER = replace(REGISTER, title="TX2 register in steps of 0.5 W", quantum=0.5, noise=0.0)
GPU_20 = Sensor("GPU 20 of 20 ms", block(0.02, 0.02, 0.003), "nvml", quantum=0.001)
GPU_25_25 = Sensor("GPU 25 of 25 ms, stated 20", block(0.025, 0.025, 0.003), "nvml", quantum=0.001)
FIRST_ORDER = Sensor("spot behind 20 ms, not stated", through(first_order(0.02), spot()), "ina3221", quantum=0.04)


def reads(plant: Plant, faults: Faults, rng: np.random.Generator) -> Floats:
    """Moments of the reads: a grid with golden-ratio dither over a whole period, a little late, 1 % late by ms."""
    begin, end = plant.edges[0][0, 0] - REST_S, plant.end_s + REST_S
    number = np.arange(int((end - begin) / faults.every_s))
    t_s = begin + number * faults.every_s
    if faults.dither:
        t_s = t_s + ((number * GOLDEN) % 1.0 - 0.5) * faults.every_s
    late = rng.exponential(6e-5, len(number)) + (rng.random(len(number)) < 0.01) * rng.uniform(0.001, 0.01, len(number))
    return _rising(t_s + late)


def _rising(t_s: Floats) -> Floats:
    """Moments in order: a read that comes late holds up the next."""
    least = np.arange(len(t_s)) * LEAST_S
    rising: Floats = np.maximum.accumulate(t_s - least) + least
    return rising


def _wanted(faults: Faults, now_s: Floats, values: Floats) -> Any:
    """Rows that are in the file at all."""
    wanted = np.ones(len(values), dtype=bool)
    if faults.changes_alone:
        wanted[1:] = values[1:] != values[:-1]
    if faults.unread is not None:
        begin, end = (now_s[0] + share * (now_s[-1] - now_s[0]) for share in faults.unread)
        wanted &= (now_s < begin) | (now_s > end)
    return wanted


def _in_longest(plant: Plant, now_s: Floats) -> Any:
    """Moments at which the segment that takes longest runs."""
    edges = plant.edges[plant.lane]
    segment = int(np.argmax(plant.step.lanes[plant.lane].length_ns))
    row = np.searchsorted(edges[:, segment], now_s) - 1
    return (row >= 0) & (now_s < edges[row, segment + 1])


def _disordered(faults: Faults, stamps: Floats, rng: np.random.Generator) -> Floats:
    """Stamps of which some are those of the row before, and some those of the row after."""
    if faults.rounded_s:
        stamps = np.rint(stamps / faults.rounded_s) * faults.rounded_s
    if faults.ties:
        rows = 1 + np.flatnonzero(rng.random(len(stamps) - 1) < faults.ties)
        stamps[rows] = stamps[rows - 1]
    if faults.swapped:
        rows = 1 + np.flatnonzero(rng.random(len(stamps) - 1) < faults.swapped)
        stamps[rows], stamps[rows - 1] = stamps[rows - 1], stamps[rows]
    return stamps


def read(plant: Plant, sensor: Sensor, faults: Faults, seed: int) -> list[tuple[dict[str, Any], Readings]]:
    """Channels and rows of the sensor, and of a second meter on the rail where there is one."""
    rng = np.random.default_rng([seed, 78])
    now_s = reads(plant, faults, rng)
    span = np.array([plant.power.t_s[0] + 1.0, plant.power.t_s[-1]])
    changed_s, shown = sensor.model(plant.power, span, rng)
    counts = CHANNELS[sensor.channel][0]["kind"] == "counter"
    shown = shown + sensor.noise * sensor.quantum * rng.standard_normal(len(shown))
    shown = shown * faults.gain + (faults.offset_w * (changed_s - span[0]) if counts else faults.offset_w)
    if faults.warming:
        shown = shown * warmed(changed_s, plant.end_s, faults.warming)
    if faults.resets:
        shown = shown - np.where(np.arange(len(shown)) >= len(shown) // 2, shown[len(shown) // 2], 0.0)
    if faults.wraps_j:
        shown = shown % faults.wraps_j
    changed_s = changed_s + faults.late_more_s * (changed_s - span[0]) / (span[1] - span[0])
    for length_s in faults.freezes_s:
        begin = rng.uniform(now_s[0] + REST_S, now_s[-1] - REST_S - length_s)
        stuck = (changed_s > begin) & (changed_s < begin + length_s)
        shown = np.where(stuck, shown[np.searchsorted(changed_s, begin) - 1], shown)
    if sensor.quantum:
        shown = (np.floor if counts else np.round)(shown / sensor.quantum) * sensor.quantum
    place = np.maximum(np.searchsorted(changed_s, now_s - faults.latency_s, side="right") - 1, 0)
    values = shown[place]
    for row in np.flatnonzero(rng.random(len(values)) < faults.repeated):
        values[row] = values[max(row - 1, 0)]
    stamps = now_s + faults.stamp_jitter_s * rng.standard_normal(len(now_s)) + faults.stamp_late_s
    stamps = _rising(now_s[0] + (stamps - now_s[0]) * (1 + faults.skew))
    gone = rng.random(len(values)) < faults.lost
    values = np.where(gone, np.nan, values)
    there = ~(gone & (rng.random(len(values)) < 0.5))  # one half are rows without a value, the other no rows
    there &= _wanted(faults, now_s, values)
    if faults.starved:
        there &= ~((rng.random(len(there)) < faults.starved) & _in_longest(plant, now_s))
    stamps = _disordered(faults, stamps, rng)
    cost_s = 2e-5
    rows = Readings(stamps[there] - cost_s / 2, stamps[there] + cost_s / 2, values[there])
    channel = {**CHANNELS[sensor.channel][0], "read_cost_ns": int(cost_s * 1e9), "measured": [], **sensor.says}
    found = [(channel, rows)]
    if faults.second is not None:
        other = {**CHANNELS["ina226"][0], "sensor": "hwmon_power", "id": "second.power", "scope": channel["scope"],
                 "rail": channel["rail"], "parent_scope": channel["parent_scope"]}  # fmt: skip
        t_s, watts = block(0.01, 0.01)(plant.power, span, rng)
        place = np.maximum(np.searchsorted(t_s, now_s - 0.001, side="right") - 1, 0)
        found.append((other, Readings(now_s - 1e-5, now_s + 1e-5, watts[place] * faults.second)))
    return found
