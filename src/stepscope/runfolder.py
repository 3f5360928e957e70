"""The contract between recording and reading: what lies in a run folder, who writes it, how it is read.

`RunWriter` is the recording half, `RunReader` the reading half; they share nothing else. Every file has
one writer and can be read after a crash up to its last flush. docs/run-folder.md is the page for users.

Schema history
  1  first version
"""

from __future__ import annotations

import io
import json
import os
import secrets
import struct
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.clock import monotonic_ns
from stepscope.errors import OutputNotWritable, RunDamaged, RunNotFound, SchemaTooNew, UnknownName

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
_STEP_ROW = np.dtype(
    [("step", "<i8"), ("t0_ns", "<i8"), ("t1_ns", "<i8"), ("samples", "<i8"), ("loss", "<f8"), ("recorded", "<i8")]
)
_PACK_STEP = struct.Struct("<4qdq").pack  # the same row, twenty times faster than through numpy
_NO_SAMPLES = -1  # in the rows of a running run; null once read


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader or a crash sees the old or the new content, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=3, statistics=False)
    return buffer.getvalue()


def sample_dtype(columns: list[str]) -> np.dtype[Any]:
    """One appended row of a sensor: two time stamps and one float64 a channel, little endian; NaN is "not read"."""
    return np.dtype([("t0_ns", "<i8"), ("t1_ns", "<i8"), *((name, "<f8") for name in columns)])


class RunWriter:
    """Writes one run folder; a method a file. Raises OSError when the disk does: the session decides what then."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        self._header = header
        self._steps_file: io.BufferedWriter | None = None
        self._parts = 0
        self._memory_parts = 0

    @classmethod
    def create(cls, out: str | Path, workload: str, unix_s: float | None = None) -> RunWriter:
        """Make `out/<UTC stamp>-<workload>-<6 hex>/` and its first run.json (status: running)."""
        stamp = datetime.fromtimestamp(time.time() if unix_s is None else unix_s, tz=timezone.utc)
        name = "".join(c if c.isalnum() or c in "._-" else "_" for c in workload) or "run"
        run_id = f"{stamp:%Y%m%dT%H%M%SZ}-{name}-{secrets.token_hex(3)}"
        path = Path(out) / run_id
        try:
            for folder in (path, path / "ops", path / "memory", path / "samples"):
                folder.mkdir(parents=True, exist_ok=True)
            writer = cls(path, {"schema": SCHEMA, "id": run_id, "status": "running", "reason": None})
            writer.update()
        except OSError as error:
            raise OutputNotWritable(
                f"cannot write a run below '{out}': {error.strerror or error}",
                "choose a folder that you can write with --out DIR",
            ) from error
        return writer

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json and replace it."""
        self._header.update(fields)
        self._write_json("run.json", self._header)

    def device(self, facts: dict[str, Any]) -> None:
        """Write device.json."""
        self._write_json("device.json", facts)

    def model(self, modules: list[dict[str, Any]]) -> None:
        """Write model.json: one object a module, keys as `MODEL`, parents before children."""
        self._write_json("model.json", {"modules": modules})

    def step(self, step: int, t0_ns: int, t1_ns: int, samples: int | None, loss: float | None, recorded: bool) -> None:
        """Append one step; `flush_steps` brings it to the disk."""
        if self._steps_file is None:
            self._steps_file = (self.path / "steps.rows").open("ab")
        known = _NO_SAMPLES if samples is None else samples
        self._steps_file.write(_PACK_STEP(step, t0_ns, t1_ns, known, _nan(loss), recorded))

    def flush_steps(self) -> None:
        """Bring the steps so far to the disk."""
        if self._steps_file is not None:
            self._steps_file.flush()

    def ops(self, part: pl.DataFrame) -> int:
        """Write the op instances of one window as a new part; returns its size in bytes."""
        data = _parquet(part.select(pl.col(name).cast(dtype) for name, dtype in OPS.items()))
        _write_atomically(self.path / "ops" / f"{self._parts:06d}.parquet", data)
        self._parts += 1
        return len(data)

    def memory(self, part: pl.DataFrame) -> int:
        """Write the allocations and frees of one window as a new part; returns its size in bytes."""
        data = _parquet(part.select(pl.col(name).cast(dtype) for name, dtype in MEMORY.items()))
        _write_atomically(self.path / "memory" / f"{self._memory_parts:06d}.parquet", data)
        self._memory_parts += 1
        return len(data)

    def event(self, kind: str, message: str, source: str = "session", **fields: Any) -> None:
        """Append a warning, gap or loss to events.jsonl; one write, so that two processes can share the file."""
        line = json.dumps({"t_ns": monotonic_ns(), "source": source, "kind": kind, "message": message, **fields})
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def close(self, status: str, reason: str | None = None) -> None:
        """Close the run: rows become Parquet, run.json gets its last status."""
        self._close_steps()
        self.update(status=status, reason=reason)
        for rows in sorted((self.path / "samples").glob("*.rows")):
            try:
                frame = _read_sample_rows(rows, _channel_names(self.path, rows.stem))
            except (ValueError, KeyError):
                continue  # channels.json is damaged: the rows stay, for whoever can mend it
            _write_atomically(rows.with_suffix(".parquet"), _parquet(frame))
            rows.unlink()

    def _close_steps(self) -> None:
        if self._steps_file is None:
            return
        self._steps_file.close()
        self._steps_file = None
        rows = self.path / "steps.rows"
        _write_atomically(self.path / "steps.parquet", _parquet(_read_step_rows(rows)))
        rows.unlink()

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        _write_atomically(self.path / name, (json.dumps(content, indent=1, default=str) + "\n").encode())


class RunReader:
    """Reads one run folder, finished, running or broken off; a missing file reads as an empty frame."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.meta = _read_header(self.path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.status}>"

    @property
    def id(self) -> str:
        return str(self.meta.get("id", self.path.name))

    @property
    def status(self) -> str:
        """running, ok, failed, oom or interrupted; a running run whose trainer is gone is "interrupted"."""
        status = str(self.meta.get("status", "interrupted"))
        return "interrupted" if status == "running" and not _alive(self.meta.get("pid")) else status

    @property
    def warmup_steps(self) -> int:
        return int(self.meta.get("warmup_steps", 3))

    @property
    def device(self) -> dict[str, Any]:
        """device.json, or an empty dictionary."""
        return self._json("device.json") or {}

    @property
    def channels(self) -> list[dict[str, Any]]:
        """channels.json: what each sampled column is."""
        return list((self._json("channels.json") or {}).get("channels", []))

    @property
    def events(self) -> list[dict[str, Any]]:
        """events.jsonl in order of time; a line that was cut off is left out."""
        return sorted(self._event_lines(), key=lambda event: int(event.get("t_ns", 0)))

    @property
    def model(self) -> pl.DataFrame:
        """The module tree, one row a module, columns as `MODEL`."""
        modules = (self._json("model.json") or {}).get("modules", [])
        return pl.DataFrame([{k: m.get(k) for k in MODEL} for m in modules], schema=MODEL)

    @property
    def steps(self) -> pl.DataFrame:
        """Every step, columns as `STEPS`, in order."""
        for name, read in (("steps.parquet", pl.read_parquet), ("steps.rows", _read_step_rows)):
            path = self.path / name
            if path.exists():
                frame: pl.DataFrame | None = self._try(path, read)
                if frame is not None:
                    return frame.sort("step")
        return pl.DataFrame(schema=STEPS)

    @property
    def ops(self) -> pl.DataFrame:
        """Every recorded op instance, columns as `OPS`, in order of step and row."""
        return self.scan_ops().collect()

    def scan_ops(self) -> pl.LazyFrame:
        """The op instances as a lazy frame: pick columns before collecting a long run."""
        return self._scan("ops", OPS)

    @property
    def memory_events(self) -> pl.DataFrame:
        """Allocations and frees of the recorded steps, columns as `MEMORY`, in order of time."""
        return self._scan("memory", MEMORY).collect().sort("t_ns", maintain_order=True)

    def sensor(self, name: str) -> pl.DataFrame:
        """The samples of one sensor: t0_ns, t1_ns and one column a channel, null where nothing was read."""
        parquet, rows = self.path / "samples" / f"{name}.parquet", self.path / "samples" / f"{name}.rows"
        frame = None
        if parquet.exists():
            frame = self._try(parquet, pl.read_parquet)
        elif rows.exists():
            frame = self._try(rows, lambda path: _read_sample_rows(path, _channel_names(self.path, name)))
        return pl.DataFrame(schema={"t0_ns": pl.Int64, "t1_ns": pl.Int64}) if frame is None else frame

    def samples(self, quantity: str) -> pl.DataFrame:
        """All channels of a quantity, long: t0_ns, t1_ns, channel, scope, value (null where not read).

        Empty where the quantity was not sampled; UnknownName where there is no such quantity.
        """
        sampled = {channel["quantity"] for channel in self.channels}
        if sampled and quantity not in sampled | QUANTITIES:
            raise UnknownName("quantity", quantity, sampled)
        parts = []
        for channel in self.channels:
            if channel["quantity"] != quantity:
                continue
            frame = self.sensor(channel["sensor"])
            if channel["id"] in frame.columns:
                value = pl.col(channel["id"]).alias("value")
                tags = [pl.lit(channel[key], dtype=pl.String).alias(key) for key in ("id", "scope")]
                parts.append(frame.select("t0_ns", "t1_ns", *tags, value).rename({"id": "channel"}))
        schema = {"t0_ns": pl.Int64, "t1_ns": pl.Int64, "channel": pl.String, "scope": pl.String, "value": pl.Float64}
        return pl.concat(parts) if parts else pl.DataFrame(schema=schema)

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _event_lines(self) -> Iterator[dict[str, Any]]:
        try:
            lines = (self.path / "events.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # cut off by a crash: the rest of the file is still good
            if isinstance(event, dict):
                yield event

    def _scan(self, folder: str, schema: dict[str, Any]) -> pl.LazyFrame:
        parts = [part for part in sorted((self.path / folder).glob("*.parquet")) if self._readable(part)]
        if not parts:
            return pl.LazyFrame(schema=schema)
        return pl.concat([pl.scan_parquet(part) for part in parts], how="vertical")

    def _readable(self, path: Path) -> bool:
        return self._try(path, pl.read_parquet_schema) is not None

    def _try(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """The content of a file, or None where it is damaged: the rest of the run is still worth reading."""
        try:
            return read(path)
        except (OSError, ValueError, pl.exceptions.PolarsError):
            self.damaged = sorted({*getattr(self, "damaged", []), path.relative_to(self.path).as_posix()})
            return None

    damaged: list[str] = []  # noqa: RUF012 - replaced, never changed in place


def _read_header(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise RunNotFound(f"no run folder at '{path}'", "list the folder that you gave to --out (default: runs/)")
    try:
        header = json.loads((path / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunNotFound(
            f"'{path}' holds no run.json", "give the folder of one run, runs/<stamp>-<name>-<id>"
        ) from None
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path / 'run.json'}' cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise RunDamaged(f"'{path / 'run.json'}' does not hold an object")
    return _migrated(header, path)


def _migrated(header: dict[str, Any], path: Path) -> dict[str, Any]:
    """The header as the present schema has it; a newer schema is refused."""
    schema = header.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise RunDamaged(f"'{path / 'run.json'}' states no schema")
    if schema > SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {schema}; this Stepscope reads up to {SCHEMA}", "pip install --upgrade stepscope"
        )
    return header


def _read_step_rows(path: Path) -> pl.DataFrame:
    rows = _whole_rows(path, _STEP_ROW)
    frame = pl.DataFrame({name: rows[name] for name in STEPS})
    return frame.select(
        "step",
        "t0_ns",
        "t1_ns",
        pl.when(pl.col("samples") != _NO_SAMPLES).then("samples"),
        pl.col("loss").fill_nan(None),
        pl.col("recorded").cast(pl.Boolean),
    )


def _read_sample_rows(path: Path, columns: list[str]) -> pl.DataFrame:
    rows = _whole_rows(path, sample_dtype(columns))
    frame = pl.DataFrame({name: rows[name] for name in ("t0_ns", "t1_ns", *columns)})
    return frame.with_columns(pl.col(columns).fill_nan(None)) if columns else frame


def _whole_rows(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """The complete rows of an appended file; a last row that a crash cut off is dropped."""
    data = path.read_bytes()
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype=dtype)


def _channel_names(run: Path, sensor: str) -> list[str]:
    """Column order of a sensor's rows, as channels.json has it."""
    channels = json.loads((run / "channels.json").read_text(encoding="utf-8"))["channels"]
    return [channel["id"] for channel in channels if channel["sensor"] == sensor]


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
