"""Packing a closed run: the same run afterwards, in bounded memory, whatever kills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.test_parts import window

from stepscope.runfolder import RunReader, RunWriter, sample_dtype
from stepscope.runfolder import pack as packing
from stepscope.runfolder.pack import pack

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def sampled(run: Path, sensor: str, rows: int, channels: int = 2) -> None:
    """Rows of a sensor as its sampler leaves them, with gaps."""
    names = [f"{sensor}.{number}" for number in range(channels)]
    table = np.zeros(rows, dtype=sample_dtype(names))
    table["t0_ns"] = np.arange(rows) * 10_000_000
    table["t1_ns"] = table["t0_ns"] + 50_000
    for name in names:
        table[name] = np.where(np.arange(rows) % 5, np.arange(rows) * 0.5, np.nan)
    with (run / "samples" / f"{sensor}.rows").open("ab") as file:
        file.write(table.tobytes())
    known = run / "channels.json"
    content = json.loads(known.read_text()) if known.exists() else {"channels": []}
    shared = {"sensor": sensor, "quantity": "power", "unit": "W", "kind": "gauge", "scope": "board"}
    content["channels"] += [{"id": name, **shared} for name in names]
    known.write_text(json.dumps(content))


def recorded(writer: RunWriter, status: str | None = "ok") -> None:
    """A run with something of everything."""
    for step in range(500):
        writer.append_step(step, step * 10, step * 10 + 9, step % 3 or None, 0.5 if step % 2 else None, step % 2 == 0)
    for seed in range(3):
        writer.write_ops(window(100, seed))
    sampled(writer.path, "ina", 1_000)
    sampled(writer.path, "cpu", 10)
    writer.flush_steps()
    if status is not None:
        writer.close(status)


def content(path: Path) -> list[Any]:
    run = RunReader(path)
    frames = [run.steps, run.ops, run.memory_events, *(run.sensor(name) for name in ("ina", "cpu"))]
    assert run.damaged == []
    return [frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).to_dict(as_series=False) for frame in frames]


def unpacked(path: Path) -> list[str]:
    return sorted(file.name for pattern in ("*.rows", "*.part") for file in path.rglob(pattern))


def test_a_packed_run_reads_as_it_did_before(writer: RunWriter) -> None:
    recorded(writer)
    before = content(writer.path)
    assert len(unpacked(writer.path)) == 6
    assert pack(writer.path) == []
    assert unpacked(writer.path) == []
    assert content(writer.path) == before
    assert pack(writer.path) == []


def test_a_file_larger_than_a_chunk_is_packed_in_pieces(writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK_BYTES", 1_000)
    recorded(writer)
    before = content(writer.path)
    pack(writer.path)
    assert content(writer.path) == before


@pytest.mark.parametrize("status", ["running", None])
def test_a_run_that_goes_on_is_left_alone(writer: RunWriter, status: str | None) -> None:
    recorded(writer, status=None)
    if status is None:
        (writer.path / "run.json").write_text("{}")
    before = unpacked(writer.path)
    assert pack(writer.path) == []
    assert unpacked(writer.path) == before


def test_the_closed_ranks_of_a_run_are_packed_with_it(writer: RunWriter) -> None:
    ended, broken_off = RunWriter.create_rank(writer.path, 0), RunWriter.create_rank(writer.path, 1)
    recorded(ended)
    recorded(broken_off, status=None)
    writer.close("ok")
    before = content(ended.path)
    assert pack(writer.path) == []
    assert unpacked(ended.path) == []
    assert len(unpacked(broken_off.path)) == 6
    assert content(ended.path) == before


def test_a_damaged_part_stays_and_the_others_are_packed(writer: RunWriter) -> None:
    recorded(writer)
    (writer.path / "ops" / "000001.part").write_bytes(b"SSPART1\nand no more")
    assert pack(writer.path) == ["ops/000001.part"]
    assert unpacked(writer.path) == ["000001.part"]
    run = RunReader(writer.path)
    assert (run.ops.height, run.damaged) == (200, ["ops/000001.part"])


# kills

KILLED = """
import os, signal, sys
from pathlib import Path
from stepscope.runfolder import pack as packing
count, at = 0, int(sys.argv[2])
def killing(call):
    def killer(*arguments, **options):
        global count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        return call(*arguments, **options)
    return killer
Path.unlink, Path.replace, os.fsync = killing(Path.unlink), killing(Path.replace), killing(os.fsync)
packing.pack(sys.argv[1])
"""


@pytest.mark.parametrize("at", [0, 1, 2, 3, 10, 14])
def test_a_kill_between_any_two_steps_loses_and_doubles_nothing(writer: RunWriter, at: int) -> None:
    recorded(writer)
    before = content(writer.path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(writer.path), str(at)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert unpacked(writer.path) != []
    assert content(writer.path) == before
    (writer.path / "ops" / f".000000.parquet.{os.getppid()}.part").write_bytes(b"of a pack that still runs")
    assert pack(writer.path) == []
    assert content(writer.path) == before
    assert unpacked(writer.path) == [f".000000.parquet.{os.getppid()}.part"]


@pytest.mark.parametrize("left", ["nothing", "zeros", "a row"])
@pytest.mark.parametrize("noted", [True, False])
def test_what_a_loss_of_power_left_of_the_rows_takes_nothing_from_what_was_made_of_them(
    writer: RunWriter, left: str, noted: bool
) -> None:
    """The power went before the rows were removed: they had never been synced, the Parquet file had."""
    recorded(writer)
    made_of = {path: path.read_bytes() for path in writer.path.rglob("*") if path.suffix in (".rows", ".part")}
    before = content(writer.path)
    pack(writer.path)
    for path, data in made_of.items():
        path.write_bytes({"nothing": b"", "zeros": bytes(len(data)), "a row": data[:48]}[left])
    if not noted:
        (writer.path / "checksums.json").unlink()
    assert pack(writer.path) == []
    assert unpacked(writer.path) == []
    assert content(writer.path) == before


def test_a_disk_that_refuses_leaves_the_rows_and_no_half_file(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(writer)
    before = content(writer.path)

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        pack(writer.path)
    assert not list(writer.path.rglob("*.parquet*"))
    assert content(writer.path) == before


def test_a_reader_that_looks_while_a_file_is_packed_finds_it(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(writer)
    before = content(writer.path)
    run, exists = RunReader(writer.path), Path.exists
    looked: list[Path] = []

    def packed_after_the_first_look(path: Path, **options: Any) -> bool:
        there = exists(path, **options)
        if not looked:
            looked.append(path)
            pack(writer.path)
        return there

    monkeypatch.setattr(Path, "exists", packed_after_the_first_look)
    assert run.steps.to_dict(as_series=False) == before[0]
    assert run.damaged == []


# What is freed goes back to the system at once, and no thread keeps a row group: else the peak grows with the run.
ALLOCATION = {
    "POLARS_MAX_THREADS": "1",
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "100000",
}
PEAK = """
import sys
from pathlib import Path
import stepscope.runfolder.reader
from stepscope.runfolder.pack import pack
def kilobytes(field):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if field in line)
base = kilobytes("VmRSS")
pack(sys.argv[1])
print(kilobytes("VmHWM") - base)
"""


def peak_of_packing(run: Path, blocks: int) -> tuple[int, int]:
    """The peak of the process that packs so many times 3.2 MB of samples, and their size, in bytes."""
    writer = RunWriter.create(run, "lenet")
    sampled(writer.path, "ina", 0)
    block = np.sort(np.random.default_rng(0).random((100_000, 4))).tobytes()  # read as whole numbers: t0 before t1
    with (writer.path / "samples" / "ina.rows").open("ab") as file:
        for _ in range(blocks):
            file.write(block)
    writer.close("ok")
    command, environment = [sys.executable, "-c", PEAK, str(writer.path)], {**os.environ, **ALLOCATION}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert RunReader(writer.path).sensor_between("ina", 0, (1 << 63) - 1).height == blocks * 100_000
    return int(done.stdout) * 1024, blocks * len(block)


@linux
def test_the_memory_that_packing_takes_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """The least of three tries, since on a busy machine chunks wait for the thread that compresses them."""
    few, few_bytes = peak_of_packing(tmp_path / "few", blocks=6)  # several chunks and row groups
    many, many_bytes = min(peak_of_packing(tmp_path / f"many{attempt}", blocks=60) for attempt in range(3))
    assert many - few < (many_bytes - few_bytes) / 10
    assert many < many_bytes / 2
