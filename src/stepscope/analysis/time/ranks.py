"""The ranks of a distributed training side by side: step time, communication, and the rank that others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.estimate import median_over_time
from stepscope.analysis.metrics import step_time
from stepscope.analysis.process_scopes import RANK
from stepscope.analysis.time.collectives import CALL_SCHEMA
from stepscope.analysis.time.rank_parts import (
    absent_ranks,
    group_rank,
    rank_number,
    why_not_comparable,
    why_several_trainings,
)
from stepscope.analysis.time.steps import FEW, steps_after_warmup, timed_steps
from stepscope.arrays import Floats
from stepscope.errors import RunError
from stepscope.units import plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

MOSTLY = 0.7  # of the steps, from which a rank is called the last one; of two alike, each is in half of them
_APART_NS = 1_000_000  # by which ends of processes differ where one came first
_PAUSE_NS = 500_000  # between two steps, from which what the others wait for it is worth leaving out


def _columns(*names: str) -> dict[str, Any]:
    """Columns of estimates: a median and its 95 % CI, ns."""
    return {f"{name}_{end}": pl.Float64 for name in names for end in ("ns", "low_ns", "high_ns")}


RANK_SCHEMA = {
    "rank": pl.Int64,
    "process": pl.Int64,
    "pid": pl.Int64,
    "status": pl.String,
    "steps": pl.Int64,
    "profiled": pl.Int64,
    **_columns("step"),
    "samples_per_s": pl.Float64,
    **_columns("exposed"),
    "overlapped_ns": pl.Float64,
    **_columns("waiting", "late"),
    "last_share": pl.Float64,
    "peak_memory_bytes": pl.Float64,
    "peak_pss_bytes": pl.Float64,
    **{f"cpu_{end}": pl.Float64 for end in ("cores", "low_cores", "high_cores")},
}
SKEW_SCHEMA = {
    "step": pl.Int64,
    "ends_apart_ns": pl.Int64,
    "last_to_end": pl.Int64,
    "arrivals_apart_ns": pl.Int64,
    "last_to_arrive": pl.Int64,
    "collective": pl.String,
    "after_pause": pl.Boolean,
}


@dataclass(frozen=True)
class Ranks:
    """Parts of a training, the first process first, and what can be compared between them.

    table: a row a part, columns as `RANKS`; times are ns a step, medians with 95 % CI. `exposed` is phase
    communication; `waiting` the part of it before the last rank arrived at the collective that was awaited; `late`
    how much later than the first rank this one arrived at the collective of each step at which the ranks were
    furthest apart, `last_share` the share of steps in which it was the last there. `peak_memory_bytes` is the most
    that was resident in the process, pages that it shares included; `peak_pss_bytes` the same with a shared page
    divided by its users; `cpu_cores` its CPU utilisation in its steps after warm-up, without processes that it
    starts. skew: a row a step after warm-up that all parts share, columns as `SKEW`, empty where nothing can be
    compared.
    notes: what is missing, or limits it. endings: those of the notes that tell how parts ended.
    """

    parts: list[Run]
    table: pl.DataFrame
    skew: pl.DataFrame
    notes: tuple[str, ...]
    endings: tuple[str, ...] = ()


def rank_runs(run: Run) -> tuple[list[Run], tuple[str, ...]]:
    """The run itself and the parts in its folder, in order of rank; sentences on parts that are not there."""
    runs: list[Run] = []
    missing: list[str] = []
    for folder, part in run.parts.items():
        if isinstance(part, RunError):
            missing.append(f"part '{folder.name}' cannot be read: {part}")
        else:
            runs.append(part)
    parts = [run, *sorted(runs, key=lambda part: (rank_number(part), part.path.name))]
    if absent := absent_ranks(run, parts):
        missing.append(absent)
    return parts, tuple(missing)


def compare_ranks(run: Run) -> Ranks:
    """Return all facts of the parts; one row for a training in a single process."""
    parts, missing = rank_runs(run)
    clocks = why_not_comparable(parts)
    reason = clocks or why_several_trainings(parts)
    several = len(parts) > 1 or bool(missing)  # how the only process ended, the run itself states
    endings = tuple(_endings(parts, one_clock=not clocks, comparable=not reason)) if several else ()
    notes = [*missing, *endings]
    compared = _RankTimings.of(parts) if len(parts) > 1 and not reason else _RankTimings.without_data()
    if len(parts) > 1:
        notes += [f"the ranks are not compared with each other: {reason}"] if reason else compared.notes
    used = _usage_by_process(run) if len(parts) > 1 else {}
    columns = (
        compared.columns_of(at) | used.get(f"{RANK}{'0' if part is run else part.path.name}", {})
        for at, part in enumerate(parts)
    )
    rows = [_rank_row(part) | more for part, more in zip(parts, columns, strict=True)]
    return Ranks(parts, pl.DataFrame(rows, schema=RANK_SCHEMA, orient="row"), compared.skew, tuple(notes), endings)


def _usage_by_process(run: Run) -> dict[str, dict[str, float | None]]:
    """Memory and CPU utilisation of each process by its scope, columns as `RANKS`."""
    usage: dict[str, dict[str, float | None]] = {}
    for row in run.metrics().iter_rows(named=True):
        if row["metric"] == "peak_memory":
            name = "peak_pss_bytes" if row["source"] == "pss" else "peak_memory_bytes"
            usage.setdefault(row["scope"], {})[name] = row["value"]
        elif row["metric"] == "process_cpu_utilisation":
            ends = zip(("cpu_cores", "cpu_low_cores", "cpu_high_cores"), ("value", "low", "high"), strict=True)
            usage.setdefault(row["scope"], {}).update({name: row[end] for name, end in ends})
    return usage


@dataclass(frozen=True)
class LastRank:
    """The rank that the others wait for: its share of the steps, and how late it is, ns with 95 % CI.

    explains: whether waiting for it is at least half of the exposed time of the rank that has most of it.
    """

    rank: int
    share: float
    late_ns: float
    low_ns: float | None
    high_ns: float | None
    explains: bool


def last_rank(table: pl.DataFrame) -> LastRank | None:
    """The rank that arrives last in most of the steps; None where nothing could be compared, or none is."""
    rows = table.filter(pl.col("last_share").is_not_null())
    if len(rows) < 2:
        return None
    row = rows.sort("last_share", "rank", descending=[True, False]).row(0, named=True)
    most = rows.sort("exposed_ns", descending=True, nulls_last=True).row(0, named=True)
    if row["last_share"] <= MOSTLY:
        return None
    explains = (most["waiting_ns"] or 0.0) >= (most["exposed_ns"] or np.inf) / 2
    return LastRank(row["rank"], row["last_share"], row["late_ns"], row["late_low_ns"], row["late_high_ns"], explains)


def _endings(parts: list[Run], one_clock: bool, comparable: bool) -> Iterator[str]:
    """Parts that did not end well, or not with the others; of a training that failed, the one that ended first."""
    running = [part for part in parts if part.status == "running"]
    first = _first_to_end(parts) if one_clock and not running else None
    for part in sorted(parts, key=lambda part: part is not first):
        steps, reason = plural(len(part.steps), "step"), f": {part.meta['reason']}" if part.meta.get("reason") else ""
        before = ", before the others" if part is first else ""
        if part.status not in ("ok", "running"):
            reason = reason or (f": {KILLED}" if part.status == "interrupted" else "")
            yield f"rank {rank_number(part)} ended as '{part.status}' after {steps}{before}{reason}"
        elif part is first:
            yield f"rank {rank_number(part)} ended after {steps}{before}, by sys.exit or without an error that was seen"
        elif part.status == "running" and len(running) < len(parts):
            yield f"rank {rank_number(part)} has not ended"
    lengths = [len(part.steps) for part in parts]
    if max(lengths) - min(lengths) > 1:
        of_all = ": only the steps of all are compared" if comparable else ""
        yield f"the ranks made {min(lengths):,} to {max(lengths):,} steps{of_all}"


KILLED = "it was killed (by SIGKILL, say), or left by os._exit"


def _first_to_end(parts: list[Run]) -> Run | None:
    """Return the part whose process ended before all others; None of a training that ended well, or where unknown."""
    if len(parts) < 2 or all(part.status == "ok" for part in parts):
        return None
    ends = [_monotonic_end_ns(part) for part in parts]
    known_ends = sorted(end for end in ends if end is not None)
    if len(known_ends) < len(parts) or known_ends[1] - known_ends[0] < _APART_NS:
        return None
    return parts[ends.index(known_ends[0])]


def _monotonic_end_ns(part: Run) -> int | None:
    """Return when a process said its end; of one that was killed nothing tells when."""
    try:
        return int(part.meta["clock_end"]["monotonic_ns"])
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class _RankTimings:
    """Relations between the parts: skew; lateness and waiting by step of each part, ns (parts, steps)."""

    skew: pl.DataFrame
    late: Floats
    waiting: list[Floats | None]
    notes: list[str]

    @classmethod
    def without_data(cls) -> _RankTimings:
        return cls(pl.DataFrame(schema=SKEW_SCHEMA), np.empty((0, 0)), [], [])

    @classmethod
    def of(cls, parts: list[Run]) -> _RankTimings:
        arrivals, notes = _arrivals(parts)
        paused = {step for part in parts for step in _after_pauses(part)}
        clean = [step for step in arrivals if step not in paused]
        enough = len(clean) >= min(FEW, len(arrivals))
        chosen = clean if enough else list(arrivals)
        if not enough:
            notes.append(
                "too few steps lie apart from pauses (of the profiler, or requested), which the others wait for too"
            )
        widest = [arrivals[step][:, _widest(arrivals[step])] for step in chosen]
        late = np.array([times - times.min() for times in widest]).T.reshape(len(parts), len(chosen))
        waiting = [_waiting(part, arrivals, chosen) for part in parts] if chosen else []
        if any(values is None for values in waiting):
            notes.append("what of the exposed time was waiting for other ranks is open: calls and runs do not pair")
        return cls(_skew(parts, arrivals, paused), late, waiting, notes)

    def columns_of(self, at: int) -> dict[str, Any]:
        """Columns of the table for one part."""
        if self.late.size == 0:
            return {}
        waited = self.waiting[at]
        last = self.late.argmax(axis=0) == at
        columns = {} if waited is None else _median_columns("waiting", waited)
        return {**columns, **_median_columns("late", self.late[at]), "last_share": float(last.mean())}


def _arrivals(parts: list[Run]) -> tuple[dict[int, Floats], list[str]]:
    """Return when each part called each collective of a step, (parts, collectives), of steps that all have profiled
    alike.
    """
    calls = [_collective_calls(part) for part in parts]
    shared = set.intersection(*({*steps} for steps in calls))
    if not shared:
        some = any(calls)
        why = "no step was profiled in all ranks" if some else "no collective was profiled"
        return {}, [f"who waits for whom is not known: {why}"]
    same = {
        step: np.array([steps[step][1] for steps in calls], dtype=np.float64)
        for step in sorted(shared)
        if len({steps[step][0] for steps in calls}) == 1
    }
    unlike = len(shared) - len(same)
    text = f"in {plural(unlike, 'step')} the ranks called different collectives: these are not compared"
    return same, [text] if unlike else []


def _collective_calls(part: Run) -> dict[int, tuple[tuple[str, ...], list[int]]]:
    """Names and times of the collectives of each profiled step, in order."""
    time = part.collective_time
    calls = pl.DataFrame(schema=CALL_SCHEMA) if time is None else time.starts
    steps = calls.sort("step", "call").group_by("step", maintain_order=True).agg("name", "t_ns")
    return {int(step): (tuple(names), times) for step, names, times in steps.iter_rows()}


def _widest(times: Floats) -> int:
    """The collective of a step at which the parts arrived furthest apart."""
    return int(np.argmax(times.max(axis=0) - times.min(axis=0)))


def _waiting(part: Run, arrivals: dict[int, Floats], steps: list[int]) -> Floats | None:
    """Exposed time of each step before the last rank had arrived at what was awaited, ns; None where that is open."""
    time = part.collective_time
    assert time is not None, "a part without collectives has no arrivals"
    if time.waits["call"].null_count():
        return None
    spent = dict.fromkeys(steps, 0.0)
    for step, t0, t1, call in time.waits.select("step", "t0_ns", "t1_ns", "call").iter_rows():
        if step in spent:
            spent[step] += max(0.0, min(float(t1), float(arrivals[step][:, call].max())) - t0)
    return np.array([spent[step] for step in steps])


def _after_pauses(part: Run) -> set[int]:
    """Steps that do not begin where the one before ended: the profiler wrote, or the loop called for a pause."""
    steps = part.steps
    gap = steps["t0_ns"] - steps["t1_ns"].shift(1)
    return {int(step) for step in steps.filter(gap > _PAUSE_NS)["step"]}


def _skew(parts: list[Run], arrivals: dict[int, Floats], paused: set[int]) -> pl.DataFrame:
    """A row a step after warm-up that all parts have."""
    ranks = [rank_number(part) for part in parts]
    ends = [dict(steps_after_warmup(part).select("step", "t1_ns").iter_rows()) for part in parts]
    rows = []
    for step in sorted(set.intersection(*({*steps} for steps in ends))):
        times = np.array([steps[step] for steps in ends])
        apart = name = last = None
        if step in arrivals:
            widest = _widest(arrivals[step])
            at = arrivals[step][:, widest]
            apart, last, name = (
                int(at.max() - at.min()),
                ranks[int(at.argmax())],
                _collective_name(parts[0], step, widest),
            )
        rows.append((step, int(np.ptp(times)), ranks[int(times.argmax())], apart, last, name, step in paused))
    return pl.DataFrame(rows, schema=SKEW_SCHEMA, orient="row")


def _collective_name(part: Run, step: int, call: int) -> str | None:
    time = part.collective_time
    assert time is not None
    names = time.starts.filter((pl.col("step") == step) & (pl.col("call") == call))["name"]
    return str(names[0]) if len(names) else None


def _rank_row(part: Run) -> dict[str, Any]:
    steps, _ = timed_steps(part)
    step = step_time(part)
    time = part.collective_time
    counted = steps.filter(pl.col("samples").is_not_null())
    spent_s = float(counted["length_ns"].sum()) / 1e9
    row: dict[str, Any] = {
        "rank": group_rank(part),
        "process": rank_number(part),
        "pid": part.meta.get("pid"),
        "status": part.status,
        "steps": len(part.steps),
        "profiled": int(part.steps["recorded"].sum()),
        "samples_per_s": float(counted["samples"].sum()) / spent_s if spent_s else None,
    }
    if step:
        row |= {"step_ns": step[0].value, "step_low_ns": step[0].low, "step_high_ns": step[0].high}
    if time is not None:
        row |= _median_columns("exposed", time.steps["exposed_ns"].to_numpy())
        row["overlapped_ns"] = float(np.median(time.steps["overlapped_ns"].to_numpy()))
    return row


def _median_columns(name: str, values: Floats) -> dict[str, float | None]:
    """Median and 95 % CI, ns."""
    median = median_over_time(values)
    names = (f"{name}_ns", f"{name}_low_ns", f"{name}_high_ns")
    return {} if median is None else dict(zip(names, median.row, strict=True))
