"""RAPL through perf, J, where /sys/class/powercap is closed or absent: the kernel's `power` PMU.

The kernel folds the 32-bit registers into 64 bits by a timer of its own, so these counters do not wrap
(arch/x86/events/rapl.c). Counting a whole CPU needs CAP_PERFMON, or perf_event_paranoid of 0 and less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.access.perf_event import PARANOID, count, open_event
from stepscope.record.sensors import rapl
from stepscope.record.sensors.contract import (
    NAN,
    Channel,
    Found,
    Missing,
    Target,
    attribute,
    close_files,
    content,
    missing_because,
)

NAME = "rapl_perf"
_RAILS = {"pkg": "package", "cores": "core", "gpu": "uncore", "ram": "dram", "psys": "psys"}  # as powercap names them
_REMEDY = (
    "sudo sysctl kernel.perf_event_paranoid=0   (for good: a line in /etc/sysctl.d/; or open RAPL's powercap files)"
)
Opener = Callable[[int, int, int], int]


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


def discover(root: Path, target: Target) -> Found | Missing:
    """One counter a domain from now on; absent where powercap answers, since both read the same registers."""
    folder = root / "sys/bus/event_source/devices/power"
    if not folder.is_dir():
        return Missing("absent", f"{folder}: no power events (Intel and AMD processors; not in virtual machines)")
    powercap = rapl.discover(root, target)
    if isinstance(powercap, Found):
        powercap.close()
        return Missing("absent", f"{folder}: powercap answers; it reads the same registers")
    if root != Path("/"):
        return Missing("absent", f"{folder}: perf counts on the running machine alone, not on a tree below {root}")
    try:
        return count_events(events(root), lambda type_, config, cpu: open_event(type_, config, cpu=cpu))
    except (OSError, ValueError) as error:
        return Missing("failed", f"{folder}: {error}")


def events(root: Path) -> list[Event]:
    """The energy events of every package; raises OSError or ValueError where the PMU's own files say nothing."""
    folder = root / "sys/bus/event_source/devices/power"
    event_type = int(attribute(folder / "type"))
    cpus = cpu_list(attribute(folder / "cpumask"))
    packages = _package_names(root, cpus)
    found = []
    for path in sorted((folder / "events").glob("energy-*")):
        rail = _RAILS.get(path.name.removeprefix("energy-"))
        if rail is None:
            continue
        config, scale_j = _config(attribute(path)), _scale_j(path)
        if config is None or scale_j is None:
            continue
        for cpu in cpus[:1] if rail == "psys" else cpus:
            name, domain = _names(rail, packages[cpu])
            found.append(Event(domain, name, event_type, config, cpu, scale_j, path))
    return sorted(found, key=lambda event: (event.domain.count("/"), event.domain))


def count_events(known: Sequence[Event], opener: Opener) -> Found | Missing:
    """Opens what may be opened; an event that this processor lacks is excluded."""
    opened: list[tuple[Event, int]] = []
    refused: list[OSError] = []
    for event in known:
        try:
            opened.append((event, opener(event.type, event.config, event.cpu)))
        except OSError as error:
            refused.append(error)
    if not opened:
        if not refused:
            return Missing("unsupported", "power PMU: no energy event in joules is known")
        return missing_because(refused[0], f"perf_event_open of {known[0].source}; {PARANOID}", _REMEDY)

    def read() -> list[float]:
        values = [_joules(descriptor, event.scale_j) for event, descriptor in opened]
        if all(value != value for value in values):
            raise ValueError("power PMU: no event counts any more")
        return values

    domains = [event.domain for event, _ in opened]
    channels = tuple(_channel(event, domains) for event, _ in opened)
    return Found(channels, read, lambda: close_files([descriptor for _, descriptor in opened]))


def cpu_list(text: str) -> list[int]:
    """The CPUs of a kernel list such as "0,18-19"; raises ValueError on other text and on an empty list."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part, re.ASCII)
        if match is None:
            raise ValueError(f"cpumask: {text.strip()[:40]!r} is no list of CPUs")
        cpus += range(int(match[1]), int(match[2] or match[1]) + 1)
    return cpus


def _config(text: str) -> int | None:
    match = re.fullmatch(r"event=(0x[0-9a-fA-F]{1,8}|\d{1,8})", text, re.ASCII)
    return int(match[1], 0) if match and not re.fullmatch(r"0\d+", match[1]) else None


def _scale_j(event: Path) -> float | None:
    """J a count; None where the unit is another one or the scale cannot be: energies of whole joules and more."""
    try:
        scale_j = float(attribute(event.with_name(f"{event.name}.scale")))
    except ValueError:
        return None
    unit = attribute(event.with_name(f"{event.name}.unit"))
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
    try:
        number = int(content(root / f"sys/devices/system/cpu/cpu{cpu}/topology/{name}"))
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


def _names(rail: str, package: str) -> tuple[str, str]:
    if rail == "psys":
        return rail, rail
    return (package, package) if rail == "package" else (rail, f"{package}/{rail}")


def _joules(descriptor: int, scale_j: float) -> float:
    try:
        return count(descriptor) * scale_j
    except (OSError, ValueError):
        return NAN


def _channel(event: Event, domains: Sequence[str]) -> Channel:
    scope = f"rapl:{event.domain}"
    return Channel(
        id=f"{scope.replace(':', '.')}.energy",
        sensor=NAME,
        quantity="energy",
        unit="J",
        kind="counter",
        scope=scope,
        parent_scope=rapl.parent_scope(event.domain, domains),
        source=f"perf_event_open {event.source.name} on CPU {event.cpu}",
        rail=event.rail,
        refresh_ns=rapl.REFRESH_NS,
        most_per_s=rapl.MOST_W,
    )
