"""Sensors that are slow or hang, in threads of their own: nobody waits for them, and nothing of them is lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import HANG_S, until

from stepscope.clock import monotonic_ns
from stepscope.record.sampler import loop, stream
from stepscope.record.sampler.loop import Sampling, StreamOpener
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sampler.stream import ReaderThread, Stream, needs_thread, stop_all
from stepscope.record.sensors import NO_ANSWER, Survey, load_sensors, survey_sensors
from stepscope.record.sensors.contract import ASLEEP, Channel, NoSensor, OpenSensor, Target
from stepscope.runfolder import RunReader

PERIOD_NS = 1_000_000


def sensor_of(name: str, read: Callable[[], Sequence[float]], blocking: bool, cost_ns: int = 1000) -> OpenSensor:
    channel = Channel(f"{name}.x", name, "power", "W", "gauge", "system", "x", read_cost_ns=cost_ns)
    return OpenSensor((channel,), read, lambda: None, blocking=blocking)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.json").write_text('{"schema": 1}')
    monkeypatch.setattr(
        "stepscope.record.sampler.loop.load_sensors", lambda: {name: Named(name) for name in ("quick", "stuck")}
    )
    return tmp_path


class Named:
    """A sensor file that is never found again."""

    def __init__(self, name: str) -> None:
        self.NAME = name

    def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
        return NoSensor("absent", "gone")


def streams_of(run: Path, found: dict[str, OpenSensor]) -> tuple[list[Stream], list[ReaderThread], EventLog, Target]:
    target = Target(1)
    events = EventLog(run / "events.jsonl")
    streams, readers = StreamOpener(run, run, target, events, PERIOD_NS).open(Survey(found, {}), {})
    return streams, readers, events, target


def kinds(run: Path) -> list[str]:
    return [event["kind"] for event in RunReader(run).events]


def test_what_may_wait_or_takes_a_tenth_of_the_period_gets_a_thread() -> None:
    def answer() -> list[float]:
        return [1.0]

    assert needs_thread(sensor_of("a", answer, blocking=True), PERIOD_NS)
    assert needs_thread(sensor_of("a", answer, blocking=False, cost_ns=PERIOD_NS // 9), PERIOD_NS)
    assert not needs_thread(sensor_of("a", answer, blocking=False, cost_ns=PERIOD_NS // 11), PERIOD_NS)


def test_a_read_that_never_returns_delays_no_other_sensor_and_not_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "JOIN_S", 0.02)
    let_go, reads = threading.Event(), [0]

    def stuck() -> list[float]:
        reads[0] += 1
        if reads[0] > 2:
            let_go.wait(HANG_S)
        return [5.0]

    found = {
        "quick": sensor_of("quick", lambda: [1.0], blocking=False),
        "stuck": sensor_of("stuck", stuck, blocking=True),
    }
    streams, readers, events, target = streams_of(run, found)
    sampling = Sampling(streams, events, target.pace, PERIOD_NS, readers=readers)
    ticks = [0]

    def wait(seconds: float) -> bool:
        ticks[0] += 1
        threading.Event().wait(seconds)
        return ticks[0] >= 30 and reads[0] > 2

    sampling.run(wait)
    reader = RunReader(run)
    assert reader.sensor("quick").height == ticks[0]
    assert reader.sensor("stuck")["stuck.x"].to_list() == [5.0, 5.0]  # what it had said is on the disk
    assert kinds(run) == ["sensor-hung"]
    let_go.set()
    readers[0]._thread.join(HANG_S)


def test_a_read_that_returns_after_long_is_told_with_the_seconds_that_are_missing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "HUNG_NS", 0)
    let_go, began = threading.Event(), threading.Event()

    def slow() -> list[float]:
        began.set()
        let_go.wait(HANG_S)
        return [5.0]

    _, readers, events, _ = streams_of(run, {"stuck": sensor_of("stuck", slow, blocking=True)})
    readers[0].start()
    assert began.wait(HANG_S)
    while not kinds(run):
        threading.Event().wait(0.002)
        readers[0].report_hung_read()
    let_go.set()
    stop_all(readers, monotonic_ns)
    events.flush()
    assert kinds(run) == ["sensor-hung", "sensor-recovered"]
    assert RunReader(run).events[1]["gap_ns"] > 0
    assert RunReader(run).sensor("stuck").height == 1


def test_a_lost_sensor_of_a_thread_leaves_a_row_of_nulls_and_an_event(run: Path) -> None:
    def broken() -> list[float]:
        raise OSError(5, "Input/output error")

    _, readers, _, _ = streams_of(run, {"stuck": sensor_of("stuck", broken, blocking=True)})
    readers[0].start()
    while not kinds(run):
        threading.Event().wait(0.002)
    stop_all(readers, monotonic_ns)
    assert kinds(run) == ["sensor-lost"]
    assert RunReader(run).sensor("stuck")["stuck.x"].to_list() == [None]


def test_a_sensor_that_hangs_when_it_is_asked_holds_up_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    closed: list[bool] = []

    class Stuck(Named):
        def discover(self, root: Path, target: Target) -> OpenSensor | NoSensor:
            let_go.wait(HANG_S)
            found = sensor_of("stuck", lambda: [math.nan], blocking=True)
            return replace(found, close=lambda: closed.append(True))

    real = load_sensors()
    monkeypatch.setattr(
        "stepscope.record.sensors.load_sensors", lambda: {"stuck": Stuck("stuck"), "sampler": real["sampler"]}
    )
    monkeypatch.setattr("stepscope.record.sensors._GRACE_S", 0.01)
    seen = survey_sensors(tmp_path, Target(1), patience_s=0.02)
    assert set(seen.sensors) == {"sampler"}
    assert seen.missing == {"stuck": NoSensor("failed", NO_ANSWER)}
    let_go.set()
    until(lambda: closed)
    assert closed == [True]  # what it found too late holds no file open


def test_a_sensor_that_sleeps_is_looked_for_every_second_and_the_other_missing_ones_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = {"gpu": NoSensor("absent", f"the GPU {ASLEEP}"), "plug": NoSensor("absent", "no plug")}
    looked: list[frozenset[str]] = []
    now_ns = [0]

    def survey(root: Path, target: Target, names: frozenset[str], patience_s: float) -> Survey:
        looked.append(names)
        found = {"gpu": OpenSensor((), list, lambda: None)} if len(looked) == 3 else {}
        return Survey(found, {name: missing[name] for name in names - set(found)})

    monkeypatch.setattr(loop, "survey_sensors", survey)
    late = loop.LateSensors(missing, tmp_path, Target(1), lambda: now_ns[0], 4_000_000_000)
    for now_ns[0] in range(0, 10_000_000_000, 500_000_000):
        late.collect()
        if late._asking is not None:
            late._asking.join(HANG_S)
            late.collect()
    assert looked == [{"gpu"}, {"gpu"}, {"gpu"}, {"plug"}, {"plug"}]


@pytest.mark.parametrize(("cpu_ns", "seconds"), [(0, [4, 8, 12, 16]), (12_000_000, [4, 10, 16])])
def test_a_plug_that_lets_wait_for_its_answer_is_asked_again_as_soon_as_others_and_a_dear_one_later(
    cpu_ns: int, seconds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    now_ns = [0]

    def survey(root: Path, target: Target, names: frozenset[str], patience_s: float) -> Survey:
        looked.append(now_ns[0] // 1_000_000_000)
        now_ns[0] += 800_000_000
        return Survey({}, {"plug": NoSensor("failed", "no answer in time")}, cpu_ns)

    monkeypatch.setattr(loop, "survey_sensors", survey)
    monkeypatch.setattr(loop, "ended_children_cpu_ns", lambda: 0)
    late = loop.LateSensors({"plug": NoSensor("absent", "")}, tmp_path, Target(1), lambda: now_ns[0], 4_000_000_000)
    for second in range(17):
        now_ns[0] = second * 1_000_000_000
        late.collect()
        if late._asking is not None:
            late._asking.join(HANG_S)
            late.collect()
    assert looked == seconds


def test_a_sensor_that_was_too_slow_at_the_start_is_given_a_minute_later_on_and_one_that_hangs_then_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[frozenset[str], float]] = []
    now_ns = [0]

    def survey(root: Path, target: Target, names: frozenset[str], patience_s: float) -> Survey:
        looked.append((names, patience_s))
        sensors = {name: OpenSensor((), list, lambda: None) for name in names & {"slow"}}
        return Survey(sensors, {name: NoSensor("failed", NO_ANSWER) for name in names - {"slow"}})

    monkeypatch.setattr(loop, "survey_sensors", survey)
    missing = {name: NoSensor("failed", NO_ANSWER) for name in ("slow", "stuck")}
    late = loop.LateSensors(missing, tmp_path, Target(1), lambda: now_ns[0], 4_000_000_000)
    joined: set[str] = set()
    for second in range(13):
        now_ns[0] = second * 1_000_000_000
        late.collect()
        if late._asking is not None:
            late._asking.join(HANG_S)
            joined |= set(late.collect())
    assert joined == {"slow"}
    assert looked == [(frozenset(("slow", "stuck")), 60.0)]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let no thread be started, as where a container or a user has as many as allowed."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        yield patch


def test_a_process_that_may_start_no_more_threads_samples_on_and_starts_them_when_it_may(
    run: Path, no_threads: pytest.MonkeyPatch
) -> None:
    sensors = {"stuck": sensor_of("stuck", lambda: [5.0], blocking=True)}
    streams, readers, events, target = streams_of(run, sensors)
    sampling = Sampling(streams, events, target.pace, PERIOD_NS, readers=readers)
    late = loop.LateSensors({"plug": NoSensor("absent", "no plug")}, run, target, target.clock, 0)
    for _ in range(2):
        sampling.chores()
        assert late.collect() == {}
    assert kinds(run) == ["sensor-lost"]
    assert survey_sensors(run, target, ["sampler"]).missing == {"sampler": NoSensor("failed", "can't start new thread")}
    no_threads.undo()
    sampling.chores()
    assert late.collect() == {}
    until(lambda: RunReader(run).sensor("stuck").height > 0)
    until(late._answers.qsize)
    stop_all(readers, monotonic_ns)
