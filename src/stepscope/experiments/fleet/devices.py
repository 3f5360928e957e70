"""The devices of a fleet: bring them up over SSH, query state and versions, end them. Any step can be repeated."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.errors import FleetError, MissingDependency, OutputNotWritable, StepscopeError, UnknownName, UsageError
from stepscope.experiments.fleet.agent import AGENT, read_state, running_pid, start_process, stop_process
from stepscope.experiments.fleet.certificates import (
    CA,
    DEVICE,
    Identity,
    issue_or_reuse_certificate,
    make_certificates,
    revoke,
)
from stepscope.experiments.fleet.gatherer import Device, DeviceInfo, connect
from stepscope.experiments.fleet.hosts import TLS_FOLDER, Host, Hosts, SchedulerAddress, scheduler_of_hosts
from stepscope.experiments.fleet.protocol import with_timeout
from stepscope.liveness import is_running, process_identity
from stepscope.runfolder.validation import DEVICE as DEVICE_SHAPE
from stepscope.runfolder.validation import parse

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


def up(
    hosts: Hosts,
    says: Callable[[HostState], None] = lambda state: None,
    rotate: bool = False,
    lives_with: int | None = None,
) -> list[HostState]:
    """Start what is not running; every host is told of with `says` as soon as it is up or refused.

    rotate: a new authority, new keys and certificates for all; what had others is let in no more.
    lives_with: what is started on this machine ends with the process of this number.
    """
    if lives_with is not None and not is_running(lives_with):
        raise UsageError(f"there is no process {lives_with} to live with", "give the number of one that runs")
    tied = None if lives_with is None else process_identity(lives_with)
    tls, folder = hosts.state_folder / TLS_FOLDER, hosts.state_folder / _SCHEDULER
    _make_folder(hosts.state_folder)
    settings = {"host": hosts.scheduler, "port": hosts.port, "forget_after_s": hosts.forget_after_s}
    state = read_state(folder)
    edited = any(state.get(key, value) != value for key, value in settings.items())
    if make_certificates(tls, rotate) or edited:
        stop_process(folder)
    if running_pid(folder) is None:
        orders = {"do": "schedule", "folder": str(folder), "tls": str(tls), **settings, "lives_with": tied}
        start_process(AGENT, orders, folder, _SCHEDULER_WITHIN_S)
    return asyncio.run(_run_on_every_host(hosts, lambda host: _start_worker_on_host(hosts, host, rotate, tied), says))


def revoke_host(hosts: Hosts, name: str) -> bool:
    """Revoke the certificate of a host; whether it had one. UnknownName where the hosts.toml names no such host."""
    names = [host.name for host in hosts.hosts]
    if name not in names:
        raise UnknownName("host", name, names)
    return revoke(hosts.state_folder / TLS_FOLDER, name)


def down(hosts: Hosts, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """End the workers and then the scheduler; runs that were not gathered stay on their devices."""
    authority = hosts.state_folder / TLS_FOLDER / CA
    fleet = {
        "scheduler": scheduler_of_hosts(hosts).url,
        "ca": authority.read_text("ascii") if authority.exists() else "",
    }

    async def end(host: Host) -> dict[str, Any]:
        return await send_orders(
            host, {"do": "stop", "folder": _folder_on_device(hosts, host), "name": host.name, **fleet}
        )

    states = asyncio.run(_run_on_every_host(hosts, end, says))
    stop_process(hosts.state_folder / _SCHEDULER)
    return states


def query_device_states(where: SchedulerAddress, patience_s: float = 5.0) -> list[DeviceState]:
    """The devices that the scheduler knows now; one that does not answer in time is at work."""
    return asyncio.run(_query_device_states(where, patience_s))


async def _query_device_states(where: SchedulerAddress, patience_s: float) -> list[DeviceState]:
    async with connect(where) as gatherer:

        async def state_of(device: Device) -> DeviceState:
            try:
                return DeviceState(device, await with_timeout(gatherer.query_device_info(device), patience_s))
            except asyncio.TimeoutError:
                return DeviceState(device, None)
            except Exception as error:  # whatever a device answers, the others are shown
                return DeviceState(device, None, str(error))

        return list(await asyncio.gather(*(state_of(device) for device in await gatherer.devices())))


async def _run_on_every_host(hosts: Hosts, do: Any, says: Callable[[HostState], None]) -> list[HostState]:
    async def one(host: Host) -> HostState:
        try:
            state = HostState(host, await do(host))
        except StepscopeError as error:
            state = HostState(host, None, error)
        says(state)
        return state

    return list(await asyncio.gather(*(one(host) for host in hosts.hosts)))


async def _start_worker_on_host(
    hosts: Hosts, host: Host, rotate: bool, lives_with: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The host looks at its version and sensors first, and starts nothing that cannot be used."""
    tls, folder = hosts.state_folder / TLS_FOLDER, _folder_on_device(hosts, host)
    order = {"version": __version__, "folder": folder}
    about = await send_orders(host, {"do": "meet", **order, "rotate": rotate})
    certificate = issue_or_reuse_certificate(tls, Identity(DEVICE, host.name, host.board), str(about.get("public_key")))
    place = {"scheduler": scheduler_of_hosts(hosts).url, "name": host.name, "board": host.board}
    pems = {"ca": (tls / CA).read_text(encoding="ascii"), "certificate": certificate}
    ends = {"alone_s": hosts.alone_s, "lives_with": lives_with if host.local else None}
    environment = {"environment": dict(host.environment)}
    began = await send_orders(host, {"do": "start", **order, **place, **pems, **environment, **ends})
    return {**about, **began}


def _folder_on_device(hosts: Hosts, host: Host) -> str:
    """Return the folder on the device; every fleet uses the same one, so that only one worker runs at a time."""
    if host.folder is not None:
        return host.folder
    return str((hosts.state_folder / "devices" / host.name).resolve()) if host.local else "~/.cache/stepscope/fleet"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputNotWritable(
            f"cannot make '{folder}': {error.strerror}", "copy the file where you can write"
        ) from error


_HOST_WITHIN_S = 120.0
_CONNECT_S = 20.0
_MESSAGE_LENGTH = 300
_MOST_PRINTED = 1 << 20  # bytes
_ANSWER = {
    **dict.fromkeys(("refused", "hint", "error", "scheduler", "name", "board", "public_key"), str),
    **dict.fromkeys(("stopped", "began"), bool),
    "pid": int, "power": [str], "device": DEVICE_SHAPE, "versions": {...: str},
}  # fmt: skip


class HostFailed(FleetError):
    """Error: a host cannot be reached, or an order failed on it."""


async def send_orders(host: Host, orders: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a host to an order; HostFailed where there is none, or where it is a refusal."""
    command = [host.python, "-m", AGENT]
    text = json.dumps(orders)
    try:
        code, printed, errors = await with_timeout(
            _run_here(command, text) if host.local else _run_over_ssh(host, command, text), _HOST_WITHIN_S
        )
    except asyncio.TimeoutError:
        raise HostFailed(f"{host.name}: no answer within {_HOST_WITHIN_S:g} s", "is it asleep, or very busy?") from None
    try:
        answer, _ = parse(printed.strip().splitlines()[-1].encode(), _ANSWER)
        if not isinstance(answer, dict):
            raise ValueError("no object")
    except (ValueError, IndexError):
        how = "it ended without an exit code" if code is None else f"exit code {code}"
        last = (errors.strip().splitlines() or ["it printed nothing"])[-1][-_MESSAGE_LENGTH:]
        hint = 'name the Python that has Stepscope: [[host]] python = "/home/me/venv/bin/python"'
        if "No module named" in errors and "stepscope" in errors:
            hint = f"install Stepscope there with the extra: {host.python} -m pip install 'stepscope[fleet]'"
        raise HostFailed(f"{host.name}: {how}: {last}", hint) from None
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
        out, err = await child.communicate(text.encode())  # a process of our own code
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
        "port": host.ssh_port,  # else that of ~/.ssh/config
    }
    options: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    try:
        async with (
            asyncssh.connect(address, connect_timeout=_CONNECT_S, **options) as connection,
            connection.create_process(shlex.join(command)) as process,
        ):
            process.stdin.write(text)
            process.stdin.write_eof()
            out, err = await asyncio.gather(_read_limited(process.stdout), _read_limited(process.stderr))
            code = (await process.wait()).exit_status
    except asyncssh.HostKeyNotVerifiable as error:
        hint = f"ssh {host.address} once by hand, and check its key"
        raise HostFailed(f"{host.name}: its host key is not known: {error}", hint) from error
    except (OSError, asyncssh.Error) as error:
        place, option = ("", "") if host.ssh_port is None else (f" port {host.ssh_port}", f"-p {host.ssh_port} ")
        text = f"{host.name}: cannot be reached at {host.address}{place}: {error}"
        raise HostFailed(text, f"try: ssh {option}{host.address}") from error
    return code, out, err


async def _read_limited(stream: Any) -> str:
    """What a host prints; the first _MOST_PRINTED characters of what has no end."""
    texts: list[str] = []
    while sum(map(len, texts)) < _MOST_PRINTED and (part := await stream.read(1 << 16)):
        texts.append(str(part))
    return "".join(texts)
