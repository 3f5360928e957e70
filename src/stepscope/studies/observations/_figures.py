"""The numbers behind the figures: 3 to 10 of the paper from own data, and the use of the device folded by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.analysis.intervals import Floats
from stepscope.analysis.run import Run
from stepscope.analysis.steady import steady_steps
from stepscope.analysis.windows import Series, resolved_ns, series_of, windows
from stepscope.studies.observations._evidence import CONVOLUTIONAL, Evidence
from stepscope.studies.observations._rhythm import folded
from stepscope.studies.observations._windows import accelerator_gauge, use_of

_STEPS, _MOST_STEPS, _FEW_WINDOWS, _MOST_WINDOWS = 3, 60, 24, 600
_PHASES = 24
_WHOLES = ("total", "device", "carrier")
Frames = dict[str, pl.DataFrame]


def frames(evidence: Evidence, runs: Sequence[Run]) -> Frames:
    """Frames by figure; a figure without data has none."""
    shown = _shown(evidence, runs)
    found: Frames = {
        **(_use_over_steps(shown) if shown else {}),
        "figure-4-use-by-batch": _use_by_batch(evidence),
        "figure-5-cores-by-batch": _cores_by_batch(evidence),
        "figure-6-energy-by-batch": _energy_by_batch(evidence),
        "figure-7-power-over-steps": _power_over_steps(evidence, runs),
        "figure-8-throughput-by-batch": _over_repeats(evidence.runs, "samples_per_s", "samples_per_s", 1.0),
        "figure-9-memory-by-batch": evidence.memory.with_columns(mb=pl.col("bytes") / 1e6),
        "figure-10-accuracy-by-day": _accuracy_by_day(evidence),
        "rhythm-use": _folded_use(evidence, runs),
    }
    return {name: frame for name, frame in found.items() if not frame.is_empty()}


def _shown(evidence: Evidence, runs: Sequence[Run]) -> Run | None:
    """The run to look into: of a convolutional network if there is one, with the longest steps."""
    order = evidence.runs.with_columns(first=pl.col("kind") != CONVOLUTIONAL).sort(
        "first", "step_ms", descending=[False, True]
    )
    named = {run.id: run for run in runs}
    return next((named[name] for name in order["run"] if name in named), None)


def stretch(run: Run, window_ns: float) -> pl.DataFrame:
    """Three steps from the middle of the steady part, or as many as it takes for some windows."""
    steps = steady_steps(run)
    if steps.is_empty():
        return steps
    length = float(np.median(steps["length_ns"].to_numpy()))
    count = min(len(steps), _MOST_STEPS, max(_STEPS, round(_FEW_WINDOWS * window_ns / length)))
    return steps.slice((len(steps) - count) // 2, count)


def _use_over_steps(run: Run) -> Frames:
    use = use_of(run)
    steps = pl.DataFrame() if use is None else stretch(run, float(np.diff(use.edges_ns).mean()))
    if use is None or steps.is_empty():
        return {}
    t0_ns, t1_ns = float(steps["t0_ns"][0]), float(steps["t1_ns"][-1])
    rows = [
        (f"core {name.partition(':')[2]}", use.edges_ns, rates)
        for name, rates in zip(use.names, use.cores, strict=True)
    ]
    if use.source:
        rows.insert(0, ("accelerator", use.edges_ns, use.accelerator))
    else:
        rows.insert(0, ("trainer", *_trainer(run, t0_ns, t1_ns)))
    drawn = pl.concat([_windows(label, edges, rates, t0_ns, t1_ns) for label, edges, rates in rows])
    edges = pl.DataFrame({"t_ms": [(t - t0_ns) / 1e6 for t in [*steps["t0_ns"], steps["t1_ns"][-1]]]})
    about = drawn.with_columns(workload=pl.lit(str((run.meta.get("workload") or {}).get("name"))))
    return {"figure-3-use-over-steps": about, "figure-3-steps": edges}


def _trainer(run: Run, t0_ns: float, t1_ns: float) -> tuple[Floats, Floats]:
    """Share of its threads that the training process kept busy."""
    for own in series_of(run, "process_cpu_time"):
        if own.scope == "process":
            seen = windows(own, t0_ns, t1_ns, resolved_ns(own))
            return seen.edges_ns, np.clip(seen.rates / max(run.meta.get("threads") or 1, 1), 0, 1)
    return np.array([t0_ns, t1_ns]), np.array([np.nan])


def _windows(label: str, edges: Floats, rates: Floats, t0_ns: float, t1_ns: float) -> pl.DataFrame:
    inside = (edges[1:] > t0_ns) & (edges[:-1] < t1_ns)
    columns = {
        "core": [label] * int(inside.sum()),
        "label": [label] * int(inside.sum()),
        "t0_ms": (np.maximum(edges[:-1][inside], t0_ns) - t0_ns) / 1e6,
        "t1_ms": (np.minimum(edges[1:][inside], t1_ns) - t0_ns) / 1e6,
        "percent": rates[inside] * 100,
    }
    return pl.DataFrame(columns, nan_to_null=True).head(_MOST_WINDOWS)


def _use_by_batch(evidence: Evidence) -> pl.DataFrame:
    runs = evidence.runs.with_columns(own=pl.col("trainer_cores") / pl.col("threads"))
    wanted = {"accelerator": "accelerator_use", "CPU, all cores": "cpu_use"}
    if not evidence.accelerated:
        wanted = {"training threads": "own", "CPU, all cores": "cpu_use"}
    parts = [
        _over_repeats(runs, column, "percent", 100.0).with_columns(what=pl.lit(what)) for what, column in wanted.items()
    ]
    return pl.concat(parts)


def _over_repeats(runs: pl.DataFrame, column: str, name: str, factor: float) -> pl.DataFrame:
    """Mean over the repeats, and the lowest and highest of them: workload, batch, `name`, low, high."""
    value = pl.col(column) * factor
    known = runs.drop_nulls(column).group_by("workload", "batch", maintain_order=True)
    found = known.agg(value.mean().alias(name), low=value.min(), high=value.max())
    return found.sort("workload", "batch")


def _cores_by_batch(evidence: Evidence) -> pl.DataFrame:
    grouped = evidence.cores.group_by("workload", "batch", "core", "cluster").agg(percent=pl.col("use").mean() * 100)
    return grouped.sort("workload", "batch", "core")


def _energy_by_batch(evidence: Evidence) -> pl.DataFrame:
    known = evidence.power.filter(~pl.col("component").is_in(_WHOLES)).drop_nulls("joules_per_step")
    grouped = known.group_by("workload", "batch", "component", maintain_order=True)
    return grouped.agg(joules=pl.col("joules_per_step").mean().clip(lower_bound=0.0)).sort("workload", "batch")


def _power_over_steps(evidence: Evidence, runs: Sequence[Run]) -> pl.DataFrame:
    run = _shown(evidence, [run for run in runs if run.rails.lines])
    if run is None:
        return pl.DataFrame()
    slowest = max(max(line.best.refresh_ns, line.best.growth.period_ns) for line in run.rails.lines)
    steps = stretch(run, 2 * slowest)
    if steps.is_empty():
        return pl.DataFrame()
    t0_ns = int(steps["t0_ns"][0])
    seen = run.power_timeline(t0_ns, int(steps["t1_ns"][-1]))
    return seen.select("rail", "component", "watts", "estimated", workload=pl.lit(str(run.meta["workload"]["name"])),
                       t0_s=(pl.col("t0_ns") - t0_ns) / 1e9, t1_s=(pl.col("t1_ns") - t0_ns) / 1e9)  # fmt: skip


def _accuracy_by_day(evidence: Evidence) -> pl.DataFrame:
    """Mean over the seeds with the lowest and the highest of them."""
    value = pl.col("accuracy") * 100
    grouped = evidence.days.group_by("batch", "day").agg(
        percent=value.mean(), low=value.min(), high=value.max(), seeds=pl.len()
    )
    return grouped.sort("batch", "day")


def _folded_use(evidence: Evidence, runs: Sequence[Run]) -> pl.DataFrame:
    """Of each model's run with the longest steps: use by part of the step, median and middle 80 % of the readings."""
    parts = []
    named = {run.id: run for run in runs}
    for (name,), frame in evidence.runs.sort("step_ms", descending=True).group_by(["workload"], maintain_order=True):
        run = named.get(frame["run"][0])
        series = None if run is None else _own_use(run, evidence.accelerated)
        if run is None or series is None:
            continue
        edges = steady_steps(run).select("t0_ns", "t1_ns").to_numpy().astype(np.float64)
        if not len(edges) or float(np.median(edges[:, 1] - edges[:, 0])) < 6 * series.period_ns:
            continue
        step, phase = folded(series, edges)
        bins = int(min(_PHASES, np.median(edges[:, 1] - edges[:, 0]) / max(series.period_ns, 1.0)))
        rows = pl.DataFrame(
            {"value": series.values[step >= 0] * 100, "bin": (phase[step >= 0] * bins).astype(np.int64)}
        )
        value = pl.col("value")
        profile = rows.filter(pl.col("bin") < bins).group_by("bin").agg(
            percent=value.median(), low=value.quantile(0.1), high=value.quantile(0.9)
        )  # fmt: skip
        parts.append(
            profile.sort("bin").with_columns(workload=pl.lit(str(name)), phase=(pl.col("bin") + 0.5) / bins * 100)
        )
    return pl.concat(parts) if parts else pl.DataFrame()


def _own_use(run: Run, accelerated: bool) -> Series | None:
    """What observation 2 looks at: the accelerator, or on the CPU alone the training process."""
    gauge = accelerator_gauge(run) if accelerated else None
    if gauge is not None:
        return gauge
    for own in series_of(run, "process_cpu_time"):
        steps = steady_steps(run)
        if own.scope == "process" and not steps.is_empty():
            seen = windows(own, float(steps["t0_ns"][0]), float(steps["t1_ns"][-1]), resolved_ns(own))
            read, middle = np.isfinite(seen.rates), (seen.edges_ns[1:] + seen.edges_ns[:-1]) / 2
            return Series("trainer", own.source, own.refresh_ns, middle[read], seen.rates[read], np.empty((0, 2)))
    return None
