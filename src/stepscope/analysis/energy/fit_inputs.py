"""The inputs of a fit: the ops of a run as a timeline, its power channels as readings, and stored calibrations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.energy.attribution import CONVERSION, FitOptions
from stepscope.analysis.energy.fit_span import RunSlice, slice_to_fit
from stepscope.analysis.energy.power_sources import PowerSource, channel_readings, plausible_watts, power_sources
from stepscope.analysis.energy.readings import (
    Readings,
    fit_decay_time,
    from_counter,
    from_gauge,
    from_running_average,
    stamped_values,
    stuck_readings,
)
from stepscope.analysis.energy.timeline import Keys, Lane, Timeline, fill_unprofiled
from stepscope.analysis.energy.update_clocks import is_periodic
from stepscope.analysis.time.operators import CPU, FACTS, FRAMEWORK_OVERHEAD, UNSTATED, OpPieces, join_tracks, op_pieces
from stepscope.analysis.time.overhead_correction import StepTimes
from stepscope.analysis.time.spans import overlay
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import RunReader

BETWEEN = "(between steps)"
PAUSES = "(pauses between steps)"
MOST_COLUMNS = 900  # of the regression: its cost grows with their cube
_LEAST_OWN = 0.5  # of the columns for the places with most time, where not all can have one
_MUCH = 0.001  # of all time: where the ops leave so much after one of them, it has a power of its own
_NO_OP = -1
_PAUSE = (
    0.5  # of a typical step: what lasts longer between two steps (an evaluation, a save) is other work than the loop's
)
_NEAR = 2e-5  # s: steps that are closer than this follow at once
STAMP_SD = 5e-7  # s: what the profiler's clock and its profiling overhead leave open
_FINER = (
    [*FACTS, "part", "turn"],
    [*FACTS, "part"],
    ["name", "phase", "device", "flops", "bytes", "part"],
    ["name", "phase", "device"],
)
_BOTH = 2  # ops of the CPU, and kernels
_AS_STATED = 0.1  # of a period: a clock that is further from what the channel states is another
_STATED_WEIGHT = 0.1  # of the weight of a conversion that a driver states: real registers were 19 % off
_AS_READ = 0.95  # of a refresh: reads that are no faster than this see a new value each time


@dataclass(frozen=True)
class RunTimeline:
    """A timeline whose keys are groups of instances; `ops` (N rows) names each kind of instance, with `key`.

    seconds: (N,) of each over all steps. The last two rows stand for the time between ops and between steps.
    """

    timeline: Timeline
    ops: pl.DataFrame
    seconds: Floats

    @property
    def reason_not_divided(self) -> str:
        """Return why nothing is divided among these ops; empty where a step was profiled from begin to end."""
        return "" if self.timeline.recorded.any() else "no step was profiled whole: parts of steps do not tell the rest"


class RunTimelines:
    """The timelines of a run's ops by component: of a large run they cost seconds, so each is made once, when asked."""

    def __init__(self, run: RunReader, times: Callable[[], StepTimes] | None = None) -> None:
        self._run, self._times = slice_to_fit(run), times
        self._made: dict[str, RunTimeline | None] = {}

    @property
    def run(self) -> RunReader:
        """Return the steps that are fitted: of a long run, a stretch."""
        return self._run

    @cached_property
    def origin_ns(self) -> int:
        """The instant that their times count from."""
        return int(steps_after_warmup(self._run)["t0_ns"][0])

    def for_component(self, component: str) -> RunTimeline | None:
        """Return what explains a rail of this component; None where no op was recorded."""
        tracks = self._pieces.tracks
        if component != "memory" and len({track.device == CPU for track in tracks}) < _BOTH:
            component = "total"  # without kernels beside the CPU's ops, the same explains all
        if component not in self._made:
            timeline = run_timeline(self._run, self._pieces, self.origin_ns, component) if tracks else None
            if timeline is not None and self._times is not None and not timeline.timeline.recorded.all():
                timeline = replace(
                    timeline, timeline=replace(timeline.timeline, share_errors=_share_errors(timeline, self._times()))
                )
            self._made[component] = timeline
        return self._made[component]

    @cached_property
    def _pieces(self) -> OpPieces:
        return run_pieces(self._run)[0]


_CELL = ("phase", "name", "device")


def _share_errors(run_timeline: RunTimeline, times: StepTimes) -> Floats | None:
    """By how much the share of each key of a profiled step differs from that of a step as it runs unprofiled (P,).

    The profiler lengthens what has many events. None where no time was corrected.
    """
    timeline = run_timeline.timeline
    if times.is_empty or not timeline.recorded.any():
        return None
    length_ns = float((timeline.step_t1 - timeline.step_t0)[timeline.recorded].mean()) * 1e9
    # Times of kernels are as they were recorded, those of the CPU are of steps that are as long as unprofiled ones.
    recorded = (
        pl.when(pl.col("device") == CPU).then("recorded_ns").otherwise(pl.col("self_ns") * times.step_ns / length_ns)
    )
    cells = times.table.group_by(_CELL).agg(factor=pl.col("self_ns").sum() / recorded.sum())
    placed = run_timeline.ops.select(_CELL).join(cells, on=_CELL, how="left", maintain_order="left")
    factor = np.nan_to_num(placed["factor"].fill_null(1.0).to_numpy(), nan=1.0, posinf=1.0)
    keys, key = timeline.keys, run_timeline.ops["key"].to_numpy()
    errors = np.bincount(key, run_timeline.seconds * (factor - 1), keys.count) / (timeline.end - timeline.begin)
    errors[keys.gap] -= errors[~keys.beside].sum()
    return errors


def run_pieces(run: RunReader) -> tuple[OpPieces, int]:
    """Pieces of self time of the profiled steps, and the instant that their times count from, ns."""
    origin_ns = int(steps_after_warmup(run)["t0_ns"][0])
    return op_pieces(run, origin_ns), origin_ns


def run_timeline(run: RunReader, pieces: OpPieces, origin_ns: int, component: str) -> RunTimeline | None:
    """Return what explains a rail of this component: kernels a GPU's, ops of the CPU the others', with kernels on
    top.
    """
    kernels = [track for track in pieces.tracks if track.device != CPU]
    on_cpu = [track for track in pieces.tracks if track.device == CPU]
    alone = {"gpu": kernels or on_cpu, "cpu": on_cpu or kernels}.get(component)
    lanes = join_tracks(alone) if alone is not None else [*join_tracks(on_cpu), *join_tracks(kernels)]
    if not lanes:
        return None
    steps = steps_after_warmup(run)
    step_t0, step_t1 = ((steps[name].to_numpy() - origin_ns) / 1e9 for name in ("t0_ns", "t1_ns"))
    recorded = (steps["recorded"] & steps["step"].is_in(pieces.steps.implode())).to_numpy()
    filled = [fill_unprofiled(Lane(lane.t0, lane.t1, lane.op), step_t0, step_t1, recorded) for lane in lanes]
    parts = [_clip_lane(lane, float(step_t0[0]), float(step_t1[-1])) for lane, _ in filled]
    keyed = _timeline_with_keys(pieces.ops, parts, step_t0, step_t1, recorded, with_bytes=component == "memory")
    return replace(keyed, timeline=replace(keyed.timeline, scatter=filled[0][1]))


def _clip_lane(lane: Lane, begin: float, end: float) -> Lane:
    inside: Flags = (lane.t1 > begin) & (lane.t0 < end)
    return Lane(np.maximum(lane.t0[inside], begin), np.minimum(lane.t1[inside], end), lane.key[inside])


def _timeline_with_keys(
    ops: pl.DataFrame, lanes: list[Lane], step_t0: Floats, step_t1: Floats, recorded: Flags, with_bytes: bool
) -> RunTimeline:
    """Number the keys: as fine as the regression can bear, the lanes after the first apart, the gap last."""
    between = Lane(step_t1[:-1], step_t0[1:], np.full(len(step_t0) - 1, _NO_OP))
    waits, after = _waiting_pieces(lanes[0], between, len(ops), float(step_t1[-1] - step_t0[0]))
    lanes = [_add_idle_pieces(lanes[0], Lane(waits.t0, waits.t1, waits.key + len(ops))), *lanes[1:]]
    ops = pl.concat([ops, after], how="diagonal_relaxed")
    long = pause_flags(step_t0, step_t1)
    if long.any():
        lanes[0] = _add_idle_pieces(
            lanes[0], Lane(between.t0[long], between.t1[long], np.full(int(long.sum()), len(ops)))
        )
        ops = pl.concat([ops, _waiting_rows(PAUSES, 1)], how="diagonal_relaxed")
    count = len(ops)
    beside = np.zeros(count, dtype=bool)
    for lane in lanes[1:]:
        beside[np.unique(lane.key)] = True
    described = ops.with_columns(beside=pl.Series(beside))
    seconds = np.asarray(np.sum([np.bincount(lane.key, lane.t1 - lane.t0, count) for lane in lanes], axis=0))
    key, keys = _number_keys(described, seconds)
    idle = Lane(between.t0[~long], between.t1[~long], np.full(int((~long).sum()), keys.count - 2))
    coded = [Lane(lane.t0, lane.t1, key[lane.key]) for lane in lanes]
    coded[0] = _add_idle_pieces(coded[0], idle)
    if with_bytes:
        keys = Keys(
            keys.kind, keys.signature, keys.beside, _bytes_per_second(described, lanes, key, keys.count, seconds)
        )
    timeline = Timeline(tuple(coded), keys, step_t0, step_t1, recorded, STAMP_SD)
    synthetic = {
        "name": [BETWEEN, FRAMEWORK_OVERHEAD],
        "module": [None, None],
        "phase": [None, None],
        "device": [CPU, CPU],
    }
    keyed = described.with_columns(key=pl.Series(key, dtype=pl.Int64))
    last = pl.DataFrame(
        {**synthetic, "key": [keys.count - 2, keys.count - 1]},
        schema_overrides={"module": pl.String, "phase": pl.String},
    )
    whole = pl.concat([keyed, last], how="diagonal_relaxed")
    return RunTimeline(timeline, whole, np.append(seconds, timeline.seconds[-2:]))


def _number_keys(ops: pl.DataFrame, seconds: Floats) -> tuple[Ints, Keys]:
    """Key of each kind of instance, and what the keys are; two more follow: between steps, and the gap."""
    key = _limited_keys(ops, seconds)
    first = np.unique(key, return_index=True)[1]
    same_work = ops.select(pl.struct("name", "device", "flops", "bytes", "phase", "part").rank("dense")).to_series()
    kinds = ops.select(pl.struct("name", "device").rank("dense")).to_series()
    kind, signature = (series.to_numpy().astype(np.int64)[first] for series in (kinds, same_work))
    beside = ops["beside"].to_numpy()[first]
    more = np.array([1, 2])
    return key, Keys(
        np.append(kind, kind.max() + more), np.append(signature, signature.max() + more), np.append(beside, [False] * 2)
    )


def _limited_keys(ops: pl.DataFrame, seconds: Floats) -> Ints:
    """A key for each place; where there are too many, those with most time keep theirs and the rest share coarser ones.

    A key that several modules share cannot tell them apart: only what is small may be put together.
    """
    levels = [_number_distinct_rows(ops, [*names, "beside"]) for names in _FINER]
    finest = levels[0]
    if int(finest.max()) < MOST_COLUMNS:
        return finest
    order = np.argsort(-np.bincount(finest, seconds), kind="stable")
    for shared in levels[1:]:
        own = MOST_COLUMNS - int(shared.max()) - 1
        if own >= _LEAST_OWN * MOST_COLUMNS:
            break
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    apart = rank[finest] < max(own, 0)
    mixed = np.where(apart, rank[finest], len(order) + shared)
    return np.asarray(np.unique(mixed, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def _number_distinct_rows(ops: pl.DataFrame, names: list[str]) -> Ints:
    """Numbers of the distinct rows of some columns, from 0."""
    return ops.select(pl.struct(names).rank("dense")).to_series().to_numpy().astype(np.int64) - 1


def _waiting_pieces(lane: Lane, between: Lane, ops: int, whole: float) -> tuple[Lane, pl.DataFrame]:
    """Time between ops as pieces, keyed by the op that it follows where that adds up to much; and a row for each key.

    A program does one thing after one op and another after the next: their power is not the same.
    """
    busy = _add_idle_pieces(lane, between)
    t0, t1, follows = busy.t1[:-1], busy.t0[1:], busy.key[:-1]
    some = t1 - t0 > _NEAR
    t0, t1, follows = t0[some], t1[some], follows[some] + 1  # 0 where a step begins
    spent = np.bincount(follows, t1 - t0, ops + 1)
    names = np.flatnonzero(spent >= _MUCH * whole)
    chosen = np.isin(follows, names)
    return Lane(t0[chosen], t1[chosen], np.searchsorted(names, follows[chosen])), _waiting_rows(
        FRAMEWORK_OVERHEAD, len(names)
    )


def _waiting_rows(name: str, count: int) -> pl.DataFrame:
    """Rows for time in which no op ran, told apart by their part."""
    return pl.DataFrame(
        {"name": [name] * count, "device": [CPU] * count, "part": np.arange(count)},
        schema={"name": pl.String, "device": pl.String, "part": pl.Int64},
    ).with_columns(flops=pl.lit(UNSTATED, pl.Int64), bytes=pl.lit(UNSTATED, pl.Int64), turn=pl.lit(0, pl.Int64))


def pause_flags(step_t0: Floats, step_t1: Floats) -> Flags:
    """Return the stretches between two steps that are pauses (S - 1,): so long that they are work of another kind."""
    long: Flags = step_t0[1:] - step_t1[:-1] > _PAUSE * float(np.median(step_t1 - step_t0))
    return long


def _add_idle_pieces(lane: Lane, idle: Lane) -> Lane:
    """The lane with time that it leaves as pieces of their own."""
    t0, t1, piece = overlay((lane.t0, lane.t1), (idle.t0, idle.t1), fill=True)
    some = (piece < len(lane.t0)) | (t1 - t0 > _NEAR)
    return Lane(t0[some], t1[some], np.concatenate([lane.key, idle.key])[piece[some]])


def _bytes_per_second(ops: pl.DataFrame, lanes: list[Lane], key: Ints, count: int, seconds: Floats) -> Floats:
    """Bytes a second of each key; 0 where no op states them."""
    pieces = np.sum([np.bincount(lane.key, minlength=len(ops)) for lane in lanes], axis=0)
    moved = np.where(ops["bytes"].to_numpy() != UNSTATED, ops["bytes"].to_numpy(), 0) * pieces
    total, time = np.bincount(key, moved, count), np.bincount(key, seconds, count)
    return np.asarray(np.where(time > 0, total / np.maximum(time, 1e-12), 0.0))


def run_readings(run: RunReader, source: PowerSource, origin_ns: int) -> tuple[Readings, FitOptions]:
    """Readings of a channel, and what is known of them."""
    channel, refresh = source.channel, source.refresh_ns / 1e9 or None
    if isinstance(run, RunSlice) and channel is not None:
        source = next((exact for exact in power_sources(run) if exact.id == source.id), source)
    if source.kind == "counter" or channel is None:
        t = (source.growth.t_ns - origin_ns) / 1e9
        gaps = (source.growth.gaps_ns - origin_ns) / 1e9
        return from_counter(t, t, source.growth.known_growth, gaps, refresh), FitOptions(refresh=refresh)
    t0_ns, t1_ns, watts = channel_readings(run, channel)
    steps = steps_after_warmup(run)
    step = float(steps["length_ns"].cast(pl.Float64).median() or 0.0) / 1e9
    end = (float(steps["t1_ns"][-1]) - origin_ns) / 1e9
    return gauge_inputs((t0_ns - origin_ns) / 1e9, (t1_ns - origin_ns) / 1e9, watts, source, step, end)


def gauge_inputs(
    t0: Floats, t1: Floats, watts: Floats, source: PowerSource, step: float, end: float = np.inf
) -> tuple[Readings, FitOptions]:
    """Readings of a gauge, read between t0 and t1 (M,), s, and what is known of them.

    Times count from the begin of the first step. step: length of a typical one; end: of the last.
    """
    channel, refresh = source.channel or {}, source.refresh_ns / 1e9 or None
    still = stuck_readings(t0, watts, step)
    in_steps = (t0 >= 0) & (t1 <= end)
    stuck = still & in_steps
    stuck_s = float((np.diff(t0) * stuck[1:] * stuck[:-1]).sum())
    watts = np.where(still | ~plausible_watts(watts, source.step_size), np.nan, watts)
    floor = resolution_error_w(watts[in_steps], source.step_size)
    weight = register_weight(channel)
    if weight is not None and refresh is not None:
        stamp, watts = stamped_values(t0, t1, watts)
        decay = fit_decay_time(stamp, watts, end, refresh / weight, source.step_size)
        weight_sd = _STATED_WEIGHT if decay is None else decay[1] / decay[0]
        weight = weight if decay is None else refresh / decay[0]
        return from_running_average(stamp, watts, weight, refresh), FitOptions(
            refresh=refresh, stated=CONVERSION * refresh, floor=floor, stuck_s=stuck_s, weight_sd=weight_sd
        )
    readings = from_gauge(t0, t1, watts, refresh)
    # Stamps of reads that are slower than the source are right as they are: what is late then is the value.
    own_pace = refresh is not None and readings.period >= _AS_READ * refresh
    periodic = not own_pace and not readings.has_update_times and is_periodic(readings.stamp)
    window = float(channel.get("window_ns") or 0) / 1e9
    spot = str(channel.get("filter") or "").startswith("none") and refresh is not None
    stated = window or (CONVERSION * refresh if spot and refresh else None)
    if readings.has_update_times and (refresh is None or abs(refresh / readings.tick - 1) > _AS_STATED):
        refresh, stated = readings.tick, None  # whoever states a wrong pace does not know the sensor
    return readings, FitOptions(
        periodic=periodic, refresh=refresh, stated=stated, step=source.step_size, floor=floor, stuck_s=stuck_s
    )


def resolution_error_w(watts: Floats, step: float) -> float:
    """Standard deviation of the error that steps so coarse leave in the mean of readings, W.

    Readings that wander over several steps average it out, by exp(-2 pi^2 (spread / step)^2) (Widrow and Kollar,
    Quantization Noise, 2008); one that rests on a value may be off by a step to either side: some chips cut, not round.
    """
    read = watts[~np.isnan(watts)]
    if step <= 0 or not len(read):
        return 0.0
    spread = max(float(read.std()) - step / np.sqrt(12), 0.0)
    return float(step / np.sqrt(3) * np.exp(-2 * (np.pi * spread / step) ** 2))


def register_weight(channel: dict[str, Any]) -> float | None:
    """Weight of one conversion in a running average, by what the channel states; None for other filters."""
    if "running average" not in str(channel.get("filter") or ""):
        return None
    refresh, window = channel.get("refresh_ns"), channel.get("window_ns")
    if not refresh or not window or window <= refresh:
        return None
    return float(refresh) / float(window)
