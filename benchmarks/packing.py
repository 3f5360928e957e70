"""What a run of days takes: `python -m benchmarks.packing [HOURS]`, to pack and to report on: CPU time and memory.

The run is a simulated TX2's: 40 channels at 10 ms, each as channels.json of such a board describes it, a step each
100 ms, and operators of 3,000 steps over all hours. Eager is how packing was done before, in the training process: a
frame of all rows of a sensor at once. Memory is the peak over what the process holds before it begins.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runfolder import RunReader, RunWriter, part_of, sample_dtype

_A_SECOND = 100
_AT_A_TIME = 100_000
_STEP_NS = 100_000_000
_PROFILED = 3_000  # steps
_RAILS = ("VDD_IN", "VDD_SYS_CPU", "VDD_SYS_GPU", "VDD_SYS_SOC", "VDD_SYS_DDR", "VDD_4V0_WIFI")
_CHANNELS = {  # sensor: quantity, unit, kind, scopes
    "ina3221": ("power", "W", "gauge", [f"rail:{name}" for name in _RAILS]),
    "cpu": ("core_busy_time", "ns", "counter", [f"core:{number}" for number in range(6)]),
    "frequency": ("core_frequency", "Hz", "gauge", [f"core:{number}" for number in range(6)]),
    "gpu": ("utilisation", "1", "gauge", ["gpu:0"]),
    "memory": ("memory_used", "B", "gauge", ["system"]),
    "process": ("process_cpu_time", "ns", "counter", ["process"]),
    "resident": ("rss", "B", "gauge", ["process"]),
    "thermal": ("temperature", "degC", "gauge", [f"zone:{number}" for number in range(10)]),
    "pressure": ("stall_time", "ns", "counter", [f"pressure:{number}" for number in range(8)]),
}
_CHILD = """
import contextlib, io, sys, time
from pathlib import Path
import numpy as np
def megabytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if field in line) / 1024
from stepscope.runfolder import pack as packing
from stepscope.runfolder.samples import samples_of
from stepscope.runfolder.tables import steps_of
from stepscope.runfolder.schema import STEP_ROW, channel_names, sample_dtype
run, base = Path(sys.argv[1]), megabytes("VmRSS")
if sys.argv[2] == "eager":
    def rows_of(path, dtype):
        return np.frombuffer(path.read_bytes(), dtype=dtype)
    steps_of(rows_of(run / "steps.rows", STEP_ROW)).write_parquet(run / "steps.parquet")
    for rows in (run / "samples").glob("*.rows"):
        columns = channel_names(run, rows.stem)
        frame = samples_of(rows_of(rows, sample_dtype(columns)), columns)
        frame.write_parquet(rows.with_suffix(".parquet"), compression_level=3)
elif sys.argv[2] == "packed":
    packing.pack(run)
else:
    from stepscope.__main__ import main
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        sys.argv = ["stepscope", "report", str(run)]
        main()
    assert "J" in said.getvalue(), said.getvalue()
size = sum(path.stat().st_size for path in run.rglob("*.parquet")) / 1e6
print(f"{megabytes('VmHWM') - base:.0f} MB over {base:.0f} MB, {time.process_time():.1f} s of CPU, {size:.0f} MB")
"""


def grown(out: Path, hours: float) -> Path:
    """A closed run of so many hours, not packed yet."""
    writer, random = RunWriter.create(out, "long"), np.random.default_rng(0)
    writer.update(warmup_steps=3, sampler={"period_ns": 10**9 // _A_SECOND}, recorder={"mode": "adaptive"})
    writer.write_device({"board": {"name": "simulated TX2"}, "memory": {"total_bytes": 8_000_000_000}})
    rows = int(hours * 3600 * _A_SECOND)
    channels = []
    for sensor, (quantity, unit, kind, scopes) in _CHANNELS.items():
        described = [_described(sensor, quantity, unit, kind, scope) for scope in scopes]
        channels += described
        _sample(writer.path / "samples" / f"{sensor}.rows", described, rows, random)
    (writer.path / "channels.json").write_text(json.dumps({"channels": channels}))
    steps = rows // (_A_SECOND * _STEP_NS // 10**9)
    every = max(steps // _PROFILED, 1)
    for step in range(steps):
        writer.append_step(step, step * _STEP_NS, step * _STEP_NS + 98_000_000, 16, 0.5, step % every == 0)
        if step % 10_000 == 0:
            writer.flush_steps()
    profiled = np.arange(0, steps, every)
    for first in range(0, len(profiled), 100):
        writer.write_ops(part_of(_ops(profiled[first : first + 100]), "ops"))
    writer.close("ok")
    return writer.path


def _described(sensor: str, quantity: str, unit: str, kind: str, scope: str) -> dict[str, Any]:
    stated: dict[str, Any] = {"refresh_ns": 6_600_000, "step_size": 0.019} if sensor == "ina3221" else {}
    name = f"{sensor}.{scope}.{quantity}"
    return {
        "id": name,
        "sensor": sensor,
        "quantity": quantity,
        "unit": unit,
        "kind": kind,
        "scope": scope,
        "source": sensor,
        **({"rail": scope.partition(":")[2]} if scope.startswith("rail:") else {}),
        **stated,
    }


def _sample(path: Path, channels: list[dict[str, Any]], rows: int, random: np.random.Generator) -> None:
    """Rows of one sensor: power follows the operators, counters grow, the rest wanders."""
    with path.open("wb") as file:
        for first in range(0, rows, _AT_A_TIME):
            file.write(_rows(channels, first, min(_AT_A_TIME, rows - first), random).tobytes())


def _rows(channels: list[dict[str, Any]], first: int, count: int, random: np.random.Generator) -> Any:
    """So many rows of one sensor, from the one that would be number `first`."""
    names = [str(channel["id"]) for channel in channels]
    table = np.zeros(count, dtype=sample_dtype(names))
    table["t0_ns"] = (first + np.arange(count)) * 10_000_000 + random.integers(0, 3_000_000, count)
    table["t1_ns"] = table["t0_ns"] + random.integers(10_000, 90_000, count)
    for number, channel in enumerate(channels):
        noise = random.normal(0, 1, count)
        if channel["kind"] == "counter":
            values = table["t0_ns"] * (0.3 + 0.1 * number) // 1
        elif channel["quantity"] == "power":
            at = table["t0_ns"] % _STEP_NS / _STEP_NS
            values = np.round((2 + 3 * (at < 0.5) + 0.1 * noise) * (1 + number) / 4 / 0.019) * 0.019
        else:
            values = _USUAL[channel["unit"]] * (1 + 0.01 * np.round(noise, 2))
        table[names[number]] = values
    return table


_USUAL = {"Hz": 2e9, "1": 0.5, "B": 1e9, "degC": 50.0}


def _ops(steps: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """Thirty-two operators of each step, of two kinds, in eight layers."""
    import polars as pl

    from stepscope.runfolder import OPS

    size = 32
    place = np.tile(np.arange(size), len(steps))
    t0 = np.repeat(steps, size) * _STEP_NS + place * 2_900_000
    late = place >= size // 2
    return pl.DataFrame(
        {
            "step": np.repeat(steps, size),
            "t0_ns": t0,
            "t1_ns": t0 + 2_800_000,
            "self_ns": np.full(len(t0), 2_800_000),
            "parent": [None] * len(t0),
            "name": np.where(late, "aten::mm", "aten::convolution"),
            "module": np.char.add("layer", (place % 8).astype(str)),
            "phase": np.where(late, "backward", "forward"),
            "thread": np.ones(len(t0), dtype=np.int64),
            "device": ["cpu"] * len(t0),
            "flops": [None] * len(t0),
            "bytes": [None] * len(t0),
        },
        schema_overrides={"parent": pl.Int32, "flops": pl.Int64, "bytes": pl.Int64},
    ).select([pl.col(name).cast(kind) for name, kind in OPS.items()])


def main() -> None:
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 6.0
    for ways in (("eager",), ("packed", "report")):
        with tempfile.TemporaryDirectory() as folder:
            run = grown(Path(folder), hours)
            size = sum(path.stat().st_size for path in run.rglob("*.rows")) / 1e6
            for way in ways:
                command = [sys.executable, "-c", _CHILD, str(run), way]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
                print(f"{way:<8}{hours:g} h, {size:.0f} MB of rows: {said}", flush=True)
            reader = RunReader(run)
            assert not reader.damaged, reader.damaged
            assert len(reader.channels) == sum(len(scopes) for *_, scopes in _CHANNELS.values())


if __name__ == "__main__":
    main()
