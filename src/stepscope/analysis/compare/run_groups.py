"""The sides of a comparison: runs matched by setting, and the headline numbers of each, with ratios to the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.energy.mean_step import samples_per_step
from stepscope.analysis.estimate import Estimate, drift_factor, geometric_mean_of_repeats
from stepscope.analysis.first_screen import observed_optimizer
from stepscope.analysis.metrics import Measured
from stepscope.analysis.process_scopes import CHILDREN, LAUNCHER, RANK
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import missing_steps_file, observed_batch, steps_after_warmup, timed_steps
from stepscope.errors import RunDamaged, RunError, RunNotFound, UsageError
from stepscope.quantities import find_quantity, sort_metrics
from stepscope.run_paths import find_run, run_folders

FEWEST, MOST = 2, 10
_ALWAYS = ("workload", "batch", "optimizer", "precision")
_WHERE_SEVERAL = ("threads", "device")  # boards differ in them, so they tell settings apart only within one side
_MOST_NOTES = 4


@dataclass(frozen=True)
class RunGroup:
    """One of the things that are compared, with all its runs; `excluded` says which runs do not count and why."""

    name: str
    runs: tuple[Run, ...]
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Setting:
    """One setting, with the runs of each side in it: repeats of each other. `label` is "" where nothing differs."""

    label: str
    sides: tuple[tuple[Run, ...], ...]


def run_group(source: str | Path | Run, attribution: str = "fit") -> RunGroup:
    """A run, a folder of a sweep, or a folder of runs; RunNotFound where there is none, RunDamaged where none counts.

    Of several runs those that ended well and have steps after the warm-up count.
    """
    if isinstance(source, Run):
        return RunGroup(source.id, (_check_usable(source),))
    path = find_run(source)
    if (path / "run.json").exists() or not path.is_dir():
        run = Run(path, attribution)
        return RunGroup(run.id, (_check_usable(run),))
    return _folder_group(path, attribution)


def match_settings(run_groups: Sequence[RunGroup]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The settings that all sides have, and a sentence for each that some of them lack.

    Operands with one setting each are compared whatever these are: that they differ may be the question.
    """
    if not FEWEST <= len(run_groups) <= MOST:
        what = "one run" if len(run_groups) == 1 else f"{len(run_groups)} runs"
        hint = "name two or more; without a name the last two are compared"
        raise UsageError(f"{what} to compare: {FEWEST} to {MOST} are possible", hint)
    sides = [[setting_of(run) for run in side.runs] for side in run_groups]
    differing = [axis for axis in _WHERE_SEVERAL if any(len({it[axis] for it in settings}) > 1 for settings in sides)]
    axes = (*_ALWAYS, *differing)
    groups = [_group_by_setting(side.runs, axes) for side in run_groups]
    if all(len(group) == 1 for group in groups):
        return (Setting("", tuple(next(iter(group.values())) for group in groups)),), _excluded_notes(run_groups)
    common = [key for key in groups[0] if all(key in group for group in groups[1:])]
    if not common:
        raise UsageError(
            "no setting (workload, batch, optimizer, precision) is in all of them", "compare single runs of theirs"
        )
    settings = tuple(Setting(_setting_label(key), tuple(group[key] for group in groups)) for key in common)
    return settings, (*_excluded_notes(run_groups), *_unmatched_notes(run_groups, groups, set(common)))


def setting_of(run: Run) -> dict[str, Any]:
    """Return the setting of the training: workload, batch (stated or seen), optimizer, precision, threads, device."""
    workload = run.meta.get("workload")
    about = workload if isinstance(workload, dict) else {"name": workload}
    own = {name: about.get(name) for name in ("optimizer", "precision", "device")}
    return {
        "workload": about.get("name") or run.id,
        "batch": about.get("batch_size") or observed_batch(run),
        **own,
        "threads": run.meta.get("threads"),
    }


def setting_differences(first: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Return what two runs do not have in common of setting, board, data, simulated sensors and which steps their speed
    is of: name to (first, other). An optimizer that one of them does not state is the one that was seen, where both
    were.
    """
    pairs = {name: (value, setting_of(other)[name]) for name, value in setting_of(first).items()}
    if None in pairs["optimizer"] and None not in (
        optimizers := (observed_optimizer(first), observed_optimizer(other))
    ):
        pairs["optimizer"] = optimizers
    pairs["board"] = (_board_name(first), _board_name(other))
    pairs["data"] = (_data_identity(first), _data_identity(other))
    pairs["simulated"] = (first.simulated, other.simulated)
    pairs[PROFILED] = (_profiled_steps(first), _profiled_steps(other))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


PROFILED, ALL_STEPS = "profiled steps", "all"
CHANGES = ("batch", "optimizer", "precision", "threads", "device", "board")  # of a training, by name, in this order


def _profiled_steps(run: Run) -> str:
    """Return whether the speed of a run is that of profiled steps alone, which take longer than others.

    By chance it may be so of a very short run that was recorded adaptively: that is no other setting.
    """
    by_choice = (run.meta.get("recorder") or {}).get("mode") != "adaptive"
    return ALL_STEPS if by_choice and timed_steps(run)[0]["recorded"].all() else "not all"


def _board_name(run: Run) -> object:
    board = run.device.get("board") if run.simulated is None else None  # else not what trained
    stated = board or run.device.get("cpu")
    return stated.get("name") if isinstance(stated, dict) else stated


def _data_identity(run: Run) -> object:
    workload = run.meta.get("workload")
    data = workload.get("data") if isinstance(workload, dict) else None
    return (data.get("name"), data.get("sha256")) if isinstance(data, dict) else None


def _check_usable(run: Run) -> Run:
    if lost := missing_steps_file(run):
        raise RunDamaged(f"'{run.id}': its steps cannot be read: {lost}", "bring the file back, or train again")
    if steps_after_warmup(run).is_empty():
        raise RunDamaged(f"'{run.id}' has no step after its warm-up: there is nothing to compare", "train more steps")
    return run


def _folder_group(path: Path, attribution: str) -> RunGroup:
    runs, excluded = [], []
    for folder in _run_folders(path):
        try:
            run = _check_usable(Run(folder, attribution))
        except RunError as error:
            excluded.append(str(error))
            continue
        if run.status == "ok":
            runs.append(run)
        else:
            excluded.append(f"'{run.id}' ended as {run.status}")
    if not runs:
        text = f": {excluded[0]}" if excluded else ""
        raise RunNotFound(f"'{path}' holds no run that can be compared{text}", "give a run folder, or a folder of runs")
    return RunGroup(path.resolve().name, tuple(runs), tuple(excluded))


def _run_folders(path: Path) -> Iterator[Path]:
    """Return the run folders: in runs/<point>/ for a sweep, else the folder itself."""
    if not (path / "sweep.json").is_file():
        yield from sorted(run_folders(path))
        return
    for pattern in ("runs/*/run.json", "runs/*/*/run.json"):
        yield from (header.parent for header in sorted(path.glob(pattern)))


def _group_by_setting(runs: Iterable[Run], axes: Sequence[str]) -> dict[tuple[Any, ...], tuple[Run, ...]]:
    groups: dict[tuple[Any, ...], tuple[Run, ...]] = {}
    for run in runs:
        about = setting_of(run)
        key = tuple(about[axis] for axis in axes)
        groups[key] = (*groups.get(key, ()), run)
    return groups


def _setting_label(key: tuple[Any, ...]) -> str:
    name, batch, *others = key
    return " ".join(str(part) for part in (name, *([f"batch {batch}"] if batch is not None else []), *others) if part)


def _excluded_notes(run_groups: Sequence[RunGroup]) -> tuple[str, ...]:
    parts = []
    for group in run_groups:
        more = [f"{group.name}: {len(group.excluded) - _MOST_NOTES} more runs excluded"]
        parts += [f"{group.name}: excluded: {why}" for why in group.excluded[:_MOST_NOTES]]
        parts += more if len(group.excluded) > _MOST_NOTES else []
    return tuple(parts)


def _unmatched_notes(
    run_groups: Sequence[RunGroup],
    groups: Sequence[dict[tuple[Any, ...], tuple[Run, ...]]],
    common: set[tuple[Any, ...]],
) -> Iterator[str]:
    for side, group in zip(run_groups, groups, strict=True):
        alone = [_setting_label(key) for key in group if key not in common]
        if alone:
            named = ", ".join(alone[:_MOST_NOTES]) + (", ..." if len(alone) > _MOST_NOTES else "")
            yield f"{side.name}: {len(alone)} settings are not in all of them: {named}"


QUANTITY_SCHEMA = {
    **dict.fromkeys(("metric", "scope", "unit"), pl.String),
    "side": pl.Int64,
    **dict.fromkeys(("value", "low", "high"), pl.Float64),
    **{"runs": pl.Int64, "interval_of": pl.String, "source": pl.String},
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), pl.Float64),
    "difference": pl.String,
}
_PROPORTIONAL = "pss"
TOTAL = "total"  # the scope of what the whole device takes, as far as it was measured
_OF_THE_BOARD = frozenset(  # what sensors say of the board itself, and so of a simulated one where there is one
    {"accelerator_utilisation", "mean_cpu_utilisation", "memory_utilisation", "nvmap_used", "fan_level"}
)
_OF_LENGTHS = ("energy_per_step", "energy_per_sample")  # ends of names: go with the lengths of the steps


def difference_label(ratio: Estimate) -> str:
    """larger, smaller, none seen (the interval of a ratio holds 1), or no interval."""
    if ratio.low is None or ratio.high is None:
        return "no interval"
    if ratio.low == ratio.high == 1:
        return "none"
    return "larger" if ratio.low > 1 else "smaller" if ratio.high < 1 else "none seen"


def quantities(sides: Sequence[Sequence[Run]]) -> pl.DataFrame:
    """A row a metric, scope and side (number from 0): value and 95 % CI, ratio to side 0. Columns as `SCHEMA`.

    Of a single run the interval is the one within it (`interval_of` "steps"); of repeats, the one between them. What is
    measured on one side and simulated on the other has no ratio, nor have totals of different supplies.
    """
    simulated = [any(run.simulated is not None for run in side) for side in sides]
    values = [pool_repeats(runs) for runs in sides]
    keys = list(dict.fromkeys(key for side in values for key in side))
    order = sort_metrics(metric for metric, _ in keys)
    keys.sort(key=lambda key: order.index(key[0]))
    rows = []
    for key in keys:
        for number, side in enumerate(values):
            if (measured := side.get(key)) is not None:
                alike = key[0] not in _OF_THE_BOARD or simulated[number] == simulated[0]
                alike = alike and (key[1] != TOTAL or total_supplies(sides[number]) == total_supplies(sides[0]))
                first = values[0].get(key) if number and alike else None
                rows.append({"side": number, **_quantity_row(measured, len(sides[number]), first)})
    return pl.DataFrame(rows, schema=QUANTITY_SCHEMA)


def total_supplies(runs: Sequence[Run]) -> list[str]:
    """Return what the total of power and energy is of, such as "the processor alone": each that a run of them has."""
    return sorted({run.rails.covers for run in runs} - {""})


def pool_repeats(runs: Sequence[Run]) -> dict[tuple[str, str], Measured]:
    """The quantities of repeats, by metric and scope; one that not every repeat has is excluded."""
    rows_of_runs = [{(row.metric, row.scope): row for row in headline_metrics(run)} for run in runs]
    shared = [key for key in rows_of_runs[0] if all(key in rows for rows in rows_of_runs[1:])]
    return {key: _pool([rows[key] for rows in rows_of_runs]) for key in shared}


def headline_metrics(run: Run) -> list[Measured]:
    """The headline metrics of a run that have a value, and the peak of its live tensors where it was recorded."""
    rows = [Measured(**row) for row in run.metrics().iter_rows(named=True)]
    measured = [row for row in rows if row.value is not None and _is_training_metric(row)]
    measured = [row for row in measured if find_quantity(row.metric, row.unit).compared]
    measured = [_with_drift(run, row) if row.metric.endswith(_OF_LENGTHS) else row for row in measured]
    peak = run.peak()
    if peak is not None and not peak.computed:
        exact = float(peak.bytes)
        measured.append(
            Measured("live_peak", peak.device, exact, "B", exact, exact, 1, "allocations", "counted, exact")
        )
    return measured


def _is_training_metric(row: Measured) -> bool:
    """Child processes, single ranks and the proportional size are numbers of their own, which a report has."""
    return row.source != _PROPORTIONAL and row.scope not in (CHILDREN, LAUNCHER) and not row.scope.startswith(RANK)


def _estimate(row: Measured) -> Estimate:
    return Estimate(row.value or 0.0, row.low, row.high)


def _quantity_row(measured: Measured, runs: int, first: Measured | None) -> dict[str, object]:
    ratio = _estimate(measured) / _estimate(first) if first is not None else None
    exact = measured.metric == "live_peak"
    of = None if measured.low is None or measured.high is None else "exact" if exact else "steps"
    return {
        **{name: getattr(measured, name) for name in ("metric", "scope", "unit", "value", "low", "high", "source")},
        "runs": runs,
        "interval_of": "repeats" if runs > 1 and of else of,
        "ratio": ratio.value if ratio else None,
        "ratio_low": ratio.low if ratio else None,
        "ratio_high": ratio.high if ratio else None,
        "difference": difference_label(ratio) if ratio else None,
    }


def _pool(rows: Sequence[Measured]) -> Measured:
    """Geometric mean of repeats and its Student interval; of a single one, the row as it is."""
    if len(rows) == 1:
        return rows[0]
    mean = geometric_mean_of_repeats([_estimate(row) for row in rows])
    note = f"mean of {len(rows)} runs"
    return replace(rows[0], value=mean.value, low=mean.low, high=mean.high, n=len(rows), note=note)


def _with_drift(run: Run, row: Measured) -> Measured:
    """The wider of two intervals: neighbouring steps are alike where a machine drifts."""
    rate = (pl.col("samples") if row.metric.endswith("sample") else pl.lit(1)) / pl.col("length_ns")
    width = drift_factor(timed_steps(run)[0].select(rate.alias("rate"))["rate"].drop_nulls().to_numpy())
    if width is None or row.value is None or row.low is None or row.high is None:
        return row
    return replace(row, low=min(row.low, row.value / width), high=max(row.high, row.value * width))


def pooled_step_time(runs: Sequence[Run], per_sample: bool = False) -> Estimate:
    """Return the step time that is stated for repeats, ns, with its 95 % CI; of a sample with `per_sample`."""
    repeats = []
    for run in runs:
        row = Measured(**run.metrics().row(by_predicate=pl.col("metric") == "step_time", named=True))
        samples = samples_per_step(run) if per_sample else None
        repeats.append(_estimate(row).times(1 / (samples or 1.0)))
    return geometric_mean_of_repeats(repeats)
