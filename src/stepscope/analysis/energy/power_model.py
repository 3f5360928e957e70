"""Power by a model of utilisation: what a part takes idle and busy, as the user states it or as other runs taught it.

P = idle + (busy - idle) x utilisation x clock / highest clock. Whatever comes of it is called estimated everywhere. Its
CI is what the model itself states (`+-8%`); of a model that states none there is no CI.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.channels import (
    Growth,
    Series,
    core_busy_time,
    growth_windows,
    series_of,
    shortest_window_ns,
    touches_gap,
)
from stepscope.analysis.energy.power_sources import PowerSource
from stepscope.analysis.time.steps import span_ns
from stepscope.arrays import Floats
from stepscope.errors import StepscopeError, UnknownName, UsageError
from stepscope.runfolder import RunReader
from stepscope.units import percent

COMPONENTS = ("cpu", "gpu")
SENSOR = "power model"
_MOST_MODEL_W = 5000.0
_MOST_WINDOWS = 20_000
_WATTS = {"W": 1.0, "mW": 1e-3}
_NUMBER = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_PART = re.compile(rf"(?P<name>\w+)=(?P<idle>{_NUMBER})(?P<idle_unit>m?W)?\.\.(?P<busy>{_NUMBER})(?P<unit>m?W)")
_SEEN = r"(?:{before}(?P<{name}_low>{number})%\.\.(?P<{name}_high>{number})%)?"
_ERROR = re.compile(
    rf"(?P<error>{_NUMBER})%"
    + _SEEN.format(before="at", name="cpu", number=_NUMBER)
    + _SEEN.format(before="gpu", name="gpu", number=_NUMBER)
)
_HINT = "state what a part draws when idle and when fully busy: --power-model cpu=2W..15W or cpu=2W..15W,gpu=500mW..10W"
_ERROR_HINT = "the 95 % uncertainty of the model stands at its end: --power-model cpu=2W..15W+-10%"
_BEYOND = 0.1  # of utilisation: so far beyond what it was learned from a model still holds


@dataclass(frozen=True)
class ComponentPower:
    """Power of a component, W: idle, and fully busy at its highest clock."""

    component: str
    idle_w: float
    busy_w: float


@dataclass(frozen=True)
class PowerModel:
    """The power of components, and how far to trust it.

    uncertainty: half of the 95 % CI over the power, None where it is not known. seen_use: least and most CPU use of the
    runs that it was learned from, of the full speed of all cores; seen_gpu_use: of their GPUs, None without any.
    """

    parts: tuple[ComponentPower, ...]
    uncertainty: float | None = None
    seen_use: tuple[float, float] | None = None
    seen_gpu_use: tuple[float, float] | None = None

    def __str__(self) -> str:
        parts = ",".join(f"{part.component}={part.idle_w:.4g}W..{part.busy_w:.4g}W" for part in self.parts)
        sure = "" if self.uncertainty is None else f"+-{100 * self.uncertainty:.3g}%"
        use_ranges = (
            "" if use is None else f"{before}{100 * use[0]:.3g}%..{100 * use[1]:.3g}%"
            for before, use in (("at", self.seen_use), ("gpu", self.seen_gpu_use))
        )
        return f"{parts}{sure}{''.join(use_ranges)}"


def parse_power_model(spec: str) -> PowerModel:
    """The components of a power model and its uncertainty; raises UsageError, with what to write instead."""
    stated, _, error = spec.replace(" ", "").partition("+-")
    parts = tuple(_parse_component(part) for part in stated.split(","))
    names = [part.component for part in parts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"the power model names '{twice[0]}' twice: '{spec}'", "give each component once")
    if "+-" not in spec.replace(" ", ""):
        return PowerModel(parts)
    match = _ERROR.fullmatch(error)
    if match is None or not 0 < float(match["error"]) <= 100:
        raise UsageError(f"cannot read '+-{error}' of the power model", _ERROR_HINT)
    ends = ((match[f"{name}_low"], match[f"{name}_high"]) for name in COMPONENTS)
    use_ranges = (None if low is None else (float(low) / 100, float(high) / 100) for low, high in ends)
    return PowerModel(parts, float(match["error"]) / 100, *use_ranges)


def _parse_component(part: str) -> ComponentPower:
    match = _PART.fullmatch(part.replace(" ", ""))
    if match is None:
        raise UsageError(f"cannot read '{part}' of the power model", _HINT)
    if match["name"] not in COMPONENTS:
        raise UnknownName("component of a power model", match["name"], COMPONENTS)
    idle_w = float(match["idle"]) * _WATTS[match["idle_unit"] or match["unit"]]
    busy_w = float(match["busy"]) * _WATTS[match["unit"]]
    if not idle_w <= busy_w or not 0 < busy_w <= _MOST_MODEL_W:
        why = f"the power model has '{part}': busy must be above 0, at most {_MOST_MODEL_W:g} W, and not below idle"
        raise UsageError(why, _HINT)
    return ComponentPower(match["name"], idle_w, busy_w)


def modelled_sources(run: RunReader) -> list[PowerSource]:
    """The estimated power of each component of the run's own power model that has a utilisation; empty without one."""
    model = _model_of_run(run)
    sources = [source for part in model.parts if (source := _estimated_source(run, part)) is not None] if model else []
    if model is None or model.uncertainty is None:
        return sources
    unseen = _extrapolation_note(run, model)
    if unseen:
        return [replace(source, notes=(unseen,)) for source in sources[:1]] + sources[1:]
    return [replace(source, uncertainty=model.uncertainty) for source in sources]


def _extrapolation_note(run: RunReader, model: PowerModel) -> str:
    """Say that this run uses a part otherwise than those that the model was learned from; "" where it does not."""
    span = span_ns(run)
    if model.seen_use is None or span is None:
        return ""
    spans = np.array([span], dtype=np.float64)
    for component, learned_use in zip(COMPONENTS, (model.seen_use, model.seen_gpu_use), strict=True):
        use, (low, high) = mean_use(run, component, spans), learned_use or (0.0, 0.0)
        if learned_use is None if use is None else low - _BEYOND <= use <= high + _BEYOND:
            continue
        learned = "none that is known" if learned_use is None else percent(low)
        learned = learned if high - low < 0.01 else f"{percent(low)} and {percent(high)}"
        rate = "at an unknown rate" if use is None else f"at {percent(use)} of its full speed"
        return (
            f"the {component.upper()} was used {rate}, the runs that the power model was learned from at "
            f"{learned}: the uncertainty that was found there says nothing here"
        )
    return ""


def mean_use(run: RunReader, component: str, spans_ns: Floats) -> float | None:
    """Mean use of a component over stretches, (m, 2) ns, of its full speed; None where it was not sampled there."""
    use = relative_use(run, component)
    if use is None:
        return None
    spent, covered = (float(np.diff(use.at(of, spans_ns)).sum()) for of in (use.known_growth, use.covered_ns))
    return 1e9 * spent / covered if covered > 0 else None


def power_model_gaps(run: RunReader) -> Iterator[str]:
    """Return why a power model of this run, or a component of it, gives nothing."""
    spec = run.meta.get("power_model")
    try:
        model = parse_power_model(str(spec)) if spec else PowerModel(())
    except StepscopeError as error:
        yield f"{error}"
        return
    for part in model.parts:
        if relative_use(run, part.component) is None:
            yield f"the power model names '{part.component}', whose utilisation was not sampled in this run"


def _model_of_run(run: RunReader) -> PowerModel | None:
    spec = run.meta.get("power_model")
    try:
        return parse_power_model(str(spec)) if spec else None
    except StepscopeError:
        return None  # `power_model_gaps` says why


def relative_use(run: RunReader, component: str) -> Growth | None:
    """Time that a component ran fully busy at its highest clock, s, as it grows; None where it was not sampled."""
    if component == "cpu":
        edges, used = _cpu_use(run)
        used = used * _relative_clock(series_of(run, "core_frequency"), edges, _highest_clock(run))
    else:
        edges, used = _gpu_use(run)
        clocks = [series for series in series_of(run, "frequency") if series.scope.startswith("gpu:")]
        used = used * _relative_clock(clocks, edges, None)
    if len(used) == 0 or not np.isfinite(used).any():
        return None
    gap = np.isnan(used)
    return Growth(edges, np.where(gap, np.nan, np.clip(used, 0, 1) * np.diff(edges) / 1e9), gap)


def _estimated_source(run: RunReader, part: ComponentPower) -> PowerSource | None:
    use = relative_use(run, part.component)
    if use is None:
        return None
    lasted_s = np.diff(use.t_ns) / 1e9
    joules = part.idle_w * lasted_s + (part.busy_w - part.idle_w) * use.steps
    watts = joules / lasted_s
    return PowerSource(
        id=f"model.{part.component}.power",
        sensor=SENSOR,
        kind="estimate",
        scope=f"model:{part.component}",
        parent_scope=None,
        rail=None,
        growth=Growth(use.t_ns, joules, use.gap),
        refresh_ns=1e9 * float(lasted_s.mean()),
        spread_w=float(np.nanmax(watts) - np.nanmin(watts)),
    )


def _cpu_use(run: RunReader) -> tuple[Floats, Floats]:
    """Edges of windows and the mean utilisation of all cores in each, NaN where one was not read."""
    cores = core_busy_time(run)
    if not cores:
        return np.empty(0), np.empty(0)
    begin, end = max(core.t_ns[0] for core in cores), min(core.t_ns[-1] for core in cores)
    length = max(*(shortest_window_ns(core) for core in cores), (end - begin) / _MOST_WINDOWS)
    if end - begin < length:
        return np.empty(0), np.empty(0)
    parts = [growth_windows(core, begin, end, length) for core in cores]
    return parts[0].edges_ns, np.clip(np.mean([part.rates for part in parts], axis=0), 0, 1)


def _gpu_use(run: RunReader) -> tuple[Floats, Floats]:
    """The readings of GPU utilisation as windows, the mean of all GPUs; NaN over gaps."""
    gpus = [series for series in series_of(run, "utilisation") if series.scope.startswith("gpu:")]
    if not gpus:
        return np.empty(0), np.empty(0)
    edges = gpus[0].t_ns
    middles = (edges[1:] + edges[:-1]) / 2
    used = np.mean([_gauge_at(gpu, middles) for gpu in gpus], axis=0)
    return edges, used


def _gauge_at(series: Series, t_ns: Floats) -> Floats:
    """A gauge between its readings, NaN in its gaps."""
    values = np.interp(t_ns, series.t_ns, series.values)
    return np.where(touches_gap(series.gaps_ns, t_ns, t_ns), np.nan, values)


def _relative_clock(clocks: list[Series], edges: Floats, highest_hz: float | None) -> Floats:
    """Mean clock of each window over the highest (that the machine states, else that was seen); 1 where not sampled."""
    middles = (edges[1:] + edges[:-1]) / 2
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
