"""The steps of a run that are exported, with what was recorded and sampled in their time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

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
        """The op instances of the chosen steps, columns as `runfolder.OPS`, and `row`: what `parent` counts."""
        ops = self._of_steps(self.run.scan_ops()).collect()
        return ops.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64).over("step")) if len(ops) else _no_rows(ops)

    @cached_property
    def op_count(self) -> int:
        """How many op instances there are, without reading them."""
        return int(self._of_steps(self.run.scan_ops()).select(pl.len()).collect().item())

    @property
    def memory_events(self) -> pl.DataFrame:
        """Allocations and frees of the chosen steps."""
        return self._of_steps(self.run.memory_events.lazy()).collect()

    @property
    def channels(self) -> list[dict[str, Any]]:
        """Every sampled channel."""
        return self.run.channels

    def samples(self, channel: dict[str, Any]) -> pl.DataFrame:
        """Readings of one channel in the time of the chosen steps: t0_ns, t1_ns, value (null where not read)."""
        frame = self.run.sensor(str(channel["sensor"]))
        if channel["id"] not in frame.columns:
            return pl.DataFrame(schema={"t0_ns": pl.Int64, "t1_ns": pl.Int64, "value": pl.Float64})
        read = frame.select("t0_ns", "t1_ns", value=pl.col(channel["id"]).cast(pl.Float64)).sort("t0_ns")
        return self._in_time(read, "t1_ns", "t0_ns")

    @cached_property
    def sample_count(self) -> int:
        """How many readings there are over all channels; null ones count too."""
        sizes: dict[str, int] = {}
        for channel in self.channels:
            if (sensor := str(channel["sensor"])) not in sizes:
                sizes[sensor] = len(self._in_time(self.run.sensor(sensor), "t1_ns", "t0_ns"))
        return sum(sizes[str(channel["sensor"])] for channel in self.channels)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """Warnings, gaps and losses in the time of the chosen steps."""
        return [event for event in self.run.events if self._holds(int(event.get("t_ns", 0)))]

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the first chosen step's begin to the last one's end; None without a step."""
        return None if self.steps.is_empty() else (int(self.steps["t0_ns"][0]), int(self.steps["t1_ns"][-1]))

    def _of_steps(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        if self.whole:
            return rows
        first, last = self.steps.select(pl.col("step").min(), pl.col("step").max().alias("last")).row(0)
        return rows.filter(pl.col("step").is_between(first, last))

    def _in_time(self, frame: pl.DataFrame, end: str, begin: str) -> pl.DataFrame:
        if self.whole or self.span_ns is None:
            return frame
        return frame.filter((pl.col(end) >= self.span_ns[0]) & (pl.col(begin) <= self.span_ns[1]))

    def _holds(self, t_ns: int) -> bool:
        return self.whole or self.span_ns is None or self.span_ns[0] <= t_ns <= self.span_ns[1]


def _no_rows(ops: pl.DataFrame) -> pl.DataFrame:
    return ops.with_columns(row=pl.lit(None, dtype=pl.Int64))


def excerpt(run: Run, chosen: str = "all") -> Excerpt:
    """The steps that `10:20` (10 to 19), `first:50` or `all` names; UsageError where that is none of them."""
    steps = run.steps
    if chosen == "all":
        return Excerpt(run, steps, whole=True)
    begin, end = _limits(chosen)
    kept = steps.filter(pl.col("step").is_between(begin, end, closed="left"))
    if kept.is_empty():
        has = f"steps 0 to {int(steps['step'][-1])}" if len(steps) else "no step"
        raise UsageError(f"--steps {chosen}: there is no such step", f"this run has {has}")
    return Excerpt(run, kept, whole=False)


def _limits(chosen: str) -> tuple[int, int]:
    if found := _FIRST.fullmatch(chosen):
        return 0, int(found[1])
    if (found := _RANGE.fullmatch(chosen)) and int(found[1]) < int(found[2]):
        return int(found[1]), int(found[2])
    raise UsageError(f"--steps {chosen}: not a choice of steps", "for example --steps 10:20, first:50 or all")
