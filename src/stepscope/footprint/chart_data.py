"""The tables that pictures of `fit` are drawn from; every number in them is of a dry run, sizes in B or MB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import nn

from stepscope.analysis.memory.events import categories_over_step
from stepscope.analysis.memory.limits import ALLOCATORS, Allocator, Limit, ProcessPeak, worst_verdict
from stepscope.errors import StepscopeError
from stepscope.footprint.prediction import JobQuestion, reasons_for_doubt
from stepscope.footprint.result import LivePeak
from stepscope.footprint.savings import MemorySaving, ways
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.record.dry import Job, Optimizers
from stepscope.record.dry.dry_run import DryRunStopped
from stepscope.runfolder import CATEGORIES

AS_IT_IS = "as it is"
TRAINING, INFERENCE = "training", "inference"
_STEP = {"op": pl.Int64, "category": pl.String, "mb": pl.Float64}
_BY_BATCH = {"model": pl.String, "batch": pl.Int64, "category": pl.String, "mb": pl.Float64}
_BY_OPTION = {
    "batch": pl.Int64, "option": pl.String, "peak_bytes": pl.Int64, "limit_bytes": pl.Int64, "verdict": pl.String,
}  # fmt: skip


def batches_around(batch: int) -> list[int]:
    """A quarter of a batch to four times it."""
    return sorted({max(1, batch // 4), max(1, batch // 2), batch, 2 * batch, 4 * batch})


def step_series(events: pl.DataFrame) -> pl.DataFrame:
    """Live tensors over the step of the peak: op, category, mb; categories that hold nothing are excluded."""
    series = categories_over_step(events).select(op=pl.col("t"), category="category", mb=pl.col("bytes") / 1e6)
    return series.filter(pl.col("mb").max().over("category") > 0).cast(_STEP)  # type: ignore[arg-type]


def training_and_inference(simulator: Simulator, jobs: Sequence[tuple[Job, int]]) -> pl.DataFrame:
    """Return training and inference steps of each job at its batch: model, kind, op, category, mb.

    StepscopeError where fake tensors cannot run one of them.

    A job whose step is its own (no loss to be asked for alone) has no inference.
    """
    parts = []
    for job, batch in jobs:
        kinds = {TRAINING: job} if job.loss is None else {TRAINING: job, INFERENCE: inference_job(job)}
        for kind, of in kinds.items():
            try:
                series = step_series(simulator.run(of, batch).events())
            except DryRunStopped as stop:
                raise StepscopeError(f"there is no dry run of {job.name} to draw: {stop}", "leave it out") from stop
            parts.append(
                series.select(pl.lit(f"{job.name}, batch {batch}").alias("model"), pl.lit(kind).alias("kind"), *_STEP)
            )
    return pl.concat(parts)  # fmt: skip


def peaks(series: pl.DataFrame) -> pl.DataFrame:
    """Return what is live at the peak of each step of `training_and_inference`: run, part (category), value (MB)."""
    whole = series.group_by("model", "kind", "op", maintain_order=True).agg(whole=pl.col("mb").sum())
    at = whole.sort("whole", descending=True, maintain_order=True).unique(["model", "kind"], maintain_order=True)
    rows = series.join(at.drop("whole"), on=["model", "kind", "op"], maintain_order="left").filter(pl.col("mb") > 0)
    return rows.select(run=pl.format("{}, {}", "model", "kind"), part=pl.col("category").cast(pl.String), value="mb")


def inference_job(job: Job) -> Job:
    """Return a job that computes the model's loss without gradients."""
    loss = job.loss
    assert loss is not None, f"{job.name} has no loss of its own"

    def build() -> tuple[nn.Module, Optimizers]:
        model, _ = job.build()
        return model.eval(), ()

    def step(model: nn.Module, _optimizers: Optimizers, batch: Any) -> None:
        with torch.no_grad():
            loss(model, batch)

    return replace(job, build=build, step=step)


def categories_by_batch(simulator: Simulator, jobs: Iterable[Job], batches: Sequence[int]) -> pl.DataFrame:
    """Return the live peak by category at each batch (the 2019 paper's figure 9): model, batch, category, mb.

    A batch that cannot be run has no row.
    """
    rows = []
    for job in jobs:
        for batch in batches:
            try:
                live = live_peak(simulator.run(job, batch).log).breakdown
            except DryRunStopped:
                continue  # a single sample where batch statistics need two
            rows += [(job.name, batch, name, live.get(name, 0) / 1e6) for name in CATEGORIES if live.get(name, 0)]
    return pl.DataFrame(rows, schema=_BY_BATCH, orient="row")


def options_by_batch(question: JobQuestion, limit: Limit, names: Sequence[str], batches: Sequence[int]) -> pl.DataFrame:
    """The middle of the process's peak and the verdict for each batch as it is and in each of these ways.

    Columns batch, option, peak_bytes, limit_bytes, verdict; peak_bytes is null where a step cannot be run so.
    """
    simulator = Simulator(question.platform, question.calibration, question.allocator)
    has_bf16 = question.platform.native_bf16 if question.has_bf16 is None else question.has_bf16
    plain = simulator.run(question.job, question.batch)
    same_batch = [w for w in ways(question.job, question.batch, plain, has_bf16) if w.keeps_batch and w.name in names]
    cells: list[_Cell] = []
    for batch in batches:
        cells += _cells_of_batch(simulator, question.job, batch, names, same_batch)
    order = {name: index for index, name in enumerate((AS_IT_IS, *names))}
    sure = not reasons_for_doubt(question) and not any(simulator.workspaces.not_modelled.values())
    rows = [(batch, name, *_peak_limit_and_verdict(process, limit, sure)) for batch, name, process in cells]
    return pl.DataFrame(sorted(rows, key=lambda row: order[row[1]]), schema=_BY_OPTION, orient="row")


_Cell = tuple[int, str, Callable[[str], ProcessPeak] | None]  # batch, way, and its process by an account


def _peak_limit_and_verdict(
    process: Callable[[str], ProcessPeak] | None, limit: Limit, sure: bool
) -> tuple[int | None, int, str]:
    """Peak in the middle, limit and verdict, by the account that decides."""
    if process is None:
        return None, limit.bytes, ""
    verdict, decides = worst_verdict(process, limit, sure)
    return process(decides.account).middle, decides.bytes, verdict


def _cells_of_batch(
    simulator: Simulator, job: Job, batch: int, names: Sequence[str], same_batch: Sequence[MemorySaving]
) -> list[_Cell]:
    """Every way at one batch."""
    try:
        live = live_peak(simulator.run(job, batch).log)
    except DryRunStopped:
        return [
            (batch, name, None)
            for name in (AS_IT_IS, *_allocators_by_option_name(names), *(way.name for way in same_batch))
        ]

    def process(live: LivePeak, allocator: Allocator | None = None, plain: LivePeak | None = None) -> Any:
        return partial(simulator.peak_of_process, live, allocator, plain)

    cells: list[_Cell] = [(batch, AS_IT_IS, process(live))]
    cells += [(batch, name, process(live, of)) for name, of in _allocators_by_option_name(names).items()]
    for way in same_batch:
        try:
            changed = live_peak(simulator.run(way.job, batch, way.change).log)
        except DryRunStopped:
            cells.append((batch, way.name, None))
        else:
            cells.append((batch, way.name, process(changed, plain=live)))
    return cells


def _allocators_by_option_name(names: Sequence[str]) -> dict[str, Allocator]:
    return {name: of for of in ALLOCATORS.values() if (name := f"allocator: {of.name}") in names}
