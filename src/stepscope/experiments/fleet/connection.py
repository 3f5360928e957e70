"""Connection to a fleet: the hosts.toml, the address of the scheduler, and its TLS certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib
import importlib.util
import logging
import os
import re
import ssl
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.errors import FleetError, MissingDependency, OutputNotWritable, RunNotFound, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate
    from distributed import Client
    from distributed.security import Security


_TRY_S = 10.0
_EXTRA = ("distributed", "asyncssh", "cryptography")
TLS_FOLDER = "tls"


class FleetUnreachable(FleetError):
    """The scheduler of the fleet does not answer, or not to us."""


@dataclass(frozen=True)
class SchedulerAddress:
    """The scheduler's address, the folder with our TLS material (null: none), and the hosts.toml where there is one."""

    url: str
    tls: Path | None
    hosts: Hosts | None = None

    @property
    def unprotected(self) -> bool:
        """Return whether anybody on the network can read along, and send code to the devices."""
        return self.tls is None and not is_loopback(urlsplit(self.url).hostname or "")


def scheduler_address(text: str, tls: Path | None = None) -> SchedulerAddress:
    """Return what --fleet names; UsageError where it cannot be."""
    if "://" not in text:
        return scheduler_of_hosts(read_hosts(Path(text)))
    parts = urlsplit(text)
    with contextlib.suppress(ValueError):
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            if (parts.scheme == "tls") != (tls is not None):
                raise UsageError(f"--fleet {text}: TLS material goes with tls://", "add --tls DIR, or leave it out")
            return SchedulerAddress(text, tls)
    raise UsageError(f"--fleet {text}: not an address", "for example tcp://127.0.0.1:8786, or a hosts.toml")


def scheduler_of_hosts(hosts: Hosts) -> SchedulerAddress:
    """The scheduler that `stepscope fleet up` starts for these hosts."""
    url = f"{'tls' if hosts.tls else 'tcp'}://{_bracketed(hosts.scheduler)}:{hosts.port}"
    return SchedulerAddress(url, hosts.state / TLS_FOLDER / GATHERER if hosts.tls else None, hosts)


def require_dask() -> None:
    """MissingDependency where the extra is not installed."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        said = f"a fleet needs {', '.join(missing)}, not installed for {sys.executable}"
        raise MissingDependency(said, f"{sys.executable} -m pip install 'stepscope[fleet]'")


@contextlib.asynccontextmanager
async def connect(where: SchedulerAddress) -> AsyncIterator[Client]:
    """A client of the scheduler; FleetUnreachable where it does not answer, or not to this TLS material."""
    from distributed import Client

    protection: Any = None if where.tls is None else tls_security(where.tls)
    await check_scheduler(where.url, {} if protection is None else protection.get_connection_args("client"))
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it loses is told by us
    options: dict[str, Any] = {} if protection is None else {"security": protection}
    made: Any = Client  # it has no types
    client = await made(where.url, asynchronous=True, timeout=_TRY_S, set_as_default=False, **options)
    try:
        yield client
    finally:
        await client.close()


async def check_scheduler(url: str, arguments: dict[str, Any], timeout_s: float = _TRY_S) -> None:
    """Knock once: Dask itself goes on trying without a word of what is wrong."""
    connect: Any = importlib.import_module("distributed.comm").connect
    parts = urlsplit(url)
    try:
        _, knocking = await asyncio.wait_for(asyncio.open_connection(parts.hostname, parts.port), timeout_s)
        knocking.close()  # Dask would try a closed port until its time is over
        comm = await connect(url, timeout=timeout_s, **arguments)
    except (OSError, RuntimeError, TypeError, asyncio.TimeoutError) as error:
        raise _unreachable(url, error) from error
    await comm.close()


def _unreachable(url: str, error: BaseException) -> FleetUnreachable:
    reasons = [str(each) for each in _causes(error)]
    said = next((r for r in reasons if "ssl" in r.lower() or "tls" in r.lower() or "certificate" in r.lower()), None)
    if said is not None or (url.startswith("tls") and "in <distributed" in reasons[-1]):
        hint = "scheduler, workers and gatherer need certificates of one authority: stepscope fleet up makes them"
        return FleetUnreachable(f"the scheduler at {url} does not take this TLS material: {said or reasons[-1]}", hint)
    hint = "start it: stepscope fleet up hosts.toml (a scheduler with TLS answers to tls:// alone)"
    return FleetUnreachable(f"no scheduler answers at {url}: {reasons[-1]}", hint)


def _causes(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_TOML: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_MOST_PORT = 65535


@dataclass(frozen=True)
class Host:
    """A device: its name, the board that runs are sent to, and how it is reached. Local ones are plain processes."""

    name: str
    board: str
    local: bool = False
    address: str | None = None  # user@host, as ssh takes it
    ssh_port: int = 22
    python: str = "python3"  # on the device, with Stepscope installed
    folder: str | None = None  # on the device, for runs that have not been gathered yet
    key: str | None = None
    known_hosts: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Hosts:
    """Content of a hosts.toml; `forget_after_s`: silence after which a device counts as gone."""

    path: Path
    hosts: tuple[Host, ...]
    scheduler: str
    port: int
    tls: bool
    forget_after_s: float

    @property
    def state(self) -> Path:
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
    _only(path, "top level", content, ("fleet", "host"))
    fleet, listed = content.get("fleet", {}), content.get("host", [])
    if not isinstance(fleet, dict) or not isinstance(listed, list) or not listed:
        raise UsageError(f"'{path}' names no device", "add a [[host]] with name and address for each")
    hosts = tuple(_host(path, place, each) for place, each in enumerate(listed, 1))
    _refuse_twice(path, "name", [host.name for host in hosts])
    _refuse_twice(path, "address", [f"{h.address}:{h.ssh_port}" for h in hosts if h.address])
    return _fleet(path, fleet, hosts)


def check_name(what: str, name: object) -> str:
    """A name that can be a folder; UsageError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{what} {name!r} is not a name", "use letters, digits, '.', '_' and '-', 63 at most")
    return name


def is_loopback(host: str) -> bool:
    """Return whether what is sent to this address stays on this machine."""
    return host in _LOOPBACK or host.startswith("127.")


def _fleet(path: Path, fleet: Mapping[str, Any], hosts: tuple[Host, ...]) -> Hosts:
    _only(path, "[fleet]", fleet, ("scheduler", "port", "tls", "forget_after_s"))
    scheduler = _typed(path, "[fleet]", fleet, "scheduler", str, "127.0.0.1")
    port = _typed(path, "[fleet]", fleet, "port", int, 8786)
    if not 0 < port <= _MOST_PORT:
        raise UsageError(f"'{path}': [fleet]: port {port}: not between 1 and {_MOST_PORT}", "for example port = 8786")
    remote = [host.name for host in hosts if not host.local]
    if remote and is_loopback(scheduler):
        said = f"'{path}': {', '.join(remote)} cannot reach a scheduler at {scheduler}"
        raise UsageError(said, 'give this machine\'s address: [fleet] scheduler = "192.168.0.2"')
    tls = _typed(path, "[fleet]", fleet, "tls", bool, not is_loopback(scheduler))
    silence_s = float(_typed(path, "[fleet]", fleet, "forget_after_s", (int, float), 60))
    if silence_s < 1:
        raise UsageError(f"'{path}': [fleet]: forget_after_s {silence_s:g}: less than 1 s", "for example 60")
    return Hosts(path, hosts, scheduler, port, tls, silence_s)


def _host(path: Path, place: int, content: Mapping[str, Any]) -> Host:
    where = f"host {place}"
    if not isinstance(content, dict):
        raise UsageError(f"'{path}': {where} is not a table", "begin each with [[host]]")
    _only(path, where, content, Host.__dataclass_fields__)
    name = check_name(f"'{path}': {where}: name", content.get("name"))
    board = check_name(f"'{path}': {name}: board", content.get("board", name))
    local = _typed(path, name, content, "local", bool, False)
    address = _typed(path, name, content, "address", str, "")
    if local == bool(address) or address.startswith("-"):
        raise UsageError(f"'{path}': {name}: must have either an address or local = true", 'address = "user@host"')
    environment = _typed(path, name, content, "environment", dict, {})
    if not all(isinstance(value, str) for value in environment.values()):
        raise UsageError(f"'{path}': {name}: environment holds more than text", 'environment = { A = "1" }')
    texts = {key: _typed(path, name, content, key, str, None) for key in ("folder", "key", "known_hosts")}
    return Host(
        name, board, local, address or None,
        _typed(path, name, content, "ssh_port", int, 22),
        _typed(path, name, content, "python", str, sys.executable if local else "python3"),
        environment=dict(environment), **texts,
    )  # fmt: skip


def _typed(path: Path, where: str, content: Mapping[str, Any], key: str, kind: Any, otherwise: Any) -> Any:
    value = content.get(key, otherwise)
    if key in content and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise UsageError(f"'{path}': {where}: {key} = {value!r} is of the wrong kind", "see docs/guide-fleet.md")
    return value


def _only(path: Path, where: str, content: Mapping[str, Any], known: Iterable[str]) -> None:
    other = sorted(set(content) - set(known))
    if other:
        raise UsageError(f"'{path}': {where}: nothing is known of {', '.join(other)}", f"known: {', '.join(known)}")


def _refuse_twice(path: Path, what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise UsageError(f"'{path}': two hosts have the {what} {', '.join(twice)}", f"each host needs its own {what}")


CA, CERTIFICATE, KEY = "ca.pem", "certificate.pem", "key.pem"
GATHERER = "gatherer"
_AUTHORITY_KEY = "ca-key.pem"
_LASTS = datetime.timedelta(days=825)
_BEFORE = datetime.timedelta(days=2)  # a board without a battery wakes with an old clock


def make_certificates(folder: Path, names: list[str]) -> None:
    """Authority and a folder with certificate and key for each name, where they are not there yet."""
    try:
        authority = _authority(folder)
        for name in (GATHERER, *names):
            if not (folder / name / KEY).exists():
                _issue(folder / name, name, *authority)
    except OSError as error:
        raise OutputNotWritable(f"cannot write certificates in '{folder}': {error.strerror}", "make room") from error


def tls_security(folder: Path) -> Security:
    """Return what Dask needs to talk as the holder of this folder.

    UsageError where the material is missing or wrong.
    """
    from distributed.security import Security

    files = {name: folder / name for name in (CA, CERTIFICATE, KEY)}
    missing = [str(path) for path in files.values() if not path.exists()]
    if missing:
        raise UsageError(f"no TLS material: {', '.join(missing)}", "stepscope fleet up hosts.toml makes it")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(files[CA]))
        context.load_cert_chain(files[CERTIFICATE], files[KEY])
    except (ssl.SSLError, OSError) as error:
        said = f"the TLS material in '{folder}' cannot be used: {error}"
        raise UsageError(said, "remove the folder; stepscope fleet up hosts.toml makes it anew") from error
    ends = {
        f"tls_{end}_{what}": str(files[name])
        for end in ("scheduler", "worker", "client")
        for what, name in (("cert", CERTIFICATE), ("key", KEY))
    }
    made: Any = Security  # it has no types
    protection: Security = made(tls_ca_file=str(files[CA]), require_encryption=True, **ends)
    return protection


def _authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if (folder / _AUTHORITY_KEY).exists():
        try:
            key = load_pem_private_key((folder / _AUTHORITY_KEY).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        except (ValueError, FileNotFoundError) as error:
            said = f"the authority in '{folder}' cannot be read: {error}"
            raise UsageError(said, "remove the folder: stepscope fleet up makes it anew") from error
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return certificate, key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _x509_name("Stepscope fleet")
    constraint = x509.BasicConstraints(ca=True, path_length=0)
    certificate = _certificate_builder(name, name, key).add_extension(constraint, critical=True).sign(key, _hash())
    folder.mkdir(parents=True, exist_ok=True)
    _write_private(folder / CA, _pem(certificate))
    _write_private(folder / _AUTHORITY_KEY, _pem_of_key(key))
    return certificate, key


def _issue(folder: Path, name: str, authority: Certificate, signer: EllipticCurvePrivateKey) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _certificate_builder(_x509_name(name), authority.subject, key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(signer, _hash())
    )
    folder.mkdir(parents=True, exist_ok=True)
    _write_private(folder / CA, _pem(authority))
    _write_private(folder / CERTIFICATE, _pem(certificate))
    _write_private(folder / KEY, _pem_of_key(key))


def _certificate_builder(subject: Any, issuer: Any, key: EllipticCurvePrivateKey) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _LASTS)
    )


def _x509_name(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_of_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    """Readable by its owner alone from its first byte."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
