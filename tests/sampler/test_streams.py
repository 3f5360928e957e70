"""What the loop does with sensors that fail, disks that fill, and deadlines that pass; no process, no waiting."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope import clock
from stepscope.record.sampler.loop import SHORT_S, Sampling, StreamOpener, make_cheap_wait
from stepscope.record.sampler.rows import EventLog, RowFile
from stepscope.record.sampler.stream import RETRY_NS, Stream
from stepscope.record.sensors import Survey, load_sensors, make_ids_unique
from stepscope.record.sensors.contract import Channel, NoSensor, OpenSensor, Pace, Target, decoded_later
from stepscope.runfolder import RunReader


class Wobbly:
    """A sensor of two channels that can be lost and come back, perhaps with its channels in another order."""

    NAME = "wobbly"

    def __init__(self) -> None:
        self.broken = False
        self.order = ["a", "b"]

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        if self.broken:
            return NoSensor("absent", "unplugged")
        order = list(self.order)
        channels = tuple(Channel(f"wobbly.{n}", self.NAME, "power", "W", "gauge", "system", "x") for n in order)
        return OpenSensor(channels, lambda: self._read(order), lambda: None)

    def _read(self, order: Sequence[str]) -> list[float]:
        if self.broken:
            raise OSError(errno.ENODEV, "No such device")
        return [{"a": 1.0, "b": 2.0, "c": 3.0}[name] for name in order]


class Bench:
    """A run folder, a clock that is turned by hand, and one stream."""

    def __init__(self, run: Path) -> None:
        self.run, self.now, self.sensor = run, 0, Wobbly()
        self.target = Target(1, clock=lambda: self.now)
        self.events = EventLog(run / "events.jsonl", clock=lambda: self.now)
        found = self.sensor.discover(run, self.target)
        assert isinstance(found, OpenSensor)
        (run / "run.json").write_text('{"schema": 1}')
        columns = [asdict(channel) for channel in found.channels]
        (run / "channels.json").write_text(json.dumps({"channels": columns}))
        (run / "samples").mkdir()
        self.file = RowFile(run / "samples/wobbly.rows", 2)
        self.stream = Stream(self.sensor, found, self.target, run, self.file, self.events, 10)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in RunReader(self.run).events]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_sensor_lost_in_mid_run_gives_a_row_of_nulls_an_event_and_comes_back(bench: Bench) -> None:
    bench.stream.sample()
    bench.sensor.broken = True
    for _ in range(3):
        bench.stream.sample()
    bench.now += RETRY_NS
    bench.stream.retry()
    bench.sensor.broken = False
    bench.now += RETRY_NS
    bench.stream.retry()
    bench.stream.sample()
    bench.stream.close()
    values = RunReader(bench.run).sensor("wobbly")["wobbly.a"].to_list()
    assert values == [1.0, None, None, 1.0]  # the loss, the vain retry; nothing for the ticks in between
    events = RunReader(bench.run).events
    assert [event["kind"] for event in events] == ["sensor-lost", "sensor-recovered"]
    assert events[1]["gap_ns"] == 2 * RETRY_NS


def test_a_lost_sensor_is_left_alone_for_a_second(bench: Bench) -> None:
    bench.sensor.broken = True
    bench.stream.sample()
    bench.sensor.broken = False
    bench.now += RETRY_NS - 1
    bench.stream.retry()
    assert bench.kinds() == ["sensor-lost"]
    bench.stream.close()


def test_a_sensor_that_returns_with_other_channels_keeps_each_value_in_its_column(bench: Bench) -> None:
    bench.sensor.broken = True
    bench.stream.sample()
    bench.sensor.broken, bench.sensor.order = False, ["b"]
    bench.now += RETRY_NS
    bench.stream.retry()
    bench.stream.sample()
    bench.stream.close()
    assert RunReader(bench.run).sensor("wobbly").row(-1)[2:] == (None, 2.0)


def test_channels_that_come_back_after_their_sensor_are_found_ever_more_seldom(bench: Bench) -> None:
    bench.sensor.broken = True
    bench.stream.sample()
    bench.sensor.broken, bench.sensor.order = False, ["b"]
    looks = []
    discover = bench.sensor.discover

    def noting(root: Path, target: Target) -> OpenSensor | NoSensor:
        looks.append(bench.now // RETRY_NS)
        return discover(root, target)

    bench.sensor.discover = noting  # type: ignore[method-assign]
    for _ in range(20):
        bench.now += RETRY_NS
        bench.stream.retry()
        bench.stream.sample()
    assert looks == [1, 2, 4, 8, 16]
    bench.sensor.order = ["a", "b"]
    bench.now += 12 * RETRY_NS
    bench.stream.retry()
    bench.stream.sample()
    bench.now += 100 * RETRY_NS
    bench.stream.retry()
    bench.stream.close()
    frame = RunReader(bench.run).sensor("wobbly")
    assert frame.row(-2)[2:] == (None, 2.0)
    assert frame.row(-1)[2:] == (1.0, 2.0)
    assert looks[5:] == [32]


def test_another_source_in_the_place_of_a_lost_sensor_is_not_that_sensor_again(bench: Bench) -> None:
    bench.sensor.broken = True
    bench.stream.sample()
    bench.sensor.broken, bench.sensor.order = False, ["c"]
    bench.now += RETRY_NS
    bench.stream.retry()
    assert bench.kinds() == ["sensor-lost"]
    bench.sensor.order = ["a", "b"]
    bench.now += RETRY_NS
    bench.stream.retry()
    bench.stream.sample()
    bench.stream.close()
    assert bench.kinds() == ["sensor-lost", "sensor-recovered"]
    assert RunReader(bench.run).sensor("wobbly").row(-1)[2:] == (1.0, 2.0)


def test_a_full_disk_drops_rows_keeps_the_file_whole_and_reports_the_gap(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.stream.sample()
    bench.stream.flush()
    real, room = os.write, [7]

    def nearly_full(file: int, data: bytes | bytearray) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        part, room[0] = bytes(data[: room[0]]), 0
        return real(file, part)

    monkeypatch.setattr(os, "write", nearly_full)
    for _ in range(3):
        bench.stream.sample()
    bench.stream.flush()
    monkeypatch.undo()
    bench.now = 500
    bench.stream.sample()
    bench.stream.flush()
    bench.stream.close()
    frame = RunReader(bench.run).sensor("wobbly")
    assert frame["t0_ns"].to_list() == [0, 500]
    assert frame["wobbly.b"].to_list() == [2.0, 2.0]
    assert bench.kinds() == ["samples-dropped", "gap"]
    assert RunReader(bench.run).events[1]["rows"] == 3


def test_a_disk_that_stays_full_leaves_word_of_how_many_rows_are_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes | bytearray) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(3):
        bench.stream.sample()
    monkeypatch.setattr(os, "write", full)
    bench.stream.close()
    monkeypatch.undo()
    bench.events.flush()
    assert [event.get("rows") for event in RunReader(bench.run).events] == [None, 3]


def test_events_that_the_disk_refuses_are_written_when_it_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    events = EventLog(tmp_path / "events.jsonl", clock=lambda: 5)

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    events.write("gap", "first")
    monkeypatch.undo()
    events.write("gap", "second")
    assert [event["message"] for event in RunReader(tmp_path).events] == ["first", "second"]


def test_one_failing_sensor_does_not_stop_the_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    sampling = Sampling([bench.stream], bench.events, Pace(), 10)
    bench.sensor.broken = True
    for tick in range(3):
        sampling.tick(tick)
    bench.stream.close()
    assert bench.kinds() == ["sensor-lost"]


def test_a_sensor_that_cannot_be_closed_does_not_end_the_sampling(bench: Bench) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    found = replace(found, close=fail)
    stream = Stream(bench.sensor, found, bench.target, bench.run, bench.file, bench.events, 10)
    bench.sensor.broken = True
    Sampling([stream], bench.events, Pace(), 10).tick(0)
    stream.close()
    assert bench.kinds() == ["sensor-lost"]


def test_garbage_is_found_when_rows_are_made_and_what_was_read_after_it_is_dropped(bench: Bench) -> None:
    texts = iter([b"1", b"garbage", b"3"])
    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    found = decoded_later(found.channels, lambda: next(texts), lambda text: [float(text)] * 2, lambda: None)
    stream = Stream(bench.sensor, found, bench.target, bench.run, bench.file, bench.events, 10)
    for _ in range(3):
        stream.sample()
    assert not bench.file.waiting  # nothing is parsed in a tick
    stream.close()
    assert RunReader(bench.run).sensor("wobbly")["wobbly.a"].to_list() == [1.0, None]
    assert bench.kinds() == ["sensor-lost"]


def test_what_was_read_before_a_loss_comes_before_it(bench: Bench) -> None:
    answers: list[Any] = [b"1", OSError(errno.EIO, "no answer")]

    def fetch() -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return bytes(answer)

    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    found = decoded_later(found.channels, fetch, lambda text: [float(text)] * 2, lambda: None)
    stream = Stream(bench.sensor, found, bench.target, bench.run, bench.file, bench.events, 10)
    Sampling([stream], bench.events, Pace(), 10).tick(0)
    stream.sample()
    stream.close()
    assert RunReader(bench.run).sensor("wobbly")["wobbly.a"].to_list() == [1.0, None]


def test_short_waits_sleep_and_ten_of_a_second_watch() -> None:
    now_ns = 0
    watched: list[float] = []

    def watching(seconds: float) -> bool:
        watched.append(seconds)
        return False

    wait = make_cheap_wait(watching, lambda: now_ns)
    for _ in range(101):
        assert not wait(0.0)
        now_ns += 10_000_000
    wait(2 * SHORT_S)
    assert watched == [0.0] * 11 + [2 * SHORT_S]


def test_missed_deadlines_are_counted_and_skipped_and_lateness_is_kept(tmp_path: Path) -> None:
    pace = Pace()
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), pace, period_ns=1)
    ticks = []

    def wait(seconds: float) -> bool:
        ticks.append(seconds)
        return len(ticks) >= 10

    sampling.run(wait)
    assert len(ticks) == 10
    assert pace.missed > 100  # a period of 1 ns cannot be kept
    assert pace.take_lateness() > 0
    assert pace.take_lateness() == 0


def test_the_loop_ends_at_once_when_it_is_stopped(tmp_path: Path) -> None:
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), Pace(), period_ns=10_000_000)
    sampling.stopped = True
    sampling.run(lambda seconds: pytest.fail("it waited"))


def test_a_suspended_machine_leaves_an_event_with_the_seconds_that_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    slept = [0]
    monkeypatch.setattr("stepscope.record.sampler.loop.suspended_ns", lambda: slept[0])
    monkeypatch.setattr("stepscope.record.sampler.loop.unix_minus_monotonic_ns", lambda: 5 + slept[0])
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), Pace(), 10_000_000)
    sampling.chores()
    slept[0] = 3_000_000_000
    sampling.chores()
    sampling.chores()
    events = RunReader(tmp_path).events
    assert [(event["kind"], event["gap_ns"]) for event in events] == [("suspend", 3_000_000_000)]


@pytest.mark.parametrize("name", ["monotonic_ns", "_unix_ns", "_boottime_ns"])
def test_a_sampler_that_waits_for_a_core_between_two_clocks_leaves_no_event(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns, slow = [0], [""]

    def reading(which: str) -> Callable[[], int]:
        def read() -> int:
            now_ns[0] += 300_000_000 if which == slow[0] else 100
            slow[0] = "" if which == slow[0] else slow[0]
            return now_ns[0]

        return read

    for which in ("monotonic_ns", "_unix_ns", "_boottime_ns"):
        monkeypatch.setattr(clock, which, reading(which))
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), Pace(), 10_000_000)
    for slow[0] in ("", name, "", name):
        sampling.chores()
    assert not (tmp_path / "events.jsonl").exists()


def test_a_wall_clock_that_is_set_leaves_an_event_and_a_sleeping_machine_none_of_that_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    slept, set_by = [0], [0]
    monkeypatch.setattr("stepscope.record.sampler.loop.suspended_ns", lambda: slept[0])
    monkeypatch.setattr("stepscope.record.sampler.loop.unix_minus_monotonic_ns", lambda: slept[0] + set_by[0])
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), Pace(), 10_000_000)
    set_by[0] = 1_000_000  # as NTP does it
    sampling.chores()
    set_by[0] = -60_000_000_000
    sampling.chores()
    slept[0] = 5_000_000_000
    sampling.chores()
    events = RunReader(tmp_path).events
    assert [event["kind"] for event in events] == ["clock-jump", "suspend"]
    assert events[0]["jump_ns"] == -60_001_000_000


def test_a_change_to_summer_time_or_of_the_time_zone_is_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling([], EventLog(tmp_path / "events.jsonl"), Pace(), 10_000_000)
    try:
        for zone in ("EST5", "EST5EDT,0/0,364/23", "Asia/Kolkata", "UTC0"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            sampling.chores()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert not (tmp_path / "events.jsonl").exists()


def test_a_slow_power_sensor_has_dithered_deadlines_of_its_own(bench: Bench) -> None:
    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    slow = replace(found, every_ns=100_000_000)
    stream = Stream(bench.sensor, slow, bench.target, bench.run, bench.file, bench.events, 10, dither=True)
    times: list[int] = []
    while len(times) < 50:
        bench.now = max(bench.now + 1, stream.due_ns)
        times.append(bench.now)
        stream.sample_slowly(bench.now)
    bench.stream.close()
    gaps = {after - before for before, after in pairwise(times)}
    assert {round(gap / 1e6) for gap in gaps} == {62, 162}  # and 100 ms in the mean


def test_one_dear_read_stretches_no_pause_and_two_in_a_row_do(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    slow = replace(found, every_ns=100_000_000)
    stream = Stream(bench.sensor, slow, bench.target, bench.run, bench.file, bench.events, 10)
    spent = iter([0, 1_000, 0, 50_000_000, 0, 1_000, 0, 50_000_000, 0, 50_000_000])  # CPU time before and after a read
    monkeypatch.setattr("stepscope.record.sampler.stream.time.thread_time_ns", lambda: next(spent))
    pauses = []
    for _ in range(5):
        bench.now = stream.due_ns
        stream.sample_slowly(bench.now)
        pauses.append(stream.due_ns - bench.now)
    bench.stream.close()
    assert pauses == [100_000_000] * 4 + [2_500_000_000]  # 2 % of a core


@pytest.mark.parametrize(("blocking", "pause_ns"), [(True, 2_500_000_000), (False, 100_000_000)])
def test_a_sensor_that_starts_a_process_for_each_read_is_read_as_seldom_as_that_process_is_dear(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, blocking: bool, pause_ns: int
) -> None:
    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    slow = replace(found, every_ns=100_000_000, blocking=blocking)
    stream = Stream(bench.sensor, slow, bench.target, bench.run, bench.file, bench.events, 10)
    spent_s = count(0.0, 0.05)
    monkeypatch.setattr("stepscope.record.sampler.stream.time.thread_time_ns", lambda: 0)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_utime=next(spent_s), ru_stime=0.0))
    for _ in range(2):
        bench.now = stream.due_ns
        stream.sample_slowly(bench.now)
    bench.stream.close()
    assert stream.due_ns - bench.now == pytest.approx(pause_ns)


def test_two_sensors_of_one_rail_are_both_kept_under_names_of_their_own(bench: Bench) -> None:
    found = bench.sensor.discover(bench.run, bench.target)
    assert isinstance(found, OpenSensor)
    both = make_ids_unique({"first": found, "wobbly": found})
    assert [channel.id for channel in both["first"].channels] == ["wobbly.a", "wobbly.b"]
    assert [channel.id for channel in both["wobbly"].channels] == ["wobbly.wobbly.a", "wobbly.wobbly.b"]
    stream = Stream(bench.sensor, both["wobbly"], bench.target, bench.run, bench.file, bench.events, 10)
    bench.sensor.broken = True
    stream.sample()
    bench.sensor.broken, bench.sensor.order = False, ["b", "a"]
    bench.now += RETRY_NS
    stream.retry()
    stream.sample()
    stream.close()
    assert RunReader(bench.run).sensor("wobbly").row(-1)[2:] == (1.0, 2.0)


def test_a_slow_sensor_is_read_at_its_own_period(tmp_path: Path) -> None:
    target = Target(os.getpid())
    found = load_sensors()["sampler"].discover(tmp_path, target)
    assert isinstance(found, OpenSensor)
    events = EventLog(tmp_path / "events.jsonl")
    streams, _ = StreamOpener(tmp_path, tmp_path, target, events, 10_000_000).open(Survey({"sampler": found}, {}), {})
    sampling = Sampling(streams, events, target.pace, 10_000_000)
    for tick in range(30):
        sampling.tick(tick * 10_000_000)
    streams[0].decode()
    assert len(streams[0].file.waiting) == 3 * streams[0].file.row_bytes  # 0, 100 and 200 ms
    streams[0].close()


def test_nan_in_a_row_reads_as_null_and_zero_stays_zero(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.file.waiting += bench.file.pack(1, 2, math.nan, 0.0)
    bench.stream.close()
    assert RunReader(tmp_path).sensor("wobbly").row(0) == (1, 2, None, 0.0)


def test_an_event_that_the_disk_takes_in_two_pieces_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, sizes = os.write, [7]

    def half(file: int, data: bytes) -> int:
        return write(file, data[: sizes.pop()] if sizes else data)

    monkeypatch.setattr("stepscope.record.sampler.rows.os.write", half)
    EventLog(tmp_path / "events.jsonl", clock=lambda: 5).write("gap", "no reading")
    (line,) = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["message"] == "no reading"
