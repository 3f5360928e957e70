"""Who reads which sensor, in the fast loop or in a thread of its own, and at which period; writes channels.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.record.characterisation.profiles import SensorProfile, too_fine, with_profiles
from stepscope.record.sampler.deadlines import SPREAD
from stepscope.record.sampler.newcomers import Newcomers
from stepscope.record.sampler.reader_thread import ReaderThread, needs_thread
from stepscope.record.sampler.rows import EventLog, RowFile, write_json
from stepscope.record.sampler.stream import Stream
from stepscope.record.sensors import Survey, distinct, load
from stepscope.record.sensors.contract import Found, Missing, Target, as_seen_below

Hired = tuple[list[Stream], list[ReaderThread]]


class Crew:
    """Opens a row file for every sensor that answers, now or later."""

    def __init__(
        self, run: Path, root: Path, target: Target, events: EventLog, period_ns: int, dither: bool = False
    ) -> None:
        self._run, self._root, self._target, self._events = run, root, target, events
        self._period_ns, self._dither = period_ns, dither
        self._sensors = load()
        self._found: dict[str, Found] = {}
        self._missing: dict[str, Missing] = {}
        self._profiles: Mapping[str, SensorProfile] = {}

    def hire(self, seen: Survey, profiles: Mapping[str, SensorProfile]) -> Hired:
        """Streams for the loop, and readers that go in threads of their own."""
        self._missing, self._profiles = dict(seen.missing), profiles
        return self._take(seen.found)

    def newcomers(self, seen: Survey, every_ns: int) -> Callable[[], Hired]:
        """Gives, at each call, the streams of the sensors that have begun to answer since."""
        waiting = Newcomers(seen.missing, self._root, self._target, self._target.clock, every_ns)

        def collect() -> Hired:
            arrived = waiting.collect()
            if not arrived:
                return [], []
            taken = [channel.id for found in self._found.values() for channel in found.channels]
            for name in arrived:
                message = f"sensor {name} answers now: {self._missing[name].reason} before"
                self._events.write("sensor-joined", message, sensor=name)
            return self._take(distinct(arrived, taken))

        return collect

    def channel_table(self) -> dict[str, Any]:
        """The content of channels.json: what is sampled, and what is not and why."""
        channels = [asdict(channel) for found in self._found.values() for channel in found.channels]
        missing = [{"sensor": name, **asdict(why)} for name, why in self._missing.items()]
        return {
            "period_ns": self._period_ns,
            "dither": SPREAD if self._dither else 0.0,  # deadlines lie within so much of a period of their grid
            "channels": [{**row, "source": as_seen_below(self._root, row["source"])} for row in channels],
            "missing": [{**row, "detail": as_seen_below(self._root, row["detail"])} for row in missing],
        }

    def _take(self, arrived: Mapping[str, Found]) -> Hired:
        (self._run / "samples").mkdir(exist_ok=True)
        streams: list[Stream] = []
        readers: list[ReaderThread] = []
        for name, plain in arrived.items():
            found = with_profiles(plain, self._profiles, self._period_ns)
            self._found[name] = found
            self._missing.pop(name, None)
            self._warn(name, found)
        write_json(self._run / "channels.json", self.channel_table())
        for name in arrived:
            found = self._found[name]
            stream = self._stream(name, found)
            if needs_thread(found, self._period_ns):
                readers.append(ReaderThread(stream, self._events, self._target.clock))
            else:
                streams.append(stream)
        return streams, readers

    def _stream(self, name: str, found: Found) -> Stream:
        file = RowFile(self._run / "samples" / f"{name}.rows", len(found.channels))
        sensor = self._sensors[name]
        return Stream(sensor, found, self._target, self._root, file, self._events, self._period_ns, self._dither)

    def _warn(self, name: str, found: Found) -> None:
        finer = too_fine(found, self._period_ns)
        if finer:
            message = f"the period asked for, {self._period_ns / 1e6:g} ms, is finer than sensor {name}: it {finer}"
            self._events.write("period-too-fine", message, sensor=name)
