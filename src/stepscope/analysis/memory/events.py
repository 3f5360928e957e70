"""Live tensors during a step, from a frame of allocations and frees, measured or of a dry run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.runfolder import CATEGORIES, HELD

UNATTRIBUTED = pl.col("category").eq("other") & pl.col("op").is_null()  # the allocator counts it, nobody has it
_TEXTS = ("category", "module", "op", "phase", "device", "shape")
_ABOUT = ("category", "module", "op", "phase", "device", "shape")


@dataclass(frozen=True)
class Peak:
    """The instant with the most live bytes, and the allocation that reached it.

    `categories`: category, bytes, share; they add up to `bytes`. `tensors`: every live storage, largest first, with
    category, module, op, phase, device and shape. `residual_bytes` is the part of "other" that nobody is known to hold.
    """

    t_ns: int
    step: int
    device: str
    bytes: int
    op: str | None
    module: str | None
    phase: str | None
    categories: pl.DataFrame
    tensors: pl.DataFrame
    residual_bytes: int
    computed: bool = False  # on tensors without data: without the scratch memory of kernels

    @property
    def residual_share(self) -> float:
        """Unattributed part of the peak."""
        return self.residual_bytes / self.bytes


def events_of_device(events: pl.DataFrame, device: str | None = None) -> pl.DataFrame:
    """The events of a device in order of time, texts as text; of the one that holds the most unless it is named."""
    plain = events.with_columns(pl.col(_TEXTS).cast(pl.String)).sort("t_ns", maintain_order=True)
    if device is None:
        most = plain.select("device", live=pl.col("bytes").cum_sum().over("device")).sort("live", descending=True)
        device = most["device"][0] if len(most) else "cpu"
    return plain.filter(pl.col("device") == device)


def memory_over_time(events: pl.DataFrame, device: str | None = None) -> pl.DataFrame:
    """Live bytes after each event: step, t_ns, live, residual, and a column a category; categories add up to live."""
    rows = events_of_device(events, device)
    of = [pl.when(pl.col("category") == name).then("bytes").otherwise(0).cum_sum().alias(name) for name in CATEGORIES]
    residual = pl.when(UNATTRIBUTED).then("bytes").otherwise(0).cum_sum().alias("residual")
    return rows.select("step", "t_ns", pl.col("bytes").cum_sum().alias("live"), residual, *of)


def peak(events: pl.DataFrame, device: str | None = None) -> Peak | None:
    """The peak of the profiled steps; None where no allocation was recorded."""
    rows = events_of_device(events, device)
    if rows.is_empty():
        return None
    live = np.cumsum(rows["bytes"].to_numpy())
    at = int(live.argmax())
    reached = rows.row(at, named=True)
    tensors = live_tensors(rows[: at + 1])
    residual = tensors.filter(UNATTRIBUTED)["bytes"].sum()
    return Peak(
        t_ns=reached["t_ns"],
        step=reached["step"],
        device=reached["device"],
        bytes=int(live[at]),
        op=reached["op"],
        module=reached["module"],
        phase=reached["phase"],
        categories=_category_shares(tensors),
        tensors=tensors,
        residual_bytes=int(residual),
    )


def live_tensors(events: pl.DataFrame) -> pl.DataFrame:
    """The storages that are live after the last of these events: tensor, bytes and what they are, largest first."""
    return (
        events.group_by("tensor", maintain_order=True)
        .agg(pl.col("bytes").sum(), *(pl.col(name).first() for name in _ABOUT))
        .filter(pl.col("bytes") > 0)
        .sort("bytes", descending=True, maintain_order=True)
    )


def live_by_module(tensors: pl.DataFrame) -> pl.DataFrame:
    """Bytes of each module by category, from `held` or `Peak.tensors`: module, category, bytes; null: outside any."""
    return (
        tensors.group_by("module", "category")
        .agg(pl.col("bytes").sum())
        .sort("bytes", "module", descending=[True, False])
    )


def allocated_by_op(events: pl.DataFrame) -> pl.DataFrame:
    """Return what each op allocates: op, allocations and bytes (both a step), at_peak (bytes live at the peak).

    Without what was there before the step.
    """
    rows = events_of_device(events)
    highest = peak(rows)
    if highest is None:
        return pl.DataFrame(
            schema={"op": pl.String, "allocations": pl.Float64, "bytes": pl.Float64, "at_peak": pl.Int64}
        )
    steps = max(rows["step"].n_unique(), 1)
    allocations = rows.filter(pl.col("bytes") > 0, pl.col("op") != HELD).group_by("op")
    totals = allocations.agg(allocations=pl.len() / steps, bytes=pl.col("bytes").sum() / steps)
    at_peak = highest.tensors.group_by("op").agg(at_peak=pl.col("bytes").sum())
    joined = totals.join(at_peak, on="op", how="left").with_columns(pl.col("at_peak").fill_null(0))
    return joined.sort("bytes", "op", descending=[True, False])


def peak_by_module(events: pl.DataFrame) -> pl.DataFrame:
    """The most that each module held at once, its own tensors only: module, bytes, at_peak (of the step's peak)."""
    rows = events_of_device(events)
    live = rows.with_columns(live=pl.col("bytes").cum_sum().over("module"))
    most = live.group_by("module").agg(bytes=pl.col("live").max())
    highest = peak(rows)
    tensors = live_tensors(rows[:0]) if highest is None else highest.tensors
    at_peak = tensors.group_by("module").agg(at_peak=pl.col("bytes").sum())
    joined = most.join(at_peak, on="module", how="left", nulls_equal=True).with_columns(pl.col("at_peak").fill_null(0))
    return joined.sort("at_peak", "bytes", descending=True)


def categories_over_step(events: pl.DataFrame, step: int | None = None, points: int = 400) -> pl.DataFrame:
    """Categories over one step, long: t (since its begin), category, bytes; the step of the peak unless it is named.

    Of more instants than `points` the one with the most live bytes of each stretch is kept, so that no peak is lost.
    """
    rows = memory_over_time(events)
    if rows.is_empty():
        return pl.DataFrame(schema={"t": pl.Int64, "category": pl.String, "bytes": pl.Int64})
    if step is None:
        step = int(rows["step"][int(rows["live"].to_numpy().argmax())])
    over_time = rows.filter(pl.col("step") == step)
    over_time = over_time[: _rows_in_step(over_time)]
    over_time = over_time.group_by("t_ns", maintain_order=True).agg(pl.all().sort_by("live", descending=True).first())
    width = max(1, -(-len(over_time) // points))
    thinned = over_time.group_by(pl.int_range(pl.len()) // width, maintain_order=True).agg(
        pl.all().sort_by("live", descending=True).first()
    )
    start = over_time["t_ns"].min()
    series = thinned.sort("t_ns").select(pl.col("t_ns").alias("t") - start, *CATEGORIES)
    return series.unpivot(on=list(CATEGORIES), index="t", variable_name="category", value_name="bytes")


def _rows_in_step(rows: pl.DataFrame) -> int:
    """Rows up to the end of a step, the closing of its window excluded: there everything is freed at one instant."""
    if rows.is_empty() or int(rows["live"][-1]) != 0:
        return len(rows)
    end = rows["t_ns"][-1]
    before = len(rows.filter(pl.col("t_ns") < end))
    return before if before else len(rows)


def _category_shares(tensors: pl.DataFrame) -> pl.DataFrame:
    """Bytes and share of every category that holds something, largest first."""
    total = tensors["bytes"].sum()
    return (
        tensors.group_by("category")
        .agg(pl.col("bytes").sum())
        .with_columns(share=pl.col("bytes") / total)
        .sort("bytes", "category", descending=[True, False])
    )
