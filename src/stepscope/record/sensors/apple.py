"""Energy of Apple silicon, J: IOReport's "Energy Model" through zeus-apple-silicon; cumulative, whole mJ, no sudo.

It is the chip's own model and no meter. Cluster totals were seen to exceed the sum of their cores: take cpu_total
for the CPU, and never add the levels.

macOS' own powermetrics, where zeus-apple-silicon is not installed: a streaming child that needs sudo.

Each block states mean powers over its true interval: their product, added up, is the energy counter. It is the
chip's own model and no meter.

Blocks are read in the forms of macOS 12 to 26.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.record.access.child_lines import ChildLines
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    make_channel,
)

NAME = "apple"
EVERY_NS = 50_000_000
_MILLIJOULES = 0.001
# Field of the library's metrics -> scope and what contains it; a list holds one value a cluster.
_FIELDS = (
    ("cpu_total_mj", "apple:cpu", "board"),
    ("efficiency_cluster_mj", "apple:cpu/efficiency-cluster", "apple:cpu"),
    ("performance_cluster_mj", "apple:cpu/performance-cluster", "apple:cpu"),
    ("gpu_mj", "apple:gpu", "board"),
    ("gpu_sram_mj", "apple:gpu-sram", "board"),
    ("ane_mj", "apple:ane", "board"),
    ("dram_mj", "apple:dram", "board"),
)


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One counter for each part that this chip reports."""
    if root != Path("/") or platform.system() != "Darwin":
        return NoSensor("absent", f"{root}: not a running Mac")
    try:
        zeus = importlib.import_module("zeus_apple_silicon")
    except ImportError:
        return NoSensor("absent", "a Mac without zeus-apple-silicon", "pip install zeus-apple-silicon")
    try:
        monitor = zeus.AppleEnergyMonitor()
        first = dict(_millijoules(monitor.get_cumulative_energy()))
    except (AttributeError, RuntimeError, OSError, ValueError) as error:
        return NoSensor("failed", f"IOReport's energy model: {error or type(error).__name__} (a virtual machine?)")
    if not first:
        return NoSensor("unsupported", "this chip reports no energy through IOReport")
    places = list(first)

    def read() -> list[float]:
        now = dict(_millijoules(_cumulative(monitor)))
        return [now.get(place, NAN) * _MILLIJOULES for place in places]

    channels = tuple(_channel(*place) for place in places)
    return OpenSensor(channels, read, lambda: None, every_ns=EVERY_NS, blocking=True)


def _cumulative(monitor: Any) -> Any:
    """The library's metrics; its RuntimeError is an OSError to the sampler."""
    try:
        return monitor.get_cumulative_energy()
    except RuntimeError as error:
        raise OSError(f"IOReport: {error}") from error


def _millijoules(metrics: Any) -> Iterator[tuple[tuple[str, str, str], float]]:
    """Scope, parent and field with its cumulative energy, mJ; a part that the chip does not report is excluded."""
    for name, scope, parent in _FIELDS:
        value = getattr(metrics, name, None)
        if isinstance(value, (list, tuple)):
            for number, part in enumerate(value):
                yield (f"{scope}:{number}", parent, f"{name}[{number}]"), float(part)
        elif value is not None:
            yield (scope, parent, name), float(value)


def _channel(scope: str, parent: str, field: str) -> Channel:
    source = "IOReport Energy Model (the chip's own model, no meter), zeus-apple-silicon"
    facts = {"parent_scope": parent, "rail": field, "step_size": _MILLIJOULES}
    return make_channel(NAME, scope, "energy", "J", source, **facts)


POWERMETRICS = "powermetrics"
POWERMETRICS_EVERY_NS = 100_000_000
COMMAND = ("sudo", "-n", "powermetrics", "--samplers", "cpu_power", "-i", "100")
FIRST_BLOCK_S = 2.0
STALE_NS = 2_000_000_000
_REMEDY = (
    "pip install zeus-apple-silicon (no sudo), or allow it without a password: "
    'echo "$USER ALL=(root) NOPASSWD: /usr/bin/powermetrics" | sudo tee /etc/sudoers.d/powermetrics'
)
SCOPES = {
    "CPU": "apple:cpu",
    "GPU": "apple:gpu",
    "ANE": "apple:ane",
    "DRAM": "apple:dram",
    "Package": "apple:package",
    "Combined": "apple:cpu+gpu+ane",
}


@dataclass
class _Totals:
    """The latest block, and the energy since the start; a power that a block leaves out starts its sum again."""

    clock: Callable[[], int]
    block: Block | None = None  # complete
    power_w: dict[str, float] = field(default_factory=dict)
    energy_j: dict[str, float] = field(default_factory=dict)
    seen_ns: int = 0

    def feed(self, lines: Sequence[str]) -> None:
        """Take lines as they were printed."""
        for line in lines:
            begun = parse_block_head(line)
            if begun is not None:
                self._close()
                self.block = begun
            elif self.block is not None:
                parse_line_into(self.block, line)
                if self.block.powers_complete:
                    self._close()

    def _close(self) -> None:
        block, self.block = self.block, None
        if block is None or not block.power_w:
            return
        self.power_w = {name: watts for name, watts in block.power_w.items() if watts >= 0}
        seconds = block.elapsed_ns / 1e9
        self.energy_j = {name: self.energy_j.get(name, 0.0) + watts * seconds for name, watts in self.power_w.items()}
        self.seen_ns = self.clock()


def discover_powermetrics(root: Path, target: Target) -> OpenSensor | NoSensor:
    """Power and energy of each part that this macOS prints."""
    if root != Path("/") or platform.system() != "Darwin":
        return NoSensor("absent", f"{root}: not a running Mac")
    if importlib.util.find_spec("zeus_apple_silicon") is not None:
        return NoSensor("absent", "not needed: zeus-apple-silicon reads the same model without sudo")
    try:
        child = ChildLines(COMMAND)
    except OSError as error:
        return NoSensor("absent", f"{COMMAND[0]}: {error.strerror or error}", _REMEDY)
    totals = _Totals(target.clock)
    start_ns = target.clock()
    while not totals.power_w and target.clock() - start_ns < FIRST_BLOCK_S * 1e9:
        ended = child.exit_code() is not None  # before its last lines are taken
        totals.feed(child.read_lines(wait_s=0.05))
        if ended:
            break
    if not totals.power_w:
        return _reason_missing(child)
    names = [name for name in SCOPES if name in totals.power_w]

    def read() -> list[float]:
        totals.feed(child.read_lines())
        if child.exit_code() is not None:
            raise OSError(f"powermetrics has ended: {child.complaint() or child.exit_code()}")
        fresh = target.clock() - totals.seen_ns < STALE_NS
        values = [(totals.power_w.get(name, NAN), totals.energy_j.get(name, NAN)) for name in names]
        return [value if fresh else NAN for pair in values for value in pair]

    channels = tuple(channel for name in names for channel in channels_of(name, names))
    return OpenSensor(channels, read, child.close, every_ns=POWERMETRICS_EVERY_NS, blocking=True)


def _reason_missing(child: ChildLines) -> NoSensor:
    code = child.exit_code()  # before its last words are taken
    complaint = child.complaint()
    child.close()
    if "password" in complaint or "sudoers" in complaint or "not allowed" in complaint:
        return NoSensor("denied", f"sudo -n powermetrics: {complaint}", _REMEDY)
    if code is None:
        return NoSensor("unsupported", f"powermetrics printed no power within {FIRST_BLOCK_S:g} s")
    return NoSensor("failed", f"powermetrics ended with exit code {code}: {complaint or 'it said nothing'}", _REMEDY)


def _parent(name: str, names: Sequence[str]) -> str:
    """The sum that powermetrics prints and that contains this part; the board where it prints none."""
    if name in ("CPU", "GPU", "ANE") and "Combined" in names:
        return SCOPES["Combined"]
    return SCOPES["Package"] if "Package" in names and name not in ("Package", "Combined") else "board"


def channels_of(name: str, names: Sequence[str]) -> tuple[Channel, Channel]:
    """Power and energy of a part, given all the parts that are printed."""
    scope = SCOPES[name]
    source = f"powermetrics, {name} Power (the chip's own model, no meter)"
    about = {"parent_scope": _parent(name, names), "rail": name, "refresh_ns": POWERMETRICS_EVERY_NS}
    averages = {"filter": "mean over the sample's interval", "window_ns": POWERMETRICS_EVERY_NS}
    power = make_channel(POWERMETRICS, scope, "power", "W", source, **about, **averages, step_size=0.001)
    energy = make_channel(POWERMETRICS, scope, "energy", "J", f"{source} times its interval", **about)
    return power, energy


# A block begins with "*** Sampled system activity (...) (104.51ms elapsed) ***". What a macOS version does not print
# (Package and DRAM power since 14 or so) is absent, and is never 0. Lines that are not understood are kept.

_BLOCK = re.compile(
    r"\*\*\* Sampled system activity \((?P<when>.*)\) \((?P<ms>[0-9]{1,12}(?:\.[0-9]{1,9})?)ms elapsed\) \*\*\*"
)
_SECTION = re.compile(r"\*\*\*\*\s*(.*?)\s*\*\*\*\*")
_NUMBER = r"(-?(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})(?:e[+-]?[0-9]{1,2})?)"
_POWER = re.compile(rf"(?P<of>.+?) Power(?: \(.*\))?: {_NUMBER} ?(?P<unit>mW|W)")
_FREQUENCY = re.compile(rf"(?P<of>.+?)(?: HW active| active)? frequency: {_NUMBER} (?P<unit>MHz|GHz)")
_RESIDENCY = re.compile(
    rf"(?P<of>.+?) (?P<state>active|idle|down|requested) residency:\s*{_NUMBER}%\s*(?P<table>\(.*\))?"
)
_TABLE = re.compile(rf"{_NUMBER} MHz:\s*{_NUMBER}%")
_COUNT = re.compile(rf"(?P<of>.+?) (?P<what>instructions retired|instructions per clock): {_NUMBER}")
_NAMED = re.compile(r"(?P<name>[A-Z][^:]*?):(?P<value>| .*)")
_SCALE = {"mW": 1e-3, "W": 1.0, "MHz": 1e6, "GHz": 1e9}
_LAST_POWERS = ("Combined", "Package")  # nothing that is read here follows them in a block


@dataclass
class Block:
    """One sample: means over `elapsed_ns` before it was printed; a name that is not in a dictionary was not printed."""

    when: str
    elapsed_ns: int
    power_w: dict[str, float] = field(default_factory=dict)  # CPU, GPU, ANE, DRAM, Package, Combined, E-Cluster
    frequency_hz: dict[str, float] = field(default_factory=dict)  # of clusters, cores, GPU, while active
    residency: dict[str, dict[str, float]] = field(default_factory=dict)  # name -> state -> share of 1
    at_frequency: dict[str, dict[float, float]] = field(default_factory=dict)  # name -> Hz -> share of 1
    counts: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)  # "Current pressure level": "Nominal"
    unknown: list[str] = field(default_factory=list)

    @property
    def powers_complete(self) -> bool:
        """Return whether the last of the powers has been printed."""
        return any(name in self.power_w for name in _LAST_POWERS)


@dataclass(frozen=True)
class Report:
    """A whole output: the machine's lines before the first block, and the blocks."""

    machine: dict[str, str]
    blocks: tuple[Block, ...]
    unknown: tuple[str, ...]  # lines before the first block that are no "name: value"


def parse(text: str) -> Report:
    """A whole output; several that were put into one file follow one another."""
    machine: dict[str, str] = {}
    unknown: list[str] = []
    blocks: list[Block] = []
    for line in text.splitlines():
        begun = parse_block_head(line)
        if begun is not None:
            blocks.append(begun)
        elif blocks:
            parse_line_into(blocks[-1], line)
        elif (named := _NAMED.fullmatch(line.strip())) is not None:
            machine[named["name"]] = named["value"].strip()
        elif line.strip():
            unknown.append(line)
    return Report(machine, tuple(blocks), tuple(unknown))


def parse_block_head(line: str) -> Block | None:
    """A new block where the line is the head of one."""
    head = _BLOCK.fullmatch(line.strip())
    return None if head is None else Block(head["when"], round(float(head["ms"]) * 1e6))


def parse_line_into(block: Block, line: str) -> None:
    """Put one line of a block into its place; a line that is not understood goes to `unknown`."""
    text = line.strip()
    if not text or _SECTION.fullmatch(text):
        return
    if (power := _POWER.fullmatch(text)) is not None:
        block.power_w[power["of"]] = float(power[2]) * _SCALE[power["unit"]]
    elif (clock := _FREQUENCY.fullmatch(text)) is not None:
        block.frequency_hz[clock["of"]] = float(clock[2]) * _SCALE[clock["unit"]]
    elif (share := _RESIDENCY.fullmatch(text)) is not None:
        _take_residency(block, share)
    elif (count := _COUNT.fullmatch(text)) is not None:
        block.counts[f"{count['of']} {count['what']}"] = float(count[3])
    elif (named := _NAMED.fullmatch(text)) is not None and named["name"] not in block.words:
        block.words[named["name"]] = named["value"].strip()
    else:
        block.unknown.append(line)


def _take_residency(block: Block, share: re.Match[str]) -> None:
    """Return the share of time in a state and at each frequency; other entries of the table are kept as unknown."""
    name, table = share["of"].removesuffix(" HW"), share["table"]
    block.residency.setdefault(name, {})[share["state"]] = float(share[3]) / 100
    if table is None:
        return
    block.at_frequency[name] = {float(mhz) * 1e6: float(part) / 100 for mhz, part in _TABLE.findall(table)}
    if remainder := _TABLE.sub("", table[1:-1]).strip():
        block.unknown.append(f"{name} {share['state']} residency: {remainder}")


SENSORS = (NamedSensor(NAME, discover), NamedSensor(POWERMETRICS, discover_powermetrics))
