"""The part of a run that is exported, its tables by name, and the file that it is written to."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl

from stepscope.analysis.channels import is_of_simulated_board
from stepscope.analysis.run import Run, open_run
from stepscope.analysis.time.layers import with_sources
from stepscope.errors import OutputNotWritable, UsageError
from stepscope.fault_isolation import wrap_analysis_faults
from stepscope.files import atomic_write
from stepscope.report import exports
from stepscope.runfolder.samples import EVER

_RANGE = re.compile(r"(\d+):(\d+)")
_FIRST = re.compile(r"first:(\d+)")


@dataclass(frozen=True)
class Excerpt:
    """A run from its first to its last chosen step; `whole` also takes what was sampled before, between and after."""

    run: Run
    steps: pl.DataFrame
    whole: bool

    @cached_property
    def ops(self) -> pl.DataFrame:
        """The op calls of the chosen steps, columns as `runfolder.OPS`, `source` and `row`: what `parent` counts."""
        ops = with_sources(self._rows_of_steps(self.run.scan_ops()).collect(), self.run.sources)
        row = pl.int_range(pl.len(), dtype=pl.Int64).over("step") if len(ops) else pl.lit(None, dtype=pl.Int64)
        return ops.with_columns(row=row)

    @cached_property
    def op_count(self) -> int:
        """Return how many op calls there are, without reading them."""
        return int(self._rows_of_steps(self.run.scan_ops()).select(pl.len()).collect().item())

    @property
    def memory_events(self) -> pl.DataFrame:
        """Allocations and frees of the chosen steps."""
        return self._rows_of_steps(self.run.memory_events.lazy()).collect()

    @property
    def channels(self) -> list[dict[str, Any]]:
        """Every sampled channel."""
        return self.run.channels

    def simulated_board(self, channel: dict[str, Any]) -> str | None:
        """Return the simulated board that a channel is of; None where it is of a device."""
        return self.run.simulated if is_of_simulated_board(self.run, str(channel.get("quantity"))) else None

    def samples(self, channel: dict[str, Any]) -> pl.DataFrame:
        """Readings of one channel in the time of the chosen steps: t0_ns, t1_ns, value (null where not read)."""
        frame = self._samples_of_sensor(str(channel["sensor"]))
        if channel["id"] not in frame.columns:
            return pl.DataFrame(schema={"t0_ns": pl.Int64, "t1_ns": pl.Int64, "value": pl.Float64})
        read = frame.select("t0_ns", "t1_ns", value=pl.col(channel["id"]).cast(pl.Float64))
        return self._rows_in_time(read, "t1_ns", "t0_ns")

    @cached_property
    def sample_count(self) -> int:
        """Return how many readings there are over all channels; null ones count too."""
        sizes: dict[str, int] = {}
        for channel in self.channels:
            if (sensor := str(channel["sensor"])) not in sizes:
                sizes[sensor] = len(self._rows_in_time(self._samples_of_sensor(sensor), "t1_ns", "t0_ns"))
        return sum(sizes[str(channel["sensor"])] for channel in self.channels)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Warnings, gaps and losses in the time of the chosen steps."""
        return [
            event
            for event in self.run.events
            if self.whole or self.span_ns is None or self.span_ns[0] <= int(event.get("t_ns", 0)) <= self.span_ns[1]
        ]

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """Return the start of the first and the end of the last chosen step; None without a step."""
        return None if self.steps.is_empty() else (int(self.steps["t0_ns"][0]), int(self.steps["t1_ns"][-1]))

    def _samples_of_sensor(self, name: str) -> pl.DataFrame:
        """The samples as they were read, also of a long run."""
        span = None if self.whole else self.span_ns
        return self.run.sensor_between(name, *(span or EVER))

    def _rows_of_steps(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self.whole:
            return rows
        first, last = self.steps.select(pl.col("step").min(), pl.col("step").max().alias("last")).row(0)
        return rows.filter(pl.col("step").is_between(first, last))

    def _rows_in_time(self, frame: pl.DataFrame, end: str, begin: str) -> pl.DataFrame:
        if self.whole or self.span_ns is None:
            return frame
        return frame.filter((pl.col(end) >= self.span_ns[0]) & (pl.col(begin) <= self.span_ns[1]))


def excerpt(run: Run, chosen: str = "all") -> Excerpt:
    """The steps that `10:20` (10 to 19), `first:50` or `all` names; UsageError where that is none of them."""
    steps = run.steps
    if chosen == "all":
        return Excerpt(run, steps, whole=True)
    begin, end = _parse_step_range(chosen)
    selection = steps.filter(pl.col("step").is_between(begin, end, closed="left"))
    if selection.is_empty():
        has = f"steps 0 to {int(steps['step'][-1])}" if len(steps) else "no step"
        raise UsageError(f"--steps {chosen}: there is no such step", f"this run has {has}")
    return Excerpt(run, selection, whole=False)


def _parse_step_range(chosen: str) -> tuple[int, int]:
    if match := _FIRST.fullmatch(chosen):
        return 0, int(match[1])
    if (match := _RANGE.fullmatch(chosen)) and int(match[1]) < int(match[2]):
        return int(match[1]), int(match[2])
    raise UsageError(f"--steps {chosen}: not a choice of steps", "for example --steps 10:20, first:50 or all")


_CHANNEL = ("id", "sensor", "quantity", "unit", "kind", "scope")


def write_tables(excerpt: Excerpt, folder: Path, suffix: str, write: Callable[[pl.DataFrame, Path], None]) -> None:
    """Write every table of an export that is a folder: all of them, or none where writing ends before.

    UsageError where they would replace files that no export has written.
    """
    tables = {f"{name}{suffix}": table for name, table in {**raw_tables(excerpt), **small_tables(excerpt)}.items()}
    _refuse_foreign_files(folder, tables)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent) as part:
        for name, table in tables.items():
            write(table(), Path(part, name))
        Path(part, LABEL).write_text(f"{_LABEL_BEGIN}: run {excerpt.run.id}\n", encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for file in Path(part).iterdir():
            file.replace(folder / file.name)


LABEL = "stepscope-export.txt"  # tells the folder of an export from one of the user's own files
_LABEL_BEGIN = "Stepscope's tables, which the next export into this folder replaces"


def _refuse_foreign_files(folder: Path, names: Iterable[str]) -> None:
    """Raise UsageError where files of these names lie in a folder that is no earlier export, nor inside a run."""
    if (folder / LABEL).is_file() or (folder.parent / "run.json").is_file():
        return
    foreign = next((name for name in names if (folder / name).exists()), None)
    if foreign is not None:
        raise UsageError(f"--out {folder}: '{foreign}' lies there, and would be replaced", "choose another folder")


def bytes_of_tables(excerpt: Excerpt, *, per_op: int, per_sample: int, per_step: int, fixed: int) -> int:
    """Return what such a folder takes, roughly."""
    return fixed + per_op * excerpt.op_count + per_sample * excerpt.sample_count + per_step * len(excerpt.steps)


def raw_tables(excerpt: Excerpt) -> dict[str, Callable[[], pl.DataFrame]]:
    """Records and samples of the chosen steps, as large as the run; each is made when it is needed."""
    return {
        "ops": lambda: excerpt.ops.drop("row"),
        "samples": lambda: samples(excerpt),
        "memory_events": lambda: excerpt.memory_events,
    }


def small_tables(excerpt: Excerpt) -> dict[str, Callable[[], pl.DataFrame]]:
    """Analysis of the whole run, and the steps, channels and events that were chosen."""
    run = excerpt.run
    return {
        "steps": lambda: excerpt.steps,
        "phases": run.phases,
        "modules": run.modules,
        "op_kinds": run.operators,
        "communication": run.communication,
        "ranks": run.rank_table,
        "skew": run.skew,
        "metrics": run.metrics,
        "overhead": run.overhead,
        "energy": run.energy_totals,
        "rail_energy": run.rail_energy,
        "step_energy": run.step_energy,
        **{f"energy_by_{by}": partial(run.energy, by) for by in ("module", "op", "kind", "phase")},
        "use_by_kind": run.utilisation,
        "model": lambda: run.model,
        "channels": lambda: _channel_table(excerpt),
        "events": lambda: _event_log_table(excerpt),
    }


def samples(excerpt: Excerpt) -> pl.DataFrame:
    """Every reading of every channel, a row each: t0_ns, t1_ns, channel, quantity, unit, kind, scope, simulated, value.

    simulated: the board that a reading is of, null where it is of a device.
    """
    parts = []
    for channel in excerpt.channels:
        sentences = [pl.lit(str(channel.get(key)), dtype=pl.String).alias(key) for key in _CHANNEL if key != "sensor"]
        board = pl.lit(excerpt.simulated_board(channel), dtype=pl.String).alias("simulated")
        frame = excerpt.samples(channel).select("t0_ns", "t1_ns", *sentences, board, "value")
        parts.append(frame.rename({"id": "channel"}))
    names = ("channel", "quantity", "unit", "kind", "scope", "simulated")
    schema = {"t0_ns": pl.Int64, "t1_ns": pl.Int64, **dict.fromkeys(names, pl.String), "value": pl.Float64}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _channel_table(excerpt: Excerpt) -> pl.DataFrame:
    names = (*_CHANNEL, "rail", "parent_scope", "source")
    rows = [
        {**{name: _text_or_none(channel.get(name)) for name in names}, "simulated": excerpt.simulated_board(channel)}
        for channel in excerpt.channels
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys((*names, "simulated"), pl.String))


def _event_log_table(excerpt: Excerpt) -> pl.DataFrame:
    names = ("source", "kind", "message")
    rows = [
        {"t_ns": int(event.get("t_ns", 0)), **{name: _text_or_none(event.get(name)) for name in names}}
        for event in excerpt.events
    ]
    return pl.DataFrame(rows, schema={"t_ns": pl.Int64, **dict.fromkeys(names, pl.String)})


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True)
class ExportPlan:
    """An export that has been asked for: its module, the part of the run, and the path that will be written."""

    kind: ModuleType
    part: Excerpt
    target: Path


@wrap_analysis_faults
def plan_export(run: str | Path | Run, to: str, steps: str = "all", out: Path | None = None) -> ExportPlan:
    """Return what will be written where; UnknownName or UsageError before anything is."""
    kind, source = exports.find_export(to), open_run(run)
    part = excerpt(source, steps)
    which = "" if steps == "all" else f"-{steps.replace(':', '-')}"  # two choices of steps do not overwrite each other
    target = _target_path(source, out, f"export-{to}{which}{kind.SUFFIX}", bool(kind.SUFFIX))
    if not kind.SUFFIX and (target / "run.json").exists():
        raise UsageError(f"--out {target}: a run lies there, whose tables would be replaced", "choose another folder")
    return ExportPlan(kind, part, target)


@wrap_analysis_faults
def write_export(plan: ExportPlan) -> Path:
    """Write it and return its path; OutputNotWritable where the disk refuses.

    A file is written beside its place and moved into it: a disk that fills up leaves no half of it.
    """
    try:
        if not plan.kind.SUFFIX:
            plan.kind.write(plan.part, plan.target)
            return plan.target
        with atomic_write(plan.target) as unfinished:
            plan.kind.write(plan.part, unfinished)
    except OSError as error:
        more = "make its folder" if isinstance(error, FileNotFoundError) else "export fewer --steps"
        raise OutputNotWritable(
            f"cannot write '{plan.target}': {error.strerror or error}", f"{more}, or choose another place with --out"
        ) from error
    return plan.target


def _target_path(run: Run, out: Path | None, name: str, is_file: bool) -> Path:
    """The path that is meant: a file goes into a folder that is there, a folder of tables becomes what is named."""
    if out is None:
        return run.path / name
    return out / name if is_file and out.is_dir() else out
