"""`stepscope study breakdown` in Python: one model or two, training and inference, by kind of operation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.findings import Findings, FoundTable, Value
from stepscope.analysis.intervals import known, mean_interval
from stepscope.analysis.run import Run
from stepscope.errors import StepscopeError
from stepscope.record.dry_run import DryRunStopped, dry_run
from stepscope.record.job import Job
from stepscope.record.workspaces import Workspaces, this_platform
from stepscope.studies.breakdown.families import NAMES
from stepscope.studies.breakdown.parts import Joules, bytes_at_peak, joules, milliseconds
from stepscope.studies.fit.drawn import TRAINING as DRY_TRAINING
from stepscope.studies.fit.drawn import inference, step_series
from stepscope.studies.here import device_name, versions
from stepscope.studies.study_folder import StudyFolder
from stepscope.studies.trainings.measuring import Means, Trained, trained
from stepscope.studies.trainings.setting import INFERENCE, TRAINING, Rules, Setting

NAME = "breakdown"
CHILD = (sys.executable, "-m", "stepscope.commands._setting_child")
MODELS = ("mobilenet-v1-c32", "resnet18-c32")
Key = tuple[str, str]  # model, and training or inference


@dataclass(frozen=True)
class Asked:
    """All that a repetition needs; every model is run at the same batch. memory_only: nothing is trained."""

    models: tuple[str, ...] = MODELS
    batch: int = 16
    optimizer: str | None = None
    threads: int | None = None
    device: str = "cpu"
    memory_only: bool = False
    rules: Rules = field(default_factory=lambda: Rules(steps=30, seconds=None))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Evidence:
    """What was found by model and kind: ms by family of every repeat, joules, bytes at the peak, memory over a step."""

    times: Mapping[Key, Sequence[Mapping[str, float]]]
    energy: Mapping[Key, Joules]
    peaks: Mapping[Key, Mapping[tuple[str, str], int]]
    over_step: pl.DataFrame
    parameters: Mapping[str, int]
    notes: tuple[str, ...]


def breakdown(
    out: str | Path, asked: Asked, job_of: Callable[[str], Job], *, means: Means | None = None, command: str = ""
) -> Findings:
    """Run and dry-run the models in a study's folder, begun or gone on with. `job_of`: a workload for a dry run."""
    jobs = {model: job_of(model) for model in asked.models}
    folder = StudyFolder(Path(out), NAME, asked.to_dict())
    base = {"batch": asked.batch, "optimizer": asked.optimizer, "threads": asked.threads, "device": asked.device}
    settings = [Setting(model, **base, kind=kind) for model in asked.models for kind in _kinds(jobs[model])]  # type: ignore[arg-type]
    with folder.locked():
        runs = [] if asked.memory_only else trained(folder, settings, asked.rules, means or Means(CHILD), _called)
    said = command or f"stepscope study {NAME} {' '.join(asked.models)} --out {out}"
    return found(_evidence(runs, jobs, asked), asked, said)


def found(evidence: Evidence, asked: Asked, command: str) -> Findings:
    """The findings from evidence that has been gathered."""
    tables = (_memory_table(evidence), _time_table(evidence), _energy_table(evidence))
    return Findings(
        study=NAME,
        title=f"Where training goes: {' and '.join(asked.models)}",
        answer=" ".join(_answer(evidence, asked)),
        tables=tuple(table for table in tables if table.rows),
        settings=asked.to_dict(),
        device=device_name(),
        versions=versions(),
        command=command,
        notes=evidence.notes,
        simulated=asked.rules.simulate,
        frames=_frames(evidence),
    )


def _kinds(job: Job) -> tuple[str, ...]:
    return (TRAINING,) if job.loss is None else (TRAINING, INFERENCE)


def _called(setting: Setting) -> str:
    return f"{setting.workload}, {setting.kind}"


def _evidence(runs: Sequence[Trained], jobs: Mapping[str, Job], asked: Asked) -> Evidence:
    times: dict[Key, list[Mapping[str, float]]] = {}
    energy: dict[Key, Joules] = {}
    lacking: dict[Key, str] = {}
    notes = []
    for one in runs:
        key = (one.point.setting.workload, one.point.setting.kind)
        if one.status != "ok" or one.run is None:
            notes.append(f"{_called(one.point.setting)}: {one.status}: {one.reason}")
            continue
        run = Run(one.run)
        spent = milliseconds(run)
        if spent:
            times.setdefault(key, []).append(spent)
        else:  # nothing recorded is no step of 0 ms
            notes.append(f"{_called(one.point.setting)}, repeat {one.point.repeat + 1}: no operations were recorded")
        of_run, lacking[key] = (energy[key], "") if key in energy else _joules(run)
        if of_run is not None:
            energy[key] = of_run
    notes += [
        f"energy of {model}, {kind}, cannot be judged: {why}"
        for (model, kind), why in lacking.items()
        if (model, kind) not in energy
    ]
    notes += [f"{name} has a step of its own: it has no inference" for name, job in jobs.items() if job.loss is None]
    peaks, series, parameters, stopped = _memory(jobs, asked)
    return Evidence(times, energy, peaks, series, parameters, (*notes, *stopped))


def _joules(run: Run) -> tuple[Joules | None, str]:
    """The energy of a run by family, or why there is none."""
    try:
        return joules(run), "no power that could be handed to operations was read"
    except StepscopeError as error:  # too few readings for a fit
        return None, str(error)


def _memory(
    jobs: Mapping[str, Job], asked: Asked
) -> tuple[dict[Key, Mapping[tuple[str, str], int]], pl.DataFrame, dict[str, int], list[str]]:
    """Dry runs of every model and kind: bytes at the peak, memory over the step, parameters, and what stopped."""
    peaks: dict[Key, Mapping[tuple[str, str], int]] = {}
    series, parameters, notes = [], {}, []
    hidden = Workspaces(this_platform())
    for model, job in jobs.items():
        for kind in _kinds(job):
            try:
                done = dry_run(job if kind == TRAINING else inference(job), asked.batch, hidden)
            except DryRunStopped as stopped:
                notes.append(f"memory of {model}, {kind}: fake tensors stopped at {stopped}")
                continue
            events = done.events()
            peaks[model, kind] = bytes_at_peak(events)
            series.append(
                step_series(events).select(pl.lit(model).alias("model"), pl.lit(kind).alias("kind"), pl.all())
            )
            if kind == DRY_TRAINING:
                parameters[model] = sum(n for (holder, _), n in peaks[model, kind].items() if holder == "parameter")
    return peaks, pl.concat(series) if series else pl.DataFrame(), parameters, notes


def _answer(evidence: Evidence, asked: Asked) -> Iterator[str]:
    for model in asked.models:
        of = _mean_times(evidence.times.get((model, TRAINING), ()))
        if of:
            whole = sum(value for value, _, _ in of.values())
            first = sorted(of, key=lambda name: -of[name][0])[:3]
            shares = ", ".join(f"{name} {of[name][0] / whole:.0%}" for name in first)
            yield f"{model}: {whole:.3g} ms a step ({shares})."
    yield from _why_more(evidence, asked)


def _why_more(evidence: Evidence, asked: Asked) -> Iterator[str]:
    """Of two models: which holds more at its peak, and what it saves more of."""
    both = [model for model in asked.models if (model, TRAINING) in evidence.peaks]
    if len(both) != 2:
        return
    totals = {model: sum(evidence.peaks[model, TRAINING].values()) for model in both}
    more, less = sorted(both, key=lambda model: -totals[model])
    saved = {model: _saved(evidence.peaks[model, TRAINING]) for model in both}
    families = {*saved[more], *saved[less]}
    by = max(families, key=lambda name: saved[more].get(name, 0) - saved[less].get(name, 0), default="")
    parameters = {model: evidence.parameters.get(model, 0) for model in both}
    yield f"{more} holds {_mb(totals[more])} at its peak and {less} {_mb(totals[less])}."
    yield f"Their parameters take {_mb(parameters[more])} and {_mb(parameters[less])};"
    yield f"what they keep for backward, {_mb(sum(saved[more].values()))} and {_mb(sum(saved[less].values()))};"
    yield f"most of the difference was made by {by}: {_mb(saved[more].get(by, 0))} and {_mb(saved[less].get(by, 0))}."


def _saved(peak: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {made: size for (holder, made), size in peak.items() if holder == "saved"}


def _mean_times(repeats: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float | None, float | None]]:
    """Mean ms of each family over the repeats with Student's interval; the means add up to the mean step."""
    names = {name for one in repeats for name in one}
    found = {}
    for name in names:
        mean, low, high = mean_interval(np.array([one.get(name, 0.0) for one in repeats]))
        found[name] = (mean, None if known(low) is None else max(low, 0.0), known(high))
    return found


def _mean_wholes(repeats: Sequence[Mapping[str, float]]) -> tuple[float, float | None, float | None]:
    mean, low, high = mean_interval(np.array([sum(one.values()) for one in repeats]))
    return mean, None if known(low) is None else max(low, 0.0), known(high)


def _time_table(evidence: Evidence) -> FoundTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), repeats in evidence.times.items():
        of = _mean_times(repeats)
        whole = sum(value for value, _, _ in of.values())
        ordered = sorted(of, key=lambda name: -of[name][0])
        rows += [(model, kind, name, *of[name], 100 * of[name][0] / whole) for name in ordered]
        rows.append((model, kind, "whole step", *_mean_wholes(repeats), 100.0))
    columns = ("model", "of", "operation", "ms a step", "low", "high", "%")
    note = "Own time of the operations of recorded steps on the CPU; with what lies between them it is the whole step."
    return FoundTable("time", "Time by kind of operation", columns, tuple(rows), note)


def _energy_table(evidence: Evidence) -> FoundTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), of in evidence.energy.items():
        whole = sum(of.joules.values())
        rows += [
            (model, kind, of.component, name, 1e3 * value, _milli(of.half[name]), 100 * value / whole)
            for name, value in sorted(of.joules.items(), key=lambda item: -item[1])
        ]
    columns = ("model", "of", "component", "operation", "mJ a step", "plus or minus", "%")
    note = (
        "Attributed to operations in the first repeat that has energy; half widths of 90 % of the parts are added, "
        "which is the widest that they can be."
    )
    return FoundTable("energy", "Energy by kind of operation", columns, tuple(rows), note)


def _memory_table(evidence: Evidence) -> FoundTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), peak in evidence.peaks.items():
        whole = sum(peak.values())
        for (holder, made), size in sorted(peak.items(), key=lambda item: -item[1]):
            rows.append((model, kind, holder, made or None, size / 1e6, 100 * size / whole))
        rows.append((model, kind, "whole peak", None, whole / 1e6, 100.0))
    columns = ("model", "of", "held as", "made by", "MB", "%")
    note = "Live tensors at the peak of a dry run; made by: the operation whose output it is. Libraries are not in it."
    return FoundTable("memory", "Memory at the peak by who made it", columns, tuple(rows), note)


def _frames(evidence: Evidence) -> dict[str, pl.DataFrame]:
    order = {name: place for place, name in enumerate(NAMES)}
    times = [
        (model, kind, name, value, order.get(name, len(order)))
        for (model, kind), repeats in evidence.times.items()
        for name, (value, _, _) in _mean_times(repeats).items()
    ]
    energies = [
        (model, kind, name, 1e3 * value, order.get(name, len(order)))
        for (model, kind), of in evidence.energy.items()
        for name, value in of.joules.items()
    ]
    peaks = [
        (model, kind, made, size / 1e6, order.get(made, len(order)))
        for (model, kind), peak in evidence.peaks.items()
        for (holder, made), size in peak.items()
        if holder == "saved"
    ]
    schema = {"model": pl.String, "kind": pl.String, "family": pl.String, "value": pl.Float64, "place": pl.Int64}
    parts = {"time-by-family": times, "energy-by-family": energies, "saved-by-family": peaks}
    frames = {name: pl.DataFrame(rows, schema=schema, orient="row") for name, rows in parts.items()}
    frames["memory-over-step"] = evidence.over_step
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _mb(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


def _milli(value: float | None) -> float | None:
    return None if value is None else 1e3 * value
