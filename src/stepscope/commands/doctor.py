"""`stepscope doctor`: what can be measured here, from which source, how fine, at which cost; what would add more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.record.characterisation.profiles import SensorProfile


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

    from stepscope.commands._characterised import check_picture, print_profiles

    if not root.is_dir():
        raise UsageError(
            f"there is no folder '{root}' to look below", "give --root the top of a saved tree, or leave it out"
        )
    if picture is not None:
        if not characterise:
            raise UsageError("--picture belongs to --characterise", "add --characterise")
        check_picture(picture)
    if simulate is not None and characterise:
        said = "--characterise: a simulated board follows a training, not the load that this would make"
        raise UsageError(said, f"look at it alone: stepscope doctor --simulate {simulate}")
    with _at(root, simulate) as looked_at:
        found, profiles = diagnosis(looked_at, characterise, picture)
    found["simulated"] = simulate
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


@contextmanager
def _at(root: Path, board: str | None) -> Iterator[Path]:
    """The folder to look below: of a simulated board, as long as it is looked at."""
    if board is None:
        yield root
        return
    from stepscope import simulate

    with simulate.start(board) as simulation:
        yield simulation.root


def diagnosis(
    root: Path, characterise: bool = False, picture: Path | None = None
) -> tuple[dict[str, Any], dict[str, SensorProfile]]:
    """All that doctor says, as plain data, and the profiles if they were measured; the process asked is this one."""
    import os
    from dataclasses import asdict

    from rich.console import Console

    from stepscope.commands._characterised import measured
    from stepscope.record.characterisation.profiles import device_identity, load_profiles, measures_power, with_profiles
    from stepscope.record.device import changing_facts, describe_device
    from stepscope.record.sensors import survey
    from stepscope.record.sensors.contract import Target

    target = Target(os.getpid())
    seen = survey(root, target)
    try:
        profiles = measured(seen, target, root, picture, Console(stderr=True)) if characterise else {}
        known = profiles or load_profiles(device_identity(root, seen.found)) or {}
    finally:
        for found in seen.found.values():
            found.close()
    sensors = {name: with_profiles(found, known, 0) for name, found in seen.found.items()}
    channels = [{**asdict(c), "every_ns": found.every_ns} for found in sensors.values() for c in found.channels]
    facts = {
        "root": str(root),
        "device": describe_device(root),
        "now": changing_facts(root),
        "channels": channels,
        "missing": [{"sensor": name, **asdict(why)} for name, why in seen.missing.items()],
        "power": [
            {"sensor": name, "channels": [c.id for c in found.channels if c.quantity in ("power", "energy")]}
            for name, found in sensors.items()
            if measures_power(found)
        ],
        "characterised": {name: asdict(profile) for name, profile in known.items()},
        "proc": (root / "proc/stat").exists(),
        "perf": _perf(root),
        "torch": _torch(),
    }
    return facts, profiles


def _perf(root: Path) -> dict[str, Any]:
    """Whether the trainer's CPU time can be had fresh at each read."""
    import os

    from stepscope.record.access.task_clock import open_task_clocks
    from stepscope.record.sensors.contract import close_files

    try:
        paranoid = int((root / "proc/sys/kernel/perf_event_paranoid").read_bytes())
    except (OSError, ValueError):
        paranoid = None
    clocks = open_task_clocks(os.getpid())
    close_files(clocks)
    too_strict = paranoid is not None and paranoid > 2
    return {
        "allowed": bool(clocks),
        "paranoid": paranoid,
        "remedy": "sudo sysctl kernel.perf_event_paranoid=2" if not clocks and too_strict else None,
    }


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"version": None, "cuda": None, "devices": [], "remedy": "pip install 'stepscope[torch]'"}
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"version": str(torch.__version__), "cuda": torch.version.cuda, "devices": names, "remedy": None}


def _print_device(console: Console, found: dict[str, Any]) -> None:
    from stepscope.units import bytes_

    device = found["device"]
    name = device["board"] or device["cpu"] or device["machine"]
    console.print(f"[bold]{name}[/], {len(device['cores']) or '-'} cores, {bytes_(device['memory_bytes'])} of memory")
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
        console.print("  No sensor of power or energy answers here: runs report no energy. See above what was tried.")
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
