"""A fleet as the user names it: the hosts.toml, and the address of the scheduler."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepscope.errors import MissingDependency, RunNotFound, UsageError
from stepscope.experiments.fleet.certificates import GATHERER

_EXTRA = ("asyncssh", "cryptography")
TLS_FOLDER = "tls"


@dataclass(frozen=True)
class SchedulerAddress:
    """The scheduler's address, the folder with our TLS material, and the hosts.toml where there is one."""

    url: str
    tls: Path
    hosts: Hosts | None = None


def scheduler_address(text: str, tls: Path | None = None) -> SchedulerAddress:
    """Return what --fleet names; UsageError where it cannot be."""
    if "://" not in text:
        return scheduler_of_hosts(read_hosts(Path(text)))
    parts = urlsplit(text)
    with contextlib.suppress(ValueError):
        if parts.scheme == "tls" and parts.hostname and parts.port:
            if tls is None:
                raise UsageError(f"--fleet {text}: without TLS material nobody is let in", "add --tls DIR")
            return SchedulerAddress(text, tls)
    raise UsageError(f"--fleet {text}: not an address", "for example tls://192.168.0.2:8786, or a hosts.toml")


def scheduler_of_hosts(hosts: Hosts) -> SchedulerAddress:
    """The scheduler that `stepscope fleet up` starts for these hosts."""
    name = f"[{hosts.scheduler}]" if ":" in hosts.scheduler else hosts.scheduler  # an IPv6 address
    url = f"tls://{name}:{hosts.port}"
    return SchedulerAddress(url, hosts.state_folder / TLS_FOLDER / GATHERER, hosts)


def require_libraries() -> None:
    """MissingDependency where the extra is not installed."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        text = f"a fleet needs {', '.join(missing)}, not installed for {sys.executable}"
        raise MissingDependency(text, f"{sys.executable} -m pip install 'stepscope[fleet]'")


_TOML: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MOST_PORT = 65535
_WEEK_S = 604_800


@dataclass(frozen=True)
class Host:
    """A device: its name, the board that runs are sent to, and how it is reached. Local ones are plain processes."""

    name: str
    board: str
    local: bool = False
    address: str | None = None  # user@host, as ssh takes it
    ssh_port: int | None = None  # null: the one of ~/.ssh/config, or 22
    python: str = "python3"  # on the device, with Stepscope installed
    folder: str | None = None  # on the device, for runs that have not been gathered yet
    key: str | None = None
    known_hosts: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hosts:
    """Content of a hosts.toml.

    forget_after_s: silence after which a device counts as gone; alone_s: time without a scheduler after which a worker
    ends.
    """

    path: Path
    hosts: tuple[Host, ...]
    scheduler: str
    port: int
    forget_after_s: float
    alone_s: float

    @property
    def state_folder(self) -> Path:
        """The folder beside it with certificates, logs and the scheduler's address."""
        return self.path.with_suffix(".fleet")

    @property
    def boards(self) -> list[str]:
        """Each board once, in the order of the file."""
        return list(dict.fromkeys(host.board for host in self.hosts))


def read_hosts(path: Path) -> Hosts:
    """The fleet of a file; UsageError with the place where something in it cannot be."""
    try:
        content = _TOML.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunNotFound(
            f"there is no file '{path}' that names the devices of a fleet", "write one: see docs/guide-fleet.md"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"'{path}' cannot be read: {error}", "it must be a TOML file") from error
    _refuse_unknown_keys(path, "top level", content, ("fleet", "host"))
    fleet, listed = content.get("fleet", {}), content.get("host", [])
    if not isinstance(fleet, dict) or not isinstance(listed, list) or not listed:
        raise UsageError(f"'{path}' names no device", "add a [[host]] with name and address for each")
    hosts = tuple(_parse_host(path, index, entry) for index, entry in enumerate(listed, 1))
    _refuse_twice(path, "name", [host.name for host in hosts])
    _refuse_twice(path, "address", [f"{h.address}:{h.ssh_port or 22}" for h in hosts if h.address])
    return _parse_fleet(path, fleet, hosts)


def check_name(what: str, name: object) -> str:
    """A name that can be a folder; UsageError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{what} {name!r} is not a name", "use letters, digits, '.', '_' and '-', 63 at most")
    return name


def is_loopback(host: str) -> bool:
    """Return whether what is sent to this address stays on this machine."""
    return host in _LOOPBACK or host.startswith("127.")


def _parse_fleet(path: Path, fleet: Mapping[str, Any], hosts: tuple[Host, ...]) -> Hosts:
    _refuse_unknown_keys(path, "[fleet]", fleet, ("scheduler", "port", "tls", "forget_after_s", "alone_s"))
    scheduler = _typed_value(path, "[fleet]", fleet, "scheduler", str, "127.0.0.1")
    port = _port(path, "[fleet]", fleet, "port", 8786)
    remote = [host.name for host in hosts if not host.local]
    if remote and is_loopback(scheduler):
        text = f"'{path}': {', '.join(remote)} cannot reach a scheduler at {scheduler}"
        raise UsageError(text, 'give this machine\'s address: [fleet] scheduler = "192.168.0.2"')
    if not _typed_value(path, "[fleet]", fleet, "tls", bool, True):
        text = f"'{path}': [fleet]: tls = false: every connection of a fleet is TLS, on loopback too"
        raise UsageError(text, "remove the line: fleet up makes the certificates")
    silence_s = float(_typed_value(path, "[fleet]", fleet, "forget_after_s", (int, float), 60))
    if not silence_s >= 1:
        raise UsageError(f"'{path}': [fleet]: forget_after_s {silence_s:g}: less than 1 s", "for example 60")
    alone_s = float(_typed_value(path, "[fleet]", fleet, "alone_s", (int, float), _WEEK_S))
    if not alone_s > 0:
        raise UsageError(f"'{path}': [fleet]: alone_s {alone_s:g}: not above 0 s", f"for example {_WEEK_S}, a week")
    return Hosts(path, hosts, scheduler, port, silence_s, alone_s)


def _parse_host(path: Path, place: int, content: Mapping[str, Any]) -> Host:
    where = f"host {place}"
    if not isinstance(content, dict):
        raise UsageError(f"'{path}': {where} is not a table", "begin each with [[host]]")
    _refuse_unknown_keys(path, where, content, Host.__dataclass_fields__)
    name = check_name(f"'{path}': {where}: name", content.get("name"))
    board = check_name(f"'{path}': {name}: board", content.get("board", name))
    local = _typed_value(path, name, content, "local", bool, False)
    address = _typed_value(path, name, content, "address", str, "")
    if local == bool(address) or address.startswith("-"):
        raise UsageError(f"'{path}': {name}: must have either an address or local = true", 'address = "user@host"')
    environment = _typed_value(path, name, content, "environment", dict, {})
    if not all(isinstance(value, str) for value in environment.values()):
        raise UsageError(f"'{path}': {name}: environment holds more than text", 'environment = { A = "1" }')
    texts = {key: _typed_value(path, name, content, key, str, None) for key in ("folder", "key", "known_hosts")}
    return Host(
        name, board, local, address or None,
        _port(path, name, content, "ssh_port", None),
        _typed_value(path, name, content, "python", str, sys.executable if local else "python3"),
        environment=dict(environment), **texts,
    )  # fmt: skip


def _port(path: Path, where: str, content: Mapping[str, Any], key: str, otherwise: int | None) -> Any:
    port = _typed_value(path, where, content, key, int, otherwise)
    if port is not None and not 0 < port <= _MOST_PORT:
        hint = f"for example {key} = {otherwise or 22}"
        raise UsageError(f"'{path}': {where}: {key} {port}: not between 1 and {_MOST_PORT}", hint)
    return port


def _typed_value(path: Path, where: str, content: Mapping[str, Any], key: str, kind: Any, otherwise: Any) -> Any:
    value = content.get(key, otherwise)
    if key in content and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise UsageError(f"'{path}': {where}: {key} = {value!r} is of the wrong kind", "see docs/guide-fleet.md")
    return value


def _refuse_unknown_keys(path: Path, where: str, content: Mapping[str, Any], allowed_keys: Iterable[str]) -> None:
    other = sorted(set(content) - set(allowed_keys))
    if other:
        raise UsageError(
            f"'{path}': {where}: nothing is known of {', '.join(other)}", f"known: {', '.join(allowed_keys)}"
        )


def _refuse_twice(path: Path, what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise UsageError(f"'{path}': two hosts have the {what} {', '.join(twice)}", f"each host needs its own {what}")
