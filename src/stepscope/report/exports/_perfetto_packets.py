"""The packets of a Perfetto trace (protos/perfetto/trace of its sources), a sequence of packets a track.

Each track writes on a sequence of its own, which has the track as default, its own interned texts, and a clock that
counts from packet to packet: an op takes two packets of some 18 bytes. Times are boot time, which is Perfetto's own
clock: monotonic time plus the time asleep, as the run's anchors have it.
"""

from __future__ import annotations

from collections.abc import Sequence
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
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_REALTIME, _MONOTONIC, _BOOTTIME, _OWN_CLOCK = 1, 3, 6, 64
_CATEGORIES, _NAMES, _ANNOTATION_NAMES, _ANNOTATION_TEXTS = 1, 2, 3, 29  # of InternedData
_MODULE, _FLOPS = 1, 2  # of the interned annotation names
_TRAINER = 1  # the trainer's pid in the trace, where the run does not say it


@dataclass(frozen=True)
class Track:
    """A track on a sequence of its own; `head` has to come before its packets."""

    uuid: int
    sequence: int
    head: bytes


@dataclass(frozen=True)
class Slices:
    """Rows of `columns` (name, phase, module, t0_ns, t1_ns, flops) in order of `edges`; arrows by number, 0 for none."""

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
        if tid is None:
            return self.track(name)
        return self._new((4, message((1, self._pid), (2, tid), (5, name))))

    def slices(self, track: Track, slices: Slices) -> bytes:
        """Begin and end packets in the order of the edges."""
        if not len(slices.edges):
            return b""
        begins = slices.edges >= 0
        rows = np.where(begins, slices.edges, ~slices.edges)
        columns = slices.columns[rows]
        t_ns = np.where(begins, columns["t0_ns"].to_numpy(), columns["t1_ns"].to_numpy())
        (names, name), (phases, phase), (modules, module) = (_interned(columns[c]) for c in ("name", "phase", "module"))
        flops = columns["flops"].to_numpy(allow_copy=True) if len(columns) else np.empty(0)
        counted = begins & columns["flops"].is_not_null().to_numpy()
        texts = [(_MODULE, "module"), (_FLOPS, "flops")]
        interned = message(
            *_entries(_NAMES, names), *_entries(_CATEGORIES, phases), *_entries(_ANNOTATION_TEXTS, modules),
            *((_ANNOTATION_NAMES, message((1, iid), (2, text))) for iid, text in texts),
        )  # fmt: skip
        event = (
            Varints(_CATEGORY, phase, begins & (phase > 0)),
            Messages(_ANNOTATION, (_constant(1, _MODULE, module), Varints(17, module)), begins & (module > 0)),
            Messages(_ANNOTATION, (_constant(1, _FLOPS, module), Varints(4, _numbers(flops, counted))), counted),
            Varints(_TYPE, np.where(begins, _BEGIN, _END).astype(np.uint64)),
            Varints(_NAME, name, begins & (name > 0)),
            Fixed64s(_FLOW, slices.starts[rows], begins & (slices.starts[rows] > 0)),
            Fixed64s(_FLOW_END, slices.ends[rows], begins & (slices.ends[rows] > 0)),
        )
        return self._start(track, int(t_ns[0]), interned) + self._events(track, t_ns, event, begins)

    def counter(self, group: str, name: str, unit: str, t_ns: Ints, values: Any) -> bytes:
        """A counter track below the track of its group: values (n,) that hold from t_ns (n,) on."""
        parent = b"" if group in self._groups else self._group(group)
        track = self._new((2, name), (5, self._groups[group]), (8, message((6, unit))))
        octets = np.ascontiguousarray(values.astype("<f8")).view(np.uint64)
        event = (_constant(_TYPE, _COUNTER, octets), Fixed64s(_DOUBLE, octets))
        return parent + track.head + self._start(track, int(t_ns[0]), b"") + self._events(track, t_ns, event, None)

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

    def _events(self, track: Track, t_ns: Ints, event: tuple[Any, ...], needs_texts: Any) -> bytes:
        since = np.diff(t_ns, prepend=t_ns[:1]).astype(np.uint64)
        return encode(
            _PACKET,
            (
                Varints(_TIMESTAMP, since),
                _constant(_SEQUENCE, track.sequence, since),
                Messages(_EVENT, event),
                *((_constant(_FLAGS, _NEEDS_STATE, since, needs_texts),) if needs_texts is not None else ()),
            ),
        )


def _constant(number: int, value: int, like: Numbers, where: Any = None) -> Varints:
    return Varints(number, np.full(len(like), value, dtype=np.uint64), where)


def _interned(texts: pl.Series) -> tuple[list[str], Numbers]:
    """The distinct texts, and which of them each row has, from 1; 0 where it has none."""
    known = texts.drop_nulls().unique(maintain_order=True).cast(pl.String)
    numbers = pl.Series(np.arange(1, len(known) + 1), dtype=pl.UInt64)
    which = texts.cast(pl.String).replace_strict(known, numbers, default=0, return_dtype=pl.UInt64)
    return known.to_list(), which.fill_null(0).to_numpy()


def _entries(number: int, texts: list[str]) -> list[tuple[int, bytes]]:
    return [(number, message((1, iid), (2, text))) for iid, text in enumerate(texts, 1)]


def _numbers(values: Any, where: Any) -> Numbers:
    return np.where(where, np.nan_to_num(values), 0).astype(np.int64).view(np.uint64)
