"""The quantities that can be measured: a row a quantity, of the channels of sensors and of the metrics of a run alike.

Sensors, the live view, metrics, comparison, reports and exports read this table; a row that is added is shown by all of
them. A quantity that has no row (of a sensor that a plug-in brings) is shown plainly, under its own name and unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

LOWER, HIGHER = "lower", "higher"
GROUPS = (
    "Power",
    "Utilisation",
    "Memory",
    "Temperature",
    "Frequency",
    "Waiting",
    "Other",
)  # in the order in which they are drawn
KINDS = ("", "simulated_", "estimated_")  # what begins the name of a metric that was not measured
POWER_SENSORS = re.compile(  # by their names, found or not
    r"ina\d|hwmon_power|tegrastats|rapl|nvml|amdsmi|apple|powermetrics|battery|pmic|shelly|tasmota|meter|android"
)
_SIGNS = {"1": "share", "degC": "°C"}


@dataclass(frozen=True)
class Quantity:
    """A quantity as it is stored (name, SI unit) and how people are shown it."""

    name: str
    unit: str  # "1" is a share; of a counter, the unit of its count
    group: str = "Other"
    label: str = ""
    better: str | None = None  # LOWER or HIGHER; None where it depends
    of: str = ""  # whose it is, where the label stands without its scope
    sign: str = ""  # of the unit, for people
    plain: bool = True  # shown as a line of its own, since no part of a report draws it in its own way
    live: bool = True  # followed by the live view
    headline: bool = True  # among the key figures of a run
    compared: bool = True
    explained_by: str = ""  # divided over the ops of this component; SCOPE: the one that its scope names

    @property
    def title(self) -> str:
        """The label with whose it is."""
        return f"{self.label} {self.of}".rstrip()

    @property
    def label_within(self) -> str:
        """The label within a line: "fan load", but "DRAM bandwidth"."""
        return self.label if self.label[1:2].isupper() else f"{self.label[:1].lower()}{self.label[1:]}"

    @property
    def shown_unit(self) -> str:
        """The unit as people write it."""
        return self.sign or _SIGNS.get(self.unit, self.unit)


SCOPE = "scope"


def _channel(name: str, unit: str, group: str = "Other", label: str = "", **shown: bool | str) -> Quantity:
    """A quantity of sensors that reports draw in their own way, or that exports alone have."""
    own = Quantity(name, unit, group, label or _words(name), plain=False, live=False, headline=False, compared=False)
    return replace(own, **shown)  # type: ignore[arg-type]


def _metric(name: str, unit: str, group: str, label: str, better: str | None = None, **shown: bool | str) -> Quantity:
    return replace(Quantity(name, unit, group, label, better, plain=False, live=False), **shown)  # type: ignore[arg-type]


def _words(name: str) -> str:
    text = name.replace("_", " ")
    return text[:1].upper() + text[1:]


CHANNELS = (
    _channel("power", "W", "Power", live=True),
    _channel("energy", "J", "Power", live=True),
    _channel("voltage", "V", "Power"),
    _channel("current", "A", "Power"),
    _channel("charge", "C", "Power"),
    _channel("stored_energy", "J", "Power"),
    _channel("power_average", "W", "Power"),
    _channel("discharging", "1", "Power"),
    _channel("utilisation", "1", "Utilisation", live=True, explained_by=SCOPE),
    Quantity("memory_utilisation", "1", "Utilisation", "Memory controller utilisation", explained_by="memory"),
    _channel("core_busy_time", "ns", "Utilisation", live=True),
    _channel("core_idle_time", "ns", "Utilisation", live=True),
    _channel("process_cpu_time", "ns", "Utilisation"),
    _channel("rss", "B", "Memory", live=True),
    _channel("pss", "B", "Memory"),
    _channel("uss", "B", "Memory"),
    _channel("peak_rss", "B", "Memory"),
    _channel("memory_total", "B", "Memory", live=True),
    _channel("memory_available", "B", "Memory", live=True),
    _channel("memory_used", "B", "Memory", live=True),
    _channel("swap_used", "B", "Memory"),
    Quantity("gpu_memory", "B", "Memory", "GPU memory of the process", LOWER),
    Quantity("process_memory", "B", "Memory", "GPU memory of the process", LOWER),
    Quantity("nvmap_used", "B", "Memory", "GPU memory of all processes", LOWER),
    _channel("temperature", "degC", "Temperature", live=True),
    _channel("throttled", "1", "Temperature", live=True),
    _channel("throttle_reasons", "1", "Temperature"),
    _channel("core_frequency", "Hz", "Frequency", "Core clock", live=True),
    _channel("frequency", "Hz", "Frequency", "Clock", live=True),
    _channel("memory_frequency", "Hz", "Frequency", "Memory clock"),
    _channel("active_frequency", "Hz", "Frequency", "Memory traffic as a clock"),
    _channel("thread_cpu_time", "ns", "Waiting", "CPU time of the training thread"),
    _channel("run_delay", "ns", "Waiting", "Time in the run queue", live=True),
    _channel("thread_waiting", "1", "Waiting", "Training thread waits"),
    _channel("stall_time", "ns", "Waiting", "Pressure stall"),
    _channel("steal_time", "ns", "Waiting", "Time stolen by the hypervisor"),
    _channel("throttled_time", "ns", "Waiting", "Time throttled by a CPU quota"),
    _channel("throttled_periods", "1", "Waiting"),
    _channel("quota_periods", "1", "Waiting"),
    _channel("cpu_quota", "cores", "Waiting", "CPU quota"),
    _channel("allowed_cores", "1", "Waiting"),
    _channel("voluntary_switches", "1", "Waiting"),
    _channel("involuntary_switches", "1", "Waiting"),
    _channel("major_faults", "1", "Memory", "Page faults that read a disk"),
    _channel("swap_in", "B", "Memory"),
    _channel("swap_out", "B", "Memory"),
    _channel("direct_reclaim", "B", "Memory"),
    _channel("memory_limit_hits", "1", "Memory"),
    _channel("storage_read", "B", "Waiting", "Read from storage"),
    _channel("storage_written", "B", "Waiting", "Written to storage"),
    _channel("core_frequency_limit", "Hz", "Frequency", "Limit of the core clock"),
    _channel("throttle_events", "1", "Temperature"),
    Quantity("fan_level", "1", "Temperature", "Fan"),
    _channel("cooling_state", "1", "Temperature", live=True),
    _channel("children", "1"),
    _channel("sampler_cpu_time", "ns"),
    _channel("sampler_lateness", "ns"),
    _channel("sampler_missed", "1"),
    _channel("meter_clock", "s"),
)
METRICS = (
    _metric("step_time", "ns", "Other", "Step time", LOWER),
    _metric("throughput", "1/s", "Other", "Throughput", HIGHER, sign="samples/s"),
    _metric("step_rate", "1/s", "Other", "Steps per second", HIGHER, sign="steps/s", headline=False, compared=False),
    _metric("energy_per_step", "J", "Power", "Energy per step", LOWER),
    _metric("energy_per_sample", "J", "Power", "Energy per sample", LOWER),
    _metric("mean_power", "W", "Power", "Mean power"),
    _metric("idle_power", "W", "Power", "Idle power", headline=False, compared=False),
    _metric("live_peak", "B", "Memory", "Peak of live tensors", LOWER, headline=False),
    _metric("peak_memory", "B", "Memory", "Peak memory", LOWER, of="of the training processes"),
    _metric("resident_memory", "B", "Memory", "Resident memory after warm-up", LOWER, headline=False),
    _metric("accelerator_utilisation", "1", "Utilisation", "Accelerator utilisation"),
    _metric("mean_cpu_utilisation", "1", "Utilisation", "CPU utilisation, all cores"),
    _metric("process_cpu_utilisation", "cores", "Utilisation", "CPU utilisation", of="of the training processes"),
    _metric("background_cpu_use", "cores", "Utilisation", "Background CPU load", compared=False),
    _metric("core_utilisation", "1", "Utilisation", "Core utilisation", headline=False, compared=False),
    _metric("idle_state_ratio", "1", "Utilisation", "Idle residency", headline=False, compared=False),
)


@dataclass(frozen=True)
class SuiteColumn:
    """A column of a sweep's table: `factor` times a metric of the run, or what the sweep puts there itself."""

    name: str  # with its unit
    title: str = ""  # over the table on a terminal; without one it is in files alone
    unit: str = ""  # for people; empty where the title says it
    metric: str = ""
    scope: str | None = None  # None: the first row of the metric
    factor: float = 1.0


SUITE_COLUMNS = (
    SuiteColumn("step_time_ms", "ms a step", metric="step_time", scope="run", factor=1e-6),
    SuiteColumn("samples_per_s", "samples/s", metric="throughput", scope="run"),
    *(  # never in one column: what was measured and what was not; of a component alone it is only estimated
        SuiteColumn(
            f"{kind}energy_per_{per}_j",
            f"{kind[:-1]} J a {per}".strip(),
            metric=f"{kind}energy_per_{per}",
            scope=None if kind == "estimated_" else "total",
        )
        for kind in ("", "estimated_", "simulated_")
        for per in ("step", "sample")
    ),
    SuiteColumn("peak_live_bytes", "live", "B"),
    SuiteColumn("peak_reserved_bytes", "reserved", "B"),
    SuiteColumn("peak_process_bytes", "process", "B"),
    SuiteColumn("cpu_utilisation", "CPU", "1", metric="mean_cpu_utilisation", scope="cpu"),
    SuiteColumn("process_cores", metric="process_cpu_utilisation", scope="process"),
    SuiteColumn("gpu_utilisation", "GPU", "1", metric="accelerator_utilisation"),
    SuiteColumn("frames_per_s", "frames/s"),
)
SAMPLED = frozenset(quantity.name for quantity in CHANNELS)
_KNOWN = {quantity.name: quantity for quantity in (*CHANNELS, *METRICS)}
_ORDER = {name: place for place, name in enumerate([*(row.name for row in METRICS), *(row.name for row in CHANNELS)])}


def find_quantity(name: str, unit: str = "") -> Quantity:
    """The quantity of this name, also of an estimated or simulated metric; one that nobody knows stands for itself."""
    kind, plain = _split_kind(name)
    quantity = _KNOWN.get(plain, Quantity(plain, unit, label=_words(plain)))
    if not kind:
        return quantity
    return replace(quantity, name=name, label=f"{_words(kind[:-1])} {quantity.label_within}")


def simulated_badge(board: str | None) -> str:
    """The mark of all that comes of a simulated board: "SIMULATED sensors: jetson-tx2"; empty for what was measured."""
    return f"SIMULATED sensors: {board}" if board else ""


SIMULATED_MEANS = (
    "Power, energy and temperatures are of a simulated board; step time and memory are of the machine that ran this, "
    "not of that board."
)


def sort_metrics(names: Iterable[str]) -> list[str]:
    """Names of metrics in the order in which they are shown, each with its kinds; unknown ones last, as they came."""

    def place(name: str) -> tuple[int, int]:
        kind, plain = _split_kind(name)
        return _ORDER.get(plain, len(_ORDER)), KINDS.index(kind)

    return sorted(dict.fromkeys(names), key=place)


def _split_kind(name: str) -> tuple[str, str]:
    """The kind that begins a name, and the rest of it."""
    kind = next((kind for kind in KINDS if kind and name.startswith(kind)), "")
    return kind, name.removeprefix(kind)
