"""Many devices, one sweep: the functions of `stepscope fleet`.

`up` and `down` start and end the workers of a hosts.toml, `revoke` shuts one out, `status` returns the state of each
device; a sweep on all of them is `stepscope.suite.run(fleet="hosts.toml")`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.experiments.fleet import devices as fleet_up
from stepscope.experiments.fleet.devices import DeviceState, HostState
from stepscope.experiments.fleet.hosts import read_hosts, require_libraries, scheduler_address

__all__ = ["down", "revoke", "status", "up"]


def up(
    hosts: str | Path,
    says: Callable[[HostState], None] = lambda state: None,
    rotate: bool = False,
    lives_with: int | None = None,
) -> list[HostState]:
    """Start the scheduler here and a worker on each host of a hosts.toml; what runs already is left as it is.

    rotate: a new authority, new keys and certificates for all; what had others is let in no more.
    lives_with: what is started on this machine ends with the process of this number, for example `os.getpid()`.
    says: told of each host as soon as it is up or refused. `refused` of a state is the reason, an error, or None.
    Raises UsageError for a file that cannot be understood, MissingDependency without the extra `fleet`.
    """
    require_libraries()
    return fleet_up.up(read_hosts(Path(hosts)), says, rotate, lives_with)


def status(where: str | Path, tls: str | Path | None = None) -> list[DeviceState]:
    """Return each device that the scheduler knows: free, at work (`met` is None) or refused, its versions and clock.

    where: a hosts.toml, or tls://host:port; tls: with the latter, the folder of ca.pem, certificate.pem and key.pem.
    Raises FleetError where the scheduler does not answer, MissingDependency without the extra `fleet`.
    """
    require_libraries()
    return fleet_up.query_device_states(scheduler_address(str(where), None if tls is None else Path(tls)))


def down(hosts: str | Path, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """End the workers of a hosts.toml and the scheduler; runs that were not gathered stay on their devices."""
    return fleet_up.down(read_hosts(Path(hosts)), says)


def revoke(hosts: str | Path, name: str) -> bool:
    """Let a host of a hosts.toml in no more; returns whether it had a certificate.

    Raises UnknownName where no host has this name.
    """
    require_libraries()
    return fleet_up.revoke_host(read_hosts(Path(hosts)), name)
