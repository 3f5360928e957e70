"""The devices of a fleet: bring them up over SSH, query state and versions, end them. Any step can be repeated."""

from __future__ import annotations

import asyncio
import importlib
import json
import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError as FutureCancelled
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import __version__
from stepscope.clock import monotonic_ns
from stepscope.errors import FleetError, MissingDependency, OutputNotWritable, StepscopeError
from stepscope.experiments.fleet import connection
from stepscope.experiments.fleet.connection import (
    TLS_FOLDER,
    Host,
    Hosts,
    SchedulerAddress,
    connect,
    scheduler_of_hosts,
)
from stepscope.experiments.fleet.processes import AGENT, running_pid, start_process, stop_process, tls_material
from stepscope.experiments.fleet.worker import board_resource, clock_ns, device_facts

if TYPE_CHECKING:
    from distributed import Client


_SCHEDULER = "scheduler"
_SCHEDULER_WITHIN_S = 30.0


@dataclass(frozen=True)
class HostState:
    """State of a host: what it says of itself, or why it is not part of the fleet."""

    host: Host
    about: dict[str, Any] | None
    refused: StepscopeError | None = None


@dataclass(frozen=True)
class DeviceState:
    """A device that the scheduler knows; `met` null where it is busy with a run, `refused` where it is not used."""

    device: Device
    met: DeviceInfo | None
    refused: str | None = None


def up(hosts: Hosts, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """Start what is not running; every host is told of with `says` as soon as it is up or refused."""
    tls = hosts.state / TLS_FOLDER if hosts.tls else None
    _make_folder(hosts.state)
    if tls is not None:
        connection.make_certificates(tls, [host.name for host in hosts.hosts])
    folder = hosts.state / _SCHEDULER
    if running_pid(folder) is None:
        own = None if tls is None else str(tls / connection.GATHERER)
        orders = {"do": "schedule", "folder": str(folder), "host": hosts.scheduler, "port": hosts.port, "tls": own,
                  "forget_after_s": hosts.forget_after_s}  # fmt: skip
        start_process(AGENT, orders, folder, _SCHEDULER_WITHIN_S)
    return asyncio.run(_on_every_host(hosts, lambda host: _bring_up(hosts, host), says))


def down(hosts: Hosts, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """End the workers and then the scheduler; runs that were not gathered stay on their devices."""

    async def end(host: Host) -> dict[str, Any]:
        return await send_orders(host, {"do": "stop", "folder": _folder(hosts, host)})

    states = asyncio.run(_on_every_host(hosts, end, says))
    stop_process(hosts.state / _SCHEDULER)
    return states


def devices(where: SchedulerAddress, patience_s: float = 5.0) -> list[DeviceState]:
    """The devices that the scheduler knows now; one that does not answer in time is at work."""
    return asyncio.run(_device_states(where, patience_s))


async def _device_states(where: SchedulerAddress, patience_s: float) -> list[DeviceState]:
    async with connect(where) as client:

        async def state_of(device: Device) -> DeviceState:
            try:
                return DeviceState(device, await asyncio.wait_for(meet_device(client, device), patience_s))
            except asyncio.TimeoutError:
                return DeviceState(device, None)
            except Exception as error:  # whatever a device answers, the others are shown
                return DeviceState(device, None, str(error))

        return list(await asyncio.gather(*(state_of(device) for device in await present_devices(client))))


async def _on_every_host(hosts: Hosts, do: Any, says: Callable[[HostState], None]) -> list[HostState]:
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
    tls = tls_material(hosts.state / TLS_FOLDER / host.name) if hosts.tls else None
    place = {
        "folder": _folder(hosts, host),
        "scheduler": scheduler_of_hosts(hosts).url,
        "name": host.name,
        "board": host.board,
    }
    orders = {"do": "start", "version": __version__, **place, "tls": tls, "environment": dict(host.environment)}
    return await send_orders(host, orders)


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


_BOARD = "board:"
_ANSWERS_WITHIN_S = 30.0
_SCHEDULER_GONE = ("scheduler-connection-lost", "scheduler-restart")


class OtherVersion(FleetError):
    """A device has another Stepscope than this machine: what they measure could not be compared."""


class DeviceLost(Exception):
    """A device went away: its request will not be answered."""


class DeviceUnfit(Exception):
    """A device cannot do what it was asked, for a reason that is its own: a full disk, a broken installation."""


class SchedulerLost(Exception):
    """The scheduler went away; what the devices are doing goes on."""


@dataclass(frozen=True)
class Device:
    """A worker as the scheduler knows it; `address` is another one each time that it joins."""

    name: str
    board: str
    address: str


@dataclass(frozen=True)
class DeviceInfo:
    """A device as it describes itself, and how far its wall clock is ahead of ours: offset_s, right within within_s."""

    about: Mapping[str, Any]
    offset_s: float
    within_s: float


async def present_devices(client: Client) -> list[Device]:
    """The devices that are there now; SchedulerLost where the scheduler does not say."""
    try:
        if client.scheduler is None:
            raise SchedulerLost("the connection to the scheduler is closed")
        seen = (await asyncio.wait_for(client.scheduler.identity(), _ANSWERS_WITHIN_S))["workers"]
    except (OSError, asyncio.TimeoutError) as error:
        raise SchedulerLost("the scheduler has gone away") from error
    return [
        Device(str(worker["name"]), name.removeprefix(_BOARD), address)
        for address, worker in seen.items()
        for name in worker["resources"]
        if name.startswith(_BOARD)
    ]


async def ask_device(client: Client, device: Device, function: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of a function that is called on the device, after whatever is going on there."""
    from distributed import KilledWorker

    comm: Any = importlib.import_module("distributed.comm")  # it names its exports nowhere
    if client.status != "running":
        raise SchedulerLost("the scheduler has gone away")
    future: Any = client.submit(
        function, *arguments, workers=[device.address], allow_other_workers=False, pure=False,
        resources={board_resource(device.board): 1}, retries=0,
    )  # fmt: skip
    try:
        return await future
    except FutureCancelled as error:
        if getattr(error, "reason", None) in _SCHEDULER_GONE:
            raise SchedulerLost("the scheduler has gone away") from error
        raise DeviceLost(f"{device.name} went away") from error
    except (KilledWorker, comm.CommClosedError) as error:
        raise DeviceLost(f"{device.name} went away") from error
    except Exception as error:  # raised on the device, whatever it is
        raise DeviceUnfit(f"{device.name}: {type(error).__name__}: {error}") from error
    finally:
        future.release()


async def meet_device(client: Client, device: Device) -> DeviceInfo:
    """Return the device, and how its clock differs; OtherVersion where it has not the Stepscope of this machine.

    Offset: F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989; the best of three.
    """
    about = await ask_device(client, device, device_facts)
    there = about["versions"]["stepscope"]
    if there != __version__:
        said = f"{device.name} has Stepscope {there}, and this machine {__version__}"
        raise OtherVersion(said, "install the same version on both; stepscope fleet up checks it")
    tries = [await _clock(client, device) for _ in range(3)]
    offset_s, within_s = min(tries, key=lambda each: each[1])
    return DeviceInfo(about, offset_s, within_s)


async def _clock(client: Client, device: Device) -> tuple[float, float]:
    """Return how far its clock is ahead of ours, and half of how long the question took, s."""
    sent_ns, here_ns = monotonic_ns(), clock_ns()
    there_ns = await ask_device(client, device, clock_ns)
    return clock_offset(here_ns, there_ns, monotonic_ns() - sent_ns)


def clock_offset(here_ns: int, there_ns: int, took_ns: int) -> tuple[float, float]:
    """(offset, half-width) in s from our clock when we asked, theirs when they answered, and the time in between."""
    return (there_ns - here_ns - took_ns / 2) / 1e9, took_ns / 2e9


_HOST_WITHIN_S = 120.0
_CONNECT_S = 20.0
_MESSAGE_LENGTH = 300


class HostFailed(FleetError):
    """A host cannot be reached, or does not do what it is told."""


async def send_orders(host: Host, orders: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a host to an order; HostFailed where there is none, or where it is a refusal."""
    command = [host.python, "-m", AGENT]
    text = json.dumps(orders)
    try:
        code, printed, said = await asyncio.wait_for(
            _run_here(command, text) if host.local else _run_over_ssh(host, command, text), _HOST_WITHIN_S
        )
    except asyncio.TimeoutError:
        raise HostFailed(f"{host.name}: no answer within {_HOST_WITHIN_S:g} s", "is it asleep, or very busy?") from None
    try:
        answer = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        how = "it ended without an exit code" if code is None else f"exit code {code}"
        raise HostFailed(f"{host.name}: {how}: {_last(said)}", _advice(host, said)) from None
    if "refused" in answer:
        raise HostFailed(f"{host.name}: {answer['refused']}", answer.get("hint"))
    return dict(answer)


async def _run_here(command: list[str], text: str) -> tuple[int | None, str, str]:
    pipe = asyncio.subprocess.PIPE
    try:
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        return 127, "", f"{command[0]}: {error.strerror}"
    try:
        out, err = await child.communicate(text.encode())
    finally:
        if child.returncode is None:  # too late, or Ctrl-C: nothing is left behind
            child.kill()
            await child.wait()
    return child.returncode, out.decode(errors="replace"), err.decode(errors="replace")


async def _run_over_ssh(host: Host, command: list[str], text: str) -> tuple[int | None, str, str]:
    """The command is made of quoted words; orders and keys go by stdin, where no list of processes shows them."""
    try:
        import asyncssh
    except ModuleNotFoundError as error:
        hint = "pip install 'stepscope[fleet]'"
        raise MissingDependency("a fleet needs asyncssh, which is not installed", hint) from error
    user, _, address = (host.address or "").rpartition("@")
    chosen = {
        "username": user or None,
        "known_hosts": host.known_hosts,
        "client_keys": None if host.key is None else [host.key],
    }
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    try:
        async with asyncssh.connect(address, host.ssh_port, connect_timeout=_CONNECT_S, **options) as connection:
            done = await connection.run(shlex.join(command), input=text, check=False)
    except asyncssh.HostKeyNotVerifiable as error:
        hint = f"ssh {host.address} once by hand, and check its key"
        raise HostFailed(f"{host.name}: its host key is not known: {error}", hint) from error
    except (OSError, asyncssh.Error) as error:
        said = f"{host.name}: cannot be reached at {host.address} port {host.ssh_port}: {error}"
        raise HostFailed(said, f"try: ssh -p {host.ssh_port} {host.address}") from error
    return done.exit_status, str(done.stdout), str(done.stderr)


def _last(said: str) -> str:
    lines = said.strip().splitlines()
    return lines[-1][-_MESSAGE_LENGTH:] if lines else "it printed nothing"


def _advice(host: Host, said: str) -> str:
    if "No module named" in said and "stepscope" in said:
        return f"install Stepscope there with the extra: {host.python} -m pip install 'stepscope[fleet]'"
    return 'name the Python that has Stepscope: [[host]] python = "/home/me/venv/bin/python"'
