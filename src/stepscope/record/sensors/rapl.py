"""Energy counters of Intel and AMD processors, J: RAPL zones of /sys/class/powercap (kernel: power/powercap).

psys holds package, package holds core and uncore, dram stands beside its package. The registers are 32 bits wide
and move about every millisecond (Khan et al., "RAPL in Action", 2018).

RAPL through perf, J, where /sys/class/powercap is closed or absent: the kernel's `power` PMU.

The kernel folds the 32-bit registers into 64 bits by a timer of its own, so these counters do not wrap
(arch/x86/events/rapl.c). Counting a whole CPU needs CAP_PERFMON, or perf_event_paranoid of 0 and less.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.record.access import READ_BYTES, DeviceFile, close_device_files, natural, open_device_files
from stepscope.record.access.perf_event import PARANOID, open_event, read_count
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    NamedSensor,
    NoSensor,
    OpenSensor,
    Target,
    close_files,
    make_channel,
    no_sensor_from_error,
    read_line_or_empty,
)
from stepscope.record.sensors.cpu import cores_online

NAME = "rapl"
REFRESH_NS = 1_000_000
MOST_W = 1000.0  # of a zone that states no limit
_LIMIT_FACTOR = 4.0  # a load step may pass the limits for milliseconds, and one refresh may land in either reading
_LEAST_CAP_W = 250.0
_TWINS_J = 1.0  # two dies that show one register differ by no more than what flows between the two reads
_TWINS_FROM_J = 10_000.0  # below, two young counters may meet by chance
_ZONE = re.compile(r"intel-rapl(-mmio)?((?::\d+)+)")
_INTEL = {"dram", "psys", "uncore"}  # zones of Intel's alone, also of a simulated board, whose /proc is its host's
_AMD = re.compile(r"^vendor_id\s*:\s*(AuthenticAMD|HygonGenuine)", re.MULTILINE)
_NOT_READ = "its zone core is one core's on AMD: not read"
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")
_UNMASK = "docker run --security-opt systempaths=unconfined   (Podman: unmask=/sys/devices/virtual/powercap)"


@dataclass(frozen=True)
class Zone:
    """A zone of powercap: its folder, its name, and its domain with the zone that it lies in: package-0/core."""

    folder: Path
    name: str
    domain: str
    mmio: bool

    @property
    def energy(self) -> Path:
        """The file of its counter, uJ."""
        return self.folder / "energy_uj"


def discover(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One counter a domain; a domain that the MMIO interface shows again is read once."""
    folder = root / "sys/class/powercap"
    everything = zones(folder)
    is_amd = _AMD.search(read_line_or_empty(root / "proc/cpuinfo")) and not _INTEL & {zone.name for zone in everything}
    usable = [zone for zone in everything if not (is_amd and zone.name == "core")]
    if not usable:
        return _absence(folder)
    opened_files, refused = open_device_files([zone.energy for zone in usable], target.clock)
    opened = dict(opened_files)
    chosen = first_zone_per_domain([zone for zone in usable if zone.energy in opened])
    close_device_files([file for path, file in opened_files if path not in {zone.energy for zone in chosen}])
    if not chosen:
        return _refusal(refused, usable)
    files = [opened[zone.energy] for zone in chosen]
    ranges_uj = [_read_number(zone.folder / "max_energy_range_uj") for zone in chosen]

    def read() -> list[float]:
        values = [joules(file, range_uj) for file, range_uj in zip(files, ranges_uj, strict=True)]
        if all(value != value for value in values):
            raise ValueError(f"{folder}: no zone gives its energy")
        return values

    channels = _nest_twin_dies([_channel(zone, chosen) for zone in chosen], [joules(file, None) for file in files])
    if len(usable) < len(everything):
        channels[0] = replace(channels[0], source=f"{channels[0].source} ({_NOT_READ})")
    return OpenSensor(_note_denied(channels, usable, chosen), read, lambda: close_device_files(files))


def zones(folder: Path) -> list[Zone]:
    """All zones, packages before what lies in them, the MSR interface before MMIO; nameless ones are excluded."""
    paths = {path.name: path for path in [*folder.glob("intel-rapl*:*/intel-rapl*:*"), *folder.glob("intel-rapl*:*")]}
    names = {zone: read_line_or_empty(path / "name") for zone, path in paths.items() if _ZONE.fullmatch(zone)}
    all_zones = [Zone(paths[zone], name, _domain(zone, names), "-mmio" in zone) for zone, name in names.items() if name]
    return sorted(all_zones, key=lambda zone: (zone.mmio, [int(n) for n in re.findall(r"\d+", zone.folder.name)]))


def first_zone_per_domain(all_zones: Sequence[Zone]) -> list[Zone]:
    """Return the first zone of each domain; two of one interface with one name (psys of two sockets) both stay."""
    chosen: list[Zone] = []
    by_domain: dict[str, bool] = {}
    for zone in all_zones:
        if zone.domain in by_domain and by_domain[zone.domain] != zone.mmio:
            continue
        same = sum(zone.domain == other.domain.partition("#")[0] for other in chosen)
        by_domain[zone.domain] = zone.mmio
        chosen.append(replace(zone, domain=f"{zone.domain}#{same + 1}") if same else zone)
    return chosen


def parent_scope(domain: str, domains: Sequence[str]) -> str:
    """The scope that a domain lies in: core in package-0, package-0 and its dram in psys where there is one."""
    outer = domain.rpartition("/")[0]
    if outer in domains and not domain.rpartition("/")[2].startswith("dram"):
        return f"rapl:{outer}"
    return "rapl:psys" if "psys" in domains and not domain.startswith("psys") else "system"


def step_j(range_uj: int) -> float | None:
    """Smallest step of a zone, J: the driver's range is (2^32 - 1) steps of whole nanojoules; None where it is not."""
    step_nj = round(range_uj * 1000 / (2**32 - 1))
    return step_nj / 1e9 if step_nj and abs(step_nj * (2**32 - 1) // 1000 - range_uj) <= 1 else None


def joules(file: DeviceFile, range_uj: float | None) -> float:
    """The counter as it stands, J; NaN where it is not a number or cannot be: negative, beyond its own range."""
    try:
        return natural(file.read(READ_BYTES), range_uj or 2.0**64) / 1e6
    except OSError:
        return NAN


def most_w(limits_uw: Sequence[int]) -> float:
    """More than a zone can take, W: four times its highest limit; limits of 0 say nothing, of kilowatts "none"."""
    limits_w = [limit / 1e6 for limit in limits_uw if limit > 0]
    if not limits_w or max(limits_w) > MOST_W:
        return MOST_W
    return max(_LEAST_CAP_W, _LIMIT_FACTOR * max(limits_w))


def _domain(zone: str, names: dict[str, str]) -> str:
    """package-0/core for intel-rapl:0:0, from the names of the zone and of those around it."""
    interface, *numbers = zone.split(":")
    outer = [":".join([interface, *numbers[:depth]]) for depth in range(1, len(numbers))]
    return "/".join([*(names.get(name, name) for name in outer), names[zone]])


def _channel(zone: Zone, chosen: Sequence[Zone]) -> Channel:
    range_uj = _read_number(zone.folder / "max_energy_range_uj")
    limits = [_read_number(path) for path in zone.folder.glob("constraint_*_power_limit_uw")]
    facts: dict[str, Any] = {
        "step_size": step_j(range_uj),
        "counter_range": range_uj / 1e6 or None,
        "most_per_s": most_w(limits),
    }
    domains = [other.domain for other in chosen]
    return replace(_energy_channel(NAME, zone.domain, domains, str(zone.energy), zone.name), **facts)


def _energy_channel(sensor: str, domain: str, domains: Sequence[str], source: str, rail: str) -> Channel:
    scope = f"rapl:{domain}"
    about = {"parent_scope": parent_scope(domain, domains), "rail": rail}
    return make_channel(sensor, scope, "energy", "J", source, **about, refresh_ns=REFRESH_NS, most_per_s=MOST_W)


def _nest_twin_dies(channels: Sequence[Channel], energies_j: Sequence[float]) -> list[Channel]:
    """Place the second of two dies that show one value (two-die Threadrippers) inside the first."""
    noted = list(channels)
    for here, channel in enumerate(channels):
        for before in range(here):
            twin = channels[before]
            if _dies_of_one_package(twin, channel) and (
                energies_j[before] >= _TWINS_FROM_J and abs(energies_j[before] - energies_j[here]) <= _TWINS_J
            ):
                source = f"{channel.source} (shows the value of {twin.scope}: one register, not to be added)"
                noted[here] = replace(channel, source=source, parent_scope=twin.scope)
                break
    return noted


def _dies_of_one_package(channel: Channel, other: Channel) -> bool:
    rails = (channel.rail or "", other.rail or "")
    dies = [match.group(1) is not None for rail in rails if (match := _PACKAGE.fullmatch(rail))]
    return dies == [True, True] and rails[0].partition("-die-")[0] == rails[1].partition("-die-")[0]


def _note_denied(channels: Sequence[Channel], all_zones: Sequence[Zone], chosen: Sequence[Zone]) -> tuple[Channel, ...]:
    """The channels; the first tells which domains beside it do not open."""
    here = {zone.domain for zone in chosen}
    closed = sorted({zone.domain for zone in all_zones} - here)
    if not closed:
        return tuple(channels)
    note = f"{channels[0].source} (does not open for {', '.join(closed)}: {_remedy(all_zones)})"
    return (replace(channels[0], source=note), *channels[1:])


def _absence(folder: Path) -> NoSensor:
    """Return why there is no zone: a container that hides them leaves links that lead nowhere."""
    if any(link.is_symlink() and not link.exists() for link in folder.glob("intel-rapl*")):
        return NoSensor("denied", f"{folder}: the container hides /sys/devices/virtual/powercap", _UNMASK)
    return NoSensor("absent", f"{folder}: no intel-rapl zone (Intel and AMD processors; not in virtual machines)")


def _refusal(refused: Sequence[OSError], all_zones: Sequence[Zone]) -> NoSensor:
    reason = no_sensor_from_error(refused[0], all_zones[0].energy, _remedy(all_zones))
    if reason.reason != "denied":
        return replace(reason, remedy=None)
    return replace(reason, detail=f"{reason.detail} (only root may read RAPL since Linux 5.10, CVE-2020-8694)")


def _remedy(all_zones: Sequence[Zone]) -> str:
    once = first_zone_per_domain(all_zones)
    paths = " ".join(str(zone.energy) for zone in once)
    lines = "; ".join(f"mode class/powercap/{zone.folder.name}/energy_uj = 0444" for zone in once)
    return (
        f"sudo chmod a+r {paths}   (until the next boot; for good, either a line a zone in /etc/sysfs.conf of the "
        f"package sysfsutils: {lines}; or a file /etc/udev/rules.d/70-rapl.rules with "
        'SUBSYSTEM=="powercap", ACTION=="add", RUN+="/bin/chmod a+r /sys%p/energy_uj")'
    )


def _read_number(path: Path) -> int:
    """Return the value of a file of limits or ranges, 0 where it states nothing."""
    number = natural(read_line_or_empty(path).encode(), 2.0**53)
    return 0 if number != number else int(number)


PERF = "rapl_perf"
_STILL_S = 0.05  # a processor at rest takes some hundred steps of its counter in it
_RAILS = {"pkg": "package", "cores": "core", "gpu": "uncore", "ram": "dram", "psys": "psys"}  # as powercap names them
_REMEDY = (
    "sudo sysctl kernel.perf_event_paranoid=0   (for good: a line in /etc/sysctl.d/; or open RAPL's powercap files; "
    "in a container: docker run --cap-add PERFMON)"
)
Opener = Callable[[int, int, int], int]
Wait = Callable[[], None]


@dataclass(frozen=True)
class Event:
    """One energy event on one CPU: what perf_event_open takes, and the domain that powercap would name."""

    domain: str
    rail: str
    type: int
    config: int
    cpu: int
    scale_j: float
    source: Path


def discover_perf(root: Path, target: Target) -> OpenSensor | NoSensor:
    """One counter a domain from now on; absent where powercap answers, since both read the same registers."""
    folder = root / "sys/bus/event_source/devices/power"
    if not folder.is_dir():
        return NoSensor("absent", f"{folder}: no power events (Intel and AMD processors; not in virtual machines)")
    powercap = discover(root, target)
    if isinstance(powercap, OpenSensor):
        powercap.close()
        return NoSensor("absent", f"{folder}: powercap answers; it reads the same registers")
    if root != Path("/"):
        return NoSensor("absent", f"{folder}: perf counts on the running machine alone, not on a tree below {root}")
    try:
        opener = lambda type_, config, cpu: open_event(type_, config, cpu=cpu)  # noqa: E731
        return count_events(events(root), opener, lambda: time.sleep(_STILL_S))
    except (OSError, ValueError) as error:
        return NoSensor("failed", f"{folder}: {error}")


def events(root: Path) -> list[Event]:
    """The energy events of every package; raises OSError or ValueError where the PMU's own files say nothing."""
    folder = root / "sys/bus/event_source/devices/power"
    event_type = int(read_line_or_empty(folder / "type"))
    cpus = sorted(cores_online(read_line_or_empty(folder / "cpumask").encode()))
    if not cpus:
        raise ValueError("cpumask names no CPU")
    packages = _package_names(root, cpus)
    all_events = []
    for path in sorted((folder / "events").glob("energy-*")):
        rail = _RAILS.get(path.name.removeprefix("energy-"))
        if rail is None:
            continue
        config, scale_j = _event_config(read_line_or_empty(path)), _scale_j(path)
        if config is None or scale_j is None:
            continue
        for cpu in cpus[:1] if rail == "psys" else cpus:
            name, domain = _rail_and_domain(rail, packages[cpu])
            all_events.append(Event(domain, name, event_type, config, cpu, scale_j, path))
    return sorted(all_events, key=lambda event: (event.domain.count("/"), event.domain))


def count_events(all_events: Sequence[Event], opener: Opener, wait: Wait | None = None) -> OpenSensor | NoSensor:
    """Opens what may be opened; an event that this processor lacks is excluded.

    wait: as long as no package and no system can take nothing: what stands still is excluded, as in virtual machines.
    """
    opened: list[tuple[Event, int]] = []
    refused: list[OSError] = []
    for event in all_events:
        try:
            opened.append((event, opener(event.type, event.config, event.cpu)))
        except OSError as error:
            refused.append(error)
    if not opened:
        if not refused:
            return NoSensor("unsupported", "power PMU: no energy event in joules is known")
        return no_sensor_from_error(refused[0], f"perf_event_open of {all_events[0].source}; {PARANOID}", _REMEDY)
    if wait is not None:
        wait()
        outermost = [(event, file) for event, file in opened if event.rail == "psys" or "/" not in event.domain]
        still = [(event, file) for event, file in outermost if _joules(file, event.scale_j) == 0]
        close_files([descriptor for _, descriptor in still])
        opened = [event for event in opened if event not in still]
        if not opened:
            return NoSensor("unsupported", "power PMU: its counters stand still (a virtual machine without a meter?)")

    def read() -> list[float]:
        values = [_joules(descriptor, event.scale_j) for event, descriptor in opened]
        if all(value != value for value in values):
            raise ValueError("power PMU: no event counts any more")
        return values

    domains = [event.domain for event, _ in opened]
    source = "perf_event_open {0.source.name} on CPU {0.cpu}".format
    channels = tuple(_energy_channel(PERF, event.domain, domains, source(event), event.rail) for event, _ in opened)
    return OpenSensor(channels, read, lambda: close_files([descriptor for _, descriptor in opened]))


def _event_config(text: str) -> int | None:
    match = re.fullmatch(r"event=(0x[0-9a-fA-F]{1,8}|\d{1,8})", text, re.ASCII)
    return int(match[1], 0) if match and not re.fullmatch(r"0\d+", match[1]) else None


def _scale_j(event: Path) -> float | None:
    """J a count; None where the unit is another one or the scale cannot be: energies of whole joules and more."""
    try:
        scale_j = float(read_line_or_empty(event.with_name(f"{event.name}.scale")))
    except ValueError:
        return None
    unit = read_line_or_empty(event.with_name(f"{event.name}.unit"))
    return scale_j if unit == "Joules" and 0 < scale_j < 1 else None


def _package_names(root: Path, cpus: Sequence[int]) -> dict[int, str]:
    """package-N of each CPU, with -die-D where the list has several CPUs of one package."""
    packages = {cpu: _topology(root, cpu, "physical_package_id") for cpu in cpus}
    names = {}
    for position, cpu in enumerate(cpus):
        package = packages[cpu]
        name = f"package-{position if package is None else package}"
        several = package is not None and list(packages.values()).count(package) > 1
        names[cpu] = f"{name}-die-{_topology(root, cpu, 'die_id') or 0}" if several else name
    return names if len(set(names.values())) == len(names) else {cpu: f"package-{n}" for n, cpu in enumerate(cpus)}


def _topology(root: Path, cpu: int, name: str) -> int | None:
    number = natural(read_line_or_empty(root / f"sys/devices/system/cpu/cpu{cpu}/topology/{name}").encode(), 2.0**31)
    return None if number != number else int(number)


def _rail_and_domain(rail: str, package: str) -> tuple[str, str]:
    if rail == "psys":
        return rail, rail
    return (package, package) if rail == "package" else (rail, f"{package}/{rail}")


def _joules(descriptor: int, scale_j: float) -> float:
    try:
        return read_count(descriptor) * scale_j
    except (OSError, ValueError):
        return NAN


SENSORS = (NamedSensor(NAME, discover), NamedSensor(PERF, discover_perf))
