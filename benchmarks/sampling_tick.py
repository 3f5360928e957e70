"""CPU time of one sampling tick on a tree of files in memory: 4 rails, 6 cores, memory and temperatures.

`python -m benchmarks.sampling_tick`: of a tick with the sensors of this machine, as a training leaves the caches.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepscope.record.sampler.loop import Sampling, StreamOpener
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sensors import survey_sensors
from stepscope.record.sensors.contract import Target

_MEMORY = Path("/dev/shm")
_IN_THE_TICK = {"ina3221", "cpu_cores", "process_memory", "system_memory", "temperature"}


@contextmanager
def board(pid: int) -> Iterator[Path]:
    """A root with the files of a board: two INA3221 with two rails each (JetPack 4), six cores, six zones."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        root = Path(folder)
        for name, text in _files(pid).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield root


def tick_us(period_ns: int = 10_000_000, ticks: int = 2000) -> float:
    """Median CPU time of a tick with all sensors due, us."""
    with board(os.getpid()) as root, tempfile.TemporaryDirectory() as out:
        target = Target(os.getpid())
        run = Path(out)
        events = EventLog(run / "events.jsonl")
        seen = survey_sensors(root, target, _IN_THE_TICK)
        streams, readers = StreamOpener(run, root, target, events, period_ns).open(seen, {})
        if readers or set(seen.sensors) != _IN_THE_TICK:
            raise SystemExit(f"the board is not read as meant: {sorted(seen.sensors)}, {len(readers)} threads")
        sampling = Sampling(streams, events, target.pace, period_ns)
        costs = []
        for _ in range(ticks):
            for stream in streams:
                stream.due_ns = 0
            before = time.thread_time_ns()
            sampling.tick(1 << 62)
            costs.append(time.thread_time_ns() - before)
            if len(costs) % 24 == 0:
                sampling.chores()
        for stream in streams:
            stream.close()
        return statistics.median(costs) / 1e3


_EVICTING = 24_000_000  # bytes that are copied before each tick, so that nothing of it is in a cache
_PERIOD_NS = 10_000_000


def tick_on_this_machine(rounds: int = 40, ticks: int = 24) -> tuple[float, float]:
    """CPU time of a tick (a share of those sensors that have periods of their own), and of its share of a flush, us.

    Caches are emptied before each of them; medians over rounds of as many ticks as come before a flush.
    """
    source, sink = bytearray(_EVICTING), bytearray(_EVICTING)
    with tempfile.TemporaryDirectory() as out:
        target, run = Target(os.getpid()), Path(out)
        events = EventLog(run / "events.jsonl")
        seen = survey_sensors(Path("/"), target)
        streams, _ = StreamOpener(run, Path("/"), target, events, _PERIOD_NS).open(seen, {})
        sampling = Sampling(streams, events, target.pace, _PERIOD_NS)
        now_ns, reading, flushing = time.monotonic_ns(), [], []
        for _ in range(rounds):
            took_ns = 0
            for _ in range(ticks):
                now_ns += _PERIOD_NS
                sink[:] = source
                before = time.thread_time_ns()
                sampling.tick(now_ns)
                took_ns += time.thread_time_ns() - before
            reading.append(took_ns)
            sink[:] = source
            before = time.thread_time_ns()
            sampling.chores()
            flushing.append(time.thread_time_ns() - before)
        for stream in streams:
            stream.close()
    return statistics.median(reading) / ticks / 1e3, statistics.median(flushing) / ticks / 1e3


def _files(pid: int) -> dict[str, str]:
    rails = (("VDD_SYS_GPU", "VDD_SYS_SOC"), ("VDD_IN", "VDD_SYS_CPU"))
    cpu = "sys/devices/system/cpu"
    files = {
        f"proc/{pid}/statm": "1000000 250000 3000 1 0 70000 0\n",
        "proc/meminfo": "MemTotal: 8048000 kB\nMemAvailable: 4000000 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n",
        f"{cpu}/online": "0-5\n",
    }
    for chip, names in enumerate(rails):
        folder = f"sys/bus/i2c/drivers/ina3221x/0-004{chip}/iio:device{chip}"
        for rail, name in enumerate(names):
            files[f"{folder}/rail_name_{rail}"] = f"{name}\n"
            files[f"{folder}/ui_input_{rail}"] = "4808 760\n"
    for core in range(6):
        for state in range(2):
            files[f"{cpu}/cpu{core}/cpuidle/state{state}/time"] = "123456789\n"
    for zone in range(6):
        files[f"sys/class/thermal/thermal_zone{zone}/type"] = f"zone{zone}\n"
        files[f"sys/class/thermal/thermal_zone{zone}/temp"] = "42500\n"
    return files


if __name__ == "__main__":
    sys.stdout.write(
        "a tick takes {:.0f} us of CPU, and its share of the flush {:.0f} us\n".format(*tick_on_this_machine())
    )
