"""What exports and the live view cost: python -m benchmarks.exports.

A synthetic run of 1 M op calls and 100,000 readings is exported to Perfetto and parsed back; a growing run of six
cores and five rails is watched at 2 Hz on a terminal of 80 columns.
"""

from __future__ import annotations

import gzip
import json
import os
import pty
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tests.fabricate import STEP, Core, every_step, fabricate_run
from tests.report import perfetto_reader

from stepscope.analysis.run import Run
from stepscope.clock import monotonic_ns, read_clocks
from stepscope.report import exports
from stepscope.report.exports._excerpt import excerpt
from stepscope.runfolder import RunWriter

_OPS, _READINGS = 1_000_000, 100_000
_COPIES = 3  # of the synthetic network in a step
_CORES = 6
_RAILS = ("VDD_IN", "VDD_SYS_CPU", "VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_SYS_DDR")


def perfetto() -> None:
    """Time and size of the export, and whether what comes back is what the run holds."""
    with tempfile.TemporaryDirectory() as folder:
        ops = STEP * _COPIES
        in_a_step = len(Run(fabricate_run(Path(folder), steps=1, ops=ops, recorded=every_step)).ops)
        steps = -(-_OPS // in_a_step)
        period_ns = steps * 46_000_000 * 7 // _READINGS  # seven channels
        path = fabricate_run(
            Path(folder), steps=steps, ops=ops, recorded=every_step, power_w=5.0, noise=0.02, period_ns=period_ns,
            cores=(Core(0.7), Core(0.2)), steps_per_part=200,
        )  # fmt: skip
        part, target = excerpt(Run(path)), Path(folder) / "run.pftrace.gz"
        began = time.perf_counter()
        exports.find_export("perfetto").write(part, target)
        took_s, size_mb = time.perf_counter() - began, target.stat().st_size / 1e6
        print(f"Perfetto: {part.op_count:,} op calls, {part.sample_count:,} readings")
        print(f"  {took_s:.1f} s (bar 15), {size_mb:.1f} MB (bar 40)")
        tracks = perfetto_reader.read(gzip.decompress(target.read_bytes()))
        found = [one for track in tracks.values() if track.thread for one in track.slices]
        stored = part.ops["t1_ns"].to_numpy() - part.ops["t0_ns"].to_numpy()
        same = len(found) == len(stored) and sum(one.t1_ns - one.t0_ns for one in found) == int(np.sum(stored))
        print(f"  parsed back: {len(found):,} slices, counts and sums {'as in the run' if same else 'WRONG'}")


def live(seconds: float) -> None:
    """CPU time of the view over the time after its start, at 2 Hz."""
    short_s, long_s = _watched(2.0), _watched(2.0 + seconds)
    print(f"live view: {(long_s - short_s) / seconds * 100:.2f} % of a core at 2 Hz (bar 1), start {short_s:.2f} s")


def _watched(seconds: float) -> float:
    """CPU time of a view in a pseudo-terminal while a run grows for so long, s."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stepscope.report.live", folder, "--of", str(os.getpid())]
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
            os.execv(command[0], command)
        threading.Thread(target=_drain, args=(terminal,), daemon=True).start()
        _grow(Path(folder), seconds)
        used = os.wait4(pid, 0)[2]
        return used.ru_utime + used.ru_stime


def _drain(terminal: int) -> None:
    while True:
        try:
            if not os.read(terminal, 65_536):
                return
        except OSError:  # what Linux says when the other end is gone
            return


def _grow(out: Path, seconds: float) -> None:
    """A run with a reading each 10 ms and a step each 240 ms."""
    writer = RunWriter.create(out, "grown")
    writer.write_device({"compatible": "nvidia,p2771-0000 nvidia,tegra186", "memory_bytes": 8_000_000_000})
    idle = [("cpu", "core_idle_time", "ns", "counter", f"core:{core}") for core in range(_CORES)]
    rails = [("ina", "power", "W", "gauge", f"rail:{rail}") for rail in _RAILS]
    names = ("sensor", "quantity", "unit", "kind", "scope")
    channels = [{"id": str(at), **dict(zip(names, row, strict=True))} for at, row in enumerate([*idle, *rails])]
    (writer.path / "channels.json").write_text(json.dumps({"channels": channels, "missing": []}))
    workload = {"name": "grown", "batch_size": 16}
    writer.update(pid=os.getpid(), clock=read_clocks(), workload=workload, planned_steps=1000)
    files = [(writer.path / "samples" / f"{sensor}.rows").open("ab", 0) for sensor in ("cpu", "ina")]
    until, step = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        began = monotonic_ns()
        for _ in range(24):
            time.sleep(0.01)
            now = monotonic_ns()
            files[0].write(struct.pack(f"<qq{_CORES}d", now, now, *(now * 0.1 * core for core in range(_CORES))))
            files[1].write(struct.pack(f"<qq{len(_RAILS)}d", now, now, 5.0, 1.5, 2.1, 0.5, 0.7))
        writer.append_step(step, began, monotonic_ns(), 16, 1.0, False)
        writer.flush_steps()
        step += 1
    for file in files:
        file.close()
    writer.close("ok")


if __name__ == "__main__":
    perfetto()
    live(20.0)
