"""`stepscope fleet`: many devices, one sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._options import AsJson, print_json
from stepscope.errors import FleetError
from stepscope.units import escape_control_characters

if TYPE_CHECKING:
    from stepscope.experiments.fleet.devices import DeviceState, HostState

_Hosts = Annotated[Path, typer.Argument(help="hosts.toml: a [[host]] with name and address for each device.")]


def fleet() -> None:
    """Bring up workers on many devices, look at them, and end them; `stepscope suite run --fleet` uses them."""


def up(
    hosts: _Hosts,
    rotate: Annotated[bool, typer.Option("--rotate", help="New keys and certificates for all.")] = False,
    lives_with: Annotated[
        int | None,
        typer.Option(
            "--lives-with", metavar="PID", help="What is started here ends with this process, as in a CI job."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start the scheduler here and a worker on each device over SSH; what runs already is left as it is.

    Each host is asked for its version and its sensors first. One of another version is refused, with both versions,
    and so is one where a worker of another fleet runs; the others are started all the same. All of it goes through
    TLS: certificates are issued here, and renewed when they end soon; each device makes its own key, which stays there.
    """
    from stepscope.experiments.fleet import devices as fleet_up
    from stepscope.experiments.fleet.hosts import read_hosts, require_libraries, scheduler_of_hosts

    require_libraries()
    read = read_hosts(hosts)
    states = fleet_up.up(read, _print_nothing if as_json else _print_up, rotate, lives_with)
    refused = [state for state in states if state.refused is not None]
    scheduler = scheduler_of_hosts(read).url
    if as_json:
        print_json({"scheduler": scheduler, "hosts": [_host_json(state) for state in states]})
    else:
        typer.echo(f"scheduler at {scheduler}; use it with: stepscope suite run --fleet {hosts}")
    if refused:
        raise FleetError(
            f"{len(refused)} of {len(read.hosts)} hosts are not up: {', '.join(state.host.name for state in refused)}",
            "put them right and repeat the command: what runs is left as it is",
        )


def status(
    where: Annotated[str, typer.Argument(help="hosts.toml, or tls://host:port.")],
    tls: Annotated[
        Path | None, typer.Option(help="With tls://...: folder of ca.pem, certificate.pem, key.pem.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show each device: board, whether it is there, at work or refused, versions, and how its clock differs."""
    from rich.console import Console

    from stepscope.experiments.fleet import devices as fleet_up
    from stepscope.experiments.fleet.hosts import require_libraries, scheduler_address
    from stepscope.report.suite_report import fleet_status_table

    require_libraries()
    scheduler = scheduler_address(where, tls)
    states = fleet_up.query_device_states(scheduler)
    device_names = {state.device.name for state in states}
    missing = [host for host in (scheduler.hosts.hosts if scheduler.hosts else ()) if host.name not in device_names]
    if as_json:
        absent = [dict(_NO_FACTS, name=host.name, board=host.board, state="not there") for host in missing]
        print_json([*map(_device_json, states), *absent])
    else:
        rows = [_row(state) for state in states]
        rows += [(host.name, host.board, "not there", "", "", "") for host in missing]
        Console(highlight=False).print(fleet_status_table(rows))
    if missing:
        raise FleetError(f"{len(missing)} hosts are not there", f"start them: stepscope fleet up {where}")


def down(hosts: _Hosts, as_json: AsJson = False) -> None:
    """End the workers and the scheduler; runs that were not gathered stay on their devices for a later --resume."""
    from stepscope.experiments.fleet import devices as fleet_up
    from stepscope.experiments.fleet.hosts import read_hosts

    read = read_hosts(hosts)
    states = fleet_up.down(read, _print_nothing if as_json else _print_down)
    unreached = [state for state in states if state.refused is not None]
    if as_json:
        print_json([_host_json(state) for state in states])
    if unreached:
        raise FleetError(
            f"no worker was ended on {len(unreached)} hosts: {', '.join(state.host.name for state in unreached)}",
            "what runs there waits for its scheduler: repeat the command once that is put right",
        )


def revoke(
    hosts: _Hosts,
    name: Annotated[str, typer.Argument(help="The host that is to be shut out.")],
    as_json: AsJson = False,
) -> None:
    """Let a device in no more: one that was lost, or taken over. Its connection ends within seconds."""
    from stepscope.experiments.fleet import devices as fleet_up
    from stepscope.experiments.fleet.hosts import read_hosts, require_libraries

    require_libraries()
    had = fleet_up.revoke_host(read_hosts(hosts), name)
    if as_json:
        print_json({"name": name, "had_certificate": had})
    else:
        typer.echo(f"{name}: {'revoked' if had else 'had no certificate, and gets none'}")


SUBCOMMANDS = {"up": up, "status": status, "down": down, "revoke": revoke}


def _print_nothing(state: HostState) -> None:
    """Nothing is printed before the answer as a whole."""


def _host_json(state: HostState) -> dict[str, Any]:
    """A host with what it says of itself, or why it is not part of the fleet."""
    refused = None if state.refused is None else str(state.refused)
    return {"name": state.host.name, "about": state.about, "refused": refused}


_NO_FACTS = dict.fromkeys(
    ("name", "board", "state", "refused", "stepscope", "torch", "clock_offset_s", "clock_within_s")
)


def _device_json(state: DeviceState) -> dict[str, Any]:
    """A device, whether it is free, at work or not used, its versions, and how far its clock is ahead of ours."""
    facts = dict(_NO_FACTS, name=state.device.name, board=state.device.board, refused=state.refused)
    if state.met is None:
        return {**facts, "state": "at work" if state.refused is None else "not used"}
    versions = state.met.about["versions"]
    clock = {"clock_offset_s": state.met.offset_s, "clock_within_s": state.met.within_s}
    return {**facts, "state": "free", "stepscope": versions["stepscope"], "torch": versions.get("torch"), **clock}


def _print_up(state: HostState) -> None:
    if state.refused is not None or state.about is None:
        hint = f" ({state.refused.hint})" if state.refused is not None and state.refused.hint else ""
        typer.echo(escape_control_characters(f"{state.host.name}: not used: {state.refused}{hint}"), err=True)
        return
    versions, power = state.about.get("versions", {}), state.about.get("power", [])
    device = state.about.get("device", {})
    what = device.get("board") or device.get("cpu") or device.get("machine")
    sensors = f"power from {', '.join(power)}" if power else "no power sensor"
    how = "started" if state.about.get("began") else "runs already"
    torch = versions.get("torch") or "not installed"
    typer.echo(escape_control_characters(f"{state.host.name}: {how}; {what}, torch {torch}, {sensors}"))


def _print_down(state: HostState) -> None:
    if state.about is None:
        typer.echo(escape_control_characters(f"{state.host.name}: {state.refused}"), err=True)
    else:
        typer.echo(f"{state.host.name}: {'ended' if state.about.get('stopped') else 'was not running'}")


def _row(state: DeviceState) -> tuple[str, ...]:
    device = (state.device.name, state.device.board)
    if state.refused is not None:
        return (*device, f"not used: {state.refused}", "", "", "")
    if state.met is None:
        return (*device, "at work", "", "", "")
    versions = state.met.about["versions"]
    clock = f"{state.met.offset_s:+.3f} s ± {state.met.within_s:.3f}"
    return (*device, "free", versions["stepscope"], versions.get("torch") or "", clock)
