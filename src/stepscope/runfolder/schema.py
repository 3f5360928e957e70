"""What lies in a run folder: names, columns, and the rows of files that are appended while a run goes on."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

SCHEMA = 1
STATUSES = ("running", "ok", "failed", "oom", "interrupted")
PHASES = ("data", "forward", "backward", "optimizer", "other")
QUANTITIES = {  # what sensors give, by the names that analysis asks for
    *("power", "energy", "voltage", "current", "charge", "stored_energy", "utilisation", "frequency", "temperature"),
    *("core_busy_time", "core_idle_time", "core_frequency", "process_cpu_time", "rss", "pss", "uss", "peak_rss"),
    *(
        "sampler_cpu_time",
        "sampler_lateness",
        "sampler_missed",
        "memory_total",
        "memory_available",
        "memory_used",
        "swap_used",
        "children",
        "throttled",
    ),
}
MODULE_CALL = "nn."  # ops whose name starts so are calls of a module, not of a kernel

STEPS = {
    "step": pl.Int64,
    "t0_ns": pl.Int64,
    "t1_ns": pl.Int64,
    "samples": pl.Int64,
    "loss": pl.Float64,
    "recorded": pl.Boolean,
}
OPS = {
    "step": pl.UInt32,
    "t0_ns": pl.Int64,
    "t1_ns": pl.Int64,
    "self_ns": pl.Int64,
    "parent": pl.Int32,  # row of the parent within its own step; null at the top
    "name": pl.Categorical,
    "module": pl.Categorical,  # "" is the model itself; null is outside any module
    "phase": pl.Categorical,
    "thread": pl.UInt32,  # a thread of the trainer; of a GPU row, the stream
    "device": pl.Categorical,
    "flops": pl.Int64,
    "bytes": pl.Int64,
}
MEMORY = {
    "step": pl.UInt32,
    "t_ns": pl.Int64,
    "tensor": pl.Int64,  # a storage; its number is its own over the whole run
    "bytes": pl.Int64,  # below zero where it is freed
    "category": pl.Categorical,  # one of CATEGORIES
    "module": pl.Categorical,  # as in OPS
    "op": pl.Categorical,  # that allocated it
    "phase": pl.Categorical,
    "device": pl.Categorical,
    "shape": pl.Categorical,  # "64x3x32x32"; null where it is no tensor
}
CATEGORIES = (
    "parameter",
    "buffer",
    "gradient",
    "optimizer",  # its state
    "input",
    "saved",  # feature maps kept for backward
    "temporary",
    "workspace",  # of kernels: no tensor that a dispatcher sees
    "other",
)
MODEL = {
    "module": pl.String,
    "type": pl.String,
    "parent": pl.String,
    "parameters": pl.Int64,
    "bytes": pl.Int64,
    "flops_forward": pl.Int64,
    "flops_backward": pl.Int64,
    "trainable": pl.Boolean,
}
STEP_ROW = np.dtype(
    [("step", "<i8"), ("t0_ns", "<i8"), ("t1_ns", "<i8"), ("samples", "<i8"), ("loss", "<f8"), ("recorded", "<i8")]
)
PACK_STEP = struct.Struct("<4qdq").pack  # the same row, twenty times faster than through numpy
NO_SAMPLES = -1  # in the rows of a running run; null once read


def sample_dtype(columns: list[str]) -> np.dtype[Any]:
    """One appended row of a sensor: two time stamps and one float64 a channel, little endian; NaN is "not read"."""
    return np.dtype([("t0_ns", "<i8"), ("t1_ns", "<i8"), *((name, "<f8") for name in columns)])


def read_step_rows(path: Path) -> pl.DataFrame:
    return _steps_of(_whole_rows(path, STEP_ROW))


def read_last_step_rows(path: Path, most: int) -> tuple[int, pl.DataFrame]:
    """How many whole rows there are, and the last of them."""
    with path.open("rb") as file:
        count = file.seek(0, 2) // STEP_ROW.itemsize
        file.seek(max(count - most, 0) * STEP_ROW.itemsize)
        data = file.read(min(count, most) * STEP_ROW.itemsize)
    return count, _steps_of(np.frombuffer(data, dtype=STEP_ROW))


def _steps_of(rows: np.ndarray[Any, np.dtype[Any]]) -> pl.DataFrame:
    frame = pl.DataFrame({name: rows[name] for name in STEPS})
    return frame.select(
        "step",
        "t0_ns",
        "t1_ns",
        pl.when(pl.col("samples") != NO_SAMPLES).then("samples"),
        pl.col("loss").fill_nan(None),
        pl.col("recorded").cast(pl.Boolean),
    )


def read_sample_rows(path: Path, columns: list[str]) -> pl.DataFrame:
    rows = _whole_rows(path, sample_dtype(columns))
    frame = pl.DataFrame({name: rows[name] for name in ("t0_ns", "t1_ns", *columns)})
    return frame.with_columns(pl.col(columns).fill_nan(None)) if columns else frame


def _whole_rows(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """The complete rows of an appended file; a last row that a crash cut off is dropped."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)


def channel_names(run: Path, sensor: str) -> list[str]:
    """Column order of a sensor's rows, as channels.json has it."""
    channels = json.loads((run / "channels.json").read_text(encoding="utf-8"))["channels"]
    return [channel["id"] for channel in channels if channel["sensor"] == sensor]


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
