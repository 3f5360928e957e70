"""Boards that can be simulated, with their power by component, options, and faults. Data alone.

Watts of a board that computes follow from what its chip does (see `chip`). Without a chip, or with `computed` off, they
are those of a training on the CPU: idle power of the component, and its share of the power above idle.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from stepscope.errors import UnknownName, UsageError
from stepscope.request import parse_amount
from stepscope.simulate.chip import AGX_XAVIER, ORIN_NANO, RASPBERRY_PI_5, TX2, Chip, ChipScaling


@dataclass(frozen=True)
class Component:
    """One consumer: power at idle, W, and its mean share of the power above idle."""

    idle_w: float
    share: float


@dataclass(frozen=True)
class Board:
    """`rails`: the components behind each rail that a sensor shows; power above idle is `scale` times 1 to 8.2 W."""

    name: str
    components: Mapping[str, Component]
    rails: Mapping[str, tuple[str, ...]]
    scale: float
    tick_ns: int  # the board looks at the training process's marks at least every second one, whatever its sensors do
    chip: Chip | None = None  # None: it has no activity of its own, the machine's is shown


_TX2 = {
    "gpu": Component(0.15, 0.02),
    "soc": Component(0.45, 0.08),
    "wifi": Component(0.08, 0.0),
    "cpu": Component(0.30, 0.50),
    "ddr": Component(0.35, 0.20),
    "rest": Component(0.70, 0.20),
}
_XAVIER = {
    "gpu": Component(0.6, 0.3),
    "cpu": Component(0.5, 0.4),
    "soc": Component(1.0, 0.1),
    "cv": Component(0.1, 0.0),
    "ddr": Component(0.6, 0.1),
    "rest": Component(1.4, 0.1),
}
_ORIN = {"compute": Component(0.60, 0.60), "soc": Component(1.00, 0.18), "rest": Component(0.70, 0.22)}
# Idle power of the rails as one board stated it, but for VDD_CORE and the two of the memory, whose idle is assumed.
_PI_5 = {
    "VDD_CORE": Component(0.80, 0.75),
    "DDR_VDD2": Component(0.01, 0.12),
    "DDR_VDDQ": Component(0.0, 0.03),
    "0V8_SW": Component(0.26, 0.04),
    "0V8_AON": Component(0.005, 0.0),
    "1V1_SYS": Component(0.19, 0.03),
    "1V8_SYS": Component(0.29, 0.03),
    "3V3_SYS": Component(0.21, 0.0),
    "3V7_WL_SW": Component(0.05, 0.0),
    "3V3_DAC": Component(0.001, 0.0),
    "3V3_ADC": Component(0.001, 0.0),
    "HDMI": Component(0.07, 0.0),
}
_LAPTOP = {
    "core": Component(0.8, 0.66),
    "uncore": Component(0.1, 0.02),
    "package": Component(1.6, 0.12),
    "dram": Component(0.6, 0.12),
    "platform": Component(2.5, 0.08),
}

BOARDS: dict[str, Board] = {
    board.name: board
    for board in (
        Board(
            "jetson-tx2",
            _TX2,
            {
                "VDD_SYS_GPU": ("gpu",),
                "VDD_SYS_SOC": ("soc",),
                "VDD_4V0_WIFI": ("wifi",),
                "VDD_IN": tuple(_TX2),
                "VDD_SYS_CPU": ("cpu",),
                "VDD_SYS_DDR": ("ddr",),
            },
            scale=1.0,
            tick_ns=2_200_000,
            chip=TX2,
        ),
        Board(
            "jetson-agx-xavier",
            _XAVIER,
            {"GPU": ("gpu",), "CPU": ("cpu",), "SOC": ("soc",), "CV": ("cv",), "VDDRQ": ("ddr",), "SYS5V": ("rest",)},
            scale=2.0,
            tick_ns=2_200_000,
            chip=AGX_XAVIER,
        ),
        Board(
            "jetson-orin-nano",
            _ORIN,
            {"VDD_IN": tuple(_ORIN), "VDD_CPU_GPU_CV": ("compute",), "VDD_SOC": ("soc",)},
            scale=1.2,
            tick_ns=2_200_000,
            chip=ORIN_NANO,
        ),
        Board(
            "raspberry-pi-5",
            _PI_5,
            {name: (name,) for name in _PI_5},
            scale=1.0,
            tick_ns=2_200_000,
            chip=RASPBERRY_PI_5,
        ),
        Board(
            "laptop-rapl",
            _LAPTOP,
            {
                "package-0": ("core", "uncore", "package"),
                "core": ("core",),
                "uncore": ("uncore",),
                "dram": ("dram",),
                "psys": tuple(_LAPTOP),
            },
            scale=2.5,
            tick_ns=1_000_000,
        ),
        Board("laptop-battery", _LAPTOP, {"BAT0": tuple(_LAPTOP)}, scale=2.5, tick_ns=20_000_000),
        Board(
            "gpu-counter",
            {"card": Component(18.0, 1.0)},
            {"card": ("card",)},
            scale=12.0,
            tick_ns=5_000_000,
        ),
    )
}


FaultKind = Literal["stuck", "lost", "empty", "garbage", "reset", "renumbered", "plugged"]


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong `at_s` after the board is ready, for `for_s` (None: for good).

    stuck: files keep their content; lost: they are gone (a sysfs file that is deleted answers no more, here it is
    emptied first); empty, garbage: their content; reset: counters start at 0; renumbered: their folder's number
    grows by 3 for good, as after a driver was loaded again; plugged: the battery is charged.
    """

    kind: FaultKind
    at_s: float
    for_s: float | None = None
    files: str = "*"  # pattern of paths below the root


# What a text may say of a board after its name: the option, the unit of its amount, and the factor from that unit.
_SAID = {
    "average": ("average", "", 1),
    "conversion": ("conversion_ns", "s", 1e9),
    "refresh": ("refresh_ns", "s", 1e9),
    "gain": ("gain", "share", 1),
    "offset": ("offset_w", "W", 1),
    "repeated": ("repeated", "share", 1),
    "unread": ("unread", "share", 1),
    "peak": ("peak", "times", 1),
    "bandwidth": ("bandwidth", "times", 1),
    "launch": ("launch_ns", "s", 1e9),
    "cell": ("cell_kernels", "", 1),
    "spread": ("spread", "share", 1),
    "gpu-power": ("gpu_power", "times", 1),
    "memory-power": ("memory_power", "times", 1),
    "core-power": ("core_power", "times", 1),
    "ambient": ("ambient", "C", 1),
}
_NAMES = {option: said for said, (option, _, _) in _SAID.items()}
_COLDEST = -40.0  # around a board
_OF_A_CHIP = ("peak", "bandwidth", "launch", "cell", "spread", "gpu-power", "memory-power", "core-power", "ambient")


@dataclass(frozen=True)
class Options(ChipScaling):
    """Power model and sensors; spreads, noise and drift are relative, of the power above idle."""

    noise: float = 0.03  # from one execution to the next
    signature_spread: float = 0.08
    place_spread: float = 0.02
    drift: float = 0.05  # leakage that grows while the chip warms
    drift_tau_s: float = 60.0
    throttle_at_s: float | None = None
    throttle: float = 0.7  # of the power above idle, once throttled
    idle_wander: float = 0.0  # of the idle power, as where a display hangs on the rail
    latency_ns: int = 500_000  # the newest moment that files can tell of lies this far back
    clock_error: float = 0.004  # of the sensors' own clocks
    adc_noise: float = 0.3  # of a conversion, in steps of the converter
    samples: int | None = None  # conversions in the running average of an INA3221; None: as the board comes
    counter_range_uj: int | None = None  # where the energy counter wraps; None: as the board comes
    refresh_ns: int | None = None  # of counters and gauges; None: as the board comes
    average: int | None = None  # conversions that INA3221 registers really average; None: as the driver states
    conversion_ns: int | None = None  # that a conversion of an INA3221 really takes; None: as the driver states
    gain: float = 1.0  # of every power sensor
    offset_w: float = 0.0  # of every rail as its sensor shows it
    repeated: float = 0.0  # share of updates that do not arrive: the file shows the value before
    unread: float = 0.0  # share of updates that leave a file empty until the next
    computed: bool = True  # power follows from what the board's chip does; else it is drawn for each kind of module
    ambient: float = 30.0  # degrees Celsius; at its trip point the chip is throttled
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "faults" or (value is None and field.default is None):
                continue
            name = _NAMES.get(field.name, field.name)
            lowest = _COLDEST if field.name == "ambient" else 0
            number = isinstance(value, (int, float)) and math.isfinite(value)
            _refuse(not number, f"{name} must be a finite number, not {value!r}")
            _refuse(value < lowest, f"{name} must be {lowest:g} or more, not {value!r}")
        _refuse(self.samples is not None and self.samples not in SAMPLES, f"samples must be one of {SAMPLES}")
        _refuse(self.counter_range_uj is not None and self.counter_range_uj < 1_000_000, "a range below 1 J")
        _refuse(self.refresh_ns is not None and self.refresh_ns < 100_000, "a refresh below 0.1 ms")
        _refuse(self.drift_tau_s == 0, "a time constant of 0")
        _refuse(self.average is not None and self.average < 1, "an average of less than one conversion")
        _refuse(self.cell_kernels is not None and self.cell_kernels < 1, "a cell of no kernel")
        _refuse(self.conversion_ns is not None and self.conversion_ns < 100_000, "a conversion below 0.1 ms")
        _refuse(max(self.repeated, self.unread) >= 1, "a share of 1 or more, repeated or unread")
        _refuse(self.spread > 1, "a share above 1 as spread")
        _refuse(self.peak == 0 or self.bandwidth == 0, "a chip that computes nothing")
        _refuse(self.ambient > 90, "an ambient above 90 degrees")
        for fault in self.faults:
            _refuse(not isinstance(fault.at_s, (int, float)) or fault.at_s < 0, "at_s of a fault is seconds, 0 or more")
            if fault.kind not in get_args(FaultKind):
                raise UnknownName("fault", fault.kind, get_args(FaultKind))

    def to_json(self) -> str:
        """Return the options as JSON for the command line of the simulating process."""
        return json.dumps(asdict(self))


SAMPLES = (1, 4, 16, 64, 128, 256, 512, 1024)  # averaging modes of the chip


def parse_options(settings: Mapping[str, Any]) -> Options:
    """Options by name; raises UnknownName and UsageError."""
    option_names = [field.name for field in fields(Options)]
    for name in settings:
        if name not in option_names:
            raise UnknownName("option of a simulated board", name, option_names)
    faults: Sequence[Any] = settings.get("faults") or ()
    return Options(**{**settings, "faults": tuple(_parse_fault(fault) for fault in faults)})


def _parse_fault(fault: Fault | Mapping[str, Any]) -> Fault:
    if isinstance(fault, Fault):
        return fault
    try:
        return Fault(**fault)
    except TypeError as error:
        raise UsageError(f"not a fault: {fault!r}", "kind and at_s (s after the start), for_s, files") from error


_EXAMPLE = "for example jetson-tx2,average=76,gain=-5%,stuck=5s+3s"


def board_name(text: str) -> str:
    """The name in `jetson-tx2,average=76`."""
    return text.partition(",")[0].strip()


def parse_board(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of `jetson-tx2,average=76,gain=-5%,stuck=5s+3s`: wrong constants, and faults that begin so long
    after the board is ready and last so long. UnknownName and UsageError for what cannot be simulated.
    """
    name, *parts = text.split(",")
    if board_name(name) not in BOARDS:
        raise UnknownName("simulated board", board_name(name), BOARDS)
    options: dict[str, Any] = {}
    faults: list[Fault] = []
    for part in parts:
        setting, equals, value = (word.strip() for word in part.partition("="))
        _refuse_text(not part.strip(), f"'{text}' has a comma without a setting")
        if setting not in _SAID and setting not in get_args(FaultKind):
            raise UnknownName("setting of a simulated board", setting, (*_SAID, *get_args(FaultKind)))
        _refuse_text(not equals or not value, f"'{part.strip()}' states no value")
        computes = BOARDS[board_name(name)].chip is not None
        _refuse_text(
            setting in _OF_A_CHIP and not computes, f"{board_name(name)} does not compute, so it has no {setting}"
        )
        if setting in _SAID:
            option, unit, factor = _SAID[setting]
            _refuse_text(option in options, f"{setting} is stated twice")
            amount = _number(setting, value, unit) * factor
            _refuse_text(not math.isfinite(amount), f"{setting}={value} is not a finite number")
            _refuse_text(
                setting in ("average", "cell") and amount != round(amount), f"{setting}={value} is not a whole number"
            )
            lowest = {"gain": -1.0, "ambient": _COLDEST}.get(setting, 0.0)
            _refuse_text(amount < lowest, f"{setting}={value} is too small")
            options[option] = 1 + amount if setting == "gain" else round(amount) if unit in ("", "s") else amount
        else:
            at, plus, length = value.partition("+")
            _refuse_text(value.startswith("-"), f"{setting}={value} begins before the training")
            faults.append(Fault(setting, _number(setting, at, "s"), _number(setting, length, "s") if plus else None))  # type: ignore[arg-type]
    if faults:
        options["faults"] = tuple(faults)
    parse_options(options)
    return board_name(name), options


def _number(setting: str, text: str, unit: str) -> float:
    if unit in ("", "W", "times", "C"):
        with contextlib.suppress(ValueError):
            return float(text.strip().removesuffix("x" if unit == "times" else unit))
        raise UsageError(f"{setting}={text} of a simulated board is not a number", _EXAMPLE)
    try:
        return parse_amount(setting, text, unit)
    except UsageError as error:
        raise UsageError(f"{setting}={text} of a simulated board: {error}", _EXAMPLE) from None


def _refuse_text(wrong: bool, what: str) -> None:
    if wrong:
        raise UsageError(f"this board cannot be simulated: {what}", _EXAMPLE)


def _refuse(wrong: bool, what: str) -> None:
    if wrong:
        raise UsageError(f"this board cannot be simulated: {what}", _EXAMPLE)
