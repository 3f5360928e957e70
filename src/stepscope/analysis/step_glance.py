"""Steps, step time and throughput of many runs at once, from their steps alone: what a list of runs can afford.

The numbers are those of `metrics.step_time` and `metrics.throughput`, without intervals; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.analysis.steady import FEW
from stepscope.runfolder.schema import read_last_step_rows

_COLUMNS = ("step", "t0_ns", "t1_ns", "samples", "recorded")
_MOST_BYTES = 32_000_000  # of a file of steps: millions of them
_LAST_ROWS = 2_000  # of a run that goes on or has broken off


@dataclass(frozen=True)
class StepGlance:
    """Steps, median time of one, ns, and training samples a second; null where nothing says."""

    steps: int
    step_ns: float | None
    samples_per_s: float | None


def step_glances(warmups: Mapping[Path, int]) -> dict[Path, StepGlance]:
    """A glance at each of these run folders that has steps; warmups: how many steps of each do not count."""
    closed = [folder for folder in warmups if _can_be_read(folder / "steps.parquet")]
    frames = [*_all_at_once(closed), *(_rows(folder) for folder in warmups if folder not in set(closed))]
    known = [frame for frame in frames if frame is not None and len(frame)]
    if not known:
        return {}
    leave = pl.DataFrame({"run": list(map(str, warmups)), "leave": list(warmups.values())})
    return dict(_counted(pl.concat(known), leave))


def _can_be_read(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def _all_at_once(folders: list[Path]) -> list[pl.DataFrame]:
    """The steps of closed runs in one pass; where a file among them is damaged, one by one."""
    if not folders:
        return []
    files = [folder / "steps.parquet" for folder in folders]
    try:
        found = pl.scan_parquet(files, include_file_paths="file", glob=False).select(*_COLUMNS, "file").collect()
        runs = {str(file): str(file.parent) for file in files}
        run = pl.col("file").cast(pl.String).replace_strict(runs, return_dtype=pl.String)
        return [found.select("step", *_typed(), run=run, total=pl.len().over("file"))]
    except (OSError, pl.exceptions.PolarsError):
        halves = (folders[: len(folders) // 2], folders[len(folders) // 2 :])
        return [] if len(folders) == 1 else [frame for half in halves for frame in _all_at_once(half)]


def _rows(folder: Path) -> pl.DataFrame | None:
    """The last steps of a run whose file of steps is not closed."""
    file = folder / "steps.rows"
    try:
        total, rows = read_last_step_rows(file, _LAST_ROWS)
    except (OSError, ValueError):
        return None
    return rows.select("step", *_typed(), run=pl.lit(str(folder)), total=pl.lit(total, pl.UInt32))


def _typed() -> Iterable[pl.Expr]:
    yield (pl.col("t1_ns") - pl.col("t0_ns")).cast(pl.Int64).alias("length_ns")
    yield pl.col("samples").cast(pl.Int64)
    yield pl.col("recorded").cast(pl.Boolean)


def _counted(steps: pl.DataFrame, leave: pl.DataFrame) -> Iterable[tuple[Path, StepGlance]]:
    """The medians of every run, of its unrecorded steps where there are enough."""
    placed = steps.sort("run", "step").join(leave, on="run")
    place = pl.int_range(pl.len()).over("run") + pl.col("total") - pl.len().over("run")
    counts = placed.group_by("run").agg(pl.col("total").first())
    steady = placed.filter(place >= pl.col("leave"), pl.col("length_ns") > 0)
    bare = (~pl.col("recorded")).sum().over("run")
    timed = steady.filter((bare < FEW) | ~pl.col("recorded"))
    medians = timed.group_by("run").agg(
        pl.col("length_ns").median(), rate=(pl.col("samples") / pl.col("length_ns") * 1e9).median()
    )
    for run, total, length, rate in counts.join(medians, on="run", how="left").iter_rows():
        yield Path(run), StepGlance(int(total), length, rate)
