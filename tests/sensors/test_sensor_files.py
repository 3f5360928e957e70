"""Each file of a tree in turn replaced by what no driver puts there: nobody waits, and no value is invented."""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import HANG_S
from tests.sensors import jetson_trees
from tests.sensors.pc_trees import BATTERY, hwmon, powercap, uevent, write, zone

from stepscope.record.sampler.rows import EventLog, RowFile
from stepscope.record.sampler.stream import Stream
from stepscope.record.sensors import discover_sensor, load_sensors
from stepscope.record.sensors.contract import OpenSensor, Target

PID = 4242
CPU = "sys/devices/system/cpu"
STAT = f"{PID} (a b) S 1 1 1 0 -1 0 1 1 1 1 250 40 0 0 20 0 1 0 100 1000000 2500 1 1 1 1 0 0 0 0 0 0 0 0 17 0 0\n"
NO_NUMBER = [b"", b" \n", b"\0", b"5000\0", b"hot\n", b"1e5\n", b"0x10\n", b"+5\n", b"1_000\n", b"4.5\n", b"--5\n"]
NO_NUMBER += [
    "\u0661\u0662\n".encode(),
    "\uff15\uff10\n".encode(),
    b"5000 apples or pears\n",
    b"<unknown>\n",
    b"\xff\xfe\n",
]
TOO_GREAT = [b"18446744073709551615\n", b"1" * 40, b"9" * 4096, b"0-4294967295\n"]


def computer(root: Path) -> None:
    """A laptop with most of what a PC may have."""
    powercap(root, {"intel-rapl:0": zone("package-0", 1000000, limit_uw=28000000), "intel-rapl:0:0": zone("core", 5)})
    hwmon(root, 2, "ina219", "1-0040", {"power1_input": "4000000\n", "update_interval": "2\n"})
    zones = {f"sys/class/thermal/thermal_zone{n}": (f"z{n}\n", f"4{n}000\n") for n in (0, 1)}
    policies = {f"{CPU}/cpufreq/policy{n}": (f"{n}\n", f"180{n}000\n") for n in (0, 1)}
    idle = {f"{CPU}/cpu{core}/cpuidle/state{state}/time": "12345\n" for core in (0, 1) for state in (0, 1)}
    write(
        root,
        {
            **{
                f"{place}/{name}": text
                for place, two in zones.items()
                for name, text in zip(("type", "temp"), two, strict=True)
            },
            **{
                f"{place}/{name}": text
                for place, two in policies.items()
                for name, text in zip(("related_cpus", "scaling_cur_freq"), two, strict=True)
            },
            **idle,
            f"{CPU}/online": "0-1\n",
            f"{BATTERY}/uevent": uevent(POWER_NOW=9000000, ENERGY_NOW=30000000, ENERGY_FULL_DESIGN=45000000),
            "sys/class/power_supply/AC/type": "Mains\n",
            "sys/class/power_supply/AC/online": "0\n",
            "proc/meminfo": "MemAvailable:    4000000 kB\nSwapTotal:  2000000 kB\nSwapFree:   1500000 kB\n",
            f"proc/{PID}/stat": STAT,
            f"proc/{PID}/statm": "10000 2500 100 1 0 1 0\n",
            f"proc/{PID}/smaps_rollup": "Rss: 100 kB\nPss:      90 kB\n",
            f"proc/{PID}/task/{PID}/children": "4243 \n",
            "proc/4243/stat": STAT,
        },
    )


TREES: dict[str, Callable[[Path], object]] = {
    "computer": computer,
    "TX2": jetson_trees.tx2,
    "Orin Nano": jetson_trees.orin_nano,
    "Thor": jetson_trees.thor,
}
trees = pytest.mark.parametrize("tree", TREES)


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


def answers(root: Path) -> dict[str, OpenSensor]:
    asked = {
        name: discover_sensor(sensor, root, Target(PID, clock=lambda: 0)) for name, sensor in load_sensors().items()
    }
    return {name: found for name, found in asked.items() if isinstance(found, OpenSensor) and name != "sampler"}


@trees
def test_a_pipe_or_a_folder_in_place_of_a_file_holds_nobody_up(tree: str, tmp_path: Path) -> None:
    TREES[tree](tmp_path)
    hung_at: list[Path] = []
    done = threading.Event()

    def replace_each() -> None:
        for path in files_of(tmp_path):
            content = path.read_bytes()
            hung_at[:] = [path]
            for make, unmake in ((os.mkfifo, os.unlink), (os.mkdir, os.rmdir)):
                path.unlink(missing_ok=True)
                make(path)
                for found in answers(tmp_path).values():
                    found.close()
                unmake(path)
            path.write_bytes(content)
        done.set()

    threading.Thread(target=replace_each, daemon=True).start()
    assert done.wait(HANG_S), hung_at


@trees
def test_what_is_no_number_or_too_great_for_one_is_never_a_reading(
    tree: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    TREES[tree](tmp_path)
    rows = tmp_path_factory.mktemp("rows")
    streams = {name: opened(name, found, tmp_path, rows) for name, found in answers(tmp_path).items()}
    assert len(streams) >= 2
    true = {name: readings(stream) for name, stream in streams.items()}
    for path in files_of(tmp_path):
        content = path.read_bytes()
        for garbage in (*NO_NUMBER, *TOO_GREAT):
            path.write_bytes(garbage)  # in place, as a driver does
            for name, stream in streams.items():
                assert readings(stream) <= true[name], (name, path, garbage)
        path.write_bytes(content)
    for name, stream in streams.items():
        stream.sample()
        assert readings(stream) <= true[name]
        stream.close()


def test_garbage_found_at_the_start_gives_no_reading_either(tmp_path: Path) -> None:
    computer(tmp_path)
    good = answers(tmp_path)
    true = {name: {value for value in found.read() if value == value} for name, found in good.items()}
    for path in files_of(tmp_path):
        content = path.read_bytes()
        for garbage in (b"1_000\n", b"\0", "\u0661\n".encode(), b"9" * 4096, b"0-4294967295\n"):
            path.write_bytes(garbage)
            for name, found in answers(tmp_path).items():
                try:
                    seen = {value for value in found.read() if value == value}
                except (OSError, ValueError):
                    seen = set()
                assert seen <= true[name], (name, path, garbage)
                found.close()
        path.write_bytes(content)
    for found in good.values():
        found.close()


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=80), place=st.integers(0, 200))
def test_no_bytes_in_any_file_crash_a_stream_or_give_an_infinite_or_negative_power(
    content: bytes, place: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, rows = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("rows")
    computer(root)
    streams = [opened(name, found, root, rows) for name, found in answers(root).items()]
    files = files_of(root)
    files[place % len(files)].write_bytes(content)
    for stream in streams:
        assert all(math.isfinite(value) and abs(value) < 1e19 for value in readings(stream))
        stream.close()


def opened(name: str, found: OpenSensor, root: Path, rows: Path) -> Stream:
    """The sensor as the sampling process reads it."""
    file = RowFile(rows / f"{name}.rows", len(found.channels))
    target = Target(PID, clock=lambda: 0)
    return Stream(load_sensors()[name], found, target, root, file, EventLog(rows / "events.jsonl"), 5_000_000)


def readings(stream: Stream) -> set[float]:
    """What the next row holds beside nulls; a sensor that is lost is looked for again at once."""
    stream.file.waiting.clear()
    stream._retry_at_ns = 0
    stream.retry()
    stream.sample()
    row = bytes(stream.file.waiting[-stream.file.row_bytes :])
    values = struct.unpack(f"<{len(row[16:]) // 8}d", row[16:])
    return {value for value in values if not math.isnan(value)}
