"""Training processes that join, die and come in hundreds: each is read from its first sign to its end, no longer."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.patience import until

from stepscope.record.sampler.loop import Sampling
from stepscope.record.sampler.process import start_sampler
from stepscope.record.sampler.rows import EventLog, RowFile
from stepscope.record.sampler.stream import ReaderThread, Stream
from stepscope.record.sampler.training_processes import MOST, TrainingProcesses
from stepscope.record.sensors import processes
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Pace, ProcessEnded, Target
from stepscope.runfolder import RunReader

LAUNCHER = 4711
NO_PROCESS = 1 << 22  # no kernel gives a number so large: the process of this test must be none of its workers
STAT = "{pid} (py thon) {state} 1 1 1 0 -1 4194560 9 9 0 0 123 45 7 8 20 0 3 0 {began} 1000000 2048 1 1\n"
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc")


class Machine:
    """A folder with /proc and one with a run, whose processes come and go by hand."""

    def __init__(self, path: Path) -> None:
        self.root, self.run = path / "root", path / "run"
        (self.root / "proc").mkdir(parents=True)
        (self.run / "samples").mkdir(parents=True)
        self.header(self.run, {})
        self.target = Target(LAUNCHER)
        self.processes = TrainingProcesses(self.run, self.root, self.target)

    def process(self, pid: int, began: int = 99, state: str = "S") -> Path:
        folder = self.root / f"proc/{pid}"
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(STAT.format(pid=pid, began=began, state=state))
        (folder / "statm").write_text("9000 2048 100 1 0 300 0\n")
        (folder / "status").write_text("Name:\tpython\nVmHWM:\t   10000 kB\n")
        (folder / "smaps_rollup").write_text("0-1 [rollup]\nRss: 8192 kB\nPss:     6000 kB\n")
        return folder

    def header(self, folder: Path, fields: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        text = fields if isinstance(fields, str) else json.dumps({"schema": 1, **fields})
        (folder / "run.json").write_text(text)

    def part(self, number: int, fields: Any) -> None:
        self.header(self.run / f"ranks/{number}", fields)

    def read(self) -> dict[str, list[float]]:
        """Names and readings of the sensors that are new."""
        found = {
            name: answer for name, (_, answer) in self.processes.collect().items() if isinstance(answer, OpenSensor)
        }
        self.found = found
        return {name: list(answer.read()) for name, answer in found.items()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_process_is_read_from_when_its_part_names_it_and_only_once(machine: Machine) -> None:
    machine.process(50)
    assert machine.read() == {}
    machine.part(1, {"rank": 1})
    assert machine.read() == {}, "its part has no pid yet"
    machine.part(1, {"rank": 1, "pid": 50, "clock": {"boottime_ns": 99 * TICK_NS}})
    assert machine.read() == {"training-1": [168 * TICK_NS, 2048 * PAGE, 10_240_000.0], "training_pss-1": [6_144_000.0]}
    channels = [channel for found in machine.found.values() for channel in found.channels]
    assert {channel.scope for channel in channels} == {"rank:1"}
    assert [channel.quantity for channel in channels] == ["process_cpu_time", "rss", "peak_rss", "pss"]
    assert machine.target.training == {50}
    machine.part(1, {"rank": 1, "pid": 50, "status": "ok"})
    assert machine.read() == {}


def test_the_watched_process_gets_no_second_stream_where_it_trains_itself(machine: Machine) -> None:
    machine.process(LAUNCHER)
    machine.header(machine.run, {"pid": LAUNCHER})
    assert machine.read() == {}
    assert machine.target.training == set()


def test_a_number_that_another_process_has_by_now_is_not_read(machine: Machine) -> None:
    machine.process(50, began=5_000)
    machine.part(1, {"pid": 50, "clock": {"boottime_ns": 4_000 * TICK_NS}})
    assert machine.read() == {}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"pid": "50"}',
        '{"pid": true}',
        '{"pid": -1}',
        '{"pid": 1e9}',
        '{"pid": 0}',
    ],
)
def test_a_damaged_part_costs_nothing_but_itself(machine: Machine, header: str) -> None:
    machine.process(50)
    machine.process(51)
    machine.part(1, header)
    machine.part(2, {"pid": 51, "clock": "yesterday"})
    (machine.run / "ranks/3").mkdir()
    (machine.run / "ranks/notes").write_text("a file")
    assert set(machine.read()) == {"training-2", "training_pss-2"}


def test_a_process_that_has_ended_before_it_was_looked_for_is_passed_over(machine: Machine) -> None:
    machine.process(50, state="Z")
    machine.part(1, {"pid": 50})
    machine.part(2, {"pid": 51})
    assert machine.read() == {}


def test_a_read_of_a_process_that_has_ended_says_so_and_one_that_fails_while_it_lives_is_a_gap(
    machine: Machine,
) -> None:
    folder = machine.process(50)
    machine.part(1, {"pid": 50})
    machine.read()
    sensor = machine.found["training-1"]
    (folder / "statm").write_text("garbage\n")
    assert all(math.isnan(value) for value in sensor.read())
    (folder / "statm").write_text("0 0 0 0 0 0 0\n")
    machine.process(50, state="Z")
    (folder / "statm").write_text("0 0 0 0 0 0 0\n")
    with pytest.raises(ProcessEnded):
        sensor.read()
    machine.processes.collect()
    assert machine.target.training == set()
    with pytest.raises(ProcessEnded):
        machine.found["training_pss-1"].read()


def test_files_that_may_not_be_read_are_told_as_denied(machine: Machine) -> None:
    folder = machine.process(50)
    (folder / "smaps_rollup").unlink()
    (folder / "smaps_rollup").symlink_to(folder / "smaps_rollup")  # a loop: neither absent nor readable
    machine.part(1, {"pid": 50})
    begun = machine.processes.collect()
    answer = begun["training_pss-1"][1]
    assert isinstance(answer, NoSensor)
    assert answer.reason != "absent"
    assert isinstance(begun["training-1"][1], OpenSensor)


def test_hundreds_of_restarts_leave_no_file_open_and_no_more_streams_than_processes(machine: Machine) -> None:
    before = open_files()
    for number in range(1, 301):
        machine.process(1000 + number)
        machine.part(number, {"pid": 1000 + number})
        found = [answer for _, answer in machine.processes.collect().values() if isinstance(answer, OpenSensor)]
        assert len(found) == 2
        for answer in found:
            answer.close()
        shutil.rmtree(machine.root / f"proc/{1000 + number}")
    machine.processes.collect()
    assert machine.target.training == set()
    assert open_files() == before


def test_more_training_processes_than_can_be_read_are_left_to_the_sum(machine: Machine) -> None:
    for number in range(1, MOST + 40):
        machine.process(1000 + number)
        machine.part(number, {"pid": 1000 + number})
    found = machine.processes.collect()
    assert len(found) == 2 * MOST
    assert len(machine.target.training) == MOST
    for _, answer in found.values():
        assert isinstance(answer, OpenSensor)
        answer.close()


def test_a_part_that_has_not_changed_is_not_read_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.part(1, {"rank": 1})
    machine.read()
    monkeypatch.setattr(
        "stepscope.record.sampler.training_processes.read_small_file", lambda path: pytest.fail(str(path))
    )
    assert machine.read() == {}


def _streams(machine: Machine, events: EventLog) -> dict[str, Stream]:
    streams = {}
    for name, (sensor, answer) in machine.processes.collect().items():
        assert isinstance(answer, OpenSensor)
        file = RowFile(machine.run / f"samples/{name}.rows", len(answer.channels))
        streams[name] = Stream(sensor, answer, machine.target, machine.root, file, events, 10_000_000)
    return streams


def test_a_stream_ends_with_its_process_without_a_row_an_event_or_an_open_file(machine: Machine) -> None:
    before = open_files()
    machine.process(50)
    machine.part(1, {"pid": 50})
    events = EventLog(machine.run / "events.jsonl")
    streams = _streams(machine, events)
    sampling = Sampling([streams["training-1"]], events, Pace(), 10_000_000)
    reader = ReaderThread(streams["training_pss-1"], events, machine.target.clock)
    sampling._add_streams((), [reader])
    sampling.tick(0)
    until(lambda: (machine.run / "samples/training_pss-1.rows").stat().st_size)
    shutil.rmtree(machine.root / "proc/50")
    machine.processes.collect()
    sampling.tick(10**12)
    reader.read_now()
    until(lambda: reader.done)
    sampling.chores()
    assert (sampling._streams, sampling._slow, sampling._readers) == ([], [], [])
    assert open_files() == before
    assert not (machine.run / "events.jsonl").exists()
    assert (machine.run / "samples/training-1.rows").stat().st_size == 16 + 3 * 8
    sampling.tick(10**13)


def test_of_hundreds_of_workers_few_files_stay_open_and_all_are_counted(tmp_path: Path) -> None:
    machine, count = Machine(tmp_path), 3 * processes.MOST_HELD
    tasks = machine.process(LAUNCHER) / f"task/{LAUNCHER}"
    tasks.mkdir(parents=True)
    pids = range(NO_PROCESS, NO_PROCESS + count)
    for pid in pids:
        machine.process(pid)
    (tasks / "children").write_text(" ".join(map(str, pids)))
    before, now = open_files(), [0]
    sensor = processes.discover_children(machine.root, Target(LAUNCHER, clock=lambda: now[0]))
    assert isinstance(sensor, OpenSensor)
    assert list(sensor.read()) == [count * 168 * TICK_NS, count * 2048 * PAGE]
    assert open_files() - before == processes.MOST_HELD
    for pid in pids:
        shutil.rmtree(machine.root / f"proc/{pid}")
    (tasks / "children").write_text("")
    now[0] += processes.LOOK_AGAIN_NS
    assert list(sensor.read()) == [count * 168 * TICK_NS, 0], "the CPU time of those that ended stays in the sum"
    assert open_files() == before
    sensor.close()


def test_proportional_memory_of_children_leaves_out_those_with_streams_of_their_own(machine: Machine) -> None:
    tasks = machine.process(LAUNCHER) / f"task/{LAUNCHER}"
    tasks.mkdir(parents=True)
    pids = range(NO_PROCESS, NO_PROCESS + 2 * processes.MOST)
    for pid in pids[:2]:
        machine.process(pid)
    (tasks / "children").write_text(" ".join(map(str, pids[:3])))  # the third has ended meanwhile
    sensor = processes.discover_memory(machine.root, machine.target)
    assert isinstance(sensor, OpenSensor)
    assert list(sensor.read()) == [2 * 6_144_000]
    machine.target.training.add(pids[0])
    assert list(sensor.read()) == [6_144_000]
    (tasks / "children").write_text(" ".join(map(str, pids)))
    assert math.isnan(sensor.read()[0]), "a sum of some of them would be no sum"


TRAINING = """
import sys, time
held = bytearray(int(sys.argv[1]) * 1_000_000)
print("ready", flush=True)
until = time.process_time() + 0.05
while True:
    time.process_time() < until or time.sleep(0.01)
"""


@linux
def test_real_processes_that_join_late_and_are_killed_are_read_for_as_long_as_they_live(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"schema": 1, "id": "x", "status": "ok"}')
    sampler = start_sampler(tmp_path, 5_000_000)
    sizes = {1: 30, 2: 90}
    started = {
        rank: subprocess.Popen([sys.executable, "-c", TRAINING, str(size)], stdout=subprocess.PIPE)
        for rank, size in sizes.items()
    }
    try:
        for rank, process in started.items():
            assert process.stdout is not None
            process.stdout.readline()
            folder = tmp_path / f"ranks/{rank}"
            folder.mkdir(parents=True)
            (folder / "run.json").write_text(json.dumps({"schema": 1, "pid": process.pid}))
        for rank in sizes:
            until(lambda: RunReader(tmp_path).sensor(f"training-{rank}").height >= 3, f"rows of rank {rank}")  # noqa: B023
            until(lambda: RunReader(tmp_path).sensor(f"training_pss-{rank}").height >= 1, f"memory of {rank}")  # noqa: B023
        started[1].kill()
        started[1].wait()
        until(lambda: RunReader(tmp_path).sensor("training-2").height >= 8)
        assert sampler.alive()
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
        end = sampler.stop()
    assert (end.exit_code, end.message) == (0, None)
    reader = RunReader(tmp_path)
    assert [event for event in reader.events if "training" in event["message"] or "rank" in event["message"]] == []
    peaks = reader.samples("peak_rss")
    first, second = (peaks.filter(scope=f"rank:{rank}")["value"].drop_nulls() for rank in sizes)
    assert second.max() - first.max() > 50e6  # type: ignore[operator]
    used = reader.samples("process_cpu_time").filter(scope="rank:1")["value"].drop_nulls()
    assert used.is_sorted()
    assert used[-1] >= 0.03e9
