"""Where a fleet's scheduler is and how to talk to it, from `tcp://...`, `tls://...` or a hosts.toml."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepscope.errors import FleetError, MissingDependency, UsageError
from stepscope.studies.fleet import certificates
from stepscope.studies.fleet.hosts import Hosts, is_loopback, read_hosts

if TYPE_CHECKING:
    from distributed import Client

_TRY_S = 10.0
_EXTRA = ("distributed", "asyncssh", "cryptography")
TLS_FOLDER = "tls"


class FleetUnreachable(FleetError):
    """The scheduler of the fleet does not answer, or not to us."""


@dataclass(frozen=True)
class Reach:
    """The scheduler's address, the folder with our TLS material (null: none), and the hosts.toml where there is one."""

    url: str
    tls: Path | None
    hosts: Hosts | None = None

    @property
    def unprotected(self) -> bool:
        """Whether anybody on the network can read along, and send code to the devices."""
        return self.tls is None and not is_loopback(urlsplit(self.url).hostname or "")


def reach(text: str, tls: Path | None = None) -> Reach:
    """What --fleet names; UsageError where it cannot be."""
    if "://" not in text:
        return of_hosts(read_hosts(Path(text)))
    parts = urlsplit(text)
    with contextlib.suppress(ValueError):
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            if (parts.scheme == "tls") != (tls is not None):
                raise UsageError(f"--fleet {text}: TLS material goes with tls://", "add --tls DIR, or leave it out")
            return Reach(text, tls)
    raise UsageError(f"--fleet {text}: not an address", "for example tcp://127.0.0.1:8786, or a hosts.toml")


def of_hosts(hosts: Hosts) -> Reach:
    """The scheduler that `stepscope fleet up` starts for these hosts."""
    url = f"{'tls' if hosts.tls else 'tcp'}://{_bracketed(hosts.scheduler)}:{hosts.port}"
    return Reach(url, hosts.state / TLS_FOLDER / certificates.GATHERER if hosts.tls else None, hosts)


def need_dask() -> None:
    """MissingDependency where the extra is not installed."""
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        said = f"a fleet needs {', '.join(missing)}, not installed for {sys.executable}"
        raise MissingDependency(said, f"{sys.executable} -m pip install 'stepscope[fleet]'")


@contextlib.asynccontextmanager
async def connected(where: Reach) -> AsyncIterator[Client]:
    """A client of the scheduler; FleetUnreachable where it does not answer, or not to this TLS material."""
    from distributed import Client

    protection: Any = None if where.tls is None else certificates.security(where.tls)
    await refuse_no_answer(where.url, {} if protection is None else protection.get_connection_args("client"))
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what it loses is told by us
    options: dict[str, Any] = {} if protection is None else {"security": protection}
    made: Any = Client  # it has no types
    client = await made(where.url, asynchronous=True, timeout=_TRY_S, set_as_default=False, **options)
    try:
        yield client
    finally:
        await client.close()


async def refuse_no_answer(url: str, arguments: dict[str, Any], timeout_s: float = _TRY_S) -> None:
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
