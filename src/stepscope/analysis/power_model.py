"""An estimate of power from utilisation, by the user's own figures alone: `cpu=2W..15W,gpu=1W..10W`.

P = idle + (busy - idle) x utilisation x clock / highest clock. Whatever comes of it is called estimated everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.analysis.growth import Growth
from stepscope.analysis.intervals import Floats
from stepscope.analysis.power_sources import PowerSource
from stepscope.analysis.utilisation import core_busy_time
from stepscope.analysis.windows import Series, resolved_ns, series_of, windows
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.runfolder import RunReader

COMPONENTS = ("cpu", "gpu")
SENSOR = "power model"
_MOST_W = 5000.0
_MOST_WINDOWS = 20_000
_WATTS = {"W": 1.0, "mW": 1e-3}
_PART = re.compile(r"(?P<name>\w+)=(?P<idle>\d+(?:\.\d+)?)(?P<idle_unit>m?W)?\.\.(?P<busy>\d+(?:\.\d+)?)(?P<unit>m?W)")
_HINT = "say what a part takes idle and fully busy: --power-model cpu=2W..15W or cpu=2W..15W,gpu=500mW..10W"


@dataclass(frozen=True)
class ComponentPower:
    """What a component takes idle and fully busy at its highest clock, W."""

    component: str
    idle_w: float
    busy_w: float


def parse_power_model(spec: str) -> tuple[ComponentPower, ...]:
    """The components of a power model; raises UsageError, with what to write instead."""
    parts = [part.strip() for part in spec.split(",")]
    model = tuple(_component(part) for part in parts)
    names = [one.component for one in model]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"the power model names '{twice[0]}' twice: '{spec}'", "give each component once")
    return model


def _component(part: str) -> ComponentPower:
    found = _PART.fullmatch(part.replace(" ", ""))
    if found is None:
        raise UsageError(f"cannot read '{part}' of the power model", _HINT)
    if found["name"] not in COMPONENTS:
        raise UnknownName("component of a power model", found["name"], COMPONENTS)
    idle_w = float(found["idle"]) * _WATTS[found["idle_unit"] or found["unit"]]
    busy_w = float(found["busy"]) * _WATTS[found["unit"]]
    if not idle_w <= busy_w or not 0 < busy_w <= _MOST_W:
        why = f"the power model has '{part}': busy must be above 0, at most {_MOST_W:g} W, and not below idle"
        raise UsageError(why, _HINT)
    return ComponentPower(found["name"], idle_w, busy_w)


def modelled_sources(run: RunReader) -> list[PowerSource]:
    """The estimated power of each component of the run's own power model that has a utilisation; empty without one."""
    return [source for one in _model(run) if (source := _estimate(run, one)) is not None]


def without_utilisation(run: RunReader) -> Iterator[str]:
    """Why a power model of this run, or a component of it, gives nothing."""
    spec = run.meta.get("power_model")
    try:
        model = parse_power_model(str(spec)) if spec else ()
    except StepscopeError as error:
        yield f"{error}"
        return
    for one in model:
        if _estimate(run, one) is None:
            yield f"the power model names '{one.component}', whose utilisation was not sampled in this run"


def _model(run: RunReader) -> tuple[ComponentPower, ...]:
    spec = run.meta.get("power_model")
    try:
        return parse_power_model(str(spec)) if spec else ()
    except StepscopeError:
        return ()  # `without_utilisation` says why


def _estimate(run: RunReader, one: ComponentPower) -> PowerSource | None:
    if one.component == "cpu":
        edges, used = _cpu_use(run)
        used = used * _relative_clock(list(series_of(run, "core_frequency")), edges, _highest_clock(run))
    else:
        edges, used = _gpu_use(run)
        clocks = [series for series in series_of(run, "frequency") if series.scope.startswith("gpu:")]
        used = used * _relative_clock(clocks, edges, None)
    if len(used) == 0 or not np.isfinite(used).any():
        return None
    watts = one.idle_w + (one.busy_w - one.idle_w) * np.clip(used, 0, 1)
    gap = np.isnan(watts)
    length_ns = float(np.diff(edges).mean())
    return PowerSource(
        id=f"model.{one.component}.power",
        sensor=SENSOR,
        kind="estimate",
        scope=f"model:{one.component}",
        parent_scope=None,
        rail=None,
        growth=Growth(edges, np.where(gap, np.nan, watts * np.diff(edges) / 1e9), gap),
        refresh_ns=length_ns,
        spread_w=float(np.nanmax(watts) - np.nanmin(watts)),
    )


def _cpu_use(run: RunReader) -> tuple[Floats, Floats]:
    """Edges of windows and the mean utilisation of all cores in each, NaN where one was not read."""
    cores = core_busy_time(run)
    if not cores:
        return np.empty(0), np.empty(0)
    begin, end = max(core.t_ns[0] for core in cores), min(core.t_ns[-1] for core in cores)
    length = max(*(resolved_ns(core) for core in cores), (end - begin) / _MOST_WINDOWS)
    if end - begin < length:
        return np.empty(0), np.empty(0)
    parts = [windows(core, begin, end, length) for core in cores]
    return parts[0].edges_ns, np.clip(np.mean([part.rates for part in parts], axis=0), 0, 1)


def _gpu_use(run: RunReader) -> tuple[Floats, Floats]:
    """The readings of GPU utilisation as windows, the mean of all GPUs; NaN over gaps."""
    gpus = [series for series in series_of(run, "utilisation") if series.scope.startswith("gpu:")]
    if not gpus:
        return np.empty(0), np.empty(0)
    edges = gpus[0].t_ns
    middles = (edges[1:] + edges[:-1]) / 2
    used = np.mean([_at(gpu, middles) for gpu in gpus], axis=0)
    return edges, used


def _at(series: Series, t_ns: Floats) -> Floats:
    """A gauge between its readings, NaN in its gaps."""
    values = np.interp(t_ns, series.t_ns, series.values)
    for begin, end in series.gaps_ns:
        values[(t_ns > begin) & (t_ns < end)] = np.nan
    return values


def _relative_clock(clocks: list[Series], edges: Floats, highest_hz: float | None) -> Floats:
    """Mean clock of each window over the highest (that the machine states, else that was seen); 1 where not sampled."""
    middles = np.array([(a + b) / 2 for a, b in pairwise(edges)])
    if not clocks or not len(middles):
        return np.ones(len(middles))
    hertz = np.mean([np.interp(middles, series.t_ns, series.values) for series in clocks], axis=0)
    top = highest_hz or max(float(series.values.max()) for series in clocks)
    return np.asarray(np.clip(hertz / top, 0, 1)) if top > 0 else np.ones(len(middles))


def _highest_clock(run: RunReader) -> float | None:
    """Mean of the highest clocks of all cores that the device states, Hz."""
    cores = [core for core in run.device.get("cores") or [] if isinstance(core, dict)]
    stated = [float(core["max_frequency_hz"]) for core in cores if core.get("max_frequency_hz")]
    return sum(stated) / len(stated) if stated and len(stated) == len(cores) else None
