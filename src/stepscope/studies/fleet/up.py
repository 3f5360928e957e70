"""Bringing a fleet up and down: certificates, the scheduler here, a worker on each device. Any step can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import OutputNotWritable, StepscopeError
from stepscope.studies.fleet import certificates
from stepscope.studies.fleet.address import TLS_FOLDER, Reach, connected, of_hosts
from stepscope.studies.fleet.device import Device, Met, meet, present
from stepscope.studies.fleet.hosts import Host, Hosts
from stepscope.studies.fleet.processes import running, start, stop
from stepscope.studies.fleet.start import DEVICE, material
from stepscope.studies.fleet.transport import tell

_SCHEDULER = "scheduler"
_WITHIN_S = 30.0


@dataclass(frozen=True)
class HostState:
    """How a host stands: what it says of itself, or why it is not part of the fleet."""

    host: Host
    about: dict[str, Any] | None
    refused: StepscopeError | None = None


@dataclass(frozen=True)
class DeviceState:
    """A device that the scheduler knows; `met` null where it is busy with a run, `refused` where it is not used."""

    device: Device
    met: Met | None
    refused: str | None = None


def up(hosts: Hosts, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """Start what is not running; every host is told of with `says` as soon as it is up or refused."""
    tls = hosts.state / TLS_FOLDER if hosts.tls else None
    _make_folder(hosts.state)
    if tls is not None:
        certificates.make(tls, [host.name for host in hosts.hosts])
    folder = hosts.state / _SCHEDULER
    if running(folder) is None:
        own = None if tls is None else str(tls / certificates.GATHERER)
        orders = {"do": "schedule", "folder": str(folder), "host": hosts.scheduler, "port": hosts.port, "tls": own,
                  "forget_after_s": hosts.forget_after_s}  # fmt: skip
        start(DEVICE, orders, folder, _WITHIN_S)
    return asyncio.run(_each(hosts, lambda host: _bring_up(hosts, host), says))


def down(hosts: Hosts, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """End the workers and then the scheduler; runs that were not gathered stay on their devices."""

    async def end(host: Host) -> dict[str, Any]:
        return await tell(host, {"do": "stop", "folder": _folder(hosts, host)})

    states = asyncio.run(_each(hosts, end, says))
    stop(hosts.state / _SCHEDULER)
    return states


def devices(where: Reach, patience_s: float = 5.0) -> list[DeviceState]:
    """The devices that the scheduler knows now; one that does not answer in time is at work."""
    return asyncio.run(_devices(where, patience_s))


async def _devices(where: Reach, patience_s: float) -> list[DeviceState]:
    async with connected(where) as client:

        async def asked(device: Device) -> DeviceState:
            try:
                return DeviceState(device, await asyncio.wait_for(meet(client, device), patience_s))
            except asyncio.TimeoutError:
                return DeviceState(device, None)
            except Exception as error:  # whatever a device answers, the others are shown
                return DeviceState(device, None, str(error))

        return list(await asyncio.gather(*(asked(device) for device in await present(client))))


async def _each(hosts: Hosts, do: Any, says: Callable[[HostState], None]) -> list[HostState]:
    async def one(host: Host) -> HostState:
        try:
            found = HostState(host, await do(host))
        except StepscopeError as error:
            found = HostState(host, None, error)
        says(found)
        return found

    return list(await asyncio.gather(*(one(host) for host in hosts.hosts)))


async def _bring_up(hosts: Hosts, host: Host) -> dict[str, Any]:
    """The host looks at its version and sensors first, and starts nothing that cannot be used."""
    tls = material(hosts.state / TLS_FOLDER / host.name) if hosts.tls else None
    place = {"folder": _folder(hosts, host), "scheduler": of_hosts(hosts).url, "name": host.name, "board": host.board}
    orders = {"do": "start", "version": __version__, **place, "tls": tls, "environment": dict(host.environment)}
    return await tell(host, orders)


def _folder(hosts: Hosts, host: Host) -> str:
    """On the device; the same for every fleet, so that nobody else's worker runs beside ours."""
    if host.folder is not None:
        return host.folder
    return str((hosts.state / "devices" / host.name).resolve()) if host.local else "~/.cache/stepscope/fleet"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(
            f"cannot make '{folder}': {error.strerror}", "copy the file where you can write"
        ) from error
