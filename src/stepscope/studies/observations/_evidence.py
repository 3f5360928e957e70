"""The evidence of the observations: frames that are gathered from run folders, dry runs and daily training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.background import warning
from stepscope.analysis.measured import Measured
from stepscope.analysis.run import Run
from stepscope.studies.observations._rhythm import rhythms
from stepscope.studies.observations._windows import Use, correlation, halves, spread, use_of
from stepscope.units import number

CONVOLUTIONAL, RECURRENT, OTHER = "convolutional", "recurrent", "other"
_BOUNDED = ("step_ms", "samples_per_s", "cpu_use", "accelerator_use", "energy_per_step_j")
_TEXTS = ("run", "workload", "kind", "device", "setting", "energy_kind")
RUNS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, pl.String),
    "batch": pl.Int64,
    "cores": pl.Int64,
    "threads": pl.Int64,
    **{f"{name}{end}": pl.Float64 for name in _BOUNDED for end in ("", "_low", "_high")},
    "trainer_cores": pl.Float64,  # that the training process kept busy
    "flop_per_s": pl.Float64,  # forward and backward, counted on the model
    "alternation": pl.Float64,  # correlation of accelerator and mean CPU use, window by window
    "training_cores_use": pl.Float64,  # chosen in the first half of the run, measured in the second
    "other_cores_use": pl.Float64,
    "core_alternation": pl.Float64,
    "core_spread": pl.Float64,
    "background": pl.String,  # a sentence where other programs took a good part of the machine
}
CORES = {"run": pl.String, "workload": pl.String, "batch": pl.Int64, "core": pl.String, "cluster": pl.String,
         "use": pl.Float64, "idle_ratio": pl.Float64}  # fmt: skip
RHYTHM = {"run": pl.String, "workload": pl.String, "of": pl.String, "what": pl.String,
          **dict.fromkeys(("step_ms", "readings_per_step", "deviation", "period_steps", "correlation", "explained"),
                          pl.Float64)}  # fmt: skip
POWER = {"run": pl.String, "workload": pl.String, "kind": pl.String, "batch": pl.Int64, "component": pl.String,
         "watts": pl.Float64, "joules_per_step": pl.Float64, "source": pl.String}  # fmt: skip
MEMORY = {"workload": pl.String, "batch": pl.Int64, "part": pl.String, "bytes": pl.Int64}
DAYS = {"seed": pl.Int64, "batch": pl.Int64, "day": pl.Int64, "accuracy": pl.Float64}
_SCHEMAS = {"runs": RUNS, "cores": CORES, "rhythm": RHYTHM, "power": POWER, "memory": MEMORY, "days": DAYS}


def _nothing(name: str) -> pl.DataFrame:
    return pl.DataFrame(schema=_SCHEMAS[name])


@dataclass(frozen=True)
class Evidence:
    """All that is judged; `absent` says by "power", "accelerator", "memory" and "days" why there is none of it."""

    runs: pl.DataFrame = field(default_factory=lambda: _nothing("runs"))
    cores: pl.DataFrame = field(default_factory=lambda: _nothing("cores"))
    rhythm: pl.DataFrame = field(default_factory=lambda: _nothing("rhythm"))
    power: pl.DataFrame = field(default_factory=lambda: _nothing("power"))
    memory: pl.DataFrame = field(default_factory=lambda: _nothing("memory"))
    days: pl.DataFrame = field(default_factory=lambda: _nothing("days"))
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def undisturbed(self) -> pl.DataFrame:
        """The runs beside which other programs left the cores alone: whose use of all cores is the training's."""
        return self.runs.filter(pl.col("background").is_null())

    @property
    def disturbed(self) -> str:
        """Why there is no run of that kind; "" where there is one, or none at all."""
        others = self.runs["background"].drop_nulls()
        return f"in all {len(others)} runs {others[0]}" if len(others) and self.undisturbed.is_empty() else ""

    @property
    def accelerated(self) -> bool:
        """Whether the trainings ran on an accelerator."""
        return bool((self.runs["device"] != "cpu").any())


def gathered(runs: Sequence[Run], more: dict[str, pl.DataFrame], absent: dict[str, str]) -> Evidence:
    """The evidence of some runs, with `memory` and `days` where they were made."""
    rows: dict[str, list[dict[str, Any]]] = {"runs": [], "cores": [], "rhythm": [], "power": []}
    for run in runs:
        use, about, metrics = use_of(run), _about(run), run.metrics()
        rows["runs"].append({**about, **_numbers(run, metrics), **_compared(use, about["threads"])})
        rows["cores"] += _cores(run, about, metrics)
        rows["rhythm"] += [{**_key(about, "run", "workload"), **row} for row in rhythms(run, use)]
        rows["power"] += _power(run, about)
    frames = {name: pl.DataFrame(found, schema=_SCHEMAS[name]) for name, found in rows.items()}
    given = {name: frame.select(pl.col(key).cast(kind) for key, kind in _SCHEMAS[name].items())
             for name, frame in more.items()}  # fmt: skip
    said = {**({} if runs == [] else _unread(runs, frames)), **absent}
    return Evidence(**frames, **given, absent=said)


def _about(run: Run) -> dict[str, Any]:
    workload = run.meta.get("workload") or {}
    words = [str(workload.get(name)) for name in ("optimizer", "precision")]
    return {
        "run": run.id,
        "workload": str(workload.get("name")),
        "kind": _kind(run.model["type"].to_list()),
        "device": str(workload.get("device") or "cpu").partition(":")[0],
        "setting": ", ".join([*words, f"{run.meta.get('threads')} threads"]),
        "batch": workload.get("batch_size"),
        "threads": run.meta.get("threads"),
    }


def _kind(types: Sequence[str]) -> str:
    """By its layers: recurrent where it has any recurrent one, else convolutional where it has a convolution."""
    if any(name.startswith(("LSTM", "GRU", "RNN")) for name in types):
        return RECURRENT
    return CONVOLUTIONAL if any("Conv" in name for name in types) else OTHER


def _key(about: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: about[name] for name in names}


def _numbers(run: Run, metrics: pl.DataFrame) -> dict[str, Any]:
    found: dict[str, Any] = {}
    wanted = {
        "step_ms": ("step_time", "run", 1e-6),
        "samples_per_s": ("throughput", "run", 1.0),
        "cpu_use": ("mean_cpu_utilisation", "cpu", 1.0),
        "trainer_cores": ("process_cpu_utilisation", "process", 1.0),
    }
    for column, (metric, scope, factor) in wanted.items():
        _take(found, column, metrics.filter(metric=metric, scope=scope), factor)
    _take(found, "accelerator_use", metrics.filter(metric="accelerator_utilisation"))
    kind = "simulated" if run.simulated else "measured"
    energy = "simulated_energy_per_step" if run.simulated else "energy_per_step"
    _take(found, "energy_per_step_j", metrics.filter(metric=energy, scope="total"))
    found["energy_kind"] = kind if found.get("energy_per_step_j") is not None else None
    found["flop_per_s"] = _flop_rate(run, found.get("samples_per_s"))
    found["cores"] = len(metrics.filter(metric="core_utilisation"))
    background = [Measured(**row) for row in metrics.filter(metric="background_cpu_use").to_dicts()]
    found["background"] = (
        f"other programs kept {number(background[0].value, 2)} cores busy" if warning(background) else None
    )
    return {name: found.get(name) for name in RUNS if name in found}


def _take(found: dict[str, Any], column: str, rows: pl.DataFrame, factor: float = 1.0) -> None:
    known = rows.drop_nulls("value").head(1)
    for end, name in (("", "value"), ("_low", "low"), ("_high", "high")):
        if not known.is_empty() and f"{column}{end}" in RUNS:
            value = known[name][0]
            found[f"{column}{end}"] = None if value is None else value * factor


def _flop_rate(run: Run, samples_per_s: float | None) -> float | None:
    whole = run.model.head(1)
    if whole.is_empty() or samples_per_s is None:
        return None
    forward, backward = whole["flops_forward"][0], whole["flops_backward"][0]
    return None if not forward or not backward else (forward + backward) * samples_per_s


def _compared(use: Use | None, threads: int | None) -> dict[str, Any]:
    """What comes of comparing cores and accelerator window by window."""
    if use is None:
        return {}
    mean = use.cores.mean(axis=0)
    found: dict[str, Any] = {"core_spread": spread(use)}
    if use.source:
        found["alternation"] = correlation(use.accelerator, mean)
        known = use.accelerator[np.isfinite(use.accelerator)]
        if len(known):  # of the same windows as the CPU's, warm-up left out
            found |= {"accelerator_use": float(known.mean()), "accelerator_use_low": None, "accelerator_use_high": None}
    parted = halves(use, threads or 0)
    if parted is not None:
        ours, others = parted
        found["training_cores_use"], found["other_cores_use"] = (float(np.nanmean(part)) for part in parted)
        found["core_alternation"] = correlation(ours, others)
    return found


def _cores(run: Run, about: dict[str, Any], metrics: pl.DataFrame) -> Iterator[dict[str, Any]]:
    idle = dict(metrics.filter(metric="idle_state_ratio").select("scope", "value").iter_rows())
    clusters = {f"core:{core}": name for name, cores in run.core_clusters.items() for core in cores}
    for scope, value in metrics.filter(metric="core_utilisation").select("scope", "value").iter_rows():
        about_core = {
            "core": scope,
            "cluster": clusters.get(scope, "cores"),
            "use": value,
            "idle_ratio": idle.get(scope),
        }
        yield {**_key(about, "run", "workload", "batch"), **about_core}


def _power(run: Run, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Components whose power was measured, or simulated in a run that says so; an estimate is no sensor."""
    for row in run.energy_totals().filter(pl.col("kind") != "estimated").iter_rows(named=True):
        numbers = {"watts": row["watts_mean"], "joules_per_step": row["joules_per_step"], "source": row["source"]}
        yield {**_key(about, "run", "workload", "kind", "batch"), "component": row["component"], **numbers}


def _unread(runs: Sequence[Run], frames: dict[str, pl.DataFrame]) -> dict[str, str]:
    """Why there is no power and no accelerator in the runs, from what they themselves say."""
    found = {}
    if frames["power"].is_empty():
        estimated = any(line.estimated for run in runs for line in run.rails.lines)
        only = "its power was only estimated by a model, which is no measurement"
        found["power"] = only if estimated else "no sensor measured power (stepscope doctor says what would)"
    if not bool((frames["runs"]["device"] != "cpu").any()):
        found["accelerator"] = "the trainings ran on the CPU"
    return found
