"""What --max-disk makes of a run of days: `python -m benchmarks.days [HOURS] [MB]`, 168 h and 500 MB in the end.

The run is that of `benchmarks.packing` (40 channels at 10 ms, a step each 100 ms), written part by part as the sampling
process does, each followed by the pass of `stepscope.runfolder.disk_limit` that it starts. Printed: the most that the
folder held at any time, its CPU time, what the energy differs by from all readings, and what a report takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.packing import _CHANNELS, _CHILD, _described, _ops, _rows
from stepscope.analysis.energy.power_sources import power_sources
from stepscope.part_names import rows_file_name
from stepscope.record.sampler.rows import part_bytes
from stepscope.runfolder import RunReader, RunWriter, disk_limit, part_of, sample_dtype

_STEP_NS = 100_000_000
_PERIOD_NS = 10_000_000
_EVERY = 300  # steps, of which one is profiled


def size_of(folder: Path) -> int:
    """Return the size of all files of a run, bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def written(out: Path, hours: float, most: int) -> tuple[Path, float, float, float]:
    """Return a closed run, the most it held, CPU seconds of keeping it small, and the joules of the first rail."""
    writer, random = RunWriter.create(out, "days"), np.random.default_rng(0)
    writer.max_disk = most
    writer.update(warmup_steps=3, sampler={"period_ns": _PERIOD_NS, "max_disk": most}, recorder={"mode": "adaptive"})
    writer.write_device({"board": {"name": "simulated TX2"}, "memory": {"total_bytes": 8_000_000_000}})
    channels = {
        sensor: [_described(sensor, quantity, unit, kind, scope) for scope in scopes]
        for sensor, (quantity, unit, kind, scopes) in _CHANNELS.items()
    }
    table = [row for own in channels.values() for row in own]
    (writer.path / "channels.json").write_text(json.dumps({"channels": table}))
    row_bytes = sum(sample_dtype([str(row["id"]) for row in own]).itemsize for own in channels.values())
    rows, per_part = int(hours * 3600e9 / _PERIOD_NS), min(part_bytes(most) // row_bytes, 360_000)
    largest = cpu = joules = 0.0
    for number, first in enumerate(range(0, rows, per_part)):
        count = min(per_part, rows - first)
        for sensor, own in channels.items():
            block = _rows(own, first, count, random)
            (writer.path / "samples" / rows_file_name(sensor, number)).write_bytes(block.tobytes())
            if sensor == "ina3221":
                middle = (block["t0_ns"] + block["t1_ns"]) / 2e9
                joules += float(np.trapezoid(block[str(own[0]["id"])], middle))
        steps = range(first * _PERIOD_NS // _STEP_NS, (first + count) * _PERIOD_NS // _STEP_NS)
        for step in steps:
            writer.append_step(step, step * _STEP_NS, step * _STEP_NS + 98_000_000, 16, 0.5, step % _EVERY == 0)
        writer.flush_steps()
        for step in steps[::_EVERY]:
            writer.write_ops(part_of(_ops(np.array([step - step % _EVERY])), "ops"))
        largest, began = max(largest, size_of(writer.path)), time.process_time()
        disk_limit.main([str(writer.path), "--max-disk", str(most)])
        cpu += time.process_time() - began
    writer.close("ok")
    return writer.path, largest, cpu, joules


def main() -> None:
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    most = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else int(hours / 168 * 500e6)
    with tempfile.TemporaryDirectory() as folder:
        path, largest, cpu, joules = written(Path(folder), hours, most)
        files = len(list(path.rglob("*.parquet")))
        said = f"at most {largest / 1e6:.1f} MB, {size_of(path) / 1e6:.1f} MB at the end in {files} Parquet files"
        print(f"{hours:g} h within {most / 1e6:.1f} MB: {said}; {cpu:.0f} s of CPU to keep it so", flush=True)
        command: list[Any] = [sys.executable, "-c", _CHILD, str(path), "packed"]
        for way in ("packed", "report"):
            command[-1] = way
            done = subprocess.run(command, capture_output=True, text=True)
            print(f"{way:<8}{done.stdout.strip() or done.stderr[-2000:]}", flush=True)
        run = RunReader(path)
        growth = power_sources(run)[0].growth
        print(f"energy {growth.known_growth[-1] / joules - 1:+.2e} of {joules:,.0f} J; damaged: {run.damaged}")
        print(f"samples: {len({grain for *_, grain in run.thinned_samples})} lengths of means; {run.windows_recorded}")


if __name__ == "__main__":
    main()
