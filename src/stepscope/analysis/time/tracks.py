"""One step in lanes and tracks; over the whole run, step time, power, memory and clock, their levels and drift."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import channel_timeline, core_busy_time, growth_windows, shortest_window_ns
from stepscope.analysis.energy.measured_energy import power_windows
from stepscope.analysis.estimate import Estimate, LevelChange, change_points, median_over_time
from stepscope.analysis.memory.events import categories_over_step
from stepscope.analysis.process_scopes import WATCHED
from stepscope.analysis.time.operators import CPU
from stepscope.analysis.time.steps import FEW, all_timed_steps, profiled_steps, timed_steps
from stepscope.arrays import Floats
from stepscope.quantities import find_quantity
from stepscope.runfolder import RunReader

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


LANE_SCHEMA = {
    "lane": pl.Int64,
    "label": pl.String,  # "thread 1", "cuda:0 stream 7"
    "level": pl.Int64,  # row within the lane, 0 the outermost
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "flops": pl.Int64,
    "bytes": pl.Int64,
    "source": pl.String,
}


def step_lanes(run: Run) -> pl.DataFrame:
    """Ops of the step nearest to the median (`Run.anatomy`), times from its start, ns; threads first, then streams.

    What overlaps in a lane without nesting takes the next free row.
    """
    ops = run.anatomy().with_columns(pl.col("name", "module", "phase", "device").cast(pl.String))
    frames = []
    for (device, thread), rows in ops.group_by(["device", "thread"], maintain_order=True):
        label = f"thread {thread}" if device == CPU else f"{device} stream {thread}"
        ordered = rows.sort("start_ns", pl.col("end_ns").neg(), "row")
        level = _lane_levels(ordered["start_ns"].to_numpy(), ordered["end_ns"].to_numpy())
        frames.append((device != CPU, label, ordered.with_columns(pl.lit(label).alias("label"), level)))
    frames.sort(key=lambda frame: (frame[0], -int((frame[2]["end_ns"] - frame[2]["start_ns"]).sum())))
    placed = [frame.with_columns(lane=pl.lit(index, dtype=pl.Int64)) for index, (_, _, frame) in enumerate(frames)]
    return pl.concat([pl.DataFrame(schema=LANE_SCHEMA), *(frame.select(list(LANE_SCHEMA)) for frame in placed)])


def _lane_levels(start: np.ndarray[Any, Any], end: np.ndarray[Any, Any]) -> pl.Series:
    """Row of each op, (n,), which are sorted by start and, from the same start, longest first."""
    levels: list[int] = []
    until: list[int] = []  # when each row is free again
    for begin, finish in zip(start.tolist(), end.tolist(), strict=True):
        while until and until[-1] <= begin:
            until.pop()
        level = len(until)
        until.append(max(finish, begin))
        for above in range(level):  # one that outlives its caller holds all rows above until it ends
            until[above] = max(until[above], until[level])
        levels.append(level)
    return pl.Series("level", levels, dtype=pl.Int64)


TRACK_SCHEMA = {
    "track": pl.String,  # power, power of ops, core or memory
    "name": pl.String,  # the rail, the core, the category
    "unit": pl.String,
    "start_ns": pl.Int64,  # from the start of the step; a window may be longer than the step
    "end_ns": pl.Int64,
    "value": pl.Float64,  # null: not read
    "known": pl.Boolean,  # of power of ops: within 30 %
    "kind": pl.String,  # measured, estimated or simulated
    "step": pl.Int64,  # that it was seen in
}
OPERATOR_POWER = "power of ops"
_MOST_POINTS = 400  # of live memory


def step_tracks(run: Run, step: int) -> pl.DataFrame:
    """Mean power (W) and utilisation (share) in the shortest honest windows over a step, and live bytes by category.

    Power of ops is what the fit gives each, in the step that `Run.anatomy` shows.
    A sensor slower than the step gives one window that is longer than it. Memory is that of the step if its
    allocations were recorded, otherwise of the profiled step nearest in length, which `step` then names.
    """
    row = run.steps.filter(pl.col("step") == step)
    if row.is_empty():
        return pl.DataFrame(schema=TRACK_SCHEMA)
    t0_ns, t1_ns = int(row["t0_ns"][0]), int(row["t1_ns"][0])
    frames = [*_rail_power(run, t0_ns, t1_ns), *_core_use(run, t0_ns, t1_ns)]
    columns = {"step": pl.lit(step, dtype=pl.Int64), "known": pl.lit(True)}
    tracks = [
        *(frame.with_columns(**columns) for frame in frames),
        _operator_power(run, step),
        *_live_memory(run, step),
    ]
    return pl.concat([pl.DataFrame(schema=TRACK_SCHEMA), *(frame.select(list(TRACK_SCHEMA)) for frame in tracks)])


def _window_span(t0_ns: int, t1_ns: int, length_ns: float) -> tuple[float, float]:
    """The step, or where a window is longer than it, one window about its middle."""
    middle, half = (t0_ns + t1_ns) / 2, max(t1_ns - t0_ns, length_ns) / 2
    return middle - half, middle + half


def _rail_power(run: Run, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for line in run.rails.lines:
        shortest_ns = 2 * max(line.best.refresh_ns, line.best.growth.period_ns, 0.5)
        edges, watts = power_windows(line.best, *_window_span(t0_ns, t1_ns, shortest_ns), shortest_ns)
        kind = "simulated" if run.simulated else "estimated" if line.estimated else "measured"
        if len(edges) > 1:
            yield _track_frame("power", line.name, "W", edges - t0_ns, watts, kind)


def _operator_power(run: Run, step: int) -> pl.DataFrame:
    """Return the power of the rails from op to op, for the step of `Run.anatomy` only."""
    kind = "simulated" if run.simulated else "measured"
    texts = {"track": pl.lit(OPERATOR_POWER), "unit": pl.lit("W"), "kind": pl.lit(kind)}
    return (
        run.power_of_ops()
        .filter(pl.col("step") == step)
        .rename({"rail": "name", "power_w": "value"})
        .with_columns(**texts)
    )


def _core_use(run: Run, t0_ns: int, t1_ns: int) -> Iterator[pl.DataFrame]:
    for series in core_busy_time(run):
        shortest_ns = shortest_window_ns(series)
        busy = growth_windows(series, *_window_span(t0_ns, t1_ns, shortest_ns), shortest_ns)
        yield _track_frame("core", series.scope, "1", busy.edges_ns - t0_ns, np.clip(busy.rates, 0, 1), "measured")


def _track_frame(track: str, name: str, unit: str, edges_ns: Floats, values: Floats, kind: str) -> pl.DataFrame:
    texts = {"track": track, "name": name, "unit": unit, "kind": kind}
    return pl.DataFrame(
        {"start_ns": edges_ns[:-1].astype(np.int64), "end_ns": edges_ns[1:].astype(np.int64), "value": values},
        nan_to_null=True,
    ).with_columns(pl.lit(text).alias(key) for key, text in texts.items())


def _live_memory(run: Run, step: int) -> Iterator[pl.DataFrame]:
    """Live bytes of each category, each value holding until the next."""
    events = run.memory_events
    chosen = _nearest_with_memory(run, events, step)
    if chosen is None:
        return
    length = run.steps.filter(pl.col("step") == chosen).select(pl.col("t1_ns") - pl.col("t0_ns")).item()
    series = categories_over_step(events, chosen, points=_MOST_POINTS).sort("category", "t", maintain_order=True)
    until = pl.col("t").shift(-1).over("category").fill_null(pl.max_horizontal("t", pl.lit(length)))
    stretches = series.with_columns(end=until, most=pl.col("bytes").max().over("category")).filter(pl.col("most") > 0)
    yield stretches.select(
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


def _nearest_with_memory(run: Run, events: pl.DataFrame, step: int) -> int | None:
    """The step itself, or the one nearest in length, of those whose allocations were recorded."""
    traced = set(events["step"].unique().to_list())
    steps = run.steps.with_columns(length_ns=pl.col("t1_ns") - pl.col("t0_ns"))
    whole = steps.filter(pl.col("step").is_in(list(traced)))
    if whole.is_empty():
        return None
    steady = whole.join(profiled_steps(run).select("step"), on="step", how="semi")
    own = steps.filter(pl.col("step") == step)["length_ns"][0]
    near = (steady if len(steady) else whole).sort((pl.col("length_ns") - own).abs(), "step")
    return step if step in traced else int(near["step"][0])


CLOCK_SCHEMA = {
    "quantity": pl.String,
    "scope": pl.String,
    "unit": pl.String,
    "t_ns": pl.Int64,
    "value": pl.Float64,  # null begins a gap
}
LEVEL_STEPS = 60  # fewer are not judged
_END = 0.2  # of the run: its first and its last part are compared


@dataclass(frozen=True)
class Drift:
    """Median step time of the first and the last fifth of the steps after warm-up, ns, each with its 95 % CI."""

    first: Estimate
    last: Estimate
    steps: int  # in each of the two

    @property
    def ratio(self) -> float:
        """Last over first."""
        return self.last.value / self.first.value

    @property
    def is_clear(self) -> bool:
        """Return whether the two intervals lie apart."""
        if self.first.low is None or self.first.high is None or self.last.low is None or self.last.high is None:
            return False
        return self.last.low > self.first.high or self.last.high < self.first.low


def drift(run: RunReader) -> Drift | None:
    """The end of the run against its beginning; None where either would be fewer than six steps."""
    lengths = timed_steps(run)[0]["length_ns"].to_numpy().astype(np.float64)
    count = int(len(lengths) * _END)
    first, last = (median_over_time(part) for part in (lengths[:count], lengths[-count:] if count else lengths[:0]))
    return None if first is None or last is None or count < FEW else Drift(first, last, count)


def step_time_level_changes(run: RunReader) -> list[tuple[int, LevelChange]] | None:
    """Changes of the level of the step time: the number of the step at which each begins, and the change (ns).

    None: there are too few steps to judge.
    """
    steps = all_timed_steps(run)[0]
    if len(steps) < LEVEL_STEPS:
        return None
    changes = change_points(steps["length_ns"].to_numpy().astype(np.float64))
    return [(int(steps["step"][change.step]), change) for change in changes if change.step < len(steps)]


def clocks_and_heat(run: RunReader) -> pl.DataFrame:
    """Every temperature, frequency and throttle channel over the run, as read; a gap begins with a null."""
    frames = [pl.DataFrame(schema=CLOCK_SCHEMA)]
    frames += [_channel_frame(run, channel) for channel in run.channels if _is_clock_or_heat(channel)]
    return pl.concat(frames).sort("quantity", "scope", "t_ns", maintain_order=True)


def _is_clock_or_heat(channel: dict[str, Any]) -> bool:
    return find_quantity(str(channel.get("quantity"))).group in ("Temperature", "Frequency")


def _channel_frame(run: RunReader, channel: dict[str, Any]) -> pl.DataFrame:
    samples = run.sensor(str(channel["sensor"]))
    if str(channel["id"]) not in samples.columns:
        return pl.DataFrame(schema=CLOCK_SCHEMA)
    line = channel_timeline(channel, samples.select("t0_ns", "t1_ns", value=pl.col(str(channel["id"]))))
    t_ns = np.concatenate([line.t_ns, line.gaps_ns[:, 0] + 1]).astype(np.int64)
    values = np.concatenate([line.values, np.full(len(line.gaps_ns), np.nan)])
    frame = pl.DataFrame({"t_ns": t_ns, "value": values}, nan_to_null=True)
    texts = {"quantity": str(channel["quantity"]), "scope": str(channel.get("scope")), "unit": line.unit}
    placed = frame.with_columns(**{key: pl.lit(text) for key, text in texts.items()})
    return placed.select(pl.col(name).cast(dtype) for name, dtype in CLOCK_SCHEMA.items())


QUANTITIES = {"step time": "ms", "power": "W", "memory": "MB", "clock": "GHz"}  # in the order of the page
MOST_POINTS = 400  # a line
_FREQUENCIES = ("core_frequency", "frequency")


@dataclass(frozen=True)
class Line:
    """One quantity of a run: `t_s` since its first step and `step` (not whole between two), `values` in `unit`.

    All are (n,); NaN in `values` is a gap. kind: "measured", "estimated" or "simulated".
    """

    quantity: str
    unit: str
    kind: str
    t_s: Floats
    step: Floats
    values: Floats


def lines_over_time(run: Run) -> list[Line]:
    """Return a line for each of QUANTITIES that the run has; none where it has no step."""
    steps = run.steps
    if steps.is_empty():
        return []
    return list(_lines(run, steps))


def _lines(run: Run, steps: pl.DataFrame) -> Iterator[Line]:
    t0, t1, number = (steps[name].to_numpy().astype(np.float64) for name in ("t0_ns", "t1_ns", "step"))
    is_positive = t1 > t0
    lines = [("step time", "measured", t0[is_positive], (t1 - t0)[is_positive] / 1e6)]
    lines += [
        (quantity, kind, (frame["t0_ns"].to_numpy() + frame["t1_ns"].to_numpy()) / 2, _values(frame) / scale)
        for quantity, kind, frame, scale in (
            *_power_series(run, int(t0[0]), int(t1[-1])),
            *_memory_series(run),
            *_clock_series(run),
        )
    ]
    for quantity, kind, at, values in lines:
        inside = (at >= t0[0]) & (at <= t1[-1])
        order = np.argsort(at[inside], kind="stable")
        at, values = _thinned(at[inside][order]), _thinned(values[inside][order])
        if np.isfinite(values).any():
            place = np.interp(at, np.append(t0, t1[-1]), np.append(number, number[-1] + 1))
            yield Line(quantity, QUANTITIES[quantity], kind, (at - t0[0]) / 1e9, place, values)


def _values(frame: pl.DataFrame) -> Floats:
    values: Floats = frame["value"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    return values


def _power_series(run: Run, start_ns: int, end_ns: int) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    totals = run.energy_totals()
    if totals.is_empty():
        return
    main = totals.row(0, named=True)
    windows = run.power_timeline(start_ns, end_ns).filter(pl.col("rail") == main["rail"])
    yield "power", str(main["kind"]), windows.rename({"watts": "value"}), 1.0


def _memory_series(run: Run) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    """Resident memory of the training process."""
    frame = run.samples("rss").filter(pl.col("scope") == WATCHED)
    if not frame.is_empty():
        yield "memory", "measured", frame, 1e6


def _clock_series(run: Run) -> Iterator[tuple[str, str, pl.DataFrame, float]]:
    """Mean of the cores; of an accelerator where no core's is known."""
    for quantity in _FREQUENCIES:
        frame = run.samples(quantity)
        if not frame.is_empty():
            mean = frame.group_by("t0_ns", maintain_order=True).agg(pl.col("t1_ns").max(), pl.col("value").mean())
            yield "clock", "measured" if run.simulated is None else "simulated", mean, 1e9
            return


def _thinned(values: Floats) -> Floats:
    """Medians of so many neighbours that few enough points are left; of neighbours with a gap, a gap."""
    width = -(-len(values) // MOST_POINTS)
    if width <= 1:
        return values
    whole = len(values) // width * width
    thin = np.median(values[:whole].reshape(-1, width), axis=1)
    tail = values[whole:]
    thinned: Floats = np.append(thin, np.median(tail)) if len(tail) else thin
    return thinned
