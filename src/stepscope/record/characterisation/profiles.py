"""What self-characterisation found out about each channel, kept per device, and what the sampler makes of it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stepscope.record.device import describe_device
from stepscope.record.sampler.rows import write_json
from stepscope.record.sensors.contract import Channel, Found

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


def measures_power(found: Found) -> bool:
    """Whether a sensor measures power or energy in some channel; estimates do not count."""
    return any(channel.quantity in _POWER and channel.kind != "estimate" for channel in found.channels)


def device_identity(root: Path, found: Mapping[str, Found]) -> dict[str, Any]:
    """What a profile depends on: board, kernel, driver, and where the channels come from."""
    facts = describe_device(root)
    driver = root / "proc/driver/nvidia/version"
    prefix = str(root).rstrip("/")
    return {
        **{key: facts[key] for key in ("board", "compatible", "cpu", "machine", "kernel", "l4t")},
        "driver": driver.read_text(errors="replace").split("\n")[0] if driver.is_file() else None,
        "sources": sorted(
            f"{channel.id} {channel.source.removeprefix(prefix)}"
            for sensor in found.values()
            if measures_power(sensor)
            for channel in sensor.channels
        ),
    }


def load_profiles(device: Mapping[str, Any]) -> dict[str, SensorProfile] | None:
    """The profiles that were kept for this device, by channel id; None where there are none, or none that is sound."""
    try:
        kept = json.loads(_cache_file(device).read_text(encoding="utf-8"))
        if kept["format"] != FORMAT or kept["device"] != json.loads(json.dumps(device)):
            return None
        return {name: _profile(facts) for name, facts in kept["channels"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return None


def save_profiles(device: Mapping[str, Any], profiles: Mapping[str, SensorProfile]) -> bool:
    """Keep the profiles for the next run on this device; False where the cache cannot be written, which is no error."""
    content = {
        "format": FORMAT,
        "device": dict(device),
        "channels": {name: asdict(profile) for name, profile in profiles.items()},
    }
    try:
        path = _cache_file(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return False
    return True


def with_profiles(found: Found, profiles: Mapping[str, SensorProfile], period_ns: int) -> Found:
    """The sensor with what was measured of its channels, read a little faster than the quickest of them refreshes.

    Its author's own period is kept to within a factor of two, since reading may have a cost that time does not show.
    What the driver states stands; `measured` names the fields that it left open and that were filled here.
    """
    channels = tuple(
        _filled(channel, profiles[channel.id]) if channel.id in profiles else channel for channel in found.channels
    )
    known = [channel.refresh_ns for channel in channels if channel.refresh_ns]
    characterised = any(channel.id in profiles for channel in channels)
    every_ns = found.every_ns
    if measures_power(found) and known and (characterised or not every_ns):
        every_ns = max(int(A_LITTLE_FASTER * min(known)), period_ns, found.every_ns // 2)
    return replace(found, channels=channels, every_ns=every_ns)


def too_fine(found: Found, period_ns: int) -> str | None:
    """What to tell who asked for a period finer than this sensor; None where it keeps up."""
    if not measures_power(found):
        return None
    refresh_ns = min((channel.refresh_ns for channel in found.channels if channel.refresh_ns), default=0)
    window_ns = max((channel.window_ns for channel in found.channels if channel.window_ns), default=0)
    said = []
    if refresh_ns > period_ns:
        said.append(f"refreshes every {refresh_ns / 1e6:.3g} ms")
    if window_ns > period_ns:
        said.append(f"averages over {window_ns / 1e6:.3g} ms")
    if found.every_ns > period_ns:
        said.append(f"is read every {found.every_ns / 1e6:.3g} ms")
    return " and ".join(said) or None


def _filled(channel: Channel, profile: SensorProfile) -> Channel:
    known = {name: getattr(profile, name) for name in ("refresh_ns", "step_size", "filter", "window_ns")}
    if channel.filter is not None or channel.window_ns is not None:  # the two describe one thing: never mixed
        known = {name: value for name, value in known.items() if name not in ("filter", "window_ns")}
    fresh = {name: value for name, value in known.items() if value is not None and getattr(channel, name) is None}
    return replace(
        channel,
        **fresh,
        read_cost_ns=profile.read_cost_ns,
        read_cost_p99_ns=profile.read_cost_p99_ns,
        measured=(*fresh, "read_cost_ns", "read_cost_p99_ns"),
    )


def _profile(facts: Mapping[str, Any]) -> SensorProfile:
    """A profile from the cache; raises TypeError or ValueError where a field is missing or of the wrong type."""
    words = {"filter"}
    for field in fields(SensorProfile):
        value = facts.get(field.name)
        sound = value is None or (isinstance(value, str) if field.name in words else isinstance(value, (int, float)))
        if not sound:
            raise ValueError(f"{field.name}: {value!r}")
    return SensorProfile(**facts)


def _cache_file(device: Mapping[str, Any]) -> Path:
    """Below XDG_CACHE_HOME (freedesktop.org base directories), one file a device. RuntimeError without a home."""
    stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = stated if stated.is_absolute() else Path.home() / ".cache"
    key = hashlib.sha256(json.dumps(device, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "stepscope/sensors" / f"{key}.json"
