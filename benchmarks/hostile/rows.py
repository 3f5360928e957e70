"""The rows: which plant, behind which sensor, read how; and a grid of every sensor at many step lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from benchmarks.hostile import sensors
from benchmarks.hostile.plant import Law, Pace
from benchmarks.hostile.sensors import Faults, Sensor

STRUCTURES = ("lstm", "dispatch", "convolution-attention")  # taken in turns by the seed
STEADY, BY_KIND, PUNCTUAL = Pace(), Law(), Faults()  # 100 steps of 200 ms; W by kind alone; reads each 10 ms
GPU = Law(idle_w=60.0, watts=(60.0, 300.0))


@dataclass(frozen=True)
class Row:
    """One row of the table; `bar`: the most error by kind that is allowed where the row is a matched one."""

    title: str
    sensor: Sensor
    pace: Pace = STEADY
    law: Law = BY_KIND
    faults: Faults = PUNCTUAL
    structures: tuple[str, ...] = STRUCTURES
    gpu: bool = False
    bar: float | None = None
    bar_if_called: bool = False  # the bar counts only in runs that call something within 10 %
    group: str = field(default="", compare=False)


S, B, M, TX2, RAPL = sensors.SPOT, sensors.BLOCK, sensors.MISSTATED, sensors.REGISTER, sensors.RAPL
AT_40, AT_10 = Pace(0.04), Pace(0.01)
AT_2 = Pace(0.002, 1000, stall_s=0.002, between_s=5e-5)
FEW, LSTM, SMALL = ("few",), ("lstm",), ("small",)


def _matched() -> Iterator[Row]:
    yield Row("S, 200 ms", S)
    yield Row("B, 200 ms", B)
    yield Row("M, 200 ms", M)
    yield Row("RAPL, 200 ms", RAPL)
    yield Row("TX2 register, 200 ms", TX2)
    yield Row("TX2 register, 200 ms, read each 5 ms", TX2, faults=Faults(every_s=0.005))
    yield Row("counter in 100 ms steps, 170 ms x 200", sensors.COUNTER, Pace(0.17, 200))
    yield Row("S, 40 ms", S, AT_40)
    # With 51 and 133 kinds even a fit that is told the sensor, its clock and its noise stays 5 to 8 % off.
    yield Row("B, 40 ms", B, AT_40)
    yield Row("B, 40 ms, LSTM", B, AT_40, structures=LSTM, bar=0.04)
    yield Row("M, 40 ms", M, AT_40)
    yield Row("M, 40 ms, LSTM", M, AT_40, structures=LSTM, bar=0.04)
    yield Row("10 ms mean, nothing stated, 40 ms", sensors.UNSTATED, AT_40)
    yield Row("M, 40 ms, read each 5 ms", M, AT_40, faults=Faults(every_s=0.005))
    yield Row("M, 40 ms x 500", M, Pace(0.04, 500), structures=("lstm", "dispatch"))
    yield Row("RAPL, 40 ms", RAPL, AT_40)
    yield Row("RAPL, 40 ms, LSTM", RAPL, AT_40, structures=LSTM, bar=0.025)
    yield Row("TX2 register, 40 ms x 300", TX2, Pace(0.04, 300), structures=LSTM)
    yield Row("S, 10 ms", S, AT_10)
    yield Row("M, 10 ms", M, AT_10)
    yield Row("RAPL, 10 ms", RAPL, AT_10)
    yield Row("S, 2 ms x 1000", S, AT_2, structures=FEW)
    yield Row("RAPL, 2 ms x 1000", RAPL, AT_2, structures=FEW)
    behind = {"S": S, "M": M, "RAPL": RAPL, "TX2 register": TX2, "spot behind 20 ms": sensors.FIRST_ORDER}
    for name, sensor in behind.items():
        yield Row(f"{name}, adaptive, 32 of 300 profiled", sensor, Pace(0.2, 300, profiled=32))
        yield Row(f"{name}, adaptive, 40 ms, 32 of 500 profiled", sensor, Pace(0.04, 500, profiled=32))
    yield Row("RAPL, adaptive, 100 ms, 12 of 400 profiled", RAPL, Pace(0.1, 400, profiled=12))


def _laws() -> Iterator[Row]:
    yield Row("leakage +15 % over the run", M, law=Law(leakage=0.15))
    yield Row("4x W by size, same kind", M, law=Law(by_size=4.0))
    yield Row("4x W by size, RAPL", RAPL, law=Law(by_size=4.0))
    yield Row("4x W by size, TX2 register", TX2, law=Law(by_size=4.0))
    yield Row("30 % spread by place", M, law=Law(by_place=0.3))
    yield Row("W of a call +-20 % at random", M, law=Law(by_call=0.2))
    yield Row("two clocks, each 0.5 to 3 s", M, law=Law(clock_s=(0.5, 3.0)))
    yield Row("one switch of the clock", M, law=Law(switch=True))
    yield Row("background 2.5 W, 1 to 4 s", M, law=Law(background_w=2.5))
    yield Row("background 2.5 W, 20 to 150 ms", M, law=Law(background_w=2.5, background_s=(0.02, 0.15)))
    yield Row("every second layer 3x W", M, law=Law(by_module=3.0))
    for ramp in (0.002, 0.005, 0.02):
        yield Row(f"ramp {ramp * 1e3:g} ms, M", M, law=Law(ramp_s=ramp))
    yield Row("ramp 5 ms, S", S, law=Law(ramp_s=0.005))
    yield Row("ramp 5 ms, RAPL", RAPL, law=Law(ramp_s=0.005))
    yield Row("ramp 5 ms, TX2 register", TX2, law=Law(ramp_s=0.005))
    yield Row("each op rises anew from 1/4 W with 5 ms, M", M, law=Law(rise_s=0.005))
    yield Row("each op rises anew from 1/4 W with 5 ms, RAPL", RAPL, law=Law(rise_s=0.005))


def _faults() -> Iterator[Row]:
    yield Row("stamps 30 ms late", M, faults=Faults(stamp_late_s=0.03))
    yield Row("clock skew 200 ppm", M, faults=Faults(skew=2e-4))
    yield Row("steps of 1 W", replace(M, quantum=1.0, says={"step_size": 1.0}, noise=0.0))
    yield Row("gain +3 %", M, faults=Faults(gain=1.03))
    yield Row("offset 0.3 W", M, faults=Faults(offset_w=0.3))
    yield Row("second meter, 3 % more", M, faults=Faults(second=1.03))
    yield Row("one freeze of 3 s", M, faults=Faults(freezes_s=(3.0,)))
    yield Row("two freezes of 3 s", M, faults=Faults(freezes_s=(3.0, 3.0)))
    wild = Faults(lost=0.25, repeated=0.2, stamp_jitter_s=0.003)
    for name, sensor in (("M", M), ("S", S), ("B", B)):
        yield Row(f"25 % lost, 20 % repeated, stamps 3 ms off, {name}", sensor, faults=wild)
    yield Row("TX2 register of 76, stated 64", sensors.WRONG_REGISTER)
    yield Row("spot behind 20 ms that nobody states", sensors.FIRST_ORDER)
    locked = Pace(0.2, call_jitter=0.0, step_jitter=0.0, stalls=0.0, between_s=0.0)
    exact = replace(M, title="10 ms mean, its clock locked", model=sensors.block(0.01, 0.01, exact=True))
    yield Row("locked to the sensor's clock, reads dithered", exact, locked)
    yield Row("locked to the sensor's clock, reads on the grid", exact, locked, faults=Faults(dither=False))
    drifts = replace(exact, model=sensors.block(0.01, 0.01 * (1 + 1e-5), exact=True))
    yield Row("the clock 10 ppm off, reads on the grid", drifts, locked, faults=Faults(dither=False))


def _gpus() -> Iterator[Row]:
    for step_ms in (49.8, 80.0, 99.6, 110.0, 170.0, 250.0):
        pace = Pace(step_ms / 1e3, 200)
        matched = {"gpu": True, "law": GPU, "bar": 0.015, "bar_if_called": True}
        yield Row(f"GPU 100 of 100 ms, {step_ms:g} ms x 200", sensors.GPU_100, pace, **matched)  # type: ignore[arg-type]
        yield Row(f"GPU 25 of 100 ms, {step_ms:g} ms x 200", sensors.GPU_25, pace, **matched)  # type: ignore[arg-type]
    pace = Pace(0.17, 200)
    yield Row("GPU 100 of 100 ms, refresh stated, 170 ms x 200", sensors.GPU_100_KNOWN, pace, GPU, gpu=True)
    yield Row("GPU 25 of 100 ms, refresh stated, 170 ms x 200", sensors.GPU_25_KNOWN, pace, GPU, gpu=True)
    yield Row("GPU 100 of 100 ms, gain -5 %, ramp 5 ms", sensors.GPU_100, pace, replace(GPU, ramp_s=0.005),
              Faults(gain=0.95), gpu=True)  # fmt: skip
    yield Row("GPU 15 ms, logarithmic over 0.3 s, 170 ms x 200", sensors.LOGARITHMIC, pace, GPU, gpu=True)


def _plain() -> Iterator[Row]:
    """A step of 40 operators of 8 kinds, where no other is named: what is unusual is the run, or how it was read."""
    yield Row("600 kinds of operators, M", M, structures=("600 operators",))
    yield Row("600 kinds of operators, RAPL", RAPL, structures=("600 operators",))
    yield Row("one operator of 97 %, M", M, structures=("one dominates",))
    yield Row("one operator of 97 %, RAPL, 40 ms", RAPL, AT_40, structures=("one dominates",))
    yield Row("lengths of steps spread by 50 %", M, Pace(0.2, spread=0.5), structures=SMALL)
    yield Row("lengths of steps spread by 50 %, RAPL, 40 ms x 200", RAPL, Pace(0.04, 200, spread=0.5), structures=SMALL)
    yield Row("3 operators, GPU 100 of 100 ms, 80 ms", sensors.GPU_100, Pace(0.08, 200), GPU,
              structures=("three operators",), gpu=True)  # fmt: skip
    yield Row("steps of 0.5 W", sensors.COARSE, structures=SMALL)
    yield Row("TX2 register in steps of 0.5 W", sensors.COARSE_REGISTER, structures=SMALL)
    yield Row("battery gauge of 30 s, 200 ms x 900", sensors.BATTERY, Pace(0.2, 900), structures=SMALL)
    yield Row("10 steps of 200 ms", M, Pace(0.2, 10), structures=SMALL)
    yield Row("12 steps of 5 s, RAPL", RAPL, Pace(5.0, 12), structures=SMALL)
    evaluates = Pace(0.2, pause_every=10, pause_s=0.6)
    yield Row("0.6 s of 7 W more each 10 steps", M, evaluates, Law(pause_w=7.0), structures=SMALL)
    yield Row("no power at all in the second half", M, law=Law(off=(0.5, 2.0)), structures=SMALL)
    yield Row("no power at all in the middle half", M, law=Law(off=(0.25, 0.75)), structures=SMALL)
    yield Row("W of a step +-20 %", M, law=Law(by_step=0.2), structures=SMALL)
    yield Row("W of each kind +-20 % by step", M, law=Law(by_step_and_kind=0.2), structures=SMALL)
    yield Row("drift of +20 %", M, law=Law(drift=0.2), structures=SMALL)
    yield Row("two clocks, each 0.05 to 0.4 s", M, law=Law(clock_s=(0.05, 0.4)), structures=SMALL)
    yield Row("background 5 W, 1 to 4 s, RAPL", RAPL, law=Law(background_w=5.0), structures=SMALL)
    for title, sensor, faults in (
        ("30 % of stamps are those of the read before, M", M, Faults(ties=0.3)),
        ("30 % of stamps are those of the read before, RAPL", RAPL, Faults(ties=0.3)),
        ("10 % of rows go back in time", M, Faults(swapped=0.1)),
        ("stamps in whole 10 ms", M, Faults(rounded_s=0.01)),
        ("stamps in whole s", M, Faults(rounded_s=1.0)),
        ("20 ms later at the end", M, Faults(late_more_s=0.02)),
        ("clock skew 0.1 %", M, Faults(skew=1e-3)),
        ("gain grows by 5 %", M, Faults(warming=0.05)),
        ("changes alone are logged", M, Faults(changes_alone=True)),
        ("nothing read in the second half", M, Faults(unread=(0.5, 2.0))),
        ("90 % of reads lost in the longest operator", M, Faults(starved=0.9)),
        ("a counter that is reset, RAPL", RAPL, Faults(resets=True)),
        ("a counter that wraps each 50 J, RAPL", replace(RAPL, says={"counter_range": 50.0}), Faults(wraps_j=50.0)),
    ):
        yield Row(title, sensor, faults=faults, structures=SMALL)


GROUPS = {"matched": _matched, "laws": _laws, "faults": _faults, "gpu": _gpus, "plain": _plain}
ROWS = tuple(replace(row, group=group) for group, rows in GROUPS.items() for row in rows())


# A cell of the grid: some 10 s behind a sensor, with steps of a ratio of its refresh, and of lengths of no ratio.
GRID_SENSORS: tuple[tuple[Sensor, float], ...] = (
    (sensors.SPOT, 0.0066),
    (sensors.BLOCK, 0.01),
    (sensors.MISSTATED, 0.01),
    (sensors.UNSTATED, 0.01),
    (sensors.REGISTER, 0.0066),
    (sensors.WRONG_REGISTER, 0.0066),
    (sensors.RAPL, 0.01),
    (sensors.COUNTER, 0.1),
    (sensors.GPU_100, 0.1),
    (sensors.GPU_25, 0.1),
    (sensors.GPU_100_KNOWN, 0.1),
    (sensors.GPU_25_KNOWN, 0.1),
    (sensors.LOGARITHMIC, 0.015),
    (sensors.FIRST_ORDER, 0.0066),
)
RATIOS = (1 / 2, 2 / 3, 3 / 4, 0.95, 0.98, 1.0, 1.02, 1.1, 5 / 4, 4 / 3, 3 / 2, 1.618, 2.0, 5 / 2, 3.0)
LENGTHS = (0.01, 0.02, 0.04, 0.05, 0.06, 0.08, 0.1, 0.13, 0.17, 0.2, 0.25)
CELL_S = 9.0


def cells(count: int) -> Iterator[tuple[Row, int]]:
    """So many cells with a seed each: ratios of the refresh first, then other lengths, and again with other seeds."""
    found = 0
    for seed in range(count):
        for place in range(max(len(RATIOS), len(LENGTHS))):
            for sensor, refresh_s in GRID_SENSORS:
                ratio = refresh_s * (RATIOS[place] if refresh_s >= 0.05 else 3 * RATIOS[place])
                lengths = [ratio] if place >= len(LENGTHS) else [ratio, LENGTHS[place]]
                for length_s in lengths:
                    if found == count:
                        return
                    found += 1
                    yield _cell(sensor, length_s), seed * 1000 + place


def _cell(sensor: Sensor, step_s: float) -> Row:
    on_gpu = sensor.channel == "nvml"
    pace = Pace(step_s, max(int(CELL_S / step_s), 30), step_jitter=0.004, stalls=0.0)
    law = GPU if on_gpu else Law()
    return Row(f"{sensor.title}, {step_s * 1e3:.4g} ms", sensor, pace, law, structures=("small",), gpu=on_gpu)
