"""The process that each reading is of, and what all processes of a run take together.

The sampler watches one process, and all that it starts (scope "children"). Where that process only launches, each
training process has streams of its own (scope "rank:<k>", k being the number of its part). Then the figures of a run
are those of its training processes, and of all its processes together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.channels import Series, series_of
from stepscope.analysis.time.steps import span_ns
from stepscope.arrays import Floats
from stepscope.errors import RunError
from stepscope.runfolder import RunReader

WATCHED, CHILDREN = "process", "children"  # scopes in the run folder
ALL, LAUNCHER, RANK = "processes", "launcher", "rank:"  # scopes of the metrics of a run of several processes
OWN = (WATCHED, f"{RANK}0")  # scopes of the metrics of the process that wrote the run
_PID = re.compile(r"/proc/(\d+)/")
_HOLDS_PERIODS = 3.0  # a reading holds for so many typical periods of its channel, then its process is gone
_TWICE = 2  # readings, from which a channel has a typical period


@dataclass(frozen=True)
class Process:
    """A training process: its scope in the metrics and in the run folder, and its steady part, ns (None: no step)."""

    scope: str
    sampled_as: str
    span_ns: tuple[int, int] | None


@dataclass(frozen=True)
class HeldReadings:
    """Readings of one gauge, each of which holds until the next: times, ns, and values (n,).

    count: readings that the values rest on; of a sum fewer than values, where one part is read less often.
    """

    t_ns: Floats
    values: Floats
    count: int

    @property
    def until_ns(self) -> float:
        """Return how long the last reading holds, ns."""
        period = float(np.median(np.diff(self.t_ns))) if len(self.t_ns) >= _TWICE else 0.0
        return float(self.t_ns[-1]) + _HOLDS_PERIODS * period

    def at(self, t_ns: Floats, until_ns: float | None = None) -> Floats:
        """The value at each time; 0 before the first reading, and where the last holds no longer."""
        place = np.searchsorted(self.t_ns, t_ns, side="right") - 1
        there = (place >= 0) & (t_ns <= (self.until_ns if until_ns is None else until_ns))
        return np.where(there, self.values[np.maximum(place, 0)], 0.0)


def is_writer_watched(run: RunReader) -> bool:
    """Return whether the process that the sampler watched is the one that wrote the run.

    Where nothing tells, parts do.
    """
    watched, own = _watched_pid(run), run.meta.get("pid")
    return not run.part_folders if watched is None or not isinstance(own, int) else watched == own


def watched_pid_stated(run: RunReader) -> int | None:
    """The process that the sampler watched, as channels.json states it; None in runs from before that."""
    stated = run.sampling.get("pid")
    return stated if isinstance(stated, int) else None


def _watched_pid(run: RunReader) -> int | None:
    """Return the pid that run.json states, else the one that the sources of the channels name."""
    stated = watched_pid_stated(run)
    if stated is not None:
        return stated
    sources = (str(channel.get("source")) for channel in run.channels if channel.get("scope") == WATCHED)
    pid = next((match for source in sources if (match := _PID.search(source))), None)
    return int(pid[1]) if pid else None


def has_several_processes(run: RunReader) -> bool:
    """Return whether other processes than the watched one trained, so that its figures are not those of the
    training.
    """
    return not run.is_part and (bool(run.part_folders) or not is_writer_watched(run))


def training_processes(run: RunReader) -> list[Process]:
    """The processes that trained, by the number of their parts; empty where the watched one alone did."""
    if not has_several_processes(run):
        return []
    watched = _watched_pid(run)
    processes = []
    for folder, part in {run.path: run, **run.parts}.items():
        if isinstance(part, RunError):
            continue  # `ranks` says so
        scope = f"{RANK}{'0' if part is run else folder.name}"
        own = part.meta.get("pid")
        processes.append(Process(scope, WATCHED if watched is not None and own == watched else scope, span_ns(part)))
    return processes


def writer_scope(run: RunReader) -> str:
    """The scope in the run folder of the process that wrote the run."""
    return next((process.sampled_as for process in training_processes(run)), WATCHED)


def scope_name(run: RunReader, scope: str) -> str:
    """A scope of the run folder as the metrics of a run of several processes have it."""
    if scope != WATCHED or not has_several_processes(run):
        return scope
    return next((process.scope for process in training_processes(run) if process.sampled_as == WATCHED), LAUNCHER)


def cpu_of_all(run: RunReader) -> Series | None:
    """CPU time of all processes of the run, ns: the watched one's and that of all below it, or of the training ones.

    None where neither can be added up.
    """
    read = {series.scope: series for series in series_of(run, "process_cpu_time")}
    if WATCHED not in read:
        return None
    below = [CHILDREN] if CHILDREN in read else [process.sampled_as for process in training_processes(run)]
    parts = [read.get(scope) for scope in dict.fromkeys([WATCHED, *below])]
    series_of_parts = [series for series in parts if series is not None]
    if len(series_of_parts) < len(parts):
        return None
    return series_of_parts[0] if len(series_of_parts) == 1 else _sum_of_counters(series_of_parts)


def _sum_of_counters(counters: list[Series]) -> Series:
    """The sum of counters at the times of the one that is read least often."""
    seldom = max(counters, key=lambda series: series.period_ns)
    values = np.sum([np.interp(seldom.t_ns, series.t_ns, series.values) for series in counters], axis=0)
    begin, end = (edge(series.t_ns[place] for series in counters) for edge, place in ((max, 0), (min, -1)))
    inside = (seldom.t_ns >= begin - seldom.period_ns) & (seldom.t_ns <= end + seldom.period_ns)
    if inside.sum() < _TWICE:
        inside[:] = True
    source = " and ".join(dict.fromkeys(series.source for series in counters))
    gaps = np.concatenate([series.gaps_ns for series in counters])
    refresh = max(series.refresh_ns for series in counters)
    return replace(
        seldom,
        scope=ALL,
        source=source,
        refresh_ns=refresh,
        t_ns=seldom.t_ns[inside],
        values=values[inside],
        gaps_ns=gaps,
    )


def gauges(run: RunReader, quantity: str) -> dict[str, HeldReadings]:
    """The readings of a gauge by scope in the run folder, without those that failed."""
    frame = run.samples(quantity).drop_nulls("value").filter(pl.col("value").is_not_nan())
    readings = {}
    for (scope,), part in frame.group_by(["scope"], maintain_order=True):
        read = part.sort("t0_ns")
        readings[str(scope)] = HeldReadings(
            read["t0_ns"].to_numpy().astype(np.float64), read["value"].to_numpy(), len(read)
        )
    return readings


def resident_of_all(run: RunReader) -> HeldReadings | None:
    """Resident memory of all processes of the run at once, B: a page that several have counts in each.

    None where not all of them were read.
    """
    read = gauges(run, "rss")
    if CHILDREN in read and WATCHED in read:
        below = [CHILDREN]
    else:
        below = [process.sampled_as for process in training_processes(run)]
    scopes = list(dict.fromkeys([WATCHED, *below]))
    if not set(scopes) <= set(read):
        return None
    t_ns = read[CHILDREN].t_ns if CHILDREN in scopes else np.unique(np.concatenate([read[s].t_ns for s in scopes]))
    values = np.sum([read[scope].at(t_ns) for scope in scopes], axis=0)
    return HeldReadings(t_ns, values, min(read[scope].count for scope in scopes))


def proportional_of_all(run: RunReader) -> HeldReadings | None:
    """Proportional memory of all processes of the run when the child processes were read, B: a shared page counts once.

    "children" leaves out the processes that had streams of their own when it was read. None where not all were read.
    """
    read, resident = gauges(run, "pss"), gauges(run, "rss")
    ranks = {process.sampled_as for process in training_processes(run)} - {WATCHED}
    if not {WATCHED, CHILDREN, *ranks} <= set(read):
        return None
    t_ns = read[CHILDREN].t_ns  # workers come and go: their sum is not carried on
    ends = {
        scope: resident.get(scope, reading).until_ns for scope, reading in read.items()
    }  # resident: read more often
    total = read[WATCHED].at(t_ns, ends[WATCHED]) + read[CHILDREN].values
    is_known = t_ns <= ends[WATCHED]
    for scope in ranks:
        total += read[scope].at(t_ns, ends[scope])
        begun = min(read[scope].t_ns[0], resident.get(scope, read[scope]).t_ns[0])
        is_known &= (t_ns < begun) | (t_ns > read[scope].t_ns[0])  # between: in neither
    return HeldReadings(
        t_ns[is_known], total[is_known], min(read[scope].count for scope in (WATCHED, CHILDREN, *ranks))
    )
