"""Reads Perfetto traces by the rules of its protos, knowing nothing of how ours are written: for tests."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

BOOTTIME = 6


@dataclass
class Slice:
    """One slice as a viewer would show it."""

    name: str
    t0_ns: int
    t1_ns: int
    depth: int
    category: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    ends: int = 0


@dataclass
class Track:
    """One track with all that happens on it."""

    name: str = ""
    parent: int = 0
    unit: str | None = None
    thread: tuple[int, int] | None = None  # pid, tid
    process: str | None = None
    slices: list[Slice] = field(default_factory=list)
    counters: list[tuple[int, float]] = field(default_factory=list)
    instants: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)


@dataclass
class _Sequence:
    clock_ns: int = 0
    own_clock: int | None = None
    default_clock: int = BOOTTIME
    track: int = 0
    texts: dict[tuple[int, int], str] = field(default_factory=dict)


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of one message: int of a varint, float of 8 bytes, bytes of what has a length."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 1:
            yield tag >> 3, data[at : at + 8]
            at += 8
        else:
            assert tag & 7 == 2, f"kind {tag & 7} at {at}"
            size, at = _varint(data, at)
            assert at + size <= len(data), "a message that is longer than what holds it"
            yield tag >> 3, data[at : at + size]
            at += size


def one(data: bytes) -> dict[int, Any]:
    """A message whose fields do not repeat."""
    return dict(fields(data))


def read(data: bytes) -> dict[int, Track]:
    """Every track by its uuid; asserts what a viewer would count as an error."""
    reader = _Reader()
    for number, packet in fields(data):
        assert number == 1
        reader.packet(packet)
    assert not any(reader.open.values()), "a slice that never ends"
    return reader.tracks


class _Reader:
    def __init__(self) -> None:
        self.tracks: dict[int, Track] = {}
        self.open: dict[int, list[Slice]] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._last_ns: dict[int, int] = {}

    def packet(self, data: bytes) -> None:
        packet = one(data)
        sequence = self._sequences.setdefault(packet[10], _Sequence())
        if packet.get(13, 0) & 1:
            self._sequences[packet[10]] = sequence = _Sequence()
        if 59 in packet:
            defaults = one(packet[59])
            sequence.default_clock, sequence.track = defaults[58], one(defaults[11])[11]
        if 12 in packet:
            for kind, entry in fields(packet[12]):
                number, text = one(entry)[1], one(entry)[2]
                sequence.texts[(kind, number)] = text.decode()
        if 6 in packet:
            self._clocks(packet[6], sequence)
        if 60 in packet:
            self._describe(one(packet[60]))
        if 11 in packet:
            self._event(packet, sequence)

    def _clocks(self, data: bytes, sequence: _Sequence) -> None:
        clocks = [one(clock) for number, clock in fields(data) if number == 1]
        times = {clock[1]: clock[2] for clock in clocks}
        for clock in clocks:
            if clock.get(3):
                assert clock[1] >= 64, "only a clock of the sequence may be incremental"
                assert clock[2] == times[BOOTTIME]
                sequence.own_clock, sequence.clock_ns = clock[1], clock[2]

    def _describe(self, data: dict[int, Any]) -> None:
        track = self.tracks.setdefault(data[1], Track())
        track.name, track.parent = data.get(2, b"").decode(), data.get(5, 0)
        if 3 in data:
            track.process = one(data[3])[6].decode()
        if 4 in data:
            thread = one(data[4])
            track.thread, track.name = (thread[1], thread[2]), thread[5].decode()
        if 8 in data:
            track.unit = one(data[8])[6].decode()

    def _event(self, packet: dict[int, Any], sequence: _Sequence) -> None:
        t_ns = packet[8]
        if sequence.default_clock == sequence.own_clock:
            sequence.clock_ns += t_ns
            t_ns = sequence.clock_ns
        event = one(packet[11])
        uuid = event.get(11, sequence.track)
        assert uuid in self.tracks, "an event on a track that nothing describes"
        assert t_ns >= self._last_ns.get(uuid, 0), "time runs backwards"
        self._last_ns[uuid] = t_ns
        track = self.tracks[uuid]
        if event[9] == 1:
            self._begin(uuid, event, packet[11], t_ns, sequence)
        elif event[9] == 2:
            self.open[uuid].pop().t1_ns = t_ns
        elif event[9] == 3:
            args = {one(a)[10].decode(): one(a)[6].decode() for number, a in fields(packet[11]) if number == 4}
            track.instants.append((t_ns, event[23].decode(), args))
        else:
            assert event[9] == 4
            track.counters.append((t_ns, struct.unpack("<d", event[44])[0]))

    def _begin(self, uuid: int, event: dict[int, Any], data: bytes, t_ns: int, sequence: _Sequence) -> None:
        stack = self.open.setdefault(uuid, [])
        args = {}
        for annotation in (one(value) for number, value in fields(data) if number == 4):
            name = sequence.texts[(3, annotation[1])]
            args[name] = sequence.texts[(29, annotation[17])] if 17 in annotation else annotation[4]
        starts, ends = (int.from_bytes(event.get(number, b""), "little") for number in (47, 48))
        category = sequence.texts[(1, event[3])] if 3 in event else ""
        found = Slice(sequence.texts[(2, event[10])], t_ns, -1, len(stack), category, args, starts, ends)
        stack.append(found)
        self.tracks[uuid].slices.append(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        value |= (octet & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if octet < 0x80:
            return value, at
