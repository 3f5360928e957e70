"""The recording half: writes one run folder."""

from __future__ import annotations

import io
import json
import secrets
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.clock import monotonic_ns
from stepscope.errors import OutputNotWritable
from stepscope.runfolder.schema import (
    MEMORY,
    NO_SAMPLES,
    OPS,
    PACK_STEP,
    SCHEMA,
    channel_names,
    read_sample_rows,
    read_step_rows,
)


def _write_atomically(path: Path, data: bytes) -> None:
    """Replace a file so that a reader or a crash sees the old or the new content, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(data)
    part.replace(path)


def _parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", compression_level=3, statistics=False)
    return buffer.getvalue()


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
        known = NO_SAMPLES if samples is None else samples
        self._steps_file.write(PACK_STEP(step, t0_ns, t1_ns, known, _nan(loss), recorded))

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
                frame = read_sample_rows(rows, channel_names(self.path, rows.stem))
            except (ValueError, KeyError) as error:  # channels.json is damaged: the rows stay for who can mend it
                self.event("samples-kept-as-rows", f"{rows.name} could not be turned into Parquet: {error!r}")
                continue
            _write_atomically(rows.with_suffix(".parquet"), _parquet(frame))
            rows.unlink()

    def _close_steps(self) -> None:
        if self._steps_file is None:
            return
        self._steps_file.close()
        self._steps_file = None
        rows = self.path / "steps.rows"
        _write_atomically(self.path / "steps.parquet", _parquet(read_step_rows(rows)))
        rows.unlink()

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        _write_atomically(self.path / name, (json.dumps(content, indent=1, default=str) + "\n").encode())


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value
