"""Perfetto: protobuf track events, for ui.perfetto.dev and its trace processor.

Messages are encoded here, single ones and many alike at once from columns. The wire format has few rules: a field is a
tag (number * 8 + kind) and a value; kind 0 is a varint (7 bits a byte, the lowest first), 1 is 8 bytes little endian,
2 a length with that many bytes. A generated library makes an object a message: too slow for millions, which here are
sized first and then written column by column.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union

import numpy as np
import polars as pl

from stepscope.analysis.first_screen import workload_facts
from stepscope.analysis.time.layers import slice_names
from stepscope.arrays import Ints
from stepscope.quantities import simulated_badge
from stepscope.report.exports import _tracks
from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.exports._tracks import SampledTrack, divide_into_lanes, sampled_tracks

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.uint64]]
Sizes = Ints
Value = Union[int, float, str, bytes]  # noqa: UP007 - a value on Python 3.10

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


def varint(number: int) -> bytes:
    """A number below 2**64 as a varint; a negative one as its two's complement."""
    remaining, out = number & 0xFFFFFFFFFFFFFFFF, bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def message(*fields: tuple[int, Value | None]) -> bytes:
    """One message from (field number, value): int as varint, float as 8 bytes, text and bytes with length."""
    return b"".join(_field(number, value) for number, value in fields if value is not None)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    content = value.encode("utf-8", errors="replace") if isinstance(value, str) else value
    return varint(number << 3 | _LENGTH) + varint(len(content)) + content


@dataclass(frozen=True)
class Varints:
    """A field of many messages: values (n,) as varints; `where` (n,) leaves it out of some."""

    number: int
    values: Numbers
    where: Any = None

    def size(self) -> Sizes:
        return len(varint(self.number << 3)) + _lengths(self.values)

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        return _put_varints(out, _put_tag(out, at, self.number << 3 | _VARINT), self.values[rows])


@dataclass(frozen=True)
class Fixed64s:
    """A field of many messages: values (n,) of 8 bytes each, whatever they mean."""

    number: int
    values: Numbers
    where: Any = None

    def size(self) -> Sizes:
        return np.full(len(self.values), len(varint(self.number << 3)) + 8, dtype=np.int64)

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        at = _put_tag(out, at, self.number << 3 | _FIXED64)
        octets = np.ascontiguousarray(self.values[rows].astype("<u8")).view(np.uint8).reshape(-1, 8)
        for place in range(8):
            out[at + place] = octets[:, place]
        return at + 8


@dataclass(frozen=True)
class Messages:
    """A field of many messages that holds a message itself."""

    number: int
    fields: tuple[Field, ...]
    where: Any = None

    def size(self) -> Sizes:
        inside = sizes(self.fields)
        return len(varint(self.number << 3)) + _lengths(inside.astype(np.uint64)) + inside

    def put(self, out: Bytes, at: Sizes, rows: Any) -> Sizes:
        inside = sizes(self.fields)
        at = _put_varints(out, _put_tag(out, at, self.number << 3 | _LENGTH), inside[rows].astype(np.uint64))
        return _put_fields(out, at, self.fields, rows)


Field = Union[Varints, Fixed64s, Messages]  # noqa: UP007 - a value on Python 3.10


def sizes(fields: Sequence[Field]) -> Sizes:
    """Bytes of each of the messages that these columns make: (n,)."""
    total: Sizes = np.zeros(1, dtype=np.int64)
    for field in fields:
        total = total + (field.size() if field.where is None else np.where(field.where, field.size(), 0))
    return total


def encode(number: int, fields: Sequence[Field]) -> bytes:
    """Many messages one after the other, each as field `number` of what contains them."""
    whole = Messages(number, tuple(fields))
    length = whole.size()
    ends = np.cumsum(length)
    out: Bytes = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    whole.put(out, ends - length, slice(None))
    return out.tobytes()


def _put_fields(out: Bytes, at: Sizes, fields: Sequence[Field], rows: Any) -> Sizes:
    for field in fields:
        if field.where is None:
            at = field.put(out, at, rows)
            continue
        chosen = np.flatnonzero(field.where[rows])
        at = at.copy()
        at[chosen] = field.put(out, at[chosen], chosen if isinstance(rows, slice) else rows[chosen])
    return at


def _put_tag(out: Bytes, at: Sizes, tag: int) -> Sizes:
    for octet in varint(tag):
        out[at] = octet
        at = at + 1
    return at


def _put_varints(out: Bytes, at: Sizes, values: Numbers) -> Sizes:
    """All first bytes, then the second bytes of those that have one, and so on."""
    ends = at + _lengths(values)
    more = np.arange(len(values))
    at, remaining = at.copy(), values.copy()
    while len(more):
        low = (remaining[more] & np.uint64(0x7F)).astype(np.uint8)
        remaining[more] >>= np.uint64(7)
        goes_on = remaining[more] != 0
        out[at[more]] = low | (goes_on.astype(np.uint8) << 7)
        at[more] += 1
        more = more[goes_on]
    return ends


def _lengths(values: Numbers) -> Sizes:
    length = np.ones(len(values), dtype=np.int64)
    for place in range(1, 10):
        above = values >= np.uint64(1 << 7 * place)
        if not above.any():
            break
        length += above
    return length


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
        for part in trace_parts(excerpt):
            packed.write(part)


def trace_parts(excerpt: Excerpt) -> Iterator[bytes]:
    """The trace in parts, each a whole number of packets."""
    stream = PacketEncoder(excerpt.run.meta)
    yield stream.process(_process_name(excerpt))
    yield from _slice_packets(stream, "steps", _tracks.steps(excerpt))
    yield from _slice_packets(stream, "phases", _tracks.phases(excerpt.ops))
    yield from _thread_packets(stream, excerpt.ops)
    for track in sampled_tracks(excerpt):
        yield from _sampled_track(stream, track)
    if excerpt.events:
        yield stream.instants(
            "events", [(int(e.get("t_ns", 0)), _tracks.event_name(e), _annotations(e)) for e in excerpt.events]
        )


def _process_name(excerpt: Excerpt) -> str:
    run = excerpt.run
    name = f"training {workload_facts(run).get('name') or run.id}"
    return ", ".join(filter(None, (name, simulated_badge(run.simulated))))


def _thread_packets(stream: PacketEncoder, ops: pl.DataFrame) -> Iterator[bytes]:
    """A track a thread or stream; the arrows are numbered over all of them."""
    pairs = _tracks.forward_backward_pairs(ops)
    starts, ends = (np.zeros(len(ops), dtype=np.uint64) for _ in range(2))
    numbers = np.arange(1, len(pairs) + 1, dtype=np.uint64)
    starts[pairs["forward"].to_numpy()] = numbers
    ends[pairs["backward"].to_numpy()] = numbers
    texts = ops.select(
        slice_names(ops).cast(pl.Categorical), "phase", "module", pl.col("source").cast(pl.Categorical),
        "t0_ns", "t1_ns", "flops",
    )  # fmt: skip
    for thread in _tracks.thread_lanes(ops):
        track = stream.thread(thread.name, thread.thread if thread.lane == 0 and thread.device == "cpu" else None)
        yield track.head
        yield from stream.slices(track, Slices(texts, thread.edges, starts, ends))


def _slice_packets(stream: PacketEncoder, name: str, frame: pl.DataFrame) -> Iterator[bytes]:
    """A track of slices without ops; what overlaps goes to a further track of the same name."""
    nothing = np.zeros(len(frame), dtype=np.uint64)
    text = pl.lit(None, dtype=pl.Categorical)
    columns = frame.select(
        pl.col("name").cast(pl.Categorical),
        "t0_ns",
        "t1_ns",
        phase=text,
        module=text,
        source=text,
        flops=pl.lit(None, pl.Int64),
    )
    for lane in divide_into_lanes(frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()):
        track = stream.track(name if lane.number == 0 else f"{name}, overlapping ({lane.number})")
        yield track.head
        yield from stream.slices(track, Slices(columns, lane.edges, nothing, nothing))


def _sampled_track(stream: PacketEncoder, track: SampledTrack) -> Iterator[bytes]:
    if len(track.t_ns):
        yield stream.counter(track.group, track.name, track.unit, track.t_ns, track.values)
    if len(track.unread):
        spans = pl.DataFrame({"t0_ns": track.unread[:, 0], "t1_ns": track.unread[:, 1]})
        yield from _slice_packets(stream, f"{track.name}: not read", spans.with_columns(name=pl.lit("not read")))


def _annotations(event: dict[str, object]) -> Sequence[tuple[str, str]]:
    return [(key, str(value)) for key, value in event.items() if key not in ("t_ns", "kind")]


# Each track writes on a sequence of its own, which has the track as default, its own interned texts, and a clock that
# counts from packet to packet: an op takes two packets of some 18 bytes. Times are boot time, which is Perfetto's own
# clock: monotonic time plus the time asleep, as the run's anchors have it.

_PACKET = 1
_TIMESTAMP, _CLOCK_SNAPSHOT, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _DEFAULTS, _TRACK = (
    *(8, 6, 10, 11, 12, 13, 41, 59, 60),
)
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _DOUBLE, _FLOW, _FLOW_END = 3, 4, 9, 10, 44, 47, 48
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED = 1
_REALTIME, _MONOTONIC, _BOOTTIME, _OWN_CLOCK = 1, 3, 6, 64
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS = 1, 2, 3, 29  # of InternedData
_MODULE, _FLOPS, _SOURCE = 1, 2, 3  # of the interned annotation names
_AT_ONCE = 200_000  # packets encoded together
_UNKNOWN_PID = 1  # the training process's pid in the trace, where the run does not say it


@dataclass(frozen=True)
class Track:
    """A track on a sequence of its own; `head` has to come before its packets."""

    uuid: int
    sequence: int
    head: bytes


@dataclass(frozen=True)
class Slices:
    """Rows of `columns` (name, phase, module, source, t0_ns, t1_ns, flops) in order of `edges`; arrows by number.

    Arrow 0 is none.
    """

    columns: pl.DataFrame
    edges: Ints
    starts: Numbers
    ends: Numbers


class PacketEncoder:
    """Numbers the tracks and sequences of one trace, and encodes what is on them."""

    def __init__(self, meta: dict[str, Any]) -> None:
        clock = meta.get("clock") or {}
        monotonic, boot = clock.get("monotonic_ns"), clock.get("boottime_ns")
        self._asleep_ns = boot - monotonic if isinstance(monotonic, int) and isinstance(boot, int) else 0
        self._pid = meta["pid"] if isinstance(meta.get("pid"), int) else _UNKNOWN_PID
        self._groups: dict[str, int] = {}
        self._process = 1
        self._last_uuid = self._last_sequence = self._process
        self._meta = meta

    def process(self, name: str) -> bytes:
        """The process that all tracks belong to, and the clocks."""
        process = message((1, self._pid), (6, name))
        clocks = self._clocks(self._meta.get("clock") or {})
        described = message((_TRACK, message((1, self._process), (3, process))), (_SEQUENCE, self._process))
        return clocks + message((_PACKET, described))

    def _clocks(self, clock: dict[str, Any]) -> bytes:
        """Boot, monotonic and wall time at the begin of the run, so that a viewer can show any of them."""
        if not isinstance(clock.get("monotonic_ns"), int):
            return b""
        boot = clock["monotonic_ns"] + self._asleep_ns
        readings = [(_BOOTTIME, boot), (_MONOTONIC, clock["monotonic_ns"]), (_REALTIME, clock.get("unix_ns"))]
        snapshot = [(1, message((1, which), (2, t_ns))) for which, t_ns in readings if isinstance(t_ns, int)]
        content = (_TIMESTAMP, boot), (_SEQUENCE, self._process), (_CLOCK_SNAPSHOT, message(*snapshot))
        return message((_PACKET, message(*content)))

    def track(self, name: str) -> Track:
        """A track of slices below the process."""
        return self._new_track((2, name), (5, self._process))

    def thread(self, name: str, tid: int | None) -> Track:
        """The track of a thread of the process; of a stream of an accelerator (no tid), one below the process."""
        if not tid:  # 0 is the idle task to viewers
            return self.track(name)
        return self._new_track((4, message((1, self._pid), (2, tid), (5, name))))

    def slices(self, track: Track, slices: Slices) -> Iterator[bytes]:
        """Begin and end packets in the order of the edges, in parts."""
        if not len(slices.edges):
            return
        used = slices.columns[np.sort(slices.edges[slices.edges >= 0])]
        texts = {column: _InternedTexts.of(used[column]) for column in ("name", "phase", "module", "source")}
        before = _edge_times(slices.columns, slices.edges[:1])
        yield self._start(track, int(before[0]), _interned(texts))
        for first in range(0, len(slices.edges), _AT_ONCE):
            part = replace(slices, edges=slices.edges[first : first + _AT_ONCE])
            t_ns = _edge_times(slices.columns, part.edges)
            yield self._events(track, np.diff(t_ns, prepend=before), _slice_event(part, texts))
            before = t_ns[-1:]

    def counter(self, group: str, name: str, unit: str, t_ns: Ints, values: Any) -> bytes:
        """A counter track below the track of its group: values (n,) that hold from t_ns (n,) on."""
        parent = b"" if group in self._groups else self._group(group)
        track = self._new_track((2, name), (5, self._groups[group]), (8, message((6, unit))))
        octets = np.ascontiguousarray(values.astype("<f8")).view(np.uint64)
        event = (_constant(_TYPE, _COUNTER, octets), Fixed64s(_DOUBLE, octets))
        return (
            parent
            + track.head
            + self._start(track, int(t_ns[0]), b"")
            + self._events(track, np.diff(t_ns, prepend=t_ns[:1]), event)
        )

    def instants(self, name: str, marks: Sequence[tuple[int, str, Sequence[tuple[str, str]]]]) -> bytes:
        """A track of instants: (time, name, [(key, text)]); few, so each packet is made by itself."""
        track = self.track(name)
        parts = [track.head]
        for t_ns, what, texts in marks:
            annotations = [(_ANNOTATION, message((10, key), (6, text))) for key, text in texts]
            event = message((_TYPE, _INSTANT), (11, track.uuid), (23, what), *annotations)
            packet = message((_TIMESTAMP, t_ns + self._asleep_ns), (_SEQUENCE, track.sequence), (_EVENT, event))
            parts.append(message((_PACKET, packet)))
        return b"".join(parts)

    def _group(self, name: str) -> bytes:
        track = self.track(name)
        self._groups[name] = track.uuid
        return track.head

    def _new_track(self, *fields: tuple[int, Any]) -> Track:
        self._last_uuid += 1
        self._last_sequence += 1
        track = Track(self._last_uuid, self._last_sequence, b"")
        described = message((_SEQUENCE, track.sequence), (_TRACK, message((1, track.uuid), *fields)))
        return replace(track, head=message((_PACKET, described)))

    def _start(self, track: Track, t_ns: int, interned: bytes) -> bytes:
        """The state that a sequence's packets rely on: its track, its clock at the first time stamp, its texts."""
        boot = t_ns + self._asleep_ns
        defaults = message((58, _OWN_CLOCK), (11, message((11, track.uuid))))
        state = message(
            (_SEQUENCE, track.sequence), (_FLAGS, _STATE_CLEARED), (_CLEARED, 1), (_DEFAULTS, defaults),
            (_INTERNED, interned or None),
        )  # fmt: skip
        own = message((1, _OWN_CLOCK), (2, boot), (3, 1))
        snapshot = message((1, message((1, _BOOTTIME), (2, boot))), (1, own))
        clock = message((_SEQUENCE, track.sequence), (_CLOCK_SNAPSHOT, snapshot))
        return message((_PACKET, state)) + message((_PACKET, clock))

    def _events(self, track: Track, since_ns: Ints, event: tuple[Any, ...]) -> bytes:
        """Packets at these distances from the one before. None says that it needs the state: it is never cleared."""
        since = since_ns.astype(np.uint64)
        sequence = _constant(_SEQUENCE, track.sequence, since)
        return encode(_PACKET, (Varints(_TIMESTAMP, since), sequence, Messages(_EVENT, event)))


@dataclass(frozen=True)
class _InternedTexts:
    """The distinct texts of a column, and which of them each physical value of it is, from 1; 0 where it is none."""

    texts: list[str]
    numbers: Numbers

    @classmethod
    def of(cls, texts: pl.Series) -> _InternedTexts:
        distinct = texts.drop_nulls().unique(maintain_order=True)
        codes = distinct.to_physical().to_numpy().astype(np.int64)
        numbers = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.uint64)
        numbers[codes] = np.arange(1, len(codes) + 1, dtype=np.uint64)
        return cls(distinct.cast(pl.String).to_list(), numbers)

    def of_rows(self, texts: pl.Series) -> Numbers:
        """Numbers of the texts of some rows of the same column."""
        if not self.texts:
            return np.zeros(len(texts), dtype=np.uint64)
        codes = texts.to_physical().fill_null(0).to_numpy()
        numbers = self.numbers[np.minimum(codes, len(self.numbers) - 1)]
        return np.asarray(np.where(texts.is_null().to_numpy(), np.uint64(0), numbers))


def _slice_event(slices: Slices, texts: dict[str, _InternedTexts]) -> tuple[Any, ...]:
    begins = slices.edges >= 0
    rows = np.where(begins, slices.edges, ~slices.edges)
    columns = slices.columns[rows]
    name, phase, module = (texts[column].of_rows(columns[column]) for column in ("name", "phase", "module"))
    source = texts["source"].of_rows(columns["source"])
    source = np.where(source > 0, source + np.uint64(len(texts["module"].texts)), source)  # one list of texts for both
    counted = begins & columns["flops"].is_not_null().to_numpy()
    flops = columns["flops"].fill_null(0).to_numpy().astype(np.int64).view(np.uint64)
    return (
        Varints(_CATEGORY, phase, begins & (phase > 0)),
        Messages(_ANNOTATION, (_constant(1, _MODULE, module), Varints(17, module)), begins & (module > 0)),
        Messages(_ANNOTATION, (_constant(1, _SOURCE, source), Varints(17, source)), begins & (source > 0)),
        Messages(_ANNOTATION, (_constant(1, _FLOPS, module), Varints(4, flops)), counted),
        Varints(_TYPE, np.where(begins, _BEGIN, _END).astype(np.uint64)),
        Varints(_NAME, name, begins & (name > 0)),
        Fixed64s(_FLOW, slices.starts[rows], begins & (slices.starts[rows] > 0)),
        Fixed64s(_FLOW_END, slices.ends[rows], begins & (slices.ends[rows] > 0)),
    )


def _edge_times(columns: pl.DataFrame, edges: Ints) -> Ints:
    begins = edges >= 0
    rows = columns.select("t0_ns", "t1_ns")[np.where(begins, edges, ~edges)]
    return np.where(begins, rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy())


def _interned(texts: dict[str, _InternedTexts]) -> bytes:
    fields = ((_NAMES, "name"), (_CATEGORIES, "phase"), (_ANNOTATION_TEXTS, "module"))
    entries = [(field, number, text) for field, column in fields for number, text in enumerate(texts[column].texts, 1)]
    after = len(texts["module"].texts) + 1
    entries += [(_ANNOTATION_TEXTS, number, text) for number, text in enumerate(texts["source"].texts, after)]
    names = (_MODULE, "module"), (_FLOPS, "flops"), (_SOURCE, "source")
    entries += [(_ANNOTATION_NAMES, number, name) for number, name in names]
    return message(*((field, message((1, number), (2, text))) for field, number, text in entries))


def _constant(number: int, value: int, like: Numbers) -> Varints:
    return Varints(number, np.full(len(like), value, dtype=np.uint64))
