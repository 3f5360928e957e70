"""The metrics of the paper, a function each; warm-up steps count for none of them but the peak of memory.

Equations: "Performance Analysis and Characterization of Training Deep Learning Models on Mobile Devices", III-A.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import (
    Series,
    Windows,
    board_computes,
    channel_timeline,
    core_busy_time,
    growth_windows,
    series_of,
    shortest_window_ns,
)
from stepscope.analysis.energy.tables import ESTIMATED, NO_INTERVAL, EnergyTables
from stepscope.analysis.estimate import (
    Estimate,
    drift_factor,
    mean_of_stretches,
    mean_over_time,
    median_over_time,
    ratio_of_sums,
    share_interval,
)
from stepscope.analysis.process_scopes import (
    ALL,
    CHILDREN,
    LAUNCHER,
    WATCHED,
    HeldReadings,
    cpu_of_all,
    gauges,
    has_several_processes,
    proportional_of_all,
    resident_of_all,
    scope_name,
    training_processes,
)
from stepscope.analysis.result_cache import cached_per_run
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.steps import (
    FEW,
    cut_pauses,
    profiled_steps,
    span_ns,
    stretches_of_steps,
    timed_steps,
)
from stepscope.arrays import Flags, Ints
from stepscope.quantities import find_quantity
from stepscope.runfolder import RunReader
from stepscope.units import number

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


_MOST_WINDOWS = 200  # longer windows are less alike than neighbours of a few ms: their spread says more
_ASLEEP = 0.01  # of a window: the kernel's own timers keep an idle core from exactly 0


def metrics(run: Run) -> pl.DataFrame:
    """All metrics, tidy: metric, scope, value, unit, low, high (95 %), n, source, note. What is absent has no row."""
    rows = [*step_time(run), *throughput(run), *core_utilisation(run), *mean_cpu_utilisation(run)]
    rows += [*process_cpu_utilisation(run), *accelerator_utilisation(run), *idle_residency(run)]
    rows += background_load_of(run)
    rows += [*peak_memory(run), *resident_memory(run), *energy_metrics(run.energy_tables), *other_quantities(run)]
    return metric_frame(rows)


@cached_per_run
def step_time(run: RunReader) -> list[Measured]:
    """Time of a step, ns: median, of the unprofiled steps where there are enough of them."""
    steps, which = timed_steps(run)
    return _median_of_steps("step_time", steps["length_ns"], "ns", which)


@cached_per_run
def throughput(run: RunReader) -> list[Measured]:
    """Training samples a second (III-A) and steps a second, as achieved: of all timed steps together, over their time.

    With the energy of a step and of a sample, which are of the same steps, they give the mean power.
    """
    steps, which = timed_steps(run)
    counted = steps.drop_nulls("samples")
    ones = pl.repeat(1, len(steps), eager=True)
    return [
        *_achieved_rate("throughput", counted, counted["samples"], which),
        *_achieved_rate("step_rate", steps, ones, which),
    ]


def _achieved_rate(metric: str, steps: pl.DataFrame, counted: pl.Series, which: str) -> Iterator[Measured]:
    """A count over the time that it took, 1/s."""
    count, seconds = (values.to_numpy().astype(np.float64) for values in (counted, steps["length_ns"] / 1e9))
    if not len(seconds) or not count.sum():
        return
    rate, note = ratio_of_sums(count, seconds).clipped(math.inf), f"achieved in {which}: count over time"
    low = high = None
    if len(seconds) < FEW:
        note += "; too few for an interval"
    elif rate.low is not None and rate.high is not None:
        factor = drift_factor(count / seconds) or 1.0
        low, high = min(rate.low, rate.value / factor), max(rate.high, rate.value * factor)
    yield Measured(metric, "run", rate.value, "1/s", low, high, len(seconds), "steps", note)


@cached_per_run
def core_utilisation(run: RunReader) -> list[Measured]:
    """Utilisation of each core (Eq. 1): active time of the core / total time."""
    stretches = stretches_of_steps(run)
    return [_mean_utilisation("core_utilisation", series, stretches, "1", 1.0) for series in _core_series(run)]


def mean_cpu_utilisation(run: RunReader) -> list[Measured]:
    """Mean utilisation of all N cores (Eq. 2): the sum of their utilisations / N."""
    cores = [(series, _utilisation_windows(stretches_of_steps(run), series)) for series in _core_series(run)]
    if not cores or len({len(busy.rates) for _, busy in cores}) > 1:
        return []
    series, busy = cores[0]
    mean = Windows(busy.edges_ns, np.mean([busy.rates for _, busy in cores], axis=0))
    return [_mean_of_windows("mean_cpu_utilisation", "cpu", "1", mean, series, 1.0)]


@cached_per_run
def process_cpu_utilisation(run: RunReader) -> list[Measured]:
    """CPU utilisation of the training process, and apart from it of its child processes: CPU time / total time, cores.

    Of several processes: of all together (scope "processes"), then of each training process, from its first step to its
    last one. Of a single one without the pauses between steps (evaluation, saving), as that of the cores is.
    """
    if has_several_processes(run):
        return [*_cpu_of_several(run)]
    stretches, most = stretches_of_steps(run), _most_cores(run)
    lines = series_of(run, "process_cpu_time") if len(stretches) else []
    return [_mean_utilisation("process_cpu_utilisation", series, stretches, "cores", most) for series in lines]


def _most_cores(run: RunReader) -> float:
    """Cores that a process can use; infinite where this machine's were not read, a simulated board's among them."""
    return float(0 if board_computes(run) else len(_core_series(run))) or math.inf


def _cpu_of_several(run: RunReader) -> Iterator[Measured]:
    read, span = {series.scope: series for series in series_of(run, "process_cpu_time")}, span_ns(run)
    lines = [(cpu_of_all(run), ALL, span)]
    lines += [(read.get(process.sampled_as), process.scope, process.span_ns) for process in training_processes(run)]
    if scope_name(run, WATCHED) == LAUNCHER:
        lines.append((read.get(WATCHED), LAUNCHER, span))
    for series, scope, during in lines:
        if series is not None and during is not None:
            own, most = replace(series, scope=scope), _most_cores(run)
            yield _mean_utilisation("process_cpu_utilisation", own, np.array([during]), "cores", most)


def idle_residency(run: RunReader) -> list[Measured]:
    """Idle residency of each core (III-A): share of the time in which its utilisation is 0.

    Windows are as short as the counter resolves; up to half a tick or 1 % of a window counts as 0.
    """
    rows = []
    for series in _core_series(run):
        busy = growth_windows(*cut_pauses(series, stretches_of_steps(run)), shortest_window_ns(series))
        rates = busy.rates[~np.isnan(busy.rates)]
        length_ns = float(busy.edges_ns[1] - busy.edges_ns[0])
        if length_ns <= 0:  # steps without a length
            continue
        is_idle = rates <= max(_ASLEEP, series.refresh_ns / 2 / length_ns)
        share, low, high = _idle_share(is_idle).row if len(rates) else (None, None, None)
        note = f"windows of {length_ns / 1e6:.3g} ms"
        rows.append(Measured("idle_state_ratio", series.scope, share, "1", low, high, len(rates), series.source, note))
    return rows


def _idle_share(is_idle: Flags) -> Estimate:
    """Share of the windows, in order of time; the CI is the wider of Wilson's and of that between stretches."""
    share, least, most = share_interval(int(is_idle.sum()), len(is_idle))
    low, high = mean_of_stretches(is_idle.astype(np.float64)).row[1:]
    return Estimate(share, least if low is None else min(least, low), most if high is None else max(most, high))


def _median_of_steps(metric: str, values: pl.Series, unit: str, which: str) -> list[Measured]:
    median = median_over_time(values.cast(pl.Float64).to_numpy())
    if median is None:
        return []
    note = f"median of {which}" if median.low is not None else f"median of {which}; too few for an interval"
    return [Measured(metric, "run", median.value, unit, median.low, median.high, len(values), "steps", note)]


def _core_series(run: RunReader) -> list[Series]:
    return [] if span_ns(run) is None else core_busy_time(run)


def _utilisation_windows(stretches: Ints, series: Series) -> Windows:
    """The windows that utilisation is taken from: at least two ticks each, and not more than there is use for."""
    counted, begin, end = cut_pauses(series, stretches)
    return growth_windows(counted, begin, end, max(shortest_window_ns(series), (end - begin) / _MOST_WINDOWS))


def _mean_utilisation(metric: str, series: Series, stretches: Ints, unit: str, most: float) -> Measured:
    return _mean_of_windows(metric, series.scope, unit, _utilisation_windows(stretches, series), series, most)


def _mean_of_windows(metric: str, scope: str, unit: str, busy: Windows, series: Series, most: float) -> Measured:
    """Mean of the covered windows; a tick more or less at either end widens the interval."""
    rates = busy.rates[~np.isnan(busy.rates)]
    mean = mean_over_time(rates)
    if mean is None:
        reason = f"no two ticks of {max(series.refresh_ns / 1e6, 0.001):.3g} ms were read without a gap"
        return Measured(metric, scope, None, unit, source=series.source, note=reason)
    covered_ns = float(np.diff(busy.edges_ns)[~np.isnan(busy.rates)].sum())
    tick = series.refresh_ns / covered_ns
    value, low, high = mean.clipped(most).row
    low = None if low is None else max(low - tick, 0.0)
    high = None if high is None else min(high + tick, most)
    missed = f"; {busy.uncovered_ns / 1e9:.3g} s not covered" if busy.uncovered_ns else ""
    note = f"{covered_ns / 1e9:.3g} s in windows of {(busy.edges_ns[1] - busy.edges_ns[0]) / 1e6:.3g} ms{missed}"
    return Measured(metric, scope, value, unit, low, high, len(rates), series.source, note)


METRIC_SCHEMA = {
    "metric": pl.String,
    "scope": pl.String,
    "value": pl.Float64,
    "unit": pl.String,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
    "source": pl.String,
    "note": pl.String,
}


@dataclass(frozen=True)
class Measured:
    """A number, SI unit, 95 % CI, count of what it was taken from; null is not measured and `note` says why."""

    metric: str
    scope: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 0
    source: str | None = None
    note: str | None = None


def metric_frame(rows: Iterable[Measured]) -> pl.DataFrame:
    """The rows as a tidy frame."""
    return pl.DataFrame([asdict(row) for row in rows], schema=METRIC_SCHEMA)


def accelerator_utilisation(run: RunReader) -> list[Measured]:
    """Utilisation of each accelerator (Eq. 3): active time / total time, active while any kernel runs."""
    steps = profiled_steps(run).select("step", "length_ns")
    kernels = kernel_time(run, steps["step"])
    rows = []
    for (device,), frame in kernels.group_by(["device"], maintain_order=True):
        both = steps.join(frame, on="step", how="left").with_columns(pl.col("active_ns").fill_null(0))
        active, total = (both[name].to_numpy().astype(np.float64) for name in ("active_ns", "length_ns"))
        share, low, high = ratio_of_sums(active, total).clipped().row
        low, high = (low, high) if len(steps) >= FEW else (None, None)
        note = "union of kernels in profiled steps"
        rows.append(Measured("accelerator_utilisation", str(device), share, "1", low, high, len(steps), "ops", note))
    return rows or [*_gauges_of_accelerators(run)]


def _gauges_of_accelerators(run: RunReader) -> Iterator[Measured]:
    """Utilisation as accelerators state it themselves, where no kernel was recorded."""
    span = span_ns(run)
    for series in series_of(run, "utilisation") if span is not None else ():
        if span is not None and series.scope.startswith("gpu"):
            readings = series.values[(series.t_ns >= span[0]) & (series.t_ns <= span[1])]
            if len(readings) == 0:
                yield Measured("accelerator_utilisation", series.scope, None, "1", note="no reading in a step")
                continue
            share = mean_of_stretches(readings)
            note = "readings of its own; no kernel was recorded"
            ends = share.value, "1", share.low, share.high
            yield Measured("accelerator_utilisation", series.scope, *ends, len(readings), series.source, note)


def kernel_time(run: RunReader, steps: pl.Series) -> pl.DataFrame:
    """Union of the kernel intervals of each device and step, ns: device, step, active_ns."""
    ops = run.scan_ops().select("step", "device", "t0_ns", "t1_ns").filter(pl.col("device") != CPU)
    ordered = (
        ops.with_columns(pl.col("device").cast(pl.String), pl.col("step").cast(pl.Int64))
        .join(pl.LazyFrame({"step": steps}), on="step", how="semi")
        .sort("device", "t0_ns")
    )
    covered_until = pl.col("t1_ns").cum_max().shift(1).over("device").fill_null(0)
    new = (pl.col("t1_ns") - pl.max_horizontal("t0_ns", covered_until)).clip(lower_bound=0)
    return (
        ordered.with_columns(active_ns=new)
        .group_by("device", "step")
        .agg(pl.col("active_ns").sum())
        .collect()
        .sort("device", "step")
    )


_NOTABLE_CORES = 0.2  # of one core


def background_cpu_load(measured: Iterable[Measured]) -> list[Measured]:
    """Background CPU load, in cores: use of all cores (Eq. 1) less that of the processes of the run.

    The sampler counts as one of the others (it is stated on its own). Nothing where one of the two is missing. Errors
    of the cores and of the processes are independent of each other: their squares add.
    """
    rows = [row for row in measured if row.value is not None]
    cores = [row for row in rows if row.metric == "core_utilisation"]
    used = [row for row in rows if row.metric == "process_cpu_utilisation"]
    own = [row for row in used if row.scope == ALL] or [row for row in used if row.scope in (WATCHED, CHILDREN)]
    if not cores or not any(row.scope in (ALL, WATCHED) for row in own):
        return []
    away = sum(row.value or 0.0 for row in cores) - sum(row.value or 0.0 for row in own)
    value = max(0.0, away)
    low = max(0.0, away - math.hypot(*_distances_to_bound(cores, "low"), *_distances_to_bound(own, "high")))
    high = max(0.0, away + math.hypot(*_distances_to_bound(cores, "high"), *_distances_to_bound(own, "low")))
    note = f"of {len(cores)} cores: all that were busy, less those of this run's processes"
    return [Measured("background_cpu_use", "system", value, "cores", low, high, cores[0].n, cores[0].source, note)]


def background_load_of(run: RunReader) -> list[Measured]:
    """Background CPU load of a run, in cores; nothing where other ranks, or cores of a simulated board, were read."""
    if run.part_folders or board_computes(run):
        return []
    return background_cpu_load([*core_utilisation(run), *process_cpu_utilisation(run)])


def background_warning(use: list[Measured]) -> str:
    """A sentence where others took enough of the machine to change what was measured, else nothing."""
    if not use or use[0].low is None or use[0].low < _NOTABLE_CORES:
        return ""
    busy = number(use[0].value, 2)
    cores = "core" if busy == "1" else "cores"
    return f" Background CPU load: {busy} {cores}: times and energy are not this training's alone."


def _distances_to_bound(rows: list[Measured], bound: str) -> list[float]:
    """Distance of each row's bound from its value; 0 for a row without an interval."""
    return [getattr(row, bound) - row.value for row in rows if getattr(row, bound) is not None]


_AT_LEAST = "at least: the largest reading"
_PEAKS = ("peak_rss", "rss")
_RESIDENT = ("rss", "pss")


def peak_memory(run: RunReader) -> list[Measured]:
    """Peak memory consumption, B (III-A): the most that was resident at any time of the run, warm-up included.

    The kernel's high-water mark (peak_rss) is read now and then and samples (rss) are taken often: the peak is at
    least the larger of the two. Of the proportional size (pss) the peak is a number of its own.

    Of several processes (scope "processes") it is the most that all of them had at one time, then that of each.
    """
    whole = has_several_processes(run)
    resident = pl.concat([run.samples(name).with_columns(quantity=pl.lit(name)) for name in _PEAKS])
    proportional = run.samples("pss").with_columns(quantity=pl.lit("pss"))
    rows = [*_peak_of_all(run)] if whole else []
    for frame in (resident, proportional):
        for (scope,), part in frame.drop_nulls("value").group_by(["scope"], maintain_order=True):
            if whole and scope == CHILDREN:
                continue  # the training processes are among them
            most = part.row(int(part["value"].to_numpy().argmax()), named=True)
            value, name = float(most["value"]), scope_name(run, str(scope))
            rows.append(Measured("peak_memory", name, value, "B", value, None, len(part), most["quantity"], _AT_LEAST))
    return rows


def _memory_of_all_processes(run: RunReader) -> Iterator[tuple[str, HeldReadings, str]]:
    """Source, readings of all processes together, and what is counted how often."""
    for source, readings, counted in (
        ("rss", resident_of_all(run), "a page that processes share counts in each of them"),
        ("pss", proportional_of_all(run), "a page that processes share counts once"),
    ):
        if readings is not None and len(readings.values):
            yield source, readings, counted


def _peak_of_all(run: RunReader) -> Iterator[Measured]:
    for source, readings, counted in _memory_of_all_processes(run):
        value = float(readings.values.max())
        note = f"{counted}; {_AT_LEAST}"
        yield Measured("peak_memory", ALL, value, "B", value, None, readings.count, source, note)


def resident_memory(run: RunReader) -> list[Measured]:
    """Memory in the steady part of the run, B: median of the samples, resident (rss) and proportional (pss)."""
    span = span_ns(run)
    if has_several_processes(run):
        return [*_resident_of_several(run, span)]
    rows = []
    for quantity in _RESIDENT if span is not None else ():
        assert span is not None
        for (scope,), frame in run.samples(quantity).drop_nulls("value").group_by(["scope"], maintain_order=True):
            values = frame.filter(pl.col("t0_ns").is_between(*span))["value"]
            median = median_over_time(values.to_numpy())
            if median is not None:
                rows.append(Measured("resident_memory", str(scope), *_with_unit(median, "B"), len(values), quantity))
    return rows


def _resident_of_several(run: RunReader, span: tuple[int, int] | None) -> Iterator[Measured]:
    """Return resident memory of all processes during this one's steps, and of each training process during its own."""
    for source, readings, counted in _memory_of_all_processes(run):
        yield from _median_resident(ALL, readings, span, source, counted)
    for source in _RESIDENT:
        read = gauges(run, source)
        for process in training_processes(run):
            if process.sampled_as in read:
                yield from _median_resident(process.scope, read[process.sampled_as], process.span_ns, source, None)


def _median_resident(
    scope: str, readings: HeldReadings, span: tuple[int, int] | None, source: str, note: str | None
) -> Iterator[Measured]:
    if span is None:
        return
    values = readings.values[(readings.t_ns >= span[0]) & (readings.t_ns <= span[1])]
    median = median_over_time(values)
    if median is None or (scope == ALL and len(values) < FEW):
        return  # of so few, read while workers come and go, a median says nothing of the others
    if readings.count < len(readings.values):  # values that hold between two readings are no evidence of their own
        median = Estimate(median.value)
    count = min(len(values), readings.count)
    yield Measured("resident_memory", scope, *_with_unit(median, "B"), count, source, note)


def _with_unit(estimate: Estimate, unit: str) -> tuple[float, str, float | None, float | None]:
    """Return value, unit and bounds, as `Measured` takes them."""
    return estimate.value, unit, estimate.low, estimate.high


def other_quantities(run: Run) -> Iterator[Measured]:
    """Quantities that no other metric is made of, in their own unit: median over the steps, of a counter its growth.

    The quantities of `quantities` that are marked as plain, and those that a plug-in brings.
    """
    span = span_ns(run)
    for channel in run.channels if span is not None else ():
        assert span is not None
        name = str(channel.get("quantity"))
        if not find_quantity(name).plain:
            continue
        samples = run.sensor(str(channel["sensor"]))
        if channel["id"] not in samples.columns:
            continue
        line = channel_timeline(channel, samples.select("t0_ns", "t1_ns", value=pl.col(str(channel["id"]))))
        values = line.values[(line.t_ns >= span[0]) & (line.t_ns <= span[1])]
        median = median_over_time(values)
        if median is not None:
            kind = f"{ESTIMATED}_" if channel.get("kind") == "estimate" else "simulated_" if run.simulated else ""
            note = "median of the readings in the steps"
            scope, source = scope_name(run, str(channel.get("scope"))), str(channel.get("source"))
            numbers = _with_unit(median, line.unit)
            yield Measured(f"{kind}{name}", scope, *numbers, len(values), source, note)


def energy_metrics(tables: EnergyTables) -> list[Measured]:
    """Energy, energy a step and a sample, mean and idle power: of each component (total first), then of each rail."""
    rows = [row for entry in tables.totals.iter_rows(named=True) for row in _component_rows(entry)]
    for entry in tables.rails.iter_rows(named=True):
        rows += [_energy_row(entry, entry["scope"]), _mean_power_row(entry, entry["scope"])]
    return rows


def _component_rows(row: dict[str, Any]) -> Iterator[Measured]:
    scope, step_j = row["component"], row["joules_per_step"]
    yield _energy_row(row, scope)
    yield _mean_power_row(row, scope)
    if step_j is None:
        return
    bounds = row["joules_per_step_low"], row["joules_per_step_high"]
    few = "; too few steps for an interval" if bounds[0] is None and row["watts_low"] is not None else ""
    yield _energy_measured(
        row, "energy_per_step", scope, step_j, "J", *bounds, f"mean power times mean length of a step{few}"
    )
    if row["joules_per_sample"] is not None:
        bounds = row["joules_per_sample_low"], row["joules_per_sample_high"]
        yield _energy_measured(
            row, "energy_per_sample", scope, row["joules_per_sample"], "J", *bounds, f"a training sample{few}"
        )
    if row["idle_watts"] is not None:
        yield _energy_measured(row, "idle_power", scope, row["idle_watts"], "W", None, None, "before the first step")


def _energy_row(row: dict[str, Any], scope: str) -> Measured:
    missed = f"; {number(row['gap_s'])} s not covered" if row["gap_s"] else ""
    note = f"over {number(row['covered_s'])} s{missed}; {row['rail']}"
    return _energy_measured(row, "energy", scope, row["joules"], "J", row["low"], row["high"], note)


def _mean_power_row(row: dict[str, Any], scope: str) -> Measured:
    return _energy_measured(
        row, "mean_power", scope, row["watts_mean"], "W", row["watts_low"], row["watts_high"], row["rail"]
    )


def _energy_measured(
    row: dict[str, Any],
    metric: str,
    scope: str,
    value: float | None,
    unit: str,
    low: float | None,
    high: float | None,
    note: str,
) -> Measured:
    name = metric if row["kind"] == "measured" else f"{row['kind']}_{metric}"
    note = f"{note}; {NO_INTERVAL}" if row["kind"] == ESTIMATED and row["low"] is None else note
    return Measured(name, scope, value, unit, low, high, row["windows"], row["source"], note)
