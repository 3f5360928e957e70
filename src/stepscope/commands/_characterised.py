"""What `stepscope doctor --characterise` measures, and how it shows it: a table, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingDependency, OutputNotWritable, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from stepscope.record.characterisation.profiles import SensorProfile
    from stepscope.record.sensors import Survey
    from stepscope.record.sensors.contract import Target

_WIDTH = 940  # of the picture, px
_UNKNOWN = "not known"  # nothing changed, or finer than the polling could see


def check_picture(path: Path) -> None:
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


def measured(seen: Survey, target: Target, root: Path, picture: Path | None, say: Console) -> dict[str, SensorProfile]:
    """Characterise the power sensors that answer, keep the result for the runs to come, and draw it where asked."""
    from stepscope.record.diagnosis import characterised

    with say.status("") as status:
        observation, found = characterised(seen, target, root, status.update)
    if picture is not None:
        _draw(observation, found, picture)
    return found


def print_profiles(console: Console, channels: list[dict[str, Any]], found: Mapping[str, SensorProfile]) -> None:
    """A row a channel, measured here; beside the refresh and the step what the driver states, where it differs."""
    from rich.table import Table

    table = Table(title="Characterised now, under a load step", title_justify="left", box=None, pad_edge=False)
    table.add_column("channel", no_wrap=True, overflow="ellipsis")
    for heading in ("one read", "99 %", "refresh", "step", "average"):
        table.add_column(heading, justify="right")
    for channel in channels:
        profile = found.get(channel["id"])
        if profile is not None:
            table.add_row(channel["id"], *_cells(channel, profile))
    console.print()
    console.print(table)


def _cells(channel: dict[str, Any], profile: SensorProfile) -> list[str]:
    from stepscope.units import duration

    unit, refresh_ns, step = channel["unit"], channel["refresh_ns"], channel["step_size"]
    return [
        duration(profile.read_cost_ns),
        duration(profile.read_cost_p99_ns),
        _with_stated(_refresh(profile), refresh_ns, profile.refresh_ns, duration(refresh_ns)),
        _with_stated(_amount(profile.step_size, unit), step, profile.step_size, _amount(step, unit)),
        _averages(channel["kind"], profile),
    ]


def _refresh(profile: SensorProfile) -> str:
    from stepscope.units import duration

    return _UNKNOWN if profile.refresh_ns is None else duration(profile.refresh_ns)


def _with_stated(shown: str, stated: float | None, found: float | None, stated_shown: str) -> str:
    """The measured figure, and the driver's own where they are more than a tenth apart."""
    agree = stated is None or (found is not None and abs(found - stated) <= 0.1 * abs(stated))
    return shown if agree else f"{shown} (stated: {stated_shown})".replace(f"{_UNKNOWN} (", "(")


def _amount(value: float | None, unit: str) -> str:
    """A step size, often a small part of its unit: 61 uJ, 38 mW."""
    from stepscope.units import si

    if value is None:
        return _UNKNOWN
    scale, prefix = next((s, p) for s, p in ((1.0, ""), (1e3, "m"), (1e6, "u")) if abs(value) * s >= 1 or p == "u")
    return si(value * scale, f"{prefix}{unit}")


def _averages(kind: str, profile: SensorProfile) -> str:
    from stepscope.units import duration

    if kind == "counter":
        return "adds up"
    if profile.filter is None or profile.window_ns is None:
        return profile.filter or _UNKNOWN
    return f"{profile.filter.removesuffix(' average')}, {duration(profile.window_ns)}"


def _draw(observation: Any, found: Mapping[str, SensorProfile], path: Path) -> None:
    from stepscope.record.characterisation.characterise import responses
    from stepscope.report.charts.sensor_response import Panel, build, write

    panels = [
        Panel(_title(channel.id, channel.kind, found[channel.id]), "W", readings)
        for channel, readings in responses(observation)
        if channel.id in found and readings
    ]
    start_ns = min(trace.times_ns[0] for trace in observation.traces.values() if trace.times_ns)
    load_s = [((on - start_ns) / 1e9, (off - start_ns) / 1e9) for on, off in observation.load]
    try:
        write(build(panels, load_s, _WIDTH), path)
    except OSError as error:
        raise OutputNotWritable(f"cannot write '{path}': {error.strerror or error}", "choose another file") from error


def _title(name: str, kind: str, profile: SensorProfile) -> str:
    return f"{name}: refresh {_refresh(profile)}, average: {_averages(kind, profile)}"
