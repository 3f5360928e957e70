"""Collectives of one process: time in flight, exposed time, and what overlapped them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from stepscope.analysis.time.operators import COLLECTIVES, CPU, FRAMEWORK_OVERHEAD, callers, innermost_pieces
from stepscope.analysis.time.spans import complement, overlap, union
from stepscope.analysis.time.steps import profiled_steps
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import COLLECTIVE, COLLECTIVE_CALL, COMMUNICATION, OPS, RunReader

_AWAITS = "wait_tensor"  # the end of a collective's name that starts none
_OPERATION = re.compile(r"^[a-z_][a-z0-9_.]*::")
_NO_OPERATION = ("autograd::engine::", "torch::autograd::")  # ranges: a hook in Python may wait within
_LATE_NS = (100_000, 10_000_000)  # by which an end may be stamped after the wait for it, at least and at most
_NONE = -1
PHASED = ("phase", "module", "name", "device")
_COLUMNS = ("step", "t0_ns", "t1_ns", "self_ns", "parent", "name", "module", "phase", "thread", "device", "bytes")
_STEPS = ("total_ns", "exposed_ns", "waited_ns", "overlapped_ns")
WAIT_SCHEMA = {"step": pl.Int64, "t0_ns": pl.Int64, "t1_ns": pl.Int64, "name": pl.String, "call": pl.Int64}
COLLECTIVE_SCHEMA = {
    "name": pl.String,
    "where": pl.String,  # backend: beside the training; calling thread: within it; or a device
    **dict.fromkeys(("calls", "bytes", "total_ns", "exposed_ns"), pl.Float64),
}
CALL_SCHEMA = {"step": pl.Int64, "call": pl.Int64, "name": pl.String, "t_ns": pl.Int64}


@dataclass(frozen=True)
class CollectiveTime:
    """Collectives in the profiled steps after warm-up of one process.

    threads: of the backend, whose rows take no time of their own. moved: ns to add to the self times by step and
    `PHASED`: waits to collectives, and away from the ranges around them. steps: a row a step, `_STEPS` and
    `overlapped`, ns by phase. waits: stretches that are exposed, each with the collective awaited and its number in the
    step (null where calls and runs do not pair). starts: every start of a collective in order. kinds: a row a kind of
    collective, ns and counts a step, means.
    """

    threads: tuple[int, ...]
    moved: pl.DataFrame
    steps: pl.DataFrame
    overlapped: dict[str, Floats]
    waits: pl.DataFrame
    starts: pl.DataFrame
    kinds: pl.DataFrame


def has_collectives(run: RunReader) -> bool:
    """Return whether any profiled operator is a collective, by its name."""
    names = run.scan_ops().select(pl.col("name").unique().cast(pl.String)).collect()["name"]
    return bool(names.str.contains(COLLECTIVES).any())


def collective_time(run: RunReader) -> CollectiveTime | None:
    """Take the profiled steps after warm-up apart; None where no collective ran in them."""
    steps = profiled_steps(run)
    if steps.is_empty() or not has_collectives(run):
        return None
    step_frame = pl.LazyFrame({"step": steps["step"].cast(OPS["step"], strict=False)})
    ops = run.scan_ops().select(_COLUMNS)
    rows = ops.join(
        step_frame, on="step", how="semi", maintain_order="left"
    ).collect()  # a parent is a place in this order
    texts = [pl.col(name).cast(pl.String) for name in ("name", "module", "phase", "device")]
    rows = rows.with_columns(pl.col("step").cast(pl.Int64), *texts)
    table = _StepRows.of(rows)
    parts = [_measure_step(table, *span) for span in steps.select("step", "t0_ns", "t1_ns").iter_rows()]
    waits = pl.concat([pl.DataFrame(schema=WAIT_SCHEMA), *(part.waits for part in parts)])
    phases = sorted({phase for part in parts for phase in part.overlapped})
    overlapped = {phase: np.array([part.overlapped.get(phase, 0.0) for part in parts]) for phase in phases}
    times = pl.DataFrame([part.times for part in parts], schema=dict.fromkeys(_STEPS, pl.Float64), orient="row")
    return CollectiveTime(
        table.threads,
        _wait_times_to_move(table, waits),
        steps.select("step", "length_ns").with_columns(times),
        overlapped,
        waits,
        pl.concat([pl.DataFrame(schema=CALL_SCHEMA), *(part.starts for part in parts)]),
        _by_collective(table, waits, len(steps)),
    )


@dataclass(frozen=True)
class _StepRows:
    """Rows of all steps, and the pieces of the threads that train: where an operator runs, and where only a range."""

    rows: pl.DataFrame
    threads: tuple[int, ...]
    busy: Ints  # (n, 3): begin, end, number of the phase; disjoint and in order
    phases: list[str]
    ranges: Ints  # (m, 3): begin, end, row
    flights: pl.DataFrame  # outermost rows of the backend's threads
    calls: pl.DataFrame  # starts of collectives

    @classmethod
    def of(cls, rows: pl.DataFrame) -> _StepRows:
        rows = rows.with_row_index("at")
        on_cpu = rows.filter(pl.col("device") == CPU)
        by_backend = pl.col("name").str.contains(COLLECTIVE)
        trained = on_cpu.filter(
            ~pl.col("phase").is_in([COMMUNICATION, "other"]) | pl.col("name").str.contains(COLLECTIVE_CALL)
        )
        training = set(trained["thread"].unique().to_list())
        backend = sorted(set(on_cpu.filter(by_backend)["thread"].unique().to_list()) - training)
        parent = callers(rows)
        pieces = [_thread_pieces(rows, on_cpu, thread, parent) for thread in sorted(training)]
        all_pieces = np.concatenate([np.empty((0, 3), dtype=np.int64), *pieces])
        phases = rows["phase"].fill_null("other").unique().sort().to_list()
        names, in_phase = rows["name"].to_list(), rows["phase"].fill_null("other").to_list()
        is_op = np.array([_is_work(names[row], in_phase[row]) for row in all_pieces[:, 2]], dtype=bool)
        number = np.array([phases.index(in_phase[row]) for row in all_pieces[:, 2]], dtype=np.int64)
        busy = np.column_stack([all_pieces[:, :2], number])[is_op]
        outermost = on_cpu.filter(pl.col("thread").is_in(backend) & pl.col("parent").is_null())
        starts = pl.col("name").str.contains(COLLECTIVE_CALL) & ~pl.col("name").str.ends_with(_AWAITS)
        calls = on_cpu.filter(pl.col("thread").is_in(sorted(training)) & starts)
        return cls(
            rows,
            tuple(backend),
            _without_overlaps(busy),
            phases,
            all_pieces[~is_op],
            outermost.sort("t0_ns"),
            calls.sort("t0_ns"),
        )


def _is_work(name: str, phase: str) -> bool:
    """Return whether the thread works while this is the innermost row; a range around Python may as well wait."""
    if phase == COMMUNICATION:
        return True
    return _OPERATION.match(name) is not None and not name.startswith(_NO_OPERATION)


def _thread_pieces(rows: pl.DataFrame, on_cpu: pl.DataFrame, thread: int, parent: Ints) -> Ints:
    """Pieces of one thread, (n, 3): begin, end, row."""
    chosen = on_cpu.filter(pl.col("thread") == thread)["at"].to_numpy().astype(np.int64)
    place = np.full(len(rows), _NONE)
    place[chosen] = np.arange(len(chosen))
    above = parent[chosen]
    above = np.where(above == _NONE, _NONE, place[above])
    t0, t1 = (rows[name].to_numpy()[chosen] for name in ("t0_ns", "t1_ns"))
    begin, end, running = innermost_pieces(t0, t1, above)
    return np.column_stack([begin, end, chosen[running]]) if len(begin) else np.empty((0, 3), dtype=np.int64)


def _without_overlaps(busy: Ints) -> Ints:
    """Pieces in order of time; of two threads that work at once, the one that began first is counted."""
    busy = busy[np.argsort(busy[:, 0], kind="stable")]
    if len(busy) == 0:
        return busy
    until = np.maximum.accumulate(busy[:, 1])
    begin = np.maximum(busy[:, 0], np.append(busy[0, 0], until[:-1]))
    is_positive: Flags = busy[:, 1] > begin
    cut: Ints = np.column_stack([begin, busy[:, 1:]])[is_positive]
    return cut


@dataclass(frozen=True)
class _StepCollectives:
    times: tuple[float, float, float, float]
    overlapped: dict[str, float]
    waits: pl.DataFrame
    starts: pl.DataFrame


def _measure_step(table: _StepRows, step: int, t0: int, t1: int) -> _StepCollectives:
    """One step: its waits, and the time in flight by what overlapped it."""
    busy = _clip_pieces(table.busy, t0, t1)
    calls, runs = (rows.filter(pl.col("step") == step) for rows in (table.calls, table.flights))
    flights, number = _spans_in_flight(calls, runs, t1)
    flying = union(flights)
    opened = complement(busy, t0, t1)
    waits = _collective_waits(opened, flights)
    own = busy[:, 2] == (table.phases.index(COMMUNICATION) if COMMUNICATION in table.phases else _NONE)
    overlapped = {}
    covered = overlap(busy[:, :2], flying)
    for phase in np.unique(busy[~own, 2]):
        ns = float(covered[(busy[:, 2] == phase)].sum())
        if ns > 0:
            overlapped[table.phases[phase]] = ns
    waited = float((waits[:, 1] - waits[:, 0]).sum())
    idle = float(overlap(opened, flying).sum()) - waited
    if idle > 0:
        overlapped[FRAMEWORK_OVERHEAD] = idle
    own_ns = float((busy[own, 1] - busy[own, 0]).sum())
    apart = sum(overlapped.values())
    awaited = _awaited_runs(waits, flights)
    names = runs["name"].to_list()
    frame = pl.DataFrame(
        {
            "step": [step] * len(awaited),
            "t0_ns": [begin for begin, _, _ in awaited],
            "t1_ns": [end for _, end, _ in awaited],
            "name": [names[run] for _, _, run in awaited],
            "call": [None if number is None else int(number[run]) for _, _, run in awaited],
        },
        schema=WAIT_SCHEMA,
    )
    starts = calls.select(
        pl.lit(step, pl.Int64).alias("step"), call=pl.int_range(pl.len(), dtype=pl.Int64), name="name", t_ns="t0_ns"
    )
    return _StepCollectives((waited + own_ns + apart, waited + own_ns, waited, apart), overlapped, frame, starts)


def _spans_in_flight(calls: pl.DataFrame, runs: pl.DataFrame, t1: int) -> tuple[Ints, Ints | None]:
    """Begin and end of each run in flight, (n, 2), from its call where calls and runs pair; the call of each run."""
    times = runs.select("t0_ns", "t1_ns").to_numpy().astype(np.int64)
    times[:, 1] = np.minimum(times[:, 1], t1)
    number = None
    if len(calls) == len(runs) and len(runs):
        number = np.arange(len(runs))
        times[:, 0] = np.minimum(times[:, 0], calls["t0_ns"].to_numpy())
    return times, number


def _clip_pieces(pieces: Ints, t0: int, t1: int) -> Ints:
    """The pieces between two times, cut at them."""
    first, last = np.searchsorted(pieces[:, 1], t0, side="right"), np.searchsorted(pieces[:, 0], t1)
    cut: Ints = pieces[first:last].copy()
    cut[:, :2] = cut[:, :2].clip(t0, t1)
    return cut


def _collective_waits(opened: Ints, flights: Ints) -> Ints:
    """Parts of the stretches without an operator in which a collective was awaited, (n, 2)."""
    if len(opened) == 0 or len(flights) == 0:
        return np.empty((0, 2), dtype=np.int64)
    ends, flying = np.sort(flights[:, 1]), union(flights)
    late = np.clip(10 * (opened[:, 1] - opened[:, 0]), *_LATE_NS)
    last = np.searchsorted(ends, opened[:, 1] + late, side="right") - 1
    until = np.where(last >= 0, ends[np.maximum(last, 0)], opened[:, 0])
    stretches = np.column_stack([opened[:, 0], np.minimum(opened[:, 1], until)])
    stretches = stretches[stretches[:, 1] > stretches[:, 0]]
    waits = [np.empty((0, 2), dtype=np.int64)]
    for begin, end in stretches.tolist():
        inside = _clip_pieces(np.column_stack([flying, flying[:, 0]]), begin, end)[:, :2]
        waits.append(inside[inside[:, 1] > inside[:, 0]])
    return np.concatenate(waits)


def _awaited_runs(waits: Ints, flights: Ints) -> list[tuple[int, int, int]]:
    """Return begin, end and run of each part of the waits; of several runs in flight, the first to end is awaited."""
    runs: list[tuple[int, int, int]] = []
    edges = np.unique(flights)
    for begin, end in waits.tolist():
        times = [begin, *edges[(edges > begin) & (edges < end)].tolist(), end]
        for first, last in pairwise(times):
            flying = np.flatnonzero((flights[:, 0] <= first) & (flights[:, 1] >= last))
            run = int(flying[flights[flying, 1].argmin()])
            if runs and runs[-1][1:] == (first, run):
                runs[-1] = (runs[-1][0], last, run)
            else:
                runs.append((first, last, run))
    return runs


def _wait_times_to_move(table: _StepRows, waits: pl.DataFrame) -> pl.DataFrame:
    """Ns by step and `PHASED` that waits take from the ranges around them and give to the collectives."""
    additions = waits.select(
        "step",
        phase=pl.lit(COMMUNICATION),
        module=pl.lit(None, pl.String),
        name="name",
        device=pl.lit(CPU),
        self_ns=pl.col("t1_ns") - pl.col("t0_ns"),
    )
    spans = union(waits.select("t0_ns", "t1_ns").to_numpy().astype(np.int64))
    taken_ns = overlap(table.ranges[:, :2], spans)
    some = np.flatnonzero(taken_ns)
    subtractions = table.rows[table.ranges[some, 2].tolist()].select("step", *PHASED)
    subtractions = subtractions.with_columns(self_ns=pl.Series(-taken_ns[some], dtype=pl.Int64))
    moved: pl.DataFrame = pl.concat([additions, subtractions]).group_by("step", *PHASED).agg(pl.col("self_ns").sum())
    return moved


def _by_collective(table: _StepRows, waits: pl.DataFrame, steps: int) -> pl.DataFrame:
    """Calls, bytes, total and exposed time of each kind of collective a step: on the backend, calling, on a device."""
    at_backend = table.flights.filter(pl.col("name").str.contains(COLLECTIVE))
    exposed = waits.group_by("name").agg(exposed_ns=(pl.col("t1_ns") - pl.col("t0_ns")).sum())
    ran = _summed(at_backend, pl.col("t1_ns") - pl.col("t0_ns"))
    ran = ran.join(exposed, on="name", how="left").with_columns(pl.col("exposed_ns").fill_null(0))
    aside = pl.col("thread").is_in(list(table.threads)) & (pl.col("device") == CPU)
    own = table.rows.filter((pl.col("phase") == COMMUNICATION) & ~aside)
    on_cpu = _summed(own.filter(pl.col("device") == CPU), pl.col("self_ns")).with_columns(exposed_ns="total_ns")
    kernels = [_on_device(table.rows, device) for device in own["device"].unique().sort() if device != CPU]
    place = {"backend": ran, "calling thread": on_cpu}
    frames = [frame.with_columns(where=pl.lit(where)) for where, frame in place.items()] + kernels
    typed = [pl.col(name).cast(dtype) for name, dtype in COLLECTIVE_SCHEMA.items()]
    sums = pl.concat([frame.select(typed) for frame in frames])
    means = sums.with_columns(pl.col("calls", "bytes", "total_ns", "exposed_ns") / steps)
    ordered: pl.DataFrame = means.sort("exposed_ns", "name", descending=[True, False])
    return ordered


def _summed(rows: pl.DataFrame, ns: pl.Expr) -> pl.DataFrame:
    stated = pl.col("bytes").is_not_null().all() & (pl.col("bytes").sum() > 0)
    return rows.group_by("name").agg(
        calls=pl.len().cast(pl.Int64),
        bytes=pl.when(stated).then(pl.col("bytes").sum()),
        total_ns=ns.sum(),
    )


def _on_device(rows: pl.DataFrame, device: str) -> pl.DataFrame:
    """Kernels of collectives on an accelerator: exposed is where no other kernel of it ran."""
    here = rows.filter(pl.col("device") == device)
    others = here.filter(pl.col("phase") != COMMUNICATION).select("t0_ns", "t1_ns").to_numpy().astype(np.int64)
    kernels = here.filter(pl.col("phase") == COMMUNICATION)
    spans = kernels.select("t0_ns", "t1_ns").to_numpy().astype(np.int64)
    alone = (spans[:, 1] - spans[:, 0]) - overlap(spans, union(others))
    kernels = kernels.with_columns(exposed_ns=pl.Series(alone))
    exposed = kernels.group_by("name").agg(pl.col("exposed_ns").sum())
    summed = _summed(kernels, pl.col("t1_ns") - pl.col("t0_ns")).join(exposed, on="name")
    return summed.with_columns(where=pl.lit(device))


def overlap_by_phase(overlapped: dict[str, Floats]) -> Iterator[tuple[str, float]]:
    """Median ns a step of each phase that overlapped collectives, longest first."""
    medians = {phase: float(np.median(values)) for phase, values in overlapped.items()}
    yield from sorted(((phase, ns) for phase, ns in medians.items() if ns > 0), key=lambda entry: -entry[1])
