"""The reading half: one run folder, finished, running or broken off."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew, UnknownName
from stepscope.runfolder.schema import (
    MEMORY,
    MODEL,
    OPS,
    QUANTITIES,
    SCHEMA,
    STEPS,
    channel_names,
    read_sample_rows,
    read_step_rows,
)
from stepscope.which_run import find_run


class RunReader:
    """Reads one run folder, finished, running or broken off; a missing file reads as an empty frame.

    path: the folder, the name of one in `runs`, or "last" for the newest there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = find_run(path)
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
        """events.jsonl in order of time; a last line that was cut off is left out, one before it is damage."""
        return sorted(self._event_lines(), key=lambda event: int(event.get("t_ns", 0)))

    @property
    def model(self) -> pl.DataFrame:
        """The module tree, one row a module, columns as `MODEL`."""
        modules = (self._json("model.json") or {}).get("modules", [])
        return pl.DataFrame([{k: m.get(k) for k in MODEL} for m in modules], schema=MODEL)

    @property
    def steps(self) -> pl.DataFrame:
        """Every step, columns as `STEPS`, in order."""
        for name, read in (("steps.parquet", _read_parquet), ("steps.rows", read_step_rows)):
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
            frame = self._try(parquet, _read_parquet)
        elif rows.exists():
            frame = self._try(rows, lambda path: read_sample_rows(path, channel_names(self.path, name)))
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
        for number, line in enumerate(lines, 1):
            try:
                event = json.loads(line)
            except ValueError:
                if number < len(lines):  # the last may be cut off by a crash, and lacks nothing that was whole
                    self._found_damaged(self.path / "events.jsonl")
                continue
            if isinstance(event, dict):
                yield event

    def _scan(self, folder: str, schema: dict[str, Any]) -> pl.LazyFrame:
        parts = [part for part in sorted((self.path / folder).glob("*.parquet")) if self._readable(part)]
        if not parts:
            return pl.LazyFrame(schema=schema)
        return pl.concat([pl.scan_parquet(part, glob=False) for part in parts], how="vertical")

    def _readable(self, path: Path) -> bool:
        return self._try(path, pl.read_parquet_schema) is not None

    def _try(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """The content of a file, or None where it is damaged: the rest of the run is still worth reading."""
        try:
            return read(path)
        except (OSError, ValueError, pl.exceptions.PolarsError):
            self._found_damaged(path)
            return None

    def _found_damaged(self, path: Path) -> None:
        self.damaged = sorted({*self.damaged, path.relative_to(self.path).as_posix()})

    damaged: list[str] = []  # noqa: RUF012 - replaced, never changed in place


def _read_parquet(path: Path) -> pl.DataFrame:
    """The very file of that name: a folder may be called `batch [16]`, which is a pattern otherwise."""
    return pl.read_parquet(path, glob=False)


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
