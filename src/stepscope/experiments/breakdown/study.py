"""`stepscope study breakdown`: time, memory and energy of one model or two by family of operators."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.analysis.estimate import Estimate
from stepscope.analysis.memory.events import peak
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import profiled_steps
from stepscope.errors import StepscopeError
from stepscope.experiments.breakdown import Breakdown
from stepscope.experiments.engine.engine import Plan, mean_of_all
from stepscope.experiments.sweeps import INFERENCE, TRAINING, TrainingSetting
from stepscope.experiments.sweeps.trainings import TrainingRun, training_plan
from stepscope.footprint.chart_data import TRAINING as DRY_TRAINING
from stepscope.footprint.chart_data import inference_job, step_series
from stepscope.record.dry import Job
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.workspaces import Workspaces
from stepscope.runfolder import PHASES
from stepscope.units import category_label

Key = tuple[str, str]  # model, and training or inference


@dataclass(frozen=True)
class Evidence:
    """Results by model and kind: ms by family of every repeat, joules, bytes at the peak, memory over a step."""

    times: Mapping[Key, Sequence[Mapping[str, float]]]
    energy: Mapping[Key, FamilyEnergy]
    peaks: Mapping[Key, Mapping[tuple[str, str], int]]
    over_step: pl.DataFrame
    parameters: Mapping[str, int]
    notes: tuple[str, ...]


def breakdown_plan(request: Breakdown, jobs: Mapping[str, Job]) -> Plan:
    """Train every model, let it infer, and count its memory on dry runs. jobs: each model for a dry run."""
    base = {name: getattr(request, name) for name in ("batch", "optimizer", "threads", "device")}
    settings = [
        TrainingSetting(model, **base, kind=kind)
        for model in request.models
        for kind in _trained_and_inferred(jobs[model])
    ]

    def judge(runs: list[TrainingRun]) -> Findings:
        return build_findings(_gather_evidence(runs, jobs, request), request)

    return training_plan([] if request.memory_only else settings, request.rules, _label, judge)


def build_findings(evidence: Evidence, request: Breakdown) -> Findings:
    """The findings from evidence that has been gathered."""
    tables = (_memory_table(evidence), _time_table(evidence, request.device), _energy_table(evidence))
    return Findings(
        title=f"Where training goes: {' and '.join(request.models)}",
        answer=" ".join(_answer(evidence, request)),
        tables=tuple(table for table in tables if table.rows),
        notes=evidence.notes,
        frames=_frames(evidence, request.device),
    )


def _trained_and_inferred(job: Job) -> tuple[str, ...]:
    return (TRAINING,) if job.loss is None else (TRAINING, INFERENCE)


def _label(setting: TrainingSetting) -> str:
    return f"{setting.workload}, {setting.kind}"


def _gather_evidence(runs: Sequence[TrainingRun], jobs: Mapping[str, Job], request: Breakdown) -> Evidence:
    times: dict[Key, list[Mapping[str, float]]] = {}
    energy: dict[Key, FamilyEnergy] = {}
    lacking: dict[Key, str] = {}
    notes = []
    for single in runs:
        key = (single.setting.workload, single.setting.kind)
        if single.status != "ok" or single.run is None:
            notes.append(f"{_label(single.setting)}: {single.status}: {single.reason}")
            continue
        run = Run(single.run)
        spent = family_milliseconds(run)
        if spent:
            times.setdefault(key, []).append(spent)
        else:  # nothing recorded is no step of 0 ms
            notes.append(f"{_label(single.setting)}, repeat {single.repeat + 1}: no operators were recorded")
        measured, lacking[key] = (energy[key], "") if key in energy else _energy_or_reason(run)
        if measured is not None:
            energy[key] = measured
    notes += [
        f"energy of {model}, {kind}, cannot be judged: {why}"
        for (model, kind), why in lacking.items()
        if (model, kind) not in energy
    ]
    notes += [f"{name} has a step of its own: it has no inference" for name, job in jobs.items() if job.loss is None]
    peaks, series, parameters, stopped = _count_memory_on_dry_runs(jobs, request)
    return Evidence(times, energy, peaks, series, parameters, (*notes, *stopped))


def _energy_or_reason(run: Run) -> tuple[FamilyEnergy | None, str]:
    try:
        return family_joules(run), "no power that could be attributed to operators was read"
    except StepscopeError as error:  # too few readings for a fit
        return None, str(error)


def _count_memory_on_dry_runs(
    jobs: Mapping[str, Job], request: Breakdown
) -> tuple[dict[Key, Mapping[tuple[str, str], int]], pl.DataFrame, dict[str, int], list[str]]:
    """Dry runs of every model and kind: bytes at the peak, memory over the step, parameters, and what stopped."""
    peaks: dict[Key, Mapping[tuple[str, str], int]] = {}
    series, parameters, notes = [], {}, []
    hidden = Workspaces(this_platform())
    for model, job in jobs.items():
        for kind in _trained_and_inferred(job):
            try:
                run = dry_run(job if kind == TRAINING else inference_job(job), request.batch, hidden)
            except DryRunStopped as stopped:
                notes.append(f"memory of {model}, {kind}: fake tensors stopped at {stopped}")
                continue
            events = run.events()
            peaks[model, kind] = bytes_at_peak(events)
            series.append(
                step_series(events).select(pl.lit(model).alias("model"), pl.lit(kind).alias("kind"), pl.all())
            )
            if kind == DRY_TRAINING:
                parameters[model] = sum(n for (holder, _), n in peaks[model, kind].items() if holder == "parameter")
    return peaks, pl.concat(series) if series else pl.DataFrame(), parameters, notes


def _answer(evidence: Evidence, request: Breakdown) -> Iterator[str]:
    for model in request.models:
        of = _mean_times(evidence.times.get((model, TRAINING), ()))
        if of:
            whole = sum(mean.value for mean in of.values())
            first = sorted(of, key=lambda name: -of[name].value)[:3]
            shares = ", ".join(f"{name} {of[name].value / whole:.0%}" for name in first)
            launching = "" if request.device == "cpu" else "of the CPU, which launches the kernels: "
            yield f"{model}: {whole:.3g} ms a step ({launching}{shares})."
    yield from _memory_difference(evidence, request)


def _memory_difference(evidence: Evidence, request: Breakdown) -> Iterator[str]:
    """Return which of two models has the higher peak, and which categories make the difference."""
    both = [model for model in request.models if (model, TRAINING) in evidence.peaks]
    if len(both) != 2:
        return
    totals = {model: sum(evidence.peaks[model, TRAINING].values()) for model in both}
    more, less = sorted(both, key=lambda model: -totals[model])
    saved = {model: _saved_by_family(evidence.peaks[model, TRAINING]) for model in both}
    families = {*saved[more], *saved[less]}
    by = max(families, key=lambda name: saved[more].get(name, 0) - saved[less].get(name, 0), default="")
    parameters = {model: evidence.parameters.get(model, 0) for model in both}
    yield f"{more} holds {_size_text(totals[more])} at its peak and {less} {_size_text(totals[less])}."
    yield f"Their parameters take {_size_text(parameters[more])} and {_size_text(parameters[less])};"
    yield f"their activations, {_size_text(sum(saved[more].values()))} and {_size_text(sum(saved[less].values()))};"
    sizes = " and ".join(_size_text(saved[model].get(by, 0)) for model in (more, less))
    yield f"most of the difference was made by {by}: {sizes}."


def _saved_by_family(peak: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {family: size for (holder, family), size in peak.items() if holder == "saved"}


def _mean_times(repeats: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Mean ms of each family over the repeats with Student's interval; the means add up to the mean step."""
    names = {name for repeat in repeats for name in repeat}
    return {name: mean_of_all(repeat.get(name, 0.0) for repeat in repeats) for name in names}


TIME_COLUMNS = ("model", "mode", "operator", "ms a step", "low", "high", "%")


def _time_table(evidence: Evidence, device: str) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), repeats in evidence.times.items():
        of = _mean_times(repeats)
        whole = sum(mean.value for mean in of.values())
        ordered = sorted(of, key=lambda name: -of[name].value)
        rows += [(model, kind, name, *of[name].row, 100 * of[name].value / whole) for name in ordered]
        rows.append((model, kind, "whole step", *mean_of_all(sum(repeat.values()) for repeat in repeats).row, 100.0))
    note = "Self time of the operators of profiled steps on the CPU; with the framework overhead it is the whole step."
    title = "Time by operator" if device == "cpu" else "Time by operator on the CPU, which launches the kernels"
    return ResultTable("time", title, TIME_COLUMNS, tuple(rows), note)


def _energy_table(evidence: Evidence) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), of in evidence.energy.items():
        whole = sum(of.joules.values())
        rows += [
            (model, kind, of.component, name, 1e3 * value, None if half is None else 1e3 * half, 100 * value / whole)
            for name, value in sorted(of.joules.items(), key=lambda item: -item[1])
            for half in [of.half[name]]
        ]
    columns = ("model", "mode", "component", "operator", "mJ a step", "plus or minus", "%")
    note = (
        "Attributed to operators in the first repeat that has energy; half widths of 95 % of the parts are added, "
        "which is the widest that they can be."
    )
    return ResultTable("energy", "Energy by operator", columns, tuple(rows), note)


def _memory_table(evidence: Evidence) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for (model, kind), sizes in evidence.peaks.items():
        whole = sum(sizes.values())
        for (holder, family), size in sorted(sizes.items(), key=lambda item: -item[1]):
            rows.append((model, kind, category_label(holder), family or None, size / 1e6, 100 * size / whole))
        rows.append((model, kind, "whole peak", None, whole / 1e6, 100.0))
    columns = ("model", "mode", "category", "allocated by", "MB", "%")
    note = "Live tensors at the peak of a dry run, by the operator whose output they are. Libraries are not in it."
    return ResultTable("memory", "Memory at the peak, by operator", columns, tuple(rows), note)


def _frames(evidence: Evidence, device: str) -> dict[str, pl.DataFrame]:
    order = {name: index for index, name in enumerate(FAMILY_NAMES)}
    of_the_cpu = "" if device == "cpu" else " (CPU)"  # a bar of what launches the kernels is not one of their time
    times = [
        (model, f"{kind}{of_the_cpu}", name, mean.value, order.get(name, len(order)))
        for (model, kind), repeats in evidence.times.items()
        for name, mean in _mean_times(repeats).items()
    ]
    energies = [
        (model, kind, name, 1e3 * value, order.get(name, len(order)))
        for (model, kind), of in evidence.energy.items()
        for name, value in of.joules.items()
    ]
    peaks = [
        (model, kind, family, size / 1e6, order.get(family, len(order)))
        for (model, kind), peak in evidence.peaks.items()
        for (holder, family), size in peak.items()
        if holder == "saved"
    ]
    schema = {"model": pl.String, "kind": pl.String, "family": pl.String, "value": pl.Float64, "place": pl.Int64}
    parts = {"time-by-family": times, "energy-by-family": energies, "saved-by-family": peaks}
    frames = {name: pl.DataFrame(rows, schema=schema, orient="row") for name, rows in parts.items()}
    frames["memory-over-step"] = evidence.over_step
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _size_text(size: float) -> str:
    return f"{size / 1e6:.3g} MB"


_WHOLE = ("total", "device")  # components that stand for the whole board


@dataclass(frozen=True)
class FamilyEnergy:
    """Energy of a step by family, J, of one component, with how far each can be off (half of 95 %)."""

    component: str
    joules: Mapping[str, float]
    half: Mapping[str, float | None]


def family_milliseconds(run: Run) -> dict[str, float]:
    """ms of a step on the CPU by family; framework overhead is one of them. Empty: no ops were recorded."""
    kinds, steps = run.operators(), profiled_steps(run)
    step_ms = float(steps["length_ns"].to_numpy().mean()) / 1e6 if len(steps) else 0.0
    times_ms: dict[str, float] = defaultdict(float)
    for row in kinds.filter(pl.col("device") == "cpu").iter_rows(named=True):
        spent = (row["share"] or 0.0) * step_ms
        updating = _share_of_optimizer(row)
        times_ms[OPTIMIZER] += spent * updating
        times_ms[op_family(row["name"])] += spent * (1 - updating)
    return {name: ms for name, ms in times_ms.items() if ms > 0}


def family_joules(run: Run) -> FamilyEnergy | None:
    """Energy by family of the component that stands for the whole board, else of the one that took most."""
    frame = run.energy("op")
    attributed = frame.filter(pl.col("joules_per_step").is_not_null() & (pl.col("name") != "(whole)"))
    if attributed.is_empty():
        return None
    component = next((name for name in _WHOLE if name in set(attributed["component"])), None)
    if component is None:
        totals = attributed.group_by("component").agg(pl.col("joules_per_step").sum())
        component = str(totals.sort("joules_per_step", descending=True)["component"][0])
    joules: dict[str, float] = defaultdict(float)
    half: dict[str, float | None] = {}
    rows = attributed.filter(pl.col("component") == component)
    rails = rows["rail"].unique(maintain_order=True)
    for row in rows.filter(pl.col("rail") == rails[0]).iter_rows(named=True):  # two meters are not added
        name = OPTIMIZER if row["phase"] == "optimizer" else op_family(row["name"])
        joules[name] += row["joules_per_step"]
        own = _half_interval(row)
        before = half.get(name, 0.0)
        half[name] = None if own is None or before is None else before + own
    named = component if len(rails) == 1 else f"{component} ({rails[0]} alone)"
    return FamilyEnergy(named, dict(joules), half)


def bytes_at_peak(events: pl.DataFrame) -> dict[tuple[str, str], int]:
    """Live bytes at the peak of a dry run by (who holds them, family of the op that made them)."""
    reached = peak(events)
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    if reached is not None:
        for row in reached.tensors.iter_rows(named=True):
            family = op_family(row["op"]) if row["category"] in ("saved", "temporary", "workspace") else ""
            sizes[row["category"], family] += row["bytes"]
    return dict(sizes)


def _half_interval(row: Mapping[str, float | None]) -> float | None:
    """The wider side of the interval: an end below 0 was cut off. Null where there is none."""
    value, low, high = row["joules_per_step"], row["low"], row["high"]
    return None if value is None or low is None or high is None else max(high - value, value - low)


def _share_of_optimizer(row: Mapping[str, float | None]) -> float:
    phases = {phase: row.get(f"{phase}_ns") or 0.0 for phase in PHASES}
    whole = sum(phases.values())
    return phases["optimizer"] / whole if whole else 0.0


OPTIMIZER, BETWEEN, OTHER = "optimizer", "framework overhead", "other"
_FAMILIES = {
    "data": r"dataloader|^#stepscope\.data",
    "code of the layers": r"^nn\.",
    OPTIMIZER: r"^optimizer\.",
    "convolution": r"conv",
    "batch norm": r"batch_?norm",
    "other norms": r"(layer|group|instance|rms)_?norm",
    "attention": r"attention",
    "recurrent": r"lstm|gru|rnn",
    "matrix product": r"(^|_)(mm|addmm|bmm|baddbmm|matmul|linear|addmv|mv|dot)($|_)",
    "activation": r"relu|threshold|gelu|silu|hardtanh|hardswish|sigmoid|tanh|clamp|elu",
    "pooling": r"pool|^mean$",
    "loss": r"softmax|nll|cross_entropy|mse|smooth_l1",
    "dropout": r"dropout|bernoulli",
    "embedding and indexing": r"embedding|index_select|^index",
    "sums and products": r"^(add|sub|mul|div|sum|neg|rsub|addcmul|addcdiv|lerp)_?($|\.)|accumulategrad|^_foreach",
    "moving and filling": r"copy|clone|^cat|fill|zero|^empty|^to$|contiguous|stack|as_strided|reshape|^t$|expand|view",
}
_PATTERNS = {family: re.compile(pattern) for family, pattern in _FAMILIES.items()}
FAMILY_NAMES = (*_FAMILIES, OTHER, BETWEEN)
OPERATORS = frozenset(FAMILY_NAMES) - {"data", "code of the layers", OPTIMIZER, BETWEEN}


def op_family(op: str | None) -> str:
    """The family of an op such as `aten::mkldnn_convolution` or `aten.native_batch_norm.default`."""
    if op is None:
        return OTHER
    if op.startswith("("):  # a row for what lies in no op
        return BETWEEN
    op = op.removeprefix("autograd::engine::evaluate_function: ")  # a node of backward, named like its op
    name = re.sub(r"^(aten|prims|mkldnn|torch)(::|\.)", "", op).lower()
    name = re.sub(r"\.(default|tensor|out|int|scalar|self).*$", "", name)
    return next((family for family, pattern in _PATTERNS.items() if pattern.search(name)), OTHER)
