"""What was sampled while a step ran: power of each rail, load of each core, and the memory alive under it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.energy import power_windows
from stepscope.analysis.intervals import Floats
from stepscope.analysis.memory_events import over_step
from stepscope.analysis.steady import recorded_steps
from stepscope.analysis.utilisation import core_busy_time
from stepscope.analysis.windows import resolved_ns, windows

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {
    "track": pl.String,  # power, power of operations, core or memory
    "name": pl.String,  # the rail, the core, the category
    "unit": pl.String,
    "start_ns": pl.Int64,  # from the start of the step; a window may be longer than the step
    "end_ns": pl.Int64,
    "value": pl.Float64,  # null: not read
    "known": pl.Boolean,  # of power of operations: within 30 %
    "kind": pl.String,  # measured, estimated or simulated
    "step": pl.Int64,  # that it was seen in
}
OF_OPS = "power of operations"
_MOST_POINTS = 400  # of live memory


def step_tracks(run: Run, step: int) -> pl.DataFrame:
    """Mean power (W) and utilisation (share) in the shortest honest windows over a step, and live bytes by category.

    Power of operations is what the fit gives each, in the step that `Run.anatomy` shows.
    A sensor slower than the step gives one window that is longer than it. Memory is that of the step if its
    allocations were recorded, otherwise of the recorded step nearest in length, which `step` then names.
    """
    found = run.steps.filter(pl.col("step") == step)
    if found.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    t0_ns, t1_ns = int(found["t0_ns"][0]), int(found["t1_ns"][0])
    frames = [*_power(run, t0_ns, t1_ns), *_cores(run, t0_ns, t1_ns)]
    seen = {"step": pl.lit(step, dtype=pl.Int64), "known": pl.lit(True)}
    tracks = [*(frame.with_columns(**seen) for frame in frames), _of_ops(run, step), *_memory(run, step)]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *(frame.select(list(SCHEMA)) for frame in tracks)])


def _span(t0_ns: int, t1_ns: int, length_ns: float) -> tuple[float, float]:
    """The step, or where a window is longer than it, one window about its middle."""
    middle, half = (t0_ns + t1_ns) / 2, max(t1_ns - t0_ns, length_ns) / 2
    return middle - half, middle + half


def _power(run: Run, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for line in run.rails.lines:
        shortest_ns = 2 * max(line.best.refresh_ns, line.best.growth.period_ns, 0.5)
        edges, watts = power_windows(line.best, *_span(t0_ns, t1_ns, shortest_ns), shortest_ns)
        kind = "simulated" if run.simulated else "estimated" if line.estimated else "measured"
        if len(edges) > 1:
            yield _frame("power", line.name, "W", edges - t0_ns, watts, kind)


def _of_ops(run: Run, step: int) -> pl.DataFrame:
    """The same rails from operation to operation; of the step of `Run.anatomy` alone."""
    kind = "simulated" if run.simulated else "measured"
    texts = {"track": pl.lit(OF_OPS), "unit": pl.lit("W"), "kind": pl.lit(kind)}
    return (
        run.power_of_ops()
        .filter(pl.col("step") == step)
        .rename({"rail": "name", "power_w": "value"})
        .with_columns(**texts)
    )


def _cores(run: Run, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for series in core_busy_time(run):
        shortest_ns = resolved_ns(series)
        busy = windows(series, *_span(t0_ns, t1_ns, shortest_ns), shortest_ns)
        yield _frame("core", series.scope, "1", busy.edges_ns - t0_ns, np.clip(busy.rates, 0, 1), "measured")


def _frame(track: str, name: str, unit: str, edges_ns: Floats, values: Floats, kind: str) -> pl.DataFrame:
    texts = {"track": track, "name": name, "unit": unit, "kind": kind}
    return pl.DataFrame(
        {"start_ns": edges_ns[:-1].astype(np.int64), "end_ns": edges_ns[1:].astype(np.int64), "value": values},
        nan_to_null=True,
    ).with_columns(pl.lit(text).alias(key) for key, text in texts.items())


def _memory(run: Run, step: int) -> Iterator[pl.DataFrame]:
    """Live bytes of each category, each value holding until the next."""
    events = run.memory_events
    chosen = _with_memory(run, events, step)
    if chosen is None:
        return
    length = run.steps.filter(pl.col("step") == chosen).select(pl.col("t1_ns") - pl.col("t0_ns")).item()
    series = over_step(events, chosen, points=_MOST_POINTS).sort("category", "t", maintain_order=True)
    until = pl.col("t").shift(-1).over("category").fill_null(pl.max_horizontal("t", pl.lit(length)))
    held = series.with_columns(end=until, most=pl.col("bytes").max().over("category")).filter(pl.col("most") > 0)
    yield held.select(
        track=pl.lit("memory"),
        name="category",
        unit=pl.lit("B"),
        start_ns=pl.col("t").cast(pl.Int64),
        end_ns=pl.col("end").cast(pl.Int64),
        value=pl.col("bytes").cast(pl.Float64),
        kind=pl.lit("measured"),
        step=pl.lit(chosen, dtype=pl.Int64),
        known=pl.lit(True),
    )


def _with_memory(run: Run, events: pl.DataFrame, step: int) -> int | None:
    """The step itself, or the one nearest in length, of those whose allocations were recorded."""
    seen = set(events["step"].unique().to_list())
    steps = run.steps.with_columns(length_ns=pl.col("t1_ns") - pl.col("t0_ns"))
    whole = steps.filter(pl.col("step").is_in(list(seen)))
    if whole.is_empty():
        return None
    steady = whole.join(recorded_steps(run).select("step"), on="step", how="semi")
    own = steps.filter(pl.col("step") == step)["length_ns"][0]
    near = (steady if len(steady) else whole).sort((pl.col("length_ns") - own).abs(), "step")
    return step if step in seen else int(near["step"][0])
