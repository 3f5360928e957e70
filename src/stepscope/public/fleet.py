"""Many devices, one sweep: what `stepscope fleet` does.

`up` and `down` start and end the workers of a hosts.toml, `status` says how each device stands; a sweep on all of them
is `stepscope.suite.run(fleet="hosts.toml")`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.studies.fleet import up as fleet_up
from stepscope.studies.fleet.address import need_dask, reach
from stepscope.studies.fleet.hosts import read_hosts
from stepscope.studies.fleet.up import DeviceState, HostState

__all__ = ["down", "status", "up"]


def up(hosts: str | Path, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """Start the scheduler here and a worker on each host of a hosts.toml; what runs already is left as it is.

    says: told of each host as soon as it is up or refused. `refused` of a state is the reason, an error, or None.
    Raises UsageError for a file that cannot be understood, MissingDependency without the extra `fleet`.
    """
    need_dask()
    return fleet_up.up(read_hosts(Path(hosts)), says)


def status(where: str | Path, tls: str | Path | None = None) -> list[DeviceState]:
    """How each device stands that the scheduler knows: free, at work (`met` is None) or refused; versions and clock.

    where: a hosts.toml, tcp://host:port or tls://host:port; tls: with the last, the folder of ca.pem, certificate.pem
    and key.pem. Raises FleetError where the scheduler does not answer, MissingDependency without the extra `fleet`.
    """
    need_dask()
    return fleet_up.devices(reach(str(where), None if tls is None else Path(tls)))


def down(hosts: str | Path, says: Callable[[HostState], None] = lambda state: None) -> list[HostState]:
    """End the workers of a hosts.toml and the scheduler; runs that were not gathered stay on their devices."""
    return fleet_up.down(read_hosts(Path(hosts)), says)
