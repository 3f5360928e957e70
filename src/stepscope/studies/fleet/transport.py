"""Orders to a device before it is part of a fleet: over SSH, or to a process of this machine; answers are JSON."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from typing import Any

from stepscope.errors import FleetError, MissingDependency
from stepscope.studies.fleet.hosts import Host
from stepscope.studies.fleet.start import DEVICE

_WITHIN_S = 120.0
_CONNECT_S = 20.0
_SHOWN = 300


class HostFailed(FleetError):
    """A host cannot be reached, or does not do what it is told."""


async def tell(host: Host, orders: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a host to an order; HostFailed where there is none, or where it is a refusal."""
    command = [host.python, "-m", DEVICE]
    text = json.dumps(orders)
    try:
        code, printed, said = await asyncio.wait_for(
            _here(command, text) if host.local else _there(host, command, text), _WITHIN_S
        )
    except asyncio.TimeoutError:
        raise HostFailed(f"{host.name}: no answer within {_WITHIN_S:g} s", "is it asleep, or very busy?") from None
    try:
        answer = json.loads(printed.strip().splitlines()[-1])
    except (ValueError, IndexError):
        how = "it ended without an exit code" if code is None else f"exit code {code}"
        raise HostFailed(f"{host.name}: {how}: {_last(said)}", _advice(host, said)) from None
    if "refused" in answer:
        raise HostFailed(f"{host.name}: {answer['refused']}", answer.get("hint"))
    return dict(answer)


async def _here(command: list[str], text: str) -> tuple[int | None, str, str]:
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


async def _there(host: Host, command: list[str], text: str) -> tuple[int | None, str, str]:
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
    return lines[-1][-_SHOWN:] if lines else "it printed nothing"


def _advice(host: Host, said: str) -> str:
    if "No module named" in said and "stepscope" in said:
        return f"install Stepscope there with the extra: {host.python} -m pip install 'stepscope[fleet]'"
    return 'name the Python that has Stepscope: [[host]] python = "/home/me/venv/bin/python"'
