"""What packing a long run takes: `python -m benchmarks.packing [HOURS]`, peak memory over the base, and CPU time.

The run is a simulated TX2's as findings of 2026-11-22 had it: 32 channels at 10 ms. Eager is how it was done before, in
the training process: a frame of all rows of a sensor at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from stepscope.runfolder import RunWriter, sample_dtype

_CHANNELS = {"ina": 6, "cpu": 12, "gpu": 2, "memory": 4, "process": 3, "temperature": 5}
_A_SECOND = 100
_AT_A_TIME = 100_000
_CHILD = """
import sys, time
from pathlib import Path
import numpy as np
from stepscope.runfolder import pack as packing
from stepscope.runfolder.reader import samples_of, steps_of
from stepscope.runfolder.schema import STEP_ROW, channel_names, sample_dtype
def megabytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if field in line) / 1024
run, base = Path(sys.argv[1]), megabytes("VmRSS")
if sys.argv[2] == "eager":
    def rows_of(path, dtype):
        return np.frombuffer(path.read_bytes(), dtype=dtype)
    steps_of(rows_of(run / "steps.rows", STEP_ROW)).write_parquet(run / "steps.parquet")
    for rows in (run / "samples").glob("*.rows"):
        columns = channel_names(run, rows.stem)
        frame = samples_of(rows_of(rows, sample_dtype(columns)), columns)
        frame.write_parquet(rows.with_suffix(".parquet"), compression_level=3)
else:
    packing.pack(run)
size = sum(path.stat().st_size for path in run.rglob("*.parquet")) / 1e6
print(f"{megabytes('VmHWM') - base:.0f} MB over {base:.0f} MB, {time.process_time():.1f} s of CPU, {size:.0f} MB")
"""


def grown(out: Path, hours: float) -> Path:
    """A closed run of so many hours, with a step each 100 ms."""
    writer, random = RunWriter.create(out, "long"), np.random.default_rng(0)
    rows = int(hours * 3600 * _A_SECOND)
    channels = []
    for sensor, count in _CHANNELS.items():
        names = [f"{sensor}.{number}" for number in range(count)]
        channels += [{"id": name, "sensor": sensor, "quantity": "power", "scope": "board"} for name in names]
        with (writer.path / "samples" / f"{sensor}.rows").open("wb") as file:
            for first in range(0, rows, _AT_A_TIME):
                table = np.zeros(min(_AT_A_TIME, rows - first), dtype=sample_dtype(names))
                table["t0_ns"] = (first + np.arange(len(table))) * 10_000_000 + random.integers(
                    0, 3_000_000, len(table)
                )
                table["t1_ns"] = table["t0_ns"] + random.integers(10_000, 90_000, len(table))
                for name in names:
                    table[name] = np.round(random.normal(5, 1, len(table)) / 0.019) * 0.019
                file.write(table.tobytes())
    (writer.path / "channels.json").write_text(json.dumps({"channels": channels}))
    for step in range(rows // 10):
        writer.step(step, step * 10**8, (step + 1) * 10**8, 16, 0.5, False)
        if step % 10_000 == 0:
            writer.flush_steps()
    writer.close("ok")
    return writer.path


def main() -> None:
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    for way in ("eager", "packed"):
        with tempfile.TemporaryDirectory() as folder:
            run = grown(Path(folder), hours)
            size = sum(path.stat().st_size for path in run.rglob("*.rows")) / 1e6
            command = [sys.executable, "-c", _CHILD, str(run), way]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            print(f"{way:<8}{hours:g} h, {size:.0f} MB of rows: {said}", flush=True)


if __name__ == "__main__":
    main()
