"""Tracks of a trace viewer: threads, steps, phases and arrows in lanes that nest, and what was sampled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.channels import channel_timeline, is_of_simulated_board
from stepscope.analysis.process_scopes import scope_name
from stepscope.arrays import Floats, Ints
from stepscope.quantities import GROUPS, find_quantity
from stepscope.report.exports._excerpt import Excerpt
from stepscope.runfolder import COLLECTIVE, COMMUNICATION, MODULE_CALL

_CPU = "cpu"


@dataclass(frozen=True)
class Thread:
    """The ops of one thread, or one stream of an accelerator, in one lane; `rows` count those of the excerpt."""

    device: str
    thread: int
    lane: int
    rows: Ints
    edges: Ints  # as in a Lane, but of rows of the excerpt

    @property
    def name(self) -> str:
        """Return the name in the viewer."""
        place = f"thread {self.thread}" if self.device == _CPU else f"{self.device} stream {self.thread}"
        return place if self.lane == 0 else f"{place}, overlapping ({self.lane})"


def thread_lanes(ops: pl.DataFrame) -> list[Thread]:
    """Every op in exactly one thread, in lanes that nest; the training process's threads first, then streams."""
    if ops.is_empty():
        return []
    places = ops.select("t0_ns", "t1_ns", "thread", device=pl.col("device").cast(pl.String).fill_null(_CPU))
    threads: list[Thread] = []
    for (device, thread), rows in places.with_row_index("at").group_by(["device", "thread"], maintain_order=True):
        at = rows["at"].to_numpy().astype(np.int64)
        placed = divide_into_lanes(rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy())
        threads.extend(_thread_lane(str(device), int(str(thread or 0)), at, lane) for lane in placed)
    return sorted(threads, key=lambda thread: (thread.device != _CPU, thread.device, thread.thread, thread.lane))


def _thread_lane(device: str, thread: int, at: Ints, lane: Lane) -> Thread:
    edges = np.where(lane.edges >= 0, at[lane.edges], ~at[~lane.edges])
    return Thread(device, thread, lane.number, edges[edges >= 0], edges)


def steps(excerpt: Excerpt) -> pl.DataFrame:
    """Every chosen step as a slice: t0_ns, t1_ns, name, and as the run has them step, samples, loss, recorded."""
    name = pl.format("step {}", "step").alias("name")
    return excerpt.steps.select("t0_ns", "t1_ns", name, "step", "samples", "loss", "recorded")


def phases(ops: pl.DataFrame) -> pl.DataFrame:
    """Each stretch of a step in which the outermost ops are of one phase: t0_ns, t1_ns, name.

    What a backend of torch.distributed runs beside them is in its own threads alone.
    """
    top = ops.filter(pl.col("parent").is_null() & (pl.col("device").cast(pl.String) == _CPU))
    top = top.filter(~pl.col("thread").is_in(_is_collective_thread(top).implode()))
    top = top.with_columns(pl.col("phase").cast(pl.String)).sort("step", "t0_ns", maintain_order=True)
    turns = (pl.struct("step", "phase") != pl.struct("step", "phase").shift(1)).fill_null(True).cum_sum()
    stretches = top.group_by(turns.alias("turn"), maintain_order=True)
    return stretches.agg(pl.col("t0_ns").min(), pl.col("t1_ns").max(), name=pl.col("phase").first()).drop("turn")


def _is_collective_thread(top: pl.DataFrame) -> pl.Series:
    """Threads on which nothing but collectives runs."""
    ran = pl.col("name").cast(pl.String).str.contains(COLLECTIVE).any()
    alone = (pl.col("phase").cast(pl.String) == COMMUNICATION).all()
    return top.group_by("thread").agg(kept=ran & alone).filter("kept")["thread"]


def forward_backward_pairs(ops: pl.DataFrame) -> pl.DataFrame:
    """Pairs of rows of the excerpt (forward, backward), one a module and step: its call and where its backward begins.

    Of a module that is called several times in a step it is the last call: autograd goes back through that one first.
    """
    placed = ops.select("step", "module", "t0_ns", phase=pl.col("phase").cast(pl.String), name=pl.col("name").cast(str))
    placed = placed.with_row_index("at").filter(pl.col("module").is_not_null())
    calls = placed.filter((pl.col("phase") == "forward") & pl.col("name").str.starts_with(MODULE_CALL))
    forward = calls.group_by("step", "module").agg(forward=pl.col("at").sort_by("t0_ns").last())
    back = placed.filter(pl.col("phase") == "backward")
    backward = back.group_by("step", "module").agg(backward=pl.col("at").sort_by("t0_ns").first())
    pairs = forward.join(backward, on=["step", "module"]).select("forward", "backward").cast(pl.Int64)
    return pairs.sort("forward")


@dataclass(frozen=True)
class Lane:
    """One row of a viewer: `edges` is what happens in order, row r as r when it begins and as ~r when it ends."""

    edges: Ints
    number: int  # 0 is the lane that everything is in unless it overlaps

    @property
    def rows(self) -> Ints:
        """The rows that lie here, in order of their begin."""
        return self.edges[self.edges >= 0]


def divide_into_lanes(t0_ns: Ints, t1_ns: Ints) -> list[Lane]:
    """Divide slices into as few lanes as nesting allows, greedily; t0_ns, t1_ns: (n,)."""
    order = np.lexsort((-t1_ns, t0_ns))
    stacks = _Stacks()
    for row, begin, end in zip(order.tolist(), t0_ns[order].tolist(), t1_ns[order].tolist(), strict=True):
        stacks.place(row, begin, end)
    return stacks.lanes()


class _Stacks:
    """Open slices of each lane, while slices are placed in order of their begin."""

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[]]
        self._open: list[list[tuple[int, int]]] = [[]]

    def place(self, row: int, begin: int, end: int) -> None:
        for edges, stack in zip(self._edges, self._open, strict=True):
            while stack and stack[-1][0] <= begin:
                edges.append(~stack.pop()[1])
            if not stack or end <= stack[-1][0]:
                break
        else:
            edges, stack = [], []
            self._edges.append(edges)
            self._open.append(stack)
        edges.append(row)
        stack.append((end, row))

    def lanes(self) -> list[Lane]:
        for edges, stack in zip(self._edges, self._open, strict=True):
            while stack:
                edges.append(~stack.pop()[1])
        return [Lane(np.array(edges, dtype=np.int64), number) for number, edges in enumerate(self._edges) if edges]


_CORES = ("core_busy_time", "core_idle_time")


@dataclass(frozen=True)
class SampledTrack:
    """One track: t_ns and values (n,) and unread (m, 2), ns; a value holds until the next or until it is unread."""

    group: str
    name: str
    unit: str
    t_ns: Ints
    values: Floats
    unread: Ints


def sampled_tracks(excerpt: Excerpt) -> list[SampledTrack]:
    """A track for every channel: gauges as read, counters as their growth a second, cores as their utilisation."""
    tracks = [
        track for track in (*_core_tracks(excerpt), *_channel_tracks(excerpt)) if len(track.t_ns) or len(track.unread)
    ]
    return sorted(_number_equal_names(tracks), key=lambda track: GROUPS.index(track.group))


def _channel_tracks(excerpt: Excerpt) -> Iterator[SampledTrack]:
    for channel in excerpt.channels:
        quantity = str(channel.get("quantity"))
        if quantity in _CORES:
            continue
        samples = excerpt.samples(channel)
        if samples.is_empty():
            continue
        line = channel_timeline(channel, samples)
        what = f"{quantity.replace('_', ' ')}{' rate' if line.rate else ''}"
        estimated = " (estimated)" if channel.get("kind") == "estimate" else ""
        simulated = " (simulated)" if excerpt.simulated_board(channel) else ""
        scope = scope_name(excerpt.run, str(channel.get("scope")))
        name = f"{what} {channel.get('rail') or scope}{estimated or simulated}"
        unit = find_quantity("", line.unit).shown_unit
        yield SampledTrack(
            find_quantity(quantity).group,
            name,
            unit,
            _round_to_int(line.t_ns),
            line.values,
            _round_to_int(line.gaps_ns),
        )


def _core_tracks(excerpt: Excerpt) -> Iterator[SampledTrack]:
    """Utilisation of each core, as the page has it, from the first to the last chosen step."""
    if excerpt.span_ns is None or excerpt.span_ns[0] >= excerpt.span_ns[1]:
        return
    for (scope,), frame in excerpt.run.core_timeline(*excerpt.span_ns).group_by(["scope"], maintain_order=True):
        read, unread = (frame.filter(pl.col("utilisation").is_null() == null) for null in (False, True))
        simulated = " (simulated)" if is_of_simulated_board(excerpt.run, _CORES[0]) else ""
        name = f"utilisation {str(scope).replace(':', ' ')}{simulated}"
        t_ns, values = read["t0_ns"].to_numpy(), read["utilisation"].to_numpy()
        yield SampledTrack(
            "Utilisation", name, "share", t_ns, values, _joined_spans(unread.select("t0_ns", "t1_ns").to_numpy())
        )


def event_name(event: dict[str, Any]) -> str:
    """Return the name of an event in the viewer."""
    return str(event.get("kind") or "event")


def _joined_spans(spans: Ints) -> Ints:
    """Spans that touch as one: (m, 2)."""
    if not len(spans):
        return spans
    new = np.concatenate([[True], spans[1:, 0] > spans[:-1, 1] + 1])
    return np.column_stack([spans[new, 0], spans[np.append(np.flatnonzero(new)[1:] - 1, len(spans) - 1), 1]])


def _number_equal_names(tracks: list[SampledTrack]) -> Iterator[SampledTrack]:
    """Return the tracks; where several share a name, the later ones are numbered."""
    counts: dict[str, int] = {}
    for track in tracks:
        counts[track.name] = count = counts.get(track.name, 0) + 1
        name = track.name if count == 1 else f"{track.name} #{count}"
        yield SampledTrack(track.group, name, track.unit, track.t_ns, track.values, track.unread)


def _round_to_int(t_ns: Floats) -> Ints:
    return np.asarray(np.rint(t_ns).astype(np.int64))
