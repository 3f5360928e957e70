"""Self time of operators: sums per step, and pieces in which an op is the innermost of its thread.

Every figure about ops comes from this table, so its sums and the unattributed time add up to the step times. Work that
a torch.distributed backend runs beside the training is not included: a collective's time is what the training waited
for it (`collectives`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.time.spans import overlay
from stepscope.analysis.time.steps import profiled_steps, shown_steps
from stepscope.arrays import Flags, Floats, Ints
from stepscope.errors import RunDamaged
from stepscope.runfolder import (
    AUTOGRAD_NODE,
    COLLECTIVE,
    COLLECTIVE_CALL,
    COMMUNICATION,
    MODULE_CALL,
    OPS,
    RunReader,
)

if TYPE_CHECKING:
    from stepscope.analysis.time.collectives import CollectiveTime


OUTSIDE = "(outside any module)"
FRAMEWORK_OVERHEAD = "(between operations)"
CPU = "cpu"
COLLECTIVES = f"{COLLECTIVE}|{COLLECTIVE_CALL}|^record_param_comms"  # names of their rows
_FEWEST_TO_JUDGE = 4  # values of a cell, from which on one of them can be far above the others
_FAR = 6.0  # standard deviations, as the median deviation tells them
_AND_A_TENTH = 0.1  # of the median
TINY_NS = 10_000  # self time below this is the cost of launching an op, not of the op
PROFILING = ("profiling_ns", "outside_ns", "below_ns")
_KEYS = ("phase", "module", "name", "device")
_IS_NODE = pl.col("parent").is_null() & pl.col("name").cast(pl.String).str.starts_with(AUTOGRAD_NODE)
_BESIDE = ("step", "thread", pl.col("parent").is_null())
# Behind a node of a backward pass autograd's engine frees what it held and looks for the next: time of that node.
ENGINE_NS = (
    pl.when(_IS_NODE & _IS_NODE.shift(-1).over(*_BESIDE))
    .then((pl.col("t0_ns").shift(-1).over(*_BESIDE) - pl.col("t1_ns")).clip(0))
    .otherwise(0)
    .fill_null(0)
)


def self_times(run: RunReader, collectives: CollectiveTime | None = None) -> pl.DataFrame:
    """Self times of the profiled steps after warm-up; `collectives` as `collective_time` found them in the same steps.

    Columns: step, phase, module (OUTSIDE for null), name, device; count, calls (of modules), self_ns, tiny_ns
    (part of self_ns below TINY_NS an instance), flops and bytes (null where no instance states them). And what the
    recorder itself took, ns, 0 where that was not measured: profiling_ns within self_ns, of which below_ns is of what
    the ops called; outside_ns in whatever called them.
    """
    steps = shown_steps(run)["step"]
    columns = ("step", "t0_ns", "t1_ns", "self_ns", *_KEYS, "flops", "bytes", "thread", "parent")
    ops = run.scan_ops().select(columns).filter(pl.col("step").is_in(steps.to_list()))
    ops = _with_profiling(ops.with_columns(engine_ns=ENGINE_NS), run)
    ops = ops.with_columns(self_ns=pl.col("self_ns") + pl.col("engine_ns"))
    if collectives is not None:
        aside = pl.col("thread").is_in(list(collectives.threads)) & (pl.col("device").cast(pl.String) == CPU)
        ops = ops.with_columns(self_ns=pl.when(aside).then(0).otherwise("self_ns"))
    tiny = pl.when(pl.col("self_ns") < TINY_NS).then("self_ns").otherwise(0)
    grouped = ops.group_by("step", *_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum(),
        tiny.sum().alias("tiny_ns"),
        *(pl.col(name).sum() for name in PROFILING),
        *(_sum_or_null(name) for name in ("flops", "bytes")),
    )
    texts = [pl.col(name).cast(pl.String) for name in _KEYS]
    table = (
        grouped.with_columns(pl.col("step").cast(pl.Int64), *texts)
        .with_columns(
            pl.col("module").fill_null(OUTSIDE),
            calls=pl.when(pl.col("name").str.starts_with(MODULE_CALL)).then("count").otherwise(0),
        )
        .collect()
    )
    table = table if collectives is None else _move_waits(table, collectives.moved)
    return _share_out_updates(table, run.model).sort("step", *_KEYS)


def _share_out_updates(table: pl.DataFrame, model: pl.DataFrame) -> pl.DataFrame:
    """The table with the time of updates that serve many layers at once shared out among them, by elements."""
    shares = model.select("module", "update_share").drop_nulls().unique("module", maintain_order=True)
    shared = (
        (pl.col("phase") == "optimizer") & (pl.col("module") == OUTSIDE) & ~pl.col("name").str.starts_with("Optimizer.")
    )
    if shares.is_empty() or not table.select(shared.any()).item():
        return table
    times = ("self_ns", "tiny_ns", *PROFILING)
    parts = table.filter(shared).drop("module").join(shares, how="cross")
    parts = parts.with_columns(
        *((pl.col(time) * pl.col("update_share")).floor().cast(table.schema[time]).alias(time) for time in times),
        *(pl.lit(0, pl.Int64).alias(name) for name in ("count", "calls")),  # each stays one call, outside
        *(pl.lit(None, table.schema[name]).alias(name) for name in ("flops", "bytes")),
    ).select(table.columns)
    shared_out = parts.group_by("step", "phase", "name", "device").agg(
        *(pl.col(time).sum().alias(f"_{time}") for time in times)
    )
    remaining = table.join(shared_out.with_columns(module=pl.lit(OUTSIDE)), on=["step", *_KEYS], how="left")
    remaining = remaining.with_columns(*(pl.col(time) - pl.col(f"_{time}").fill_null(0) for time in times)).select(
        table.columns
    )
    return pl.concat([remaining, parts])


def _with_profiling(ops: pl.LazyFrame, run: RunReader) -> pl.LazyFrame:
    """Each row with the cost of its own event, and of the events of what it called, ns."""
    cost = (run.meta.get("overhead") or {}).get("event") or {}
    if not cost:
        return ops.with_columns(pl.lit(0.0).alias(name) for name in PROFILING)

    def of_event(where: str) -> pl.Expr:
        call = pl.col("name").cast(pl.String).str.starts_with(MODULE_CALL)
        own = pl.when(call).then(float(cost[f"call_{where}_ns"])).otherwise(float(cost[f"op_{where}_ns"]))
        return pl.when(pl.col("device").cast(pl.String) == CPU).then(own).otherwise(0.0)

    rows = ops.with_columns(
        row=pl.int_range(pl.len(), dtype=OPS["parent"]).over("step"),
        inside_ns=of_event("inside"),
        outside_ns=of_event("outside"),
    )
    by_caller = rows.filter(pl.col("parent").is_not_null()).group_by("step", "parent")
    below = by_caller.agg(below_ns=pl.col("outside_ns").sum())
    joined = rows.join(below, left_on=["step", "row"], right_on=["step", "parent"], how="left")
    within = pl.when(pl.col("engine_ns") > 0).then("outside_ns").otherwise(0.0)  # its caller is the engine
    return joined.with_columns(pl.col("below_ns").fill_null(0.0)).with_columns(
        profiling_ns=pl.col("inside_ns") + pl.col("below_ns") + within, outside_ns=pl.col("outside_ns") - within
    )


def _move_waits(table: pl.DataFrame, moved: pl.DataFrame) -> pl.DataFrame:
    """The table with its waits, and collectives in their phase also where an older recorder had none for them."""
    shifts = moved.with_columns(pl.col("module").fill_null(OUTSIDE))
    whole = pl.concat([table, shifts], how="diagonal_relaxed")
    collective = pl.col("name").str.contains(COLLECTIVES)
    phase = pl.when(collective).then(pl.lit(COMMUNICATION)).otherwise("phase").alias("phase")
    counted = [pl.col(name).sum() for name in ("count", "calls", "self_ns", "tiny_ns", *PROFILING)]
    stated = [_sum_or_null(name) for name in ("flops", "bytes")]
    return whole.with_columns(phase).group_by("step", *_KEYS).agg(*counted, *stated).select(table.columns)


def _sum_or_null(name: str) -> pl.Expr:
    """Polars sums nulls to 0; nothing stated stays null."""
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum()).alias(name)


@dataclass(frozen=True)
class PerStep:
    """A quantity of each key in each profiled step: `keys` has a row a column of `values` (steps, keys)."""

    keys: pl.DataFrame
    values: Floats

    def column_of(self) -> dict[tuple[str, ...], int]:
        """Column of each key."""
        return {row: index for index, row in enumerate(self.keys.iter_rows())}

    def cells_of(self, table: pl.DataFrame, steps: pl.Series) -> tuple[Ints, Ints]:
        """Row and column of `values` that each row of a table with the keys and a step belongs to: (rows,) each."""
        row, column = _rows_of(steps), self.keys.with_row_index("column")
        placed = table.join(row, on="step", how="left", maintain_order="left").join(
            column, on=self.keys.columns, how="left", maintain_order="left"
        )
        return placed["row"].to_numpy(), placed["column"].cast(pl.Int64).to_numpy()


def per_step(table: pl.DataFrame, steps: pl.Series, keys: tuple[str, ...], value: str) -> PerStep:
    """Sum a column of `self_times` by step and keys; 0 in the steps that have none."""
    return sum_columns_per_step(table, steps, keys, (value,))[0]


def sum_columns_per_step(
    table: pl.DataFrame, steps: pl.Series, keys: tuple[str, ...], values: tuple[str, ...]
) -> list[PerStep]:
    """Sum several columns of `self_times` by step and the same keys, in one pass."""
    summed = table.group_by("step", *keys).agg(pl.col(values).sum())
    names = summed.select(keys).unique().sort(keys)
    placed = summed.join(_rows_of(steps), on="step").join(names.with_row_index("column"), on=list(keys))
    row, column = placed["row"].to_numpy(), placed["column"].to_numpy()
    sums = []
    for value in values:
        matrix = np.zeros((len(steps), len(names)))
        matrix[row, column] = placed[value].to_numpy()
        sums.append(PerStep(names, matrix))
    return sums


def _rows_of(steps: pl.Series) -> pl.DataFrame:
    return pl.DataFrame({"step": steps, "row": np.arange(len(steps), dtype=np.int64)})


def replace_outliers_by_median(values: Floats, regular: Flags | None = None) -> Floats:
    """Values (steps, k) in which what is far above the others of its column is their median."""
    if len(values) < _FEWEST_TO_JUDGE:
        return values
    middle = np.median(values, axis=0)
    spread = 1.4826 * np.median(np.abs(values - middle), axis=0)
    far = values > middle + _FAR * spread + _AND_A_TENTH * middle
    if regular is not None:
        far &= regular
    return np.where(far, middle, values)


_NONE = -1
_LEAST_APART = 0.95  # share of a track in which the lane it joins may not run
UNSTATED = -1  # flops or bytes of an op that states none
_PARTS = _HEAD, _BETWEEN, _TAIL = 0, 1, 2
_SPLIT_SHARE = 0.001  # of all self time: what takes less is not split
FACTS = ("name", "module", "phase", "device", "flops", "bytes")


@dataclass(frozen=True)
class Track:
    """Pieces of one thread or stream, in order and apart: begin and end, s, and the op (row of `OpPieces.ops`).

    part: of the op, as `OpPieces` has it.
    """

    device: str
    t0: Floats
    t1: Floats
    op: Ints
    part: Ints

    @property
    def seconds(self) -> float:
        return float((self.t1 - self.t0).sum())


@dataclass(frozen=True)
class OpPieces:
    """Tracks, longest first; `ops` has a row a kind of instance: FACTS, `turn`, its count within the step, and `part`.

    What an op does before its first callee, between callees and after the last is not the same work: `part` is 0, 1 or
    2 where that takes long, and 0 elsewhere. `steps` are the numbers of those that the pieces are of.
    """

    ops: pl.DataFrame
    tracks: tuple[Track, ...]
    steps: pl.Series


def op_pieces(run: RunReader, origin_ns: int) -> OpPieces:
    """Pieces of the profiled steps after warm-up; times in s since `origin_ns`."""
    steps = profiled_steps(run)["step"].cast(OPS["step"])
    columns = ("step", "t0_ns", "t1_ns", "parent", "thread", *FACTS)
    every = run.scan_ops().select(columns).with_columns(t1_ns=pl.col("t1_ns") + ENGINE_NS)
    rows = every.join(pl.LazyFrame({"step": steps}), on="step", how="semi", maintain_order="left").collect()
    rows = rows.with_columns(
        pl.col("name", "module", "phase", "device").cast(pl.String), row=pl.int_range(pl.len()).over("step")
    ).sort("step", "row", maintain_order=True)
    identity = [*FACTS, "turn"]
    rows = rows.with_columns(pl.col("module").fill_null(OUTSIDE), pl.col("flops", "bytes").fill_null(UNSTATED))
    rows = rows.with_columns(turn=pl.int_range(pl.len()).over("step", *FACTS))
    ops = rows.select(identity).unique(maintain_order=True).with_row_index("op")
    rows = rows.join(ops, on=identity, how="left", maintain_order="left")
    tracks = [_thread_track(part, rows, origin_ns) for part in _by_thread(rows)]
    ops, tracks = _split_parts(ops.drop("op"), tracks)
    there = rows["step"].unique().cast(pl.Int64)
    return OpPieces(ops, tuple(sorted(tracks, key=lambda track: -track.seconds)), there)


def _split_parts(ops: pl.DataFrame, tracks: list[Track]) -> tuple[pl.DataFrame, list[Track]]:
    """A row of its own for each part of the ops whose self time is much; tracks numbered anew."""
    if not tracks:
        return ops.with_columns(part=pl.lit(_HEAD, pl.Int64)), tracks
    spent = np.sum([np.bincount(track.op, track.t1 - track.t0, len(ops)) for track in tracks], axis=0)
    much = spent >= _SPLIT_SHARE * spent.sum()
    named = [track.op * len(_PARTS) + np.where(much[track.op], track.part, 0) for track in tracks]
    distinct = np.unique(np.concatenate(named))
    table = ops[(distinct // len(_PARTS)).tolist()].with_columns(part=pl.Series(distinct % len(_PARTS)))
    return table, [
        replace(track, op=np.searchsorted(distinct, lane).astype(np.int64))
        for track, lane in zip(tracks, named, strict=True)
    ]


def _by_thread(rows: pl.DataFrame) -> list[Ints]:
    """Rows of each thread of the CPU and of each stream of an accelerator."""
    number = rows.select(pl.struct("device", "thread").rank("dense")).to_series().to_numpy()
    return [np.flatnonzero(number == lane) for lane in np.unique(number)]


def _thread_track(chosen: Ints, rows: pl.DataFrame, origin_ns: int) -> Track:
    """One thread's pieces: after an op begins it runs, after it ends its caller does."""
    device = str(rows["device"][int(chosen[0])])
    parent = callers(rows)[chosen] if device == CPU else np.full(len(chosen), _NONE)
    place = np.full(len(rows), _NONE)
    place[chosen] = np.arange(len(chosen))
    parent = np.where(parent == _NONE, _NONE, place[parent])  # a caller in another thread is none here
    t0, t1 = (rows[name].to_numpy()[chosen] for name in ("t0_ns", "t1_ns"))
    begin_ns, end_ns, running = innermost_pieces(t0, t1, parent)
    op = rows["op"].to_numpy()[chosen][running].astype(np.int64)
    begin, end = ((time - origin_ns) / 1e9 for time in (begin_ns, end_ns))
    return Track(device, begin, end, op, _piece_positions(running, len(chosen)))


def innermost_pieces(t0: Ints, t1: Ints, parent: Ints) -> tuple[Ints, Ints, Ints]:
    """Begin, end and row of each piece of one thread: the innermost row that runs; `parent` counts these rows."""
    depth = call_depths(parent)
    lasting = t1 > t0
    t0, t1, depth, own, above = t0[lasting], t1[lasting], depth[lasting], np.flatnonzero(lasting), parent[lasting]
    time = np.concatenate([t0, t1])
    begins = np.append(np.ones(len(t0), dtype=np.int64), np.zeros(len(t1), dtype=np.int64))
    order = np.lexsort((np.append(depth, -depth), begins, time))  # ends before begins, inner ends first
    running, time = np.append(own, above)[order], time[order]
    piece = np.flatnonzero((np.diff(time) > 0) & (running[:-1] != _NONE))
    return time[piece], time[piece + 1], running[piece]


def _piece_positions(instance: Ints, count: int) -> Ints:
    """Return for each piece whether it is the first of its op call, the last, or one between."""
    place = np.arange(len(instance))
    first, last = np.full(count, len(instance)), np.full(count, _NONE)
    np.minimum.at(first, instance, place)
    np.maximum.at(last, instance, place)
    return np.where(place == first[instance], _HEAD, np.where(place == last[instance], _TAIL, _BETWEEN))


def callers(rows: pl.DataFrame) -> Ints:
    """Row of each op's caller in the whole table; `parent` counts within the step, and may name a row that is lost."""
    step = rows["step"].to_numpy()
    first = np.append(0, np.flatnonzero(np.diff(step)) + 1)
    size = np.diff(np.append(first, len(step)))
    above = rows["parent"].fill_null(_NONE).to_numpy().astype(np.int64)
    inside = (above != _NONE) & (above < np.repeat(size, size))
    return np.where(inside, above + np.repeat(first, size), _NONE)


def call_depths(parent: Ints) -> Ints:
    """Return how many callers each row has (of one thread, where `parent` has no other); RunDamaged for a circle."""
    depth: Ints = (parent != _NONE).astype(np.int64)
    above = parent.copy()
    for _ in range(len(parent).bit_length() + 1):  # each turn looks twice as far up
        inside = above != _NONE
        if not inside.any():
            return depth
        further = above[inside]
        depth[inside] += depth[further]
        above[inside] = above[further]
    raise RunDamaged("the callers of this run's operators form a circle", "record the run again")


def join_tracks(tracks: list[Track]) -> list[Track]:
    """Tracks that hardly ever run at once made one (a backward thread works while its caller waits); longest first."""
    lanes: list[Track] = []
    for track in tracks:
        for number, lane in enumerate(lanes):
            if _overlap_s(lane, track) <= (1 - _LEAST_APART) * track.seconds:
                lanes[number] = _merge_tracks(lane, track)
                break
        else:
            lanes.append(track)
    return lanes


def _overlap_s(lane: Track, track: Track) -> float:
    """Time in which both run, s."""
    edges = np.stack([lane.t0, lane.t1], 1).ravel()
    busy = np.cumsum(np.stack([np.zeros(len(lane.t0)), lane.t1 - lane.t0], 1).ravel())
    return float((np.interp(track.t1, edges, busy) - np.interp(track.t0, edges, busy)).sum())


def _merge_tracks(lane: Track, track: Track) -> Track:
    """Merge both in order of time; where both run, the piece that began first goes on behind the other."""
    t0, t1, piece = overlay((lane.t0, lane.t1), (track.t0, track.t1))
    op, part = (np.concatenate([getattr(lane, name), getattr(track, name)])[piece] for name in ("op", "part"))
    return Track(lane.device, t0, t1, op, part)
