"""Perfetto: protobuf track events, for ui.perfetto.dev and its trace processor."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.report.exports import _spans
from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.exports._lanes import lanes
from stepscope.report.exports._perfetto_packets import Packets, Slices
from stepscope.report.exports._sampled import Sampled, sampled

TITLE = "Perfetto trace, for ui.perfetto.dev"
SUFFIX = ".pftrace.gz"

_PER_OP, _PER_SAMPLE, _PER_STEP, _FIXED = 9, 4, 20, 4_000  # bytes, measured
_FASTEST = 1  # of gzip: the slower levels save a tenth more


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    return _FIXED + _PER_OP * excerpt.op_count + _PER_SAMPLE * excerpt.sample_count + _PER_STEP * len(excerpt.steps)


def write(excerpt: Excerpt, path: Path) -> None:
    """Write the trace, compressed: Perfetto reads it as it is, and a fourth is sooner copied from a board."""
    with path.open("wb") as file, gzip.GzipFile("", "wb", _FASTEST, file, mtime=0) as packed:
        for part in content(excerpt):
            packed.write(part)


def content(excerpt: Excerpt) -> Iterator[bytes]:
    """The trace in parts, each a whole number of packets."""
    stream = Packets(excerpt.run.meta)
    yield stream.process(_process(excerpt))
    yield from _slices(stream, "steps", _spans.steps(excerpt))
    yield from _slices(stream, "phases", _spans.phases(excerpt.ops))
    yield from _threads(stream, excerpt.ops)
    for track in sampled(excerpt):
        yield from _sampled(stream, track)
    if excerpt.events:
        yield stream.instants("events", [(int(e.get("t_ns", 0)), _kind(e), _said(e)) for e in excerpt.events])


def _process(excerpt: Excerpt) -> str:
    workload = excerpt.run.meta.get("workload")
    name = workload.get("name") if isinstance(workload, dict) else workload
    return f"training {name or excerpt.run.id}"


def _threads(stream: Packets, ops: pl.DataFrame) -> Iterator[bytes]:
    """A track a thread or stream; the arrows are numbered over all of them."""
    pairs = _spans.flows(ops)
    starts, ends = (np.zeros(len(ops), dtype=np.uint64) for _ in range(2))
    numbers = np.arange(1, len(pairs) + 1, dtype=np.uint64)
    starts[pairs["forward"].to_numpy()] = numbers
    ends[pairs["backward"].to_numpy()] = numbers
    texts = ops.select("name", "phase", "module", "t0_ns", "t1_ns", "flops")
    for thread in _spans.threads(ops):
        track = stream.thread(thread.name, thread.thread if thread.lane == 0 and thread.device == "cpu" else None)
        yield track.head
        yield from stream.slices(track, Slices(texts, thread.edges, starts, ends))


def _slices(stream: Packets, name: str, frame: pl.DataFrame) -> Iterator[bytes]:
    """A track of slices without ops; what overlaps goes to a further track of the same name."""
    nothing = np.zeros(len(frame), dtype=np.uint64)
    text = pl.lit(None, dtype=pl.Categorical)
    columns = frame.select(
        pl.col("name").cast(pl.Categorical), "t0_ns", "t1_ns", phase=text, module=text, flops=pl.lit(None, pl.Int64)
    )
    for lane in lanes(frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()):
        track = stream.track(name if lane.number == 0 else f"{name}, overlapping ({lane.number})")
        yield track.head
        yield from stream.slices(track, Slices(columns, lane.edges, nothing, nothing))


def _sampled(stream: Packets, track: Sampled) -> Iterator[bytes]:
    if len(track.t_ns):
        yield stream.counter(track.group, track.name, track.unit, track.t_ns, track.values)
    if len(track.unread):
        spans = pl.DataFrame({"t0_ns": track.unread[:, 0], "t1_ns": track.unread[:, 1]})
        yield from _slices(stream, f"{track.name}: not read", spans.with_columns(name=pl.lit("not read")))


def _kind(event: dict[str, object]) -> str:
    return str(event.get("kind") or "event")


def _said(event: dict[str, object]) -> Sequence[tuple[str, str]]:
    return [(key, str(value)) for key, value in event.items() if key not in ("t_ns", "kind")]
