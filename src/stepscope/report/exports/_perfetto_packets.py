"""The packets of a Perfetto trace (protos/perfetto/trace of its sources), a sequence of packets a track.

Each track writes on a sequence of its own, which has the track as default, its own interned texts, and a clock that
counts from packet to packet: an op takes two packets of some 18 bytes. Times are boot time, which is Perfetto's own
clock: monotonic time plus the time asleep, as the run's anchors have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.report.exports._lanes import Ints
from stepscope.report.exports._protobuf import Fixed64s, Messages, Numbers, Varints, encode, message

_PACKET = 1
_TIMESTAMP, _CLOCK_SNAPSHOT, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _CLEARED, _DEFAULTS, _TRACK = (
    *(8, 6, 10, 11, 12, 13, 41, 59, 60),
)
_CATEGORY, _ANNOTATION, _TYPE, _NAME, _DOUBLE, _FLOW, _FLOW_END = 3, 4, 9, 10, 44, 47, 48
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_STATE_CLEARED = 1
_REALTIME, _MONOTONIC, _BOOTTIME, _OWN_CLOCK = 1, 3, 6, 64
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS = 1, 2, 3, 29  # of InternedData
_MODULE, _FLOPS = 1, 2  # of the interned annotation names
_AT_ONCE = 200_000  # packets encoded together
_TRAINER = 1  # the trainer's pid in the trace, where the run does not say it


@dataclass(frozen=True)
class Track:
    """A track on a sequence of its own; `head` has to come before its packets."""

    uuid: int
    sequence: int
    head: bytes


@dataclass(frozen=True)
class Slices:
    """Rows of `columns` (name, phase, module, t0_ns, t1_ns, flops) in order of `edges`; arrows by number, 0: none."""

    columns: pl.DataFrame
    edges: Ints
    starts: Numbers
    ends: Numbers


class Packets:
    """Numbers the tracks and sequences of one trace, and encodes what is on them."""

    def __init__(self, meta: dict[str, Any]) -> None:
        clock = meta.get("clock") or {}
        monotonic, boot = clock.get("monotonic_ns"), clock.get("boottime_ns")
        self._asleep_ns = boot - monotonic if isinstance(monotonic, int) and isinstance(boot, int) else 0
        self._pid = meta["pid"] if isinstance(meta.get("pid"), int) else _TRAINER
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
        return self._new((2, name), (5, self._process))

    def thread(self, name: str, tid: int | None) -> Track:
        """The track of a thread of the process; of a stream of an accelerator (no tid), one below the process."""
        if not tid:  # 0 is the idle task to viewers
            return self.track(name)
        return self._new((4, message((1, self._pid), (2, tid), (5, name))))

    def slices(self, track: Track, slices: Slices) -> Iterator[bytes]:
        """Begin and end packets in the order of the edges, in parts."""
        if not len(slices.edges):
            return
        used = slices.columns[np.sort(slices.edges[slices.edges >= 0])]
        texts = {column: _Texts.of(used[column]) for column in ("name", "phase", "module")}
        before = _times(slices.columns, slices.edges[:1])
        yield self._start(track, int(before[0]), _interned(texts))
        for first in range(0, len(slices.edges), _AT_ONCE):
            part = replace(slices, edges=slices.edges[first : first + _AT_ONCE])
            t_ns = _times(slices.columns, part.edges)
            yield self._events(track, np.diff(t_ns, prepend=before), _slice_event(part, texts))
            before = t_ns[-1:]

    def counter(self, group: str, name: str, unit: str, t_ns: Ints, values: Any) -> bytes:
        """A counter track below the track of its group: values (n,) that hold from t_ns (n,) on."""
        parent = b"" if group in self._groups else self._group(group)
        track = self._new((2, name), (5, self._groups[group]), (8, message((6, unit))))
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
        for t_ns, what, said in marks:
            annotations = [(_ANNOTATION, message((10, key), (6, text))) for key, text in said]
            event = message((_TYPE, _INSTANT), (11, track.uuid), (23, what), *annotations)
            packet = message((_TIMESTAMP, t_ns + self._asleep_ns), (_SEQUENCE, track.sequence), (_EVENT, event))
            parts.append(message((_PACKET, packet)))
        return b"".join(parts)

    def _group(self, name: str) -> bytes:
        track = self.track(name)
        self._groups[name] = track.uuid
        return track.head

    def _new(self, *fields: tuple[int, Any]) -> Track:
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
class _Texts:
    """The distinct texts of a column, and which of them each physical value of it is, from 1; 0 where it is none."""

    known: list[str]
    numbers: Numbers

    @classmethod
    def of(cls, texts: pl.Series) -> _Texts:
        known = texts.drop_nulls().unique(maintain_order=True)
        codes = known.to_physical().to_numpy().astype(np.int64)
        numbers = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.uint64)
        numbers[codes] = np.arange(1, len(codes) + 1, dtype=np.uint64)
        return cls(known.cast(pl.String).to_list(), numbers)

    def of_rows(self, texts: pl.Series) -> Numbers:
        """Numbers of the texts of some rows of the same column."""
        if not self.known:
            return np.zeros(len(texts), dtype=np.uint64)
        codes = texts.to_physical().fill_null(0).to_numpy()
        found = self.numbers[np.minimum(codes, len(self.numbers) - 1)]
        return np.asarray(np.where(texts.is_null().to_numpy(), np.uint64(0), found))


def _slice_event(slices: Slices, texts: dict[str, _Texts]) -> tuple[Any, ...]:
    begins = slices.edges >= 0
    rows = np.where(begins, slices.edges, ~slices.edges)
    columns = slices.columns[rows]
    name, phase, module = (texts[column].of_rows(columns[column]) for column in ("name", "phase", "module"))
    counted = begins & columns["flops"].is_not_null().to_numpy()
    flops = columns["flops"].fill_null(0).to_numpy().astype(np.int64).view(np.uint64)
    return (
        Varints(_CATEGORY, phase, begins & (phase > 0)),
        Messages(_ANNOTATION, (_constant(1, _MODULE, module), Varints(17, module)), begins & (module > 0)),
        Messages(_ANNOTATION, (_constant(1, _FLOPS, module), Varints(4, flops)), counted),
        Varints(_TYPE, np.where(begins, _BEGIN, _END).astype(np.uint64)),
        Varints(_NAME, name, begins & (name > 0)),
        Fixed64s(_FLOW, slices.starts[rows], begins & (slices.starts[rows] > 0)),
        Fixed64s(_FLOW_END, slices.ends[rows], begins & (slices.ends[rows] > 0)),
    )


def _times(columns: pl.DataFrame, edges: Ints) -> Ints:
    begins = edges >= 0
    rows = columns.select("t0_ns", "t1_ns")[np.where(begins, edges, ~edges)]
    return np.where(begins, rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy())


def _interned(texts: dict[str, _Texts]) -> bytes:
    fields = ((_NAMES, "name"), (_CATEGORIES, "phase"), (_ANNOTATION_TEXTS, "module"))
    entries = [(field, number, text) for field, column in fields for number, text in enumerate(texts[column].known, 1)]
    entries += [(_ANNOTATION_NAMES, _MODULE, "module"), (_ANNOTATION_NAMES, _FLOPS, "flops")]
    return message(*((field, message((1, number), (2, text))) for field, number, text in entries))


def _constant(number: int, value: int, like: Numbers) -> Varints:
    return Varints(number, np.full(len(like), value, dtype=np.uint64))
