"""`stepscope doctor`: what can be measured here, from which source, how fine, at which cost; what would add more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.record.characterisation.profiles import SensorProfile
    from stepscope.record.sensors import Survey
    from stepscope.record.sensors.contract import Target


def doctor(
    root: Annotated[
        Path, typer.Option(envvar="STEPSCOPE_ROOT", help="Look below this folder: a saved copy of /proc and /sys.")
    ] = Path("/"),
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    characterise: Annotated[
        bool,
        typer.Option("--characterise", help="Measure refresh, step and filter of each power sensor: loads all cores."),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", help="With --characterise: draw the answers to the load (.png, .svg or .html)."),
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Look at a simulated board instead (all output says so): jetson-tx2, ...")
    ] = None,
) -> None:
    """Show what can be measured on this machine, what cannot, and the command that would enable it."""
    from rich.console import Console

    from stepscope.commands._characterised import check_picture, measured, print_profiles
    from stepscope.record.diagnosis import diagnosis
    from stepscope.simulate.rooted import rooted

    if picture is not None:
        if not characterise:
            raise UsageError("--picture belongs to --characterise", "add --characterise")
        check_picture(picture)
    if simulate is not None and characterise:
        said = "--characterise: a simulated board follows a training, not the load that this would make"
        raise UsageError(said, f"look at it alone: stepscope doctor --simulate {simulate}")

    def measure(seen: Survey, target: Target) -> dict[str, SensorProfile]:
        return measured(seen, target, root, picture, Console(stderr=True))

    with rooted(simulate, str(root)) as chosen:
        found, profiles = diagnosis(Path(chosen.root or "/"), simulate, measure if characterise else None)
    console = Console()
    if json:
        console.print_json(data=found)
        return
    if simulate is not None:
        console.print(f"[bold]SIMULATED[/bold] sensors of '{simulate}', not of this machine")
    _print_device(console, found)
    _print_channels(console, found["channels"])
    if characterise:
        print_profiles(console, found["channels"], profiles)
    _print_missing(console, found["missing"])
    _print_power(console, found)
    _print_software(console, found)


def _print_device(console: Console, found: dict[str, Any]) -> None:
    from stepscope.units import bytes_, plural

    device = found["device"]
    name = device["board"] or device["cpu"] or device["machine"]
    cores = plural(len(device["cores"]), "core") if device["cores"] else "- cores"
    console.print(f"[bold]{name}[/], {cores}, {bytes_(device['memory_bytes'])} of memory")
    console.print(f"{device['os'] or '-'}, kernel {device['kernel'] or '-'}", highlight=False)
    if not found["proc"]:
        console.print(
            "\nThere is no /proc here (macOS, or an empty --root): CPU time, memory, clocks and temperatures cannot\n"
            "be sampled. Step times, operations and modules are still measured."
        )


def _print_channels(console: Console, channels: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title="Measured here", title_justify="left", box=None, pad_edge=False)
    for heading in ("quantity", "of"):
        table.add_column(heading, no_wrap=True)
    for heading in ("moves every", "step", "one read", "read every"):
        table.add_column(heading, justify="right")
    for group in _groups(channels):
        table.add_row(*_row(group))
    console.print()
    console.print(table)
    console.print("\n[bold]Sources[/]")
    for group in _groups(channels):
        scope = group[0]["scope"].partition(":")[0]
        line = f"  {group[0]['quantity']}, {scope}: {group[0]['source']}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _groups(channels: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Channels that differ in their scope alone, such as those of the cores, together."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for channel in channels:
        kind_of_scope = channel["scope"].partition(":")[0]
        groups.setdefault((channel["quantity"], kind_of_scope), []).append(channel)
    return list(groups.values())


def _row(group: list[dict[str, Any]]) -> list[str]:
    from stepscope.units import bytes_, duration, si

    first = group[0]
    count = f" x {len(group)}" if len(group) > 1 else ""
    step = first["step_size"]
    size = (
        duration(step) if first["unit"] == "ns" else bytes_(step) if first["unit"] == "B" else si(step, first["unit"])
    )
    refresh = first["refresh_ns"]
    return [
        first["quantity"],
        f"{first['scope'].partition(':')[0]}{count}",
        "each read" if refresh == 1 else duration(refresh),
        "-" if first["quantity"] == "sampler_missed" else size,
        duration(first["read_cost_ns"]),
        duration(first["every_ns"]) if first["every_ns"] else "period",
    ]


def _print_missing(console: Console, missing: list[dict[str, Any]]) -> None:
    """What could be enabled first, then what is simply not there."""
    if missing:
        console.print("\n[bold]Not measured here[/]")
    for why in sorted(missing, key=lambda why: why["reason"] == "absent"):
        console.print(f"  {why['sensor']}: {why['reason']} ({why['detail']})", highlight=False, markup=False)
        _print_remedy(console, why["remedy"])


def _print_power(console: Console, found: dict[str, Any]) -> None:
    console.print("\n[bold]Power[/]")
    for meter in found["power"]:
        line = f"  {meter['sensor']}: {', '.join(meter['channels'])}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not found["power"]:
        console.print("  No sensor of power or energy answers here: runs report no energy. What works on any machine:")
        console.print("    a plug or meter beside it: --plug, --meter-command or --meter-csv of stepscope run")
        console.print(
            "    an estimate, which is called so: stepscope run ... --power-model cpu=2W..15W", highlight=False
        )
    elif not found["characterised"]:
        console.print("  Not characterised yet: the first run does it, and --characterise shows it.", highlight=False)


def _print_software(console: Console, found: dict[str, Any]) -> None:
    torch, perf = found["torch"], found["perf"]
    console.print("\n[bold]Software[/]")
    if torch["version"] is None:
        console.print("  torch: not installed; stored runs can be read, none can be recorded")
    else:
        devices = ", ".join(torch["devices"]) or "no GPU that torch can use"
        console.print(f"  torch {torch['version']}, CUDA {torch['cuda'] or '-'}: {devices}", highlight=False)
    _print_remedy(console, torch["remedy"])
    paranoid = "-" if perf["paranoid"] is None else perf["paranoid"]
    allowed = "allowed: CPU time of the trainer is fresh at each read" if perf["allowed"] else "not allowed"
    console.print(f"  perf events: {allowed} (perf_event_paranoid {paranoid})", highlight=False)
    _print_remedy(console, perf["remedy"])


def _print_remedy(console: Console, remedy: str | None) -> None:
    if remedy:
        console.print(f"    enable with: {remedy}", highlight=False, markup=False, soft_wrap=True)
