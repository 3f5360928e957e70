"""`stepscope doctor`: which quantities can be measured here, from which source, at which resolution and cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.api.requests import DoctorRequest
from stepscope.cli._options import make_command
from stepscope.errors import MissingDependency, OutputNotWritable, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from stepscope.record.sampler.characterise import SensorProfile
    from stepscope.record.sensors import Survey
    from stepscope.record.sensors.contract import Target


def _doctor(
    request: DoctorRequest,
    root: Annotated[
        Path, typer.Option(envvar="STEPSCOPE_ROOT", help="Look below this folder: a saved copy of /proc and /sys.")
    ] = Path("/"),
    json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="List every sensor with its cost, and every sensor that is missing.")
    ] = False,
) -> None:
    """Examine the machine, run the requested measurements, and print the result."""
    from rich.console import Console

    from stepscope.quantities import simulated_badge
    from stepscope.record.diagnosis import diagnose
    from stepscope.simulate import sensor_root

    if request.picture is not None:
        refuse_bad_picture_path(request.picture)

    def measure(survey: Survey, target: Target) -> dict[str, SensorProfile]:
        return characterise_power_sensors(survey, target, root, request.picture, Console(stderr=True))

    with sensor_root(request.simulate, str(root)) as chosen:
        answer, profiles = diagnose(
            Path(chosen.root or "/"), request.simulate, measure if request.characterise else None
        )
    if request.ceilings:
        from stepscope.record.ceilings import ceilings as measured

        answer = {
            **answer,
            "ceilings": measured(
                request.device or "cpu", request.precision or "fp32", threads=request.threads, again=True
            ),
        }
    console = Console()
    if json:
        console.print_json(data=answer)
        return
    if answer["simulated"] is not None:
        console.print(f"[bold]{simulated_badge(answer['simulated'])}[/bold], not of this machine")
    _print_answer(console, answer)
    if verbose:
        _print_device(console, answer)
        _print_channels(console, answer["channels"])
    if request.characterise:
        print_profiles(console, answer["channels"], profiles)
    if verbose:
        _print_missing(console, answer["missing"])
        _print_power(console, answer)
        _print_software(console, answer)
    elif not request.ceilings and not request.characterise:
        console.print("Every sensor with its cost, and what is missing: stepscope doctor -v")
    if request.ceilings:
        _print_ceilings(console, answer["ceilings"], request.device or "cpu")


doctor = make_command(DoctorRequest, _doctor, "doctor")


def _print_answer(console: Console, answer: dict[str, Any]) -> None:
    """Three lines: what can be measured here, what would add energy, and the command to begin with."""
    from stepscope.quantities import POWER_SENSORS

    names = list(dict.fromkeys(_OF_THE_ANSWER.get(channel["quantity"], "") for channel in answer["channels"]))
    torch = answer["torch"]["version"] is not None
    can = [*(["time by layer and operator"] if torch else []), *(name for name in names if name)]
    can = can or ["nothing: there is no /proc and no torch"]
    meters = [why for why in answer["missing"] if POWER_SENSORS.search(why["sensor"])]
    remedies = [why["remedy"] for why in meters if why["remedy"] and why["reason"] != "absent"]
    if answer["power"]:
        later = "" if answer["characterised"] else "; the first run characterises it"
        energy = f"measured by {', '.join(meter['sensor'] for meter in answer['power'])}{later}"
    elif remedies:
        energy = f"not measured; {remedies[0]}"
    else:
        energy = "no power sensor; add a plug or meter (--plug), or estimate (--power-model)"
    why = answer["torch"]
    start = "stepscope run lenet" if torch else why["remedy"] or f"mend torch, it cannot be imported: {why['fault']}"
    from rich.text import Text

    for label, text in (("Measured here", ", ".join(can)), ("Energy", energy), ("Start with", start)):
        console.print(Text.assemble((f"{label}: ", "bold"), text))


_OF_THE_ANSWER = {
    "power": "power", "energy": "energy", "rss": "memory", "core_busy_time": "CPU utilisation",
    "core_idle_time": "CPU utilisation", "temperature": "temperature", "core_frequency": "clocks",
    "frequency": "clocks", "utilisation": "GPU utilisation", "stall_time": "waiting", "run_delay": "waiting",
}  # fmt: skip


def _print_device(console: Console, answer: dict[str, Any]) -> None:
    from stepscope.units import bytes_, plural

    device = answer["device"]
    name = device["board"] or device["cpu"] or device["machine"]
    cores = plural(len(device["cores"]), "core") if device["cores"] else "- cores"
    console.print(f"[bold]{name}[/], {cores}, {bytes_(device['memory_bytes'])} of memory")
    console.print(f"{device['os'] or '-'}, kernel {device['kernel'] or '-'}", highlight=False)
    if not answer["proc"]:
        console.print(
            "\nThere is no /proc here (macOS, or an empty --root): CPU time, memory, clocks and temperatures cannot\n"
            "be sampled. Step times, operators and modules are still measured."
        )


def _print_channels(console: Console, channels: list[dict[str, Any]]) -> None:
    titles = (("quantity", "of"), ("update interval", "resolution", "read cost", "read every"))
    _print_list(console, "Measured here", *titles, map(_row, _groups(channels)))
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
    from stepscope.units import duration, si

    first, step = group[0], group[0]["step_size"]
    count = f" x {len(group)}" if len(group) > 1 else ""
    unit = "" if first["unit"] == "1" else first["unit"]
    size = duration(step) if unit == "ns" else si(step, unit)
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
    """What could be enabled, with how; then the names of what this machine does not have."""
    if missing:
        console.print("\n[bold]Not measured here[/]")
    absent = [why["sensor"] for why in missing if why["reason"] == "absent" and not why["remedy"]]
    for why in missing:
        if why["sensor"] not in absent:
            console.print(f"  {why['sensor']}: {why['reason']} ({why['detail']})", highlight=False, markup=False)
            _print_remedy(console, why["remedy"])
    if absent:
        console.print(f"  not on this machine: {', '.join(absent)} (where each is found: --json)", highlight=False)


def _print_power(console: Console, answer: dict[str, Any]) -> None:
    console.print("\n[bold]Power[/]")
    for meter in answer["power"]:
        line = f"  {meter['sensor']}: {', '.join(meter['channels'])}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if not answer["power"]:
        console.print("  No sensor of power or energy answers here: runs report no energy. Works on any machine:")
        console.print("    a plug or meter: stepscope run --plug, --meter-command or --meter-csv")
        console.print("    an estimate, labelled so: stepscope run --power-model cpu=2W..15W", highlight=False)
    elif not answer["characterised"]:
        console.print("  Not characterised yet: the first run does it, and --characterise shows it.", highlight=False)
    for name, calibration in answer["calibrated"].items():
        console.print(f"  {calibration_line(name, calibration)}", highlight=False, markup=False, soft_wrap=True)
    for name, why in answer["calibrations_refused"].items():
        console.print(f"  {name}: calibration not used: {why}", highlight=False, markup=False, soft_wrap=True)


def calibration_line(name: str, calibration: Mapping[str, Any]) -> str:
    """Return what a meter showed of a channel, in a line."""
    from stepscope.units import duration, estimate, si

    gain, half = calibration["gain"], calibration["gain_half"]
    offset = calibration["shown_w"] - gain * calibration["meter_w"]
    late = "" if calibration["delay_ns"] is None else f", {duration(calibration['delay_ns'])} late"
    window = f", {calibration['filter']} {duration(calibration['window_ns'])}" if calibration["window_ns"] else ""
    return (
        f"{name}: shows {estimate(gain, gain - half, gain + half, '')} W of each W of {calibration['meter']}, "
        f"offset {si(offset, 'W')}{late}{window}; calibrated {calibration['at'][:10]}"
    )


def _print_software(console: Console, answer: dict[str, Any]) -> None:
    torch, perf = answer["torch"], answer["perf"]
    console.print("\n[bold]Software[/]")
    if torch["version"] is None:
        why = f"cannot be imported: {torch['fault']}" if torch["fault"] else "not installed"
        console.print(f"  torch: {why}; stored runs can be read, none can be recorded", highlight=False, markup=False)
    else:
        devices = ", ".join(torch["devices"]) or "no GPU that torch can use"
        fault = f" ({torch['fault']})" if torch["fault"] else ""
        line = f"  torch {torch['version']}, CUDA {torch['cuda'] or '-'}: {devices}{fault}"
        console.print(line, highlight=False, markup=False)
    _print_remedy(console, torch["remedy"])
    paranoid = "-" if perf["paranoid"] is None else perf["paranoid"]
    allowed = "allowed: CPU time of the training process is fresh at each read" if perf["allowed"] else "not allowed"
    console.print(f"  perf events: {allowed} (perf_event_paranoid {paranoid})", highlight=False)
    _print_remedy(console, perf["remedy"])


def _print_ceilings(console: Console, ceilings: dict[str, Any] | None, device: str) -> None:
    """Rates by size, fastest of many blocks; how quiet the machine was meanwhile."""
    from stepscope.runfolder.schema import QUIET
    from stepscope.units import bytes_, duration, percent, plural, si

    if ceilings is None:
        why = "is torch installed?" if device == "cpu" else f"does the installed torch see {device}?"
        console.print(f"\nCeilings: they could not be measured ({why})", markup=False)
        return
    title = f"Ceilings, {ceilings['device']}, {ceilings['precision']}, {plural(ceilings['threads'], 'thread')}"
    rows = [(row["kind"], row["what"], si(row["flops_per_s"], "FLOP/s")) for row in ceilings["arithmetic"]]
    rows += [(row["kind"], bytes_(row["bytes"]), f"{bytes_(row['bytes_per_s'])}/s") for row in ceilings["bandwidth"]]
    rows += [
        (name.removesuffix("_ns").replace("_", " "), "one call", duration(ns))
        for name, ns in ceilings["dispatch"].items()
    ]
    _print_list(console, title, ("what", "size", "reached"), (), rows)
    waited = ceilings.get("run_queue_share")
    if waited is not None and waited > QUIET:
        console.print(
            f"Its threads waited for a core in {percent(waited, 0)} of the time: these are lower bounds, "
            "withheld from every report, and a run in ten minutes measures again."
        )


def _print_remedy(console: Console, remedy: str | None) -> None:
    if remedy:
        console.print(f"    enable with: {remedy}", highlight=False, markup=False, soft_wrap=True)


_WIDTH = 940  # of the picture, px
_UNKNOWN = "not known"  # nothing changed, or finer than the polling could see


def refuse_bad_picture_path(path: Path) -> None:
    """Refuse a picture that could not be drawn, before some seconds go into measuring."""
    if path.suffix not in (".png", ".svg", ".html"):
        raise UsageError(f"'{path}' names no kind of picture", "end its name in .png, .svg or .html")
    if not path.parent.is_dir():
        raise OutputNotWritable(f"there is no folder '{path.parent}' for the picture", "make it, or choose another")
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"pictures need {error.name}", "pip install 'stepscope[report]'") from error


def characterise_power_sensors(
    survey: Survey, target: Target, root: Path, picture: Path | None, say: Console
) -> dict[str, SensorProfile]:
    """Characterise the power sensors that answer, keep the result for the runs to come, and draw it where asked."""
    from stepscope.record.diagnosis import measure_and_save_power_sensors as characterised

    with say.status("") as status:
        observation, profiles = characterised(survey, target, root, status.update)
    if picture is not None:
        _draw_responses(observation, profiles, picture)
    return profiles


def print_profiles(
    console: Console, channels: list[dict[str, Any]], profiles_by_channel: Mapping[str, SensorProfile]
) -> None:
    """A row a channel, measured here; beside the refresh and the step what the driver states, where it differs."""
    profiles = [
        (channel, profiles_by_channel[channel["id"]]) for channel in channels if channel["id"] in profiles_by_channel
    ]
    rows = [(channel["id"], *_profile_cells(channel, profile)) for channel, profile in profiles]
    numbers = ("read cost", "99 %", "update interval", "resolution", "averaging window")
    _print_list(console, "Characterised now, under a load step", ("channel",), numbers, rows)


def _print_list(
    console: Console, title: str, names: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    from stepscope.report.table import Cell, Column, Table, terminal_table

    columns = [*(Column(name, False) for name in names), *(Column(name, fold=True) for name in numbers)]
    table = Table(title, tuple(columns), [tuple(map(Cell, row)) for row in rows])
    console.print("", terminal_table(table, "bold list", title=title), sep="\n")


def _profile_cells(channel: dict[str, Any], profile: SensorProfile) -> list[str]:
    from stepscope.units import duration

    unit, refresh_ns, step = channel["unit"], channel["refresh_ns"], channel["step_size"]
    return [
        duration(profile.read_cost_ns),
        duration(profile.read_cost_p99_ns),
        _add_stated_value(_refresh_text(profile), refresh_ns, profile.refresh_ns, duration(refresh_ns)),
        _add_stated_value(
            _step_size_text(profile.step_size, unit), step, profile.step_size, _step_size_text(step, unit)
        ),
        _averaging_text(channel["kind"], profile),
    ]


def _refresh_text(profile: SensorProfile) -> str:
    from stepscope.units import duration

    return _UNKNOWN if profile.refresh_ns is None else duration(profile.refresh_ns)


def _add_stated_value(text: str, stated: float | None, measured: float | None, stated_shown: str) -> str:
    """The measured figure, and the driver's own where they are more than a tenth apart."""
    agree = stated is None or (measured is not None and abs(measured - stated) <= 0.1 * abs(stated))
    return text if agree else f"{text} (stated: {stated_shown})".replace(f"{_UNKNOWN} (", "(")


def _step_size_text(value: float | None, unit: str) -> str:
    """A step size, often a small part of its unit: 61 uJ, 38 mW."""
    from stepscope.units import si

    if value is None:
        return _UNKNOWN
    scale, prefix = next((s, p) for s, p in ((1.0, ""), (1e3, "m"), (1e6, "u")) if abs(value) * s >= 1 or p == "u")
    return si(value * scale, f"{prefix}{unit}")


def _averaging_text(kind: str, profile: SensorProfile) -> str:
    from stepscope.units import duration

    if kind == "counter":
        return "adds up"
    if profile.filter is None or profile.window_ns is None:
        return profile.filter or _UNKNOWN
    return f"{profile.filter.removesuffix(' average')}, {duration(profile.window_ns)}"


def _draw_responses(observation: Any, profiles: Mapping[str, SensorProfile], path: Path) -> None:
    from stepscope.record.sampler.characterise import power_responses
    from stepscope.report.charts.sensors import Panel, build_response, write_response

    panels = [
        Panel(
            f"{channel.id}: refresh {_refresh_text(profiles[channel.id])}, "
            f"average: {_averaging_text(channel.kind, profiles[channel.id])}",
            "W",
            readings,
        )
        for channel, readings in power_responses(observation)
        if channel.id in profiles and readings
    ]
    start_ns = min(trace.times_ns[0] for trace in observation.traces.values() if trace.times_ns)
    load_s = [((on - start_ns) / 1e9, (off - start_ns) / 1e9) for on, off in observation.load]
    try:
        write_response(build_response(panels, load_s, _WIDTH), path)
    except OSError as error:
        raise OutputNotWritable(f"cannot write '{path}': {error.strerror or error}", "choose another file") from error
