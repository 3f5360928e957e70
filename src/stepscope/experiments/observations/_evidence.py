"""The evidence of the observations: frames gathered from run folders, dry runs and daily training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import (
    Series,
    Windows,
    core_busy_time,
    growth_windows,
    series_of,
    shortest_window_ns,
)
from stepscope.analysis.device.occupancy import background_load_sentence
from stepscope.analysis.energy.rails import MeasuredRail
from stepscope.analysis.memory.events import memory_over_time
from stepscope.analysis.periodicity import period_of
from stepscope.analysis.run import Run
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.steps import profiled_steps, span_ns, steps_after_warmup
from stepscope.arrays import Floats
from stepscope.experiments.observations import AS_THE_PAPER
from stepscope.experiments.observations._statistics import why_not_judged

if TYPE_CHECKING:
    from stepscope.record.dry import Job


CONVOLUTIONAL, RECURRENT, OTHER = "convolutional", "recurrent", "other"
_BOUNDED = ("step_ms", "samples_per_s", "cpu_use", "accelerator_use", "energy_per_step_j")
_TEXTS = ("run", "workload", "kind", "device", "energy_kind")
RUNS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, pl.String),
    "batch": pl.Int64,
    "cores": pl.Int64,
    "threads": pl.Int64,
    **{f"{name}{end}": pl.Float64 for name in _BOUNDED for end in ("", "_low", "_high")},
    "trainer_cores": pl.Float64,  # CPU utilisation of the training process, in cores
    "flop_per_s": pl.Float64,  # forward and backward, counted on the model
    "alternation": pl.Float64,  # correlation of accelerator and mean CPU use, window by window
    "training_cores_use": pl.Float64,  # chosen in the first half of the run, measured in the second
    "other_cores_use": pl.Float64,
    "core_alternation": pl.Float64,
    "core_spread": pl.Float64,
    "background": pl.String,  # a sentence where background processes took a good part of the machine
}
CORES = {"run": pl.String, "workload": pl.String, "batch": pl.Int64, "core": pl.String, "cluster": pl.String,
         "use": pl.Float64, "idle_ratio": pl.Float64}  # fmt: skip
RHYTHM = {"run": pl.String, "workload": pl.String, "of": pl.String, "what": pl.String,
          **dict.fromkeys(("step_ms", "readings_per_step", "period_steps", "explained"),
                          pl.Float64)}  # fmt: skip
POWER = {"run": pl.String, "workload": pl.String, "kind": pl.String, "batch": pl.Int64, "component": pl.String,
         "watts": pl.Float64, "joules_per_step": pl.Float64, "source": pl.String}  # fmt: skip
MEMORY = {"workload": pl.String, "batch": pl.Int64, "part": pl.String, "bytes": pl.Int64}
DAYS = {"seed": pl.Int64, "batch": pl.Int64, "day": pl.Int64, "accuracy": pl.Float64}
_SCHEMAS = {"runs": RUNS, "cores": CORES, "rhythm": RHYTHM, "power": POWER, "memory": MEMORY, "days": DAYS}
BOARDS_GPU = "simulated GPU"  # of a board that computes: the training counts as one on an accelerator
OWN_TIME = "by the training's own CPU time, because of background CPU load"


@dataclass(frozen=True)
class TimedRuns:
    """Runs whose times can be judged, how they are read, and of which models disturbed runs are excluded, and why."""

    runs: pl.DataFrame
    reading: str = AS_THE_PAPER
    disturbed: dict[str, str] = field(default_factory=dict)

    def why_lacking(self, judged_names: Sequence[str], why: str) -> dict[str, str]:
        """Return why models with runs are not among the `judged_names`: their runs were disturbed, or `why`."""
        every = [*self.runs["workload"].unique(maintain_order=True), *self.disturbed]
        return {name: self.disturbed.get(name, why) for name in dict.fromkeys(every) if name not in set(judged_names)}


@dataclass(frozen=True)
class Evidence:
    """All that is judged; `absent` says by "power", "accelerator", "memory" and "days" why there is none of it."""

    runs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RUNS))
    cores: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=CORES))
    rhythm: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RHYTHM))
    power: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=POWER))
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=MEMORY))
    days: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=DAYS))
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def runs_without_load(self) -> pl.DataFrame:
        """The runs without background CPU load: whose times, and energy with them, are the training's."""
        return _with_every_batch(self.runs.filter(pl.col("background").is_null()), self.runs)

    @property
    def undisturbed(self) -> pl.DataFrame:
        """The runs whose shares of use, and mean powers, are the training's.

        Those are the calm ones, and all of a simulated board that computes: nothing else runs on its processors, and
        what this machine's load lengthens are all states of the training alike.
        """
        calm = pl.col("background").is_null() | (pl.col("device") == BOARDS_GPU)
        return _with_every_batch(self.runs.filter(calm), self.runs)

    @property
    def why_all_disturbed(self) -> str:
        """Return why there is no undisturbed run; "" where there is one, or none at all."""
        return self._all_disturbed(self.undisturbed)

    @property
    def why_all_times_disturbed(self) -> str:
        """Return why there is no calm run; "" where there is one, or none at all."""
        return self._all_disturbed(self.runs_without_load)

    def why_lacking(self, judged_names: Iterable[str], why: str, kind: str | None = None) -> dict[str, str]:
        """Return why models with runs (of a kind) are not among the `judged_names`: all were disturbed, or `why`."""
        runs = self.runs if kind is None else self.runs.filter(kind=kind)
        return why_not_judged(runs, self.undisturbed["run"], judged_names, why)

    def _all_disturbed(self, usable: pl.DataFrame) -> str:
        others = self.runs["background"].drop_nulls()
        return f"in all {len(others)} runs {others[0]}" if len(others) and usable.is_empty() else ""

    @property
    def timed(self) -> TimedRuns:
        """The runs whose times can be judged: those without background CPU load.

        Where there was some, and every training ran on one thread of the CPU, all runs by the CPU time of the training
        process, which background processes do not lengthen by taking the core.
        """
        runs, undisturbed = self.runs, self.runs_without_load
        if len(undisturbed) == len(runs):
            return TimedRuns(runs)
        single = (
            (runs["device"] == "cpu")
            & (runs["threads"] == 1)
            & runs["trainer_cores"].is_between(0, 1.5, closed="right")
        )
        if len(single) and single.fill_null(False).all():
            own = [pl.col(name) / pl.col("trainer_cores") for name in ("samples_per_s", "flop_per_s")]
            unknown = [pl.lit(None, pl.Float64).alias(f"samples_per_s_{end}") for end in ("low", "high")]
            return TimedRuns(runs.with_columns(*own, *unknown), OWN_TIME)
        disturbed = runs.filter(pl.col("background").is_not_null()).group_by("workload", maintain_order=True)
        why = {
            str(name): f"{len(frame)} of its runs were disturbed and are not judged ({frame['background'][0]})"
            for (name,), frame in disturbed
        }
        return TimedRuns(undisturbed, disturbed=why)

    @property
    def accelerated(self) -> bool:
        """Return whether the trainings ran on an accelerator."""
        return bool((self.runs["device"] != "cpu").any())


def _with_every_batch(usable: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Keep of the chosen runs those of models of which each batch size is left: fewer would be another claim."""
    usable_batches, all_batches = (
        frame.group_by("workload").agg(pl.col("batch").n_unique().alias("batches")) for frame in (usable, runs)
    )
    return usable.join(usable_batches.join(all_batches, on=["workload", "batches"]), on="workload", how="semi")


def gather_evidence(runs: Sequence[Run], more: dict[str, pl.DataFrame], absent: dict[str, str]) -> Evidence:
    """The evidence of some runs, with `memory` and `days` where they were made."""
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "cores": [], "rhythm": [], "power": []}
    for run in runs:
        use, about, metrics = read_processor_use(run), _run_facts(run), run.metrics()
        rows["runs"].append({**about, **_run_metric_columns(run, metrics), **_window_comparison(use, about["threads"])})
        rows["cores"] += _core_rows(run, about, metrics)
        rows["rhythm"] += [{**_select_facts(about, "run", "workload"), **row} for row in channel_rhythms(run, use)]
        rows["power"] += _power_rows(run, about)
    frames = {name: pl.DataFrame(columns, schema=_SCHEMAS[name]) for name, columns in rows.items()}
    counted = {name: frame.select(pl.col(key).cast(kind) for key, kind in _SCHEMAS[name].items())
             for name, frame in more.items()}  # fmt: skip
    reasons = {**({} if runs == [] else _absence_reasons(runs, frames)), **absent}
    return Evidence(**frames, **counted, absent=reasons)


def _run_facts(run: Run) -> dict[str, Any]:
    workload = run.meta.get("workload") or {}
    return {
        "run": run.id,
        "workload": str(workload.get("name")),
        "kind": _model_kind(str(workload.get("name")), run.model["type"].to_list()),
        "device": BOARDS_GPU if run.board_has_gpu else str(workload.get("device") or "cpu").partition(":")[0],
        "batch": workload.get("batch_size"),
        "threads": run.meta.get("threads"),
    }


_SEEING = ("vision", "image generation")  # the domains of the paper's convolutional networks


def _model_kind(name: str, types: Sequence[str]) -> str:
    """Return the kind of a model: recurrent with any recurrent layer, else convolutional with any convolution.

    A workload of the suite from another domain, as deep Q-learning, is neither: its use is that domain's.
    """
    domain = _domains().get(name)
    if any(name.startswith(("LSTM", "GRU", "RNN")) for name in types):
        return RECURRENT
    sees = domain is None or domain in _SEEING
    return CONVOLUTIONAL if sees and any("Conv" in name for name in types) else OTHER


@cache
def _domains() -> dict[str, str]:
    """Domain of each workload of the suite; nothing on a machine without torch."""
    try:
        from stepscope import workloads

        return {workload.name: workload.domain for workload in workloads.every()}
    except ImportError:
        return {}


def _select_facts(about: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: about[name] for name in names}


def _run_metric_columns(run: Run, metrics: pl.DataFrame) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    sources = {
        "step_ms": ("step_time", "run", 1e-6),
        "samples_per_s": ("throughput", "run", 1.0),
        "cpu_use": ("mean_cpu_utilisation", "cpu", 1.0),
        "trainer_cores": ("process_cpu_utilisation", "process", 1.0),
    }
    for column, (metric, scope, factor) in sources.items():
        _store_value_and_bounds(columns, column, metrics.filter(metric=metric, scope=scope), factor)
    _store_value_and_bounds(columns, "accelerator_use", metrics.filter(metric="accelerator_utilisation"))
    kind = "simulated" if run.simulated else "measured"
    energy = "simulated_energy_per_step" if run.simulated else "energy_per_step"
    _store_value_and_bounds(columns, "energy_per_step_j", metrics.filter(metric=energy, scope="total"))
    columns["energy_kind"] = kind if columns.get("energy_per_step_j") is not None else None
    columns["flop_per_s"] = _flop_rate(run, columns.get("samples_per_s"))
    columns["cores"] = len(metrics.filter(metric="core_utilisation"))
    columns["background"] = background_load_sentence(run) or None
    return {name: columns.get(name) for name in RUNS if name in columns}


def _store_value_and_bounds(columns: dict[str, Any], column: str, rows: pl.DataFrame, factor: float = 1.0) -> None:
    first_row = rows.drop_nulls("value").head(1)
    for end, name in (("", "value"), ("_low", "low"), ("_high", "high")):
        if not first_row.is_empty() and f"{column}{end}" in RUNS:
            value = first_row[name][0]
            columns[f"{column}{end}"] = None if value is None else value * factor


def _flop_rate(run: Run, samples_per_s: float | None) -> float | None:
    whole = run.model.head(1)
    if whole.is_empty() or samples_per_s is None:
        return None
    forward, backward = whole["flops_forward"][0], whole["flops_backward"][0]
    return None if not forward or not backward else (forward + backward) * samples_per_s


def _window_comparison(use: ProcessorUse | None, threads: int | None) -> dict[str, Any]:
    if use is None:
        return {}
    mean = use.cores.mean(axis=0)
    columns: dict[str, Any] = {"core_spread": busiest_to_idlest_gap(use)}
    if use.source:
        columns["alternation"] = correlation(use.accelerator, mean)
        readings = use.accelerator[np.isfinite(use.accelerator)]
        if len(readings):  # of the same windows as the CPU's, warm-up excluded
            columns |= {"accelerator_use": float(readings.mean())}
            columns |= dict.fromkeys(("accelerator_use_low", "accelerator_use_high"))
    groups = busiest_and_other_cores_use(use, threads or 0)
    if groups is not None:
        ours, others = groups
        columns["training_cores_use"], columns["other_cores_use"] = (float(np.nanmean(part)) for part in groups)
        columns["core_alternation"] = correlation(ours, others)
    return columns


def _core_rows(run: Run, about: dict[str, Any], metrics: pl.DataFrame) -> Iterator[dict[str, Any]]:
    idle = dict(metrics.filter(metric="idle_state_ratio").select("scope", "value").iter_rows())
    clusters = {f"core:{core}": name for name, cores in run.core_clusters.items() for core in cores}
    for scope, value in metrics.filter(metric="core_utilisation").select("scope", "value").iter_rows():
        about_core = {
            "core": scope,
            "cluster": clusters.get(scope, "cores"),
            "use": value,
            "idle_ratio": idle.get(scope),
        }
        yield {**_select_facts(about, "run", "workload", "batch"), **about_core}


def _power_rows(run: Run, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Components whose power was measured, or simulated in a run that says so; an estimate is no sensor."""
    for row in run.energy_totals().filter(pl.col("kind") != "estimated").iter_rows(named=True):
        numbers = {"watts": row["watts_mean"], "joules_per_step": row["joules_per_step"], "source": row["source"]}
        yield {**_select_facts(about, "run", "workload", "kind", "batch"), "component": row["component"], **numbers}


def _absence_reasons(runs: Sequence[Run], frames: dict[str, pl.DataFrame]) -> dict[str, str]:
    """Return why there is no power and no accelerator in the runs, from what they themselves say."""
    reasons = {}
    if frames["power"].is_empty():
        estimated = any(line.estimated for run in runs for line in run.rails.lines)
        only = "its power was only estimated by a model, which is no measurement"
        reasons["power"] = only if estimated else "no sensor measured power (stepscope doctor says what would)"
    if not bool((frames["runs"]["device"] != "cpu").any()):
        reasons["accelerator"] = "the trainings ran on the CPU"
    return reasons


_MOST = 2000
_FEWEST = 16  # windows, for a correlation


@dataclass(frozen=True)
class ProcessorUse:
    """Shares of time, NaN where not read: cores (cores, n) and accelerator (n,), in windows with edges (n + 1,), ns."""

    edges_ns: Floats
    names: tuple[str, ...]
    cores: Floats
    accelerator: Floats
    source: str  # of the accelerator's use; "" where there is none


def read_processor_use(run: Run) -> ProcessorUse | None:
    """The steady part of a run in windows that every counter resolves; None where no core's busy time was read."""
    span, cores = span_ns(run), core_busy_time(run)
    if span is None or not cores:
        return None
    gauge = accelerator_gauge(run)
    length = max(*(shortest_window_ns(core) for core in cores), 2 * gauge.period_ns if gauge else 0.0, 1.0)
    length = max(length, (span[1] - span[0]) / _MOST)
    windows = [growth_windows(core, *span, length) for core in cores]
    edges = windows[0].edges_ns
    busy = np.clip(np.stack([series.rates for series in windows]), 0, 1)
    names = tuple(core.scope for core in cores)
    if gauge is not None:
        return ProcessorUse(edges, names, busy, _gauge_use(gauge, edges), gauge.source)
    kernels = _kernel_use(run, edges)
    return ProcessorUse(edges, names, busy, kernels, "" if np.isnan(kernels).all() else "kernels of the profiled steps")


def accelerator_gauge(run: Run) -> Series | None:
    """The first accelerator's own reading of its use."""
    return next((series for series in series_of(run, "utilisation") if series.scope.startswith("gpu")), None)


def correlation(ours: Floats, others: Floats) -> float | None:
    """Pearson's correlation over the windows that both know; None of too few, or where one of them never changes."""
    both = np.isfinite(ours) & np.isfinite(others)
    a, b = ours[both], others[both]
    if len(a) < _FEWEST or a.std() < 1e-9 or b.std() < 1e-9:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _halves_of_run(use: ProcessorUse) -> tuple[Floats, Floats] | None:
    """Use of the cores in the windows of the first half and of the second; None where that is too little.

    Cores are chosen in one half and measured in the other: of cores that are all alike, the busiest would else seem
    busier.
    """
    middle = use.cores.shape[1] // 2
    halves = use.cores[:, :middle], use.cores[:, middle:]
    return None if middle < _FEWEST or any(np.isnan(half).all(axis=1).any() for half in halves) else halves


def busiest_and_other_cores_use(use: ProcessorUse, count: int) -> tuple[Floats, Floats] | None:
    """Mean use (n,) of the `count` cores that were busiest in the first half and of the others, in the second half."""
    halves = _halves_of_run(use)
    if halves is None or not 0 < count < len(use.cores):
        return None
    first, second = halves
    order = np.argsort(-np.nanmean(first, axis=1), kind="stable")
    return second[order[:count]].mean(axis=0), second[order[count:]].mean(axis=0)


def busiest_to_idlest_gap(use: ProcessorUse) -> float | None:
    """Return how much busier the busiest core is than the idlest, chosen in the first half, measured in the second."""
    halves = _halves_of_run(use)
    if halves is None or len(use.cores) < 2:
        return None
    first, second = (np.nanmean(half, axis=1) for half in halves)
    return float(second[first.argmax()] - second[first.argmin()])


def _gauge_use(gauge: Series, edges: Floats) -> Floats:
    """Mean of the readings in each window; NaN where none fell into it."""
    inside = (gauge.t_ns >= edges[0]) & (gauge.t_ns < edges[-1])
    place = np.searchsorted(edges, gauge.t_ns[inside], side="right") - 1
    size = len(edges) - 1
    counts = np.bincount(place, minlength=size)
    sums = np.bincount(place, gauge.values[inside], minlength=size)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _kernel_use(run: Run, edges: Floats) -> Floats:
    """Share of each window in which a kernel ran; NaN for windows that are not wholly within profiled steps."""
    steps = profiled_steps(run)
    ops = run.scan_ops().select("device", "t0_ns", "t1_ns").filter(pl.col("device") != CPU).sort("t0_ns").collect()
    if ops.is_empty() or steps.is_empty():
        return np.full(len(edges) - 1, np.nan)
    begins, ends = (ops[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    busy = np.diff(_covered_time_until(begins, ends, edges)) / np.diff(edges)
    begins, ends = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns"))
    recorded = np.diff(_covered_time_until(begins, ends, edges)) / np.diff(edges)
    return np.where(recorded > 0.95, np.clip(busy, 0, 1), np.nan)


def _covered_time_until(begins: Floats, ends: Floats, at_ns: Floats) -> Floats:
    """Time up to each moment that at least one of the intervals covers; the intervals in order of their begin."""
    until = np.maximum.accumulate(ends)
    start = np.maximum(begins, np.concatenate([[begins[0]], until[:-1]]))
    new = np.maximum(until - start, 0.0)
    covered = np.concatenate([[0.0], np.cumsum(new)])
    place = np.searchsorted(start, at_ns, side="right")
    last = np.maximum(place - 1, 0)
    return np.where(place > 0, covered[last] + np.clip(at_ns - start[last], 0, new[last]), 0.0)


_LEAST_READINGS = 6  # a step: fewer show no pattern
_LEAST_STEPS = 6
_MOST_PHASES = 20
RhythmRow = dict[str, float | str | None]


def channel_rhythms(run: Run, use: ProcessorUse | None) -> Iterator[RhythmRow]:
    """A row a channel: what, of (use or power), step_ms, readings_per_step, period_steps, explained.

    period_steps: the period in steps, null where the samples show none; explained: the share of the variance of the
    even steps that the mean profile of the odd ones predicts, and the reverse; both null where a step is too short
    for the readings.
    """
    steps = steps_after_warmup(run)
    if len(steps) < _LEAST_STEPS:
        return
    edges = steps.select("t0_ns", "t1_ns").to_numpy().astype(np.float64)
    for of, what, series, smears_ns in _use_and_power_series(run, use, edges):
        yield {"of": of, "what": what, **step_periodicity(series, edges, smears_ns)}


def step_periodicity(series: Series, edges_ns: Floats, smears_ns: float = 0.0) -> RhythmRow:
    """One channel against the steps, edges (n, 2); `smears_ns` is what its readings are averages over."""
    step_ns = float(np.median(edges_ns[:, 1] - edges_ns[:, 0]))
    spacing = max(series.period_ns, 1.0)
    row: RhythmRow = {"step_ms": step_ns / 1e6, "readings_per_step": step_ns / max(spacing, smears_ns / 2)}
    row |= {"period_steps": None, "explained": None}
    inside = (series.t_ns >= edges_ns[0, 0]) & (series.t_ns <= edges_ns[-1, 1])
    if step_ns < _LEAST_READINGS * spacing or step_ns < 1.5 * smears_ns or not inside.any():
        return row
    period, _ = period_of(series, float(edges_ns[0, 0]), float(edges_ns[-1, 1]), step_ns)
    row["period_steps"] = None if period is None else period / step_ns
    row["explained"] = explained_variance_share(series, edges_ns)
    return row


def explained_variance_share(series: Series, edges_ns: Floats) -> float | None:
    """Share of the variance within the steps that one half of them predicts of the other; 0 where nothing varies."""
    step, phase = phases_within_steps(series, edges_ns)
    inside = step >= 0
    values, step, phase = series.values[inside], step[inside], phase[inside]
    apart = float(np.median(edges_ns[:, 1] - edges_ns[:, 0])) / max(series.period_ns, 1.0)
    bins = int(min(_MOST_PHASES, max(apart // 2, 3)))
    place = np.minimum((phase * bins).astype(np.int64), bins - 1)
    unexplained = total = 0.0
    for odd in (0, 1):
        here, there = step % 2 == odd, step % 2 != odd
        counts = np.bincount(place[there], minlength=bins)
        if not here.any() or (counts == 0).any():
            return None
        profile = np.bincount(place[there], values[there], minlength=bins) / counts
        unexplained += float(((values[here] - profile[place[here]]) ** 2).sum())
        total += float(((values[here] - values[there].mean()) ** 2).sum())
    return 0.0 if total <= 1e-12 else 1 - unexplained / total


def phases_within_steps(series: Series, edges_ns: Floats) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Floats]:
    """The step that each reading falls into, -1 between steps, and how far into it, 0 to 1."""
    place = np.searchsorted(edges_ns[:, 0], series.t_ns, side="right") - 1
    step = np.clip(place, 0, len(edges_ns) - 1)
    length = edges_ns[step, 1] - edges_ns[step, 0]
    phase = (series.t_ns - edges_ns[step, 0]) / length
    inside = (place >= 0) & (phase >= 0) & (phase <= 1)
    return np.where(inside, step, -1).astype(np.int64), phase


def _use_and_power_series(
    run: Run, use: ProcessorUse | None, edges: Floats
) -> Iterator[tuple[str, str, Series, float]]:
    span = float(edges[0, 0]), float(edges[-1, 1])
    if use is not None:
        middle = (use.edges_ns[1:] + use.edges_ns[:-1]) / 2
        yield "use", "CPU", _finite_series("cpu", middle, use.cores.mean(axis=0)), 0.0
        if use.source and accelerator_gauge(run) is None:
            yield "use", "accelerator", _finite_series("gpu", middle, use.accelerator), 0.0
    gauge = accelerator_gauge(run)
    if gauge is not None:
        yield "use", "accelerator", gauge, 0.0
    process = process_windows(run, *span)
    if process is not None:
        yield "use", "trainer", process_use(process), 0.0
    for name, lines in run.rails.components():
        if lines and not any(line.estimated for line in lines):
            yield "power", name, *_power_of_rails(name, lines)


def process_windows(run: Run, t0_ns: float, t1_ns: float) -> Windows | None:
    """CPU utilisation of the training process in cores, by window; None where it was not read."""
    of = next((series for series in series_of(run, "process_cpu_time") if series.scope == "process"), None)
    return None if of is None else growth_windows(of, t0_ns, t1_ns, shortest_window_ns(of))


def process_use(windows: Windows) -> Series:
    """Return the windows that were read as a series."""
    return _finite_series("process", (windows.edges_ns[1:] + windows.edges_ns[:-1]) / 2, windows.rates)


def _power_of_rails(name: str, lines: Sequence[MeasuredRail]) -> tuple[Series, float]:
    """Mean power between two readings of the slowest of these rails, W, and what a sensor averages over at most, ns."""
    growths = [line.best.growth for line in lines]
    slowest = min(growths, key=lambda growth: len(growth.t_ns))
    edges, watts = slowest.t_ns, np.zeros(len(slowest.t_ns) - 1)
    apart = np.maximum(np.diff(edges), 1.0)
    for growth in growths:
        joules = np.interp(edges, growth.t_ns, growth.known_growth, left=np.nan, right=np.nan)
        missing = np.interp(edges, growth.t_ns, np.concatenate([[0.0], np.cumsum(growth.gap)]))
        watts += np.where(np.diff(missing) > 0, np.nan, np.diff(joules) / apart * 1e9)
    smears_ns = max(max(line.best.window_ns, line.best.refresh_ns) for line in lines)
    return _finite_series(name, edges[:-1] + apart / 2, watts), smears_ns


def _finite_series(scope: str, t_ns: Floats, values: Floats) -> Series:
    read = np.isfinite(values)
    return Series(scope, "", 0, t_ns[read], values[read], np.empty((0, 2)))


HOLDERS = {
    "parameters": ("parameter",),
    "gradients": ("gradient",),
    "input data": ("input",),
    "intermediate data": ("saved", "temporary", "workspace", "other"),
    "optimizer and buffers": ("optimizer", "buffer"),
}


def memory_by_batch(job: Job, batches: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row a batch and holder: workload, batch, part, bytes; the most that each held at any time of the second step.

    Each has its own time: gradients are whole after backward, when most intermediate data are gone. Raises
    DryRunStopped where fake tensors cannot run the step.
    """
    from stepscope.record.dry.dry_run import dry_run

    for batch in batches:
        memory = memory_over_time(dry_run(job, batch).events())
        for part, categories in HOLDERS.items():
            most = memory.select(pl.sum_horizontal(categories)).to_series().to_numpy().max(initial=0)
            yield {"workload": job.name, "batch": batch, "part": part, "bytes": int(most)}
