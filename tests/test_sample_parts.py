"""Samples and steps in parts: they close as they fill, become Parquet while the run goes on, and read as one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stepscope import part_names
from stepscope.record.sampler import rows as row_files
from stepscope.record.sampler.rows import AFTER_NS, CurrentPart, EventLog, PartPacking, RowFile, part_bytes
from stepscope.record.sampler.stream import Stream
from stepscope.record.sensors.contract import Channel, OpenSensor, Target
from stepscope.runfolder import RunReader, RunWriter, disk_limit
from stepscope.runfolder.pack import pack

_PERIOD = 10_000_000


class Clocked:
    """A sensor that counts its reads, its stream, and the parts, on a clock that is turned by hand."""

    NAME = "counting"

    def __init__(self, run: Path, most_bytes: int = 10**9) -> None:
        self.run, self.now_ns, self.reads = run, 0, 0
        (run / "samples").mkdir(exist_ok=True)
        self.turn = CurrentPart(run / "samples", self.clock, most_bytes)
        channel = Channel("counting.up", self.NAME, "energy", "J", "counter", "device", "-")
        (run / "channels.json").write_text(json.dumps({"channels": [asdict(channel)]}))
        found = OpenSensor((channel,), self._read, lambda: None)
        file = RowFile(run / "samples" / "counting.rows", 1, self.turn)
        events = EventLog(run / "events.jsonl", self.clock)
        self.stream = Stream(self, found, Target(1, clock=self.clock), run, file, events, _PERIOD)

    def clock(self) -> int:
        return self.now_ns

    def discover(self, root: Path, target: Target) -> Any:
        raise AssertionError("it is never lost")

    def _read(self) -> Sequence[float]:
        self.reads += 1
        return [float(self.reads)]

    def sample(self, reads: int) -> None:
        """Read so often, and flush."""
        for _ in range(reads):
            self.now_ns += _PERIOD
            self.stream.sample()
        self.stream.flush()

    def next_part(self) -> None:
        """Go on until the part is full."""
        self.now_ns += row_files.PART_NS
        assert self.turn.advance_if_full()


def files(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "samples").iterdir())


def values(run: Path | RunReader) -> list[float]:
    reader = run if isinstance(run, RunReader) else RunReader(run)
    found: list[float] = reader.sensor("counting")["counting.up"].to_list()
    return found


def test_a_part_closes_after_an_hour_and_the_next_file_goes_on(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    bench.sample(10)
    assert not bench.turn.advance_if_full()
    bench.next_part()
    bench.sample(5)
    bench.next_part()
    bench.sample(3)
    assert files(writer.path) == ["counting.000001.rows", "counting.000002.rows", "counting.rows"]
    assert values(writer.path) == [float(n) for n in range(1, 19)]


def test_a_part_closes_when_all_sensors_have_written_enough(writer: RunWriter) -> None:
    bench = Clocked(writer.path, most_bytes=24 * 100)
    bench.sample(99)
    assert not bench.turn.advance_if_full()
    bench.sample(1)
    assert bench.turn.advance_if_full()
    assert not bench.turn.advance_if_full(), "the next one begins at nothing"
    assert (part_bytes(None), part_bytes(80_000_000), part_bytes(1)) == (256_000_000, 10_000_000, 1_000_000)


def test_a_sampling_process_that_begins_anew_goes_on_behind_what_is_packed(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    bench.sample(3)
    bench.next_part()
    bench.sample(3)
    assert CurrentPart(writer.path / "samples").number == 1
    disk_limit.main([str(writer.path)])
    (writer.path / "samples" / "counting.000001.rows").rename(writer.path / "samples" / "counting.000001.parquet")
    assert CurrentPart(writer.path / "samples").number == 2


def test_closed_parts_of_a_run_that_goes_on_become_parquet_and_the_open_one_stays(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    for reads in (10, 5, 3):
        bench.sample(reads)
        bench.next_part()
    bench.sample(4)
    opened_before = RunReader(writer.path)
    assert disk_limit.main([str(writer.path)]) == 0
    assert files(writer.path) == [
        "counting.000001.parquet",
        "counting.000002.parquet",
        "counting.000003.rows",
        "counting.parquet",
    ]
    bench.sample(6)
    assert values(opened_before) == [float(n) for n in range(1, 23)], "as it was when it was opened"
    assert values(writer.path) == [float(n) for n in range(1, 29)]
    writer.close("ok")
    assert pack(writer.path) == []
    assert values(writer.path) == [float(n) for n in range(1, 29)]
    assert not list(writer.path.rglob("*.rows"))


def test_a_flipped_bit_costs_its_part_also_of_a_run_that_broke_off(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    for reads in (10, 5, 3):
        bench.sample(reads)
        bench.next_part()
    bench.sample(4)
    assert disk_limit.main([str(writer.path)]) == 0
    file = writer.path / "samples" / "counting.000001.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    run = RunReader(writer.path)
    assert values(run) == [*(float(n) for n in range(1, 11)), *(float(n) for n in range(16, 23))]
    assert run.damaged == ["samples/counting.000001.parquet"]


def test_many_rows_in_parts_are_read_as_one_long_sensor(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepscope.runfolder import samples

    monkeypatch.setattr(samples, "MOST_ROWS", 100)
    monkeypatch.setattr(samples, "LEAST_BYTES", 100)
    monkeypatch.setattr(samples, "_AT_A_TIME", 70)
    bench = Clocked(writer.path)
    for reads in (300, 200, 150):
        bench.sample(reads)
        bench.next_part()
    bench.sample(50)
    assert disk_limit.main([str(writer.path)]) == 0
    run = RunReader(writer.path)
    assert 60 < len(run.sensor("counting")) < 200
    assert run.coarser_sensors == ["counting"]
    begin = 301 * _PERIOD + row_files.PART_NS
    exact = run.sensor_between("counting", begin, begin + 20 * _PERIOD)
    assert exact["counting.up"].to_list() == [float(n) for n in range(301, 322)]
    content = bytearray((writer.path / "samples" / "counting.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (writer.path / "samples" / "counting.parquet").write_bytes(content)
    damaged = RunReader(writer.path)
    assert damaged.sensor_between("counting", 0, 1 << 60)["counting.up"][0] == 301.0
    assert damaged.damaged == ["samples/counting.parquet"]


KILLED = """
import os, signal, sys
from pathlib import Path
from stepscope.runfolder import disk_limit
count, at = 0, int(sys.argv[1])
def killing(call):
    def killer(*arguments, **options):
        global count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return call(*arguments, **options)
    return killer
Path.unlink, Path.replace, os.fsync = killing(Path.unlink), killing(Path.replace), killing(os.fsync)
disk_limit.main(sys.argv[2:])
"""


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 6, 9])
def test_a_kill_while_a_closed_part_is_packed_loses_and_doubles_nothing(writer: RunWriter, at: int) -> None:
    bench = Clocked(writer.path)
    for reads in (10, 5):
        bench.sample(reads)
        bench.next_part()
    bench.sample(3)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(at), str(writer.path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    expected = [float(n) for n in range(1, 19)]
    assert values(writer.path) == expected
    assert disk_limit.main([str(writer.path)]) == 0
    assert values(writer.path) == expected
    assert [name for name in files(writer.path) if name.endswith(".rows")] == ["counting.000002.rows"]


# the process that packs


class Started:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def wait(self) -> int:
        assert self.code is not None
        return self.code


def test_one_process_at_a_time_packs_once_the_streams_have_gone_on(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    started: list[tuple[Sequence[str], Started]] = []

    def start(command: Sequence[str]) -> Started:
        started.append((command, Started()))
        return started[-1][1]

    packing = PartPacking(writer.path, bench.turn, 500, bench.clock, start)
    packing.start_packing_if_due()
    bench.now_ns += row_files.PART_NS
    packing.start_packing_if_due()
    assert (bench.turn.number, started) == (1, []), "the streams have not gone on yet"
    bench.now_ns += AFTER_NS
    packing.start_packing_if_due()
    packing.start_packing_if_due()
    assert len(started) == 1
    assert list(started[0][0][1:]) == [
        "-m", "stepscope.runfolder.disk_limit", str(writer.path.absolute()), "--max-disk", "500"
    ]  # fmt: skip
    bench.now_ns += row_files.PART_NS + AFTER_NS
    packing.start_packing_if_due()
    bench.now_ns += AFTER_NS
    packing.start_packing_if_due()
    assert len(started) == 1, "the first one still runs"
    started[0][1].code = 0
    packing.start_packing_if_due()
    assert len(started) == 2
    packing.stop()
    assert started[1][1].code == -9


def test_the_process_packs_a_run_and_ends(writer: RunWriter) -> None:
    bench = Clocked(writer.path)
    packing = PartPacking(writer.path, bench.turn, None, bench.clock)
    bench.sample(10)
    bench.now_ns += row_files.PART_NS
    packing.start_packing_if_due()
    bench.sample(1)
    bench.now_ns += AFTER_NS
    packing.start_packing_if_due()
    process = packing._process
    assert process is not None
    assert process.wait() == 0
    assert files(writer.path) == ["counting.000001.rows", "counting.parquet"]
    packing.start_packing_if_due()
    assert packing._process is None


# steps


def test_steps_go_on_in_another_file_and_read_as_one_table(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("stepscope.runfolder.writer.STEP_PART_BYTES", 48 * 10)
    for step in range(45):
        writer.append_step(step, step * 10, step * 10 + 9, 4, None, step % 5 == 0)
        if step % 3 == 2:
            writer.flush_steps()
    names = sorted(path.name for path in writer.path.glob("steps*"))
    assert names == ["steps.000001.rows", "steps.000002.rows", "steps.000003.rows", "steps.rows"]
    assert RunReader(writer.path).steps["step"].to_list() == list(range(45))
    disk_limit.main([str(writer.path)])
    assert RunReader(writer.path).steps["step"].to_list() == list(range(45))
    again = RunWriter.attach(writer.path)
    again.append_step(45, 450, 459, 4, None, False)
    again.close("ok")
    pack(writer.path)
    assert RunReader(writer.path).steps["step"].to_list() == list(range(46))
    assert sorted(path.name for path in writer.path.glob("steps*"))[-1] == "steps.parquet"


# names


def test_the_file_that_holds_more_parts_counts_and_then_the_coarser_one() -> None:
    names = [
        "samples/a.rows", "samples/a.parquet", "samples/a.000001.rows", "samples/a.000002.parquet",
        "samples/a.000001-000002.1s.parquet", "samples/a.000001-000002.10s.parquet", "samples/a.000003.rows",
        "samples/ab.000004.rows", "samples/.a.000005.rows.1f.7.part", "samples/.sampler-pid",
    ]  # fmt: skip
    found = [part.name for part in part_names.parts_in_use("samples/a", names)]
    assert found == ["samples/a.parquet", "samples/a.000001-000002.10s.parquet", "samples/a.000003.rows"]
    without = part_names.parts_in_use("samples/a", names, ["samples/a.000001-000002.10s.parquet", "samples/a.parquet"])
    assert [part.name for part in without] == [
        "samples/a.rows",
        "samples/a.000001-000002.1s.parquet",
        "samples/a.000003.rows",
    ]
    assert [part.name for part in part_names.parts_ready_to_pack(names)] == ["samples/a.rows", "samples/a.000001.rows"]
    assert part_names.next_number(names) == 4


def test_a_part_that_has_just_begun_and_is_empty_costs_nothing(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.runfolder import samples

    monkeypatch.setattr(samples, "MOST_ROWS", 100)
    monkeypatch.setattr(samples, "LEAST_BYTES", 100)
    bench = Clocked(writer.path)
    bench.sample(300)
    bench.next_part()
    bench.sample(1)
    newest = writer.path / "samples" / "counting.000001.rows"
    assert newest.exists()
    newest.write_bytes(b"")
    run = RunReader(writer.path)
    assert values(run)[-1] == 299.0, "each third of 300"
    assert not run.damaged
