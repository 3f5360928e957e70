"""The steps that count: after the warm-up, profiled, timed; and quick statistics of many runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.result_cache import cached_per_run
from stepscope.arrays import Flags, Floats, Ints
from stepscope.part_names import parts_in_use
from stepscope.runfolder import RunReader, checksums
from stepscope.runfolder.tables import read_last_step_rows
from stepscope.runfolder.thinning import is_retained
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.analysis.channels import Series

IN_PART = "step-profiled-in-part"  # the event of a step that was too large to be profiled whole
ENOUGH = 3  # profiled steps, to leave others out
FEW = 6  # below this many, a median has no 95 % CI
PAUSE = 0.5  # of a typical step: what lasts longer between two steps is no part of the loop


@cached_per_run
def steps_after_warmup(run: RunReader) -> pl.DataFrame:
    """The steps after the warm-up, columns as `runfolder.STEPS` and `length_ns`."""
    return _with_lengths(run).slice(run.warmup_steps).filter(pl.col("length_ns") > 0)


def missing_steps_file(run: RunReader) -> str:
    """Return which file of steps is damaged or gone, of a run that has none and had recorded some; "" of any other."""
    if not run.steps.is_empty():
        return ""
    damaged = [name for name in run.damaged_files() if name.startswith("steps")]
    missing = [
        name
        for name in checksums.read_checksums(run.path)
        if name.startswith("steps") and not (run.path / name).exists()
    ]
    return f"{damaged[0]} is damaged" if damaged else f"{missing[0]} is not there any more" if missing else ""


def observed_batch(run: RunReader) -> int | None:
    """Return how many samples most steps after warm-up took (the last of an epoch may be smaller); else null."""
    samples = steps_after_warmup(run)["samples"].drop_nulls().to_numpy()
    median = int(np.median(samples)) if len(samples) else None
    return median if np.count_nonzero(samples == median) * 2 > len(samples) else None


def count_after_warmup(run: RunReader) -> int:
    """Return how many steps were made after the warm-up: more than are there, where old ones were removed."""
    steps = steps_after_warmup(run)["step"]
    return int(steps[-1] - steps[0]) + 1 if len(steps) else 0


def _with_lengths(run: RunReader) -> pl.DataFrame:
    return run.steps.with_columns(length_ns=pl.col("t1_ns") - pl.col("t0_ns"))


def profiled_steps(run: RunReader) -> pl.DataFrame:
    """The profiled steps after warm-up; where none was recorded whole, the parts of steps that were.

    Without those that took longer for being recorded with shapes or allocations, where enough are left.
    """
    whole = steps_after_warmup(run).filter("recorded")
    if whole.is_empty():
        return partly_profiled_steps(run)
    apart = (run.meta.get("recorder") or {}).get("steps_apart") or []
    usual = whole.filter(~pl.col("step").is_in(apart))
    return usual if len(usual) >= ENOUGH else whole


def shown_steps(run: RunReader) -> pl.DataFrame:
    """The profiled steps that times of layers and operators are of; those of the warm-up where there are no others."""
    steps = profiled_steps(run)
    return _with_lengths(run).filter("recorded", pl.col("length_ns") > 0) if steps.is_empty() else steps


def only_warmup_profiled(run: RunReader) -> bool:
    """Return whether the only profiled steps are of the warm-up: slower than later ones, in other proportions."""
    return profiled_steps(run).is_empty() and not shown_steps(run).is_empty()


def profiled_sentence(run: RunReader) -> str:
    """Return how many steps were run, in how many operators were profiled, in how many layers alone were timed.

    Empty without a step.
    """
    if run.steps.is_empty():
        return ""
    recorded = run.steps.filter("recorded")
    warm = int((recorded["step"] < run.warmup_steps).sum())
    while_warm = f" ({warm} while warming up)" if warm else ""
    layers = len(layer_timed_steps(run))
    timed = f", {layers} more with the layers timed" if layers else ""
    return f"{plural(len(run.steps), 'step')}, {len(recorded)} profiled{while_warm}{timed}"


def partly_profiled_steps(run: RunReader) -> pl.DataFrame:
    """The steps that were too large to be profiled whole, each as long as its profiled parts; warm-up if need be.

    From the begin of the first part to the end of the last one; `length_ns` is the time in parts.
    """
    parts = profiled_parts(run)
    bounds = parts.group_by("step").agg(
        pl.col("t0_ns").min(), pl.col("t1_ns").max(), length_ns=(pl.col("t1_ns") - pl.col("t0_ns")).sum()
    )
    steps = run.steps.drop("t0_ns", "t1_ns").join(bounds, on="step").sort("step")
    steady = steps.filter(pl.col("step") >= run.warmup_steps)
    rows = steps if steady.is_empty() else steady
    return rows.with_columns(recorded=pl.lit(True)).select(*run.steps.columns, "length_ns")


def are_steps_whole(run: RunReader) -> bool:
    """Return whether what is said of layers, operators and phases is of whole steps, not of parts of too large ones."""
    return bool(run.steps["recorded"].any()) or profiled_parts(run).is_empty()


def profiled_parts(run: RunReader) -> pl.DataFrame:
    """The parts of steps that were too large to be profiled whole: step, part (a phase, or the beginning), its time."""
    rows = [
        (event["step"], str(event.get("part", "beginning")), event["t0_ns"], event["until_ns"])
        for event in run.events
        if event.get("kind") == IN_PART
        and all(isinstance(event.get(key), int) for key in ("step", "t0_ns", "until_ns"))
    ]
    schema: dict[str, Any] = {"step": run.steps.schema["step"], "part": pl.String, "t0_ns": pl.Int64, "t1_ns": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@cached_per_run
def layer_timed_steps(run: RunReader) -> pl.Series:
    """Numbers of the steps in which layers alone were timed: no operator, but they are no unprofiled steps either."""
    numbers: pl.Series = run.layer_calls["step"].cast(pl.Int64).unique().sort()
    return numbers


@cached_per_run
def timed_steps(run: RunReader) -> tuple[pl.DataFrame, str]:
    """The steps that the step time is taken from, and which they are: unprofiled ones where there are enough.

    Of a run whose old steps were thinned, blocks of as many steps from its beginning as from its end: else the end
    would stand for all.
    """
    steps, which = all_timed_steps(run)
    coarsest = max((part.grain for part in run.thinned_steps), default=0)
    if which != "unprofiled steps" or not coarsest:
        return steps, which
    blocks = steps.filter(is_retained(pl.col("step").cast(pl.Int64), coarsest))
    return (blocks, which) if len(blocks) >= FEW else (steps, which)


@cached_per_run
def all_timed_steps(run: RunReader) -> tuple[pl.DataFrame, str]:
    """All unprofiled steps that are there, where there are enough of them, else all; and which they are."""
    steps = steps_after_warmup(run)
    looked_at = pl.concat([layer_timed_steps(run), profiled_parts(run)["step"].cast(pl.Int64)])
    unprofiled = ~pl.col("recorded")
    if len(looked_at):  # of millions of steps it is dear to look for those that none is one of
        unprofiled &= ~pl.col("step").is_in(looked_at.implode())
    bare = steps.filter(unprofiled)
    return (bare, "unprofiled steps") if len(bare) >= FEW else (steps, "all steps")


@cached_per_run
def stretches_of_steps(run: RunReader) -> Ints:
    """Stretches of steps after warm-up without a pause between them (evaluation, saving): begin and end, ns (n, 2).

    What is short belongs to the steps; steps that were removed from a long run leave no pause.
    """
    steps = steps_after_warmup(run)
    number, t0, t1 = (steps[name].to_numpy().astype(np.int64) for name in ("step", "t0_ns", "t1_ns"))
    if not len(number):
        return np.empty((0, 2), dtype=np.int64)
    is_pause = (t0[1:] - t1[:-1] > PAUSE * np.median(t1 - t0)) & (np.diff(number) == 1)
    return np.column_stack([t0[np.append(True, is_pause)], t1[np.append(is_pause, True)]])


def is_in_steps(run: RunReader, t_ns: Floats) -> Flags:
    """Return which times, (n,), lie in a step after warm-up and in no pause between steps."""
    begins, ends = stretches_of_steps(run).T
    place = np.searchsorted(begins, t_ns, side="right") - 1
    return np.asarray((place >= 0) & (t_ns <= np.append(ends, -1)[place]))


def cut_pauses(series: Series, stretches: Ints) -> tuple[Series, int, int]:
    """Return a counter as it grew in stretches of time, ns (n, 2), and their begin and end; what lies between is cut.

    Of one stretch all stays as it is; of several, times are those since the first one's begin, without the pauses.
    """
    if len(stretches) == 1:
        return series, int(stretches[0, 0]), int(stretches[0, 1])
    elapsed = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])
    edges_ns, since = stretches.ravel(), np.column_stack([elapsed[:-1], elapsed[1:]]).ravel()

    def is_inside(t_ns: Floats) -> Flags:
        return np.asarray(np.searchsorted(edges_ns, t_ns, side="right") % 2 == 1)

    t_ns = np.unique(np.concatenate([series.t_ns[is_inside(series.t_ns)], edges_ns]))
    t_ns = t_ns[(t_ns >= series.t_ns[0]) & (t_ns <= series.t_ns[-1])]
    grown = np.where(is_inside((t_ns[1:] + t_ns[:-1]) / 2), np.diff(np.interp(t_ns, series.t_ns, series.values)), 0.0)
    times, gaps = (np.interp(at, edges_ns, since) for at in (t_ns, series.gaps_ns))
    values = np.concatenate([[0.0], np.cumsum(grown)])[: len(times)]
    return replace(series, t_ns=times, values=values, gaps_ns=gaps), 0, int(elapsed[-1])


def span_ns(run: RunReader) -> tuple[int, int] | None:
    """Return the start of the first and the end of the last step after warm-up, ns; None without such steps."""
    steps = steps_after_warmup(run)
    return None if steps.is_empty() else (int(steps["t0_ns"][0]), int(steps["t1_ns"][-1]))


# The numbers are those of `metrics.step_time` and `metrics.throughput`, without intervals; a test holds the two
# together.

_COLUMNS = ("step", "t0_ns", "t1_ns", "samples", "recorded")
_MOST_BYTES = 32_000_000  # of a file of steps: millions of them
_LAST_ROWS = 2_000  # of a run that goes on or has broken off


@dataclass(frozen=True)
class StepStats:
    """Steps, median time of one, ns, training samples a second, and the batch of most; null where nothing says."""

    steps: int
    step_ns: float | None
    samples_per_s: float | None
    batch: int | None


def quick_stats(warmups: Mapping[Path, int]) -> dict[Path, StepStats]:
    """Return quick statistics of each run folder that has steps; warmups: how many steps of each do not count."""
    newest = {folder: _newest_part(folder) for folder in warmups}
    closed = [folder for folder, part in newest.items() if part == "steps.parquet" and _can_be_read(folder / part)]
    frames = [
        *_read_closed_runs(closed),
        *(_last_rows(folder, newest[folder]) for folder in warmups if folder not in set(closed)),
    ]
    row_frames = [frame for frame in frames if frame is not None and len(frame)]
    if not row_frames:
        return {}
    leave = pl.DataFrame({"run": list(map(str, warmups)), "leave": list(warmups.values())})
    looked_at = pl.concat([pl.DataFrame(schema=_LOOKED_AT), *map(_steps_of_layers, warmups)])
    return dict(_medians_by_run(pl.concat(row_frames), leave, looked_at))


def _can_be_read(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def _read_closed_runs(folders: list[Path]) -> list[pl.DataFrame]:
    """The steps of closed runs in one pass; where a file among them is damaged, one by one."""
    if not folders:
        return []
    files = [folder / "steps.parquet" for folder in folders]
    try:
        rows = pl.scan_parquet(files, include_file_paths="file", glob=False).select(*_COLUMNS, "file").collect()
        runs = {str(file): str(file.parent) for file in files}
        run = pl.col("file").cast(pl.String).replace_strict(runs, return_dtype=pl.String)
        return [rows.select("step", *_typed_columns(), run=run, total=pl.len().over("file"))]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        halves = (folders[: len(folders) // 2], folders[len(folders) // 2 :])
        return [] if len(folders) == 1 else [frame for half in halves for frame in _read_closed_runs(half)]


def _newest_part(folder: Path) -> str:
    """The name of the last file of steps of a run; that of a short one where there is none."""
    try:
        parts = parts_in_use("steps", os.listdir(folder))  # noqa: PTH208 - of each run of a long list
    except OSError:
        parts = []
    return parts[-1].name if parts else "steps.parquet"


def _last_rows(folder: Path, name: str) -> pl.DataFrame | None:
    """The last steps of a run whose steps are not closed, or lie in several parts."""
    file = folder / name
    try:
        if file.suffix == ".parquet":
            if name == "steps.parquet" or not _can_be_read(file):
                return None
            rows = pl.read_parquet(file).tail(_LAST_ROWS)
            total = 0
        else:
            total, rows = read_last_step_rows(file, _LAST_ROWS)
        if name not in ("steps.rows", "steps.parquet") and len(rows):
            total = int(rows["step"][-1]) + 1
        return rows.select("step", *_typed_columns(), run=pl.lit(str(folder)), total=pl.lit(total, pl.UInt32))
    except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None


_LOOKED_AT = {"run": pl.String, "step": pl.Int64, "looked_at": pl.Boolean}


def _steps_of_layers(folder: Path) -> pl.DataFrame:
    """The steps of a run in which layers alone were timed, which count as profiled; none where they cannot be read."""
    try:
        files = sorted((folder / "layers").glob("*.parquet"))
        rows = [pl.read_parquet(file, columns=["step"]).unique() for file in files if _can_be_read(file)]
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        rows = []
    numbers = [pl.DataFrame(schema={"step": pl.Int64}), *(part.select(pl.col("step").cast(pl.Int64)) for part in rows)]
    return pl.concat(numbers).select(run=pl.lit(str(folder)), step="step", looked_at=pl.lit(True))


def _typed_columns() -> Iterable[pl.Expr]:
    yield (pl.col("t1_ns") - pl.col("t0_ns")).cast(pl.Int64).alias("length_ns")
    yield pl.col("samples").cast(pl.Int64)
    yield pl.col("recorded").cast(pl.Boolean)


def _medians_by_run(
    steps: pl.DataFrame, leave: pl.DataFrame, looked_at: pl.DataFrame
) -> Iterable[tuple[Path, StepStats]]:
    """The medians of every run, of its unprofiled steps where there are enough."""
    marked = steps.with_columns(pl.col("step").cast(pl.Int64)).join(looked_at, on=["run", "step"], how="left")
    recorded = pl.col("recorded") | pl.col("looked_at").fill_null(False)
    placed = marked.with_columns(recorded=recorded).sort("run", "step").join(leave, on="run")
    place = pl.int_range(pl.len()).over("run") + pl.col("total") - pl.len().over("run")
    counts = placed.group_by("run").agg(pl.col("total").first())
    steady = placed.filter(place >= pl.col("leave"), pl.col("length_ns") > 0)
    bare = (~pl.col("recorded")).sum().over("run")
    timed = steady.filter((bare < FEW) | ~pl.col("recorded"))
    counted = pl.col("length_ns").filter(pl.col("samples").is_not_null()).sum()
    medians = timed.group_by("run").agg(
        pl.col("length_ns").median(), rate=pl.when(counted > 0).then(pl.col("samples").sum() / counted * 1e9)
    )
    samples = pl.col("samples")
    is_of_most = (samples == samples.median()).sum() * 2 > samples.count()
    batches = steady.group_by("run").agg(batch=pl.when(is_of_most).then(samples.median().cast(pl.Int64)))
    rows = counts.join(medians, on="run", how="left").join(batches, on="run", how="left")
    for run, total, length, rate, batch in rows.iter_rows():
        yield Path(run), StepStats(int(total), length, rate, batch)
