"""Runs of a store, as one frame: facts of each, from the index or the manifests, and the choice of some.

Facts come from run.json, summary.json, and where that is not yet written the steps; null where they do not say.
Measured, simulated and estimated energy have columns of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl

from stepscope import __version__
from stepscope.analysis.time.steps import quick_stats
from stepscope.errors import RunError, RunNotFound, StoreError, UsageError
from stepscope.files import atomic_write, read_json_object, user_cache
from stepscope.privacy import withheld_kinds
from stepscope.run_paths import run_folders
from stepscope.runfolder import RunReader
from stepscope.runfolder.writer import is_run_id
from stepscope.store.manifest import (
    INDEX,
    MAKES_ONE,
    Fact,
    Manifest,
    manifest_names,
    read_manifests,
    run_id_of_file_name,
)
from stepscope.store.storage import Store
from stepscope.units import STEERS

FACTS: dict[str, Any] = {
    **{"status": pl.String, "workload": pl.String, "batch_size": pl.Int64, "optimizer": pl.String},
    **{"precision": pl.String, "board": pl.String, "simulated": pl.String, "imported": pl.String},
    **{"stepscope": pl.String, "torch": pl.String, "started_s": pl.Float64, "steps": pl.Int64},
    **{"step_time_ns": pl.Float64, "throughput_per_s": pl.Float64, "energy_per_step_j": pl.Float64},
    **{"simulated_energy_per_step_j": pl.Float64, "estimated_energy_per_step_j": pl.Float64},
    **{"peak_memory_bytes": pl.Float64, "verdict": pl.String},
}
_METRICS = {
    "step_time": "step_time_ns",
    "throughput": "throughput_per_s",
    "energy_per_step": "energy_per_step_j",
    "simulated_energy_per_step": "simulated_energy_per_step_j",
    "estimated_energy_per_step": "estimated_energy_per_step_j",
    "peak_memory": "peak_memory_bytes",
}
_NO_BOARD = "other_machine"  # of a machine that no board file describes
_WHOLE = ("run", "process", "processes", "total", "device")
_MOST_BYTES = 64 << 20


def run_facts(run: RunReader) -> dict[str, Fact]:
    """A fact a column of `FACTS`."""
    return facts_of_runs([run])[0]


def facts_of_runs(runs: Sequence[RunReader]) -> list[dict[str, Fact]]:
    """Return the facts of many runs, whose steps are read together."""
    facts = [_file_facts(run) for run in runs]
    without = {run.path: run.warmup_steps for run, entry in zip(runs, facts, strict=True) if entry["steps"] is None}
    stats_of = quick_stats(without)
    for run, entry in zip(runs, facts, strict=True):
        if (quick := stats_of.get(run.path)) is not None:
            entry.update(steps=quick.steps, step_time_ns=quick.step_ns, throughput_per_s=quick.samples_per_s)
    return facts


def _file_facts(run: RunReader) -> dict[str, Fact]:
    """Return the content of the JSON files."""
    meta, summary = run.meta, _read_json(run.path / "summary.json")
    workload, versions = _dict_or_empty(meta.get("workload")), _dict_or_empty(meta.get("versions"))
    verdict, board = _dict_or_empty(summary.get("verdict")), _dict_or_empty(summary.get("board"))
    clock = _dict_or_empty(meta.get("clock"))
    started_ns = _number(clock.get("unix_ns"))
    return {
        "status": run.status,
        **{name: _text(workload.get(stated)) for name, stated in (("workload", "name"), ("optimizer", "optimizer"))},
        "precision": _text(workload.get("precision")),
        "batch_size": _int_or_none(workload.get("batch_size")),
        "board": None if board.get("name") == _NO_BOARD else _text(board.get("title")),
        "simulated": _text(meta.get("simulated")),
        "imported": _text(_dict_or_empty(meta.get("imported")).get("kind")),
        **{name: _text(versions.get(name)) for name in ("stepscope", "torch")},
        "started_s": None if started_ns is None else started_ns / 1e9,
        "steps": _int_or_none(summary.get("steps")),
        "verdict": _text(verdict.get("sentence")),
        **_metrics(summary),
    }


def _metrics(summary: dict[str, Any]) -> dict[str, Fact]:
    values: dict[str, Fact] = dict.fromkeys(_METRICS.values())
    rows = summary.get("metrics")
    for row in rows if isinstance(rows, list) else ():
        about = _dict_or_empty(row)
        name = _METRICS.get(str(about.get("metric")))
        if name is not None and about.get("scope") in _WHOLE and values[name] is None:
            values[name] = _number(about.get("value"))
    return values


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return read_json_object(path) if path.stat().st_size <= _MOST_BYTES else {}
    return {}


def _dict_or_empty(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:500]


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and isinstance(value, (int, float)) else None


def _int_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None


UNREADABLE = "unreadable"  # the status of a run whose manifest is refused
COLUMNS: dict[str, Any] = {
    **{"id": pl.String, "tags": pl.List(pl.String), **FACTS},
    **{"bytes": pl.Int64, "files": pl.Int64, "pushed_s": pl.Float64, "digest": pl.String},
    **{"revision": pl.Int64, "folder": pl.String, "manifest": pl.String},
}
_MOST_INDEX_BYTES = 1 << 30
_MOST_TEXT = 2000  # characters


def listed(store: Store, choice: Choice | None = None) -> pl.DataFrame:
    """The runs of a store that are meant, the newest first, columns as `COLUMNS`."""
    return filter_runs(runs(store), choice or Choice()).sort("started_s", "id", descending=True, nulls_last=True)


def runs(store: Store) -> pl.DataFrame:
    """Every run, columns as `COLUMNS`; of a folder of runs that is no store, its runs, without a manifest."""
    names = manifest_names(store)
    if not names and store.is_local:
        return _plain_folder(Path(store.root), store.address)
    index = _index(store)
    current = index.filter(pl.col("manifest").is_in(names))
    unread = sorted(set(names) - set(current["manifest"]))
    refused: dict[str, StoreError] = {}
    frame = pl.concat([current, rows_of(read_manifests(store, unread, refused))]) if unread else current
    if refused:  # what one manifest says costs no run of another
        rows = [
            {
                **dict.fromkeys(COLUMNS),
                "id": run_id_of_file_name(name),
                "tags": list[str](),
                "status": UNREADABLE,
            }
            | {"revision": -1, "manifest": name}
            for name in refused
        ]
        frame = pl.concat([frame, pl.DataFrame(rows, schema=COLUMNS)])
    return (
        frame.sort("revision", descending=True).unique("id", keep="first")
        if frame["id"].is_duplicated().any()
        else frame
    )


def rows_of(manifests: Mapping[str, Manifest]) -> pl.DataFrame:
    """Rows of the index, columns as `COLUMNS`."""
    rows = [_index_row(name, manifest) for name, manifest in manifests.items()]
    return pl.DataFrame(rows, schema=COLUMNS, orient="row", strict=False)


def write_index(store: Store) -> int:
    """Bring the index up to date; returns its number of rows. Harmless where two do it at once: see the package."""
    frame = runs(store)
    if store.is_local and not frame.is_empty() and frame["manifest"].null_count():
        return 0
    frame = frame.filter(pl.col("status").ne_missing(UNREADABLE))  # a later version may read it
    buffer = io.BytesIO()
    frame.sort("id").write_parquet(buffer, compression="zstd")
    store.write(INDEX, buffer.getvalue())
    return len(frame)


def _index(store: Store) -> pl.DataFrame:
    """The index as it lies there; empty where it is missing, damaged or of other columns."""
    try:
        frame = pl.read_parquet(io.BytesIO(store.read(INDEX, _MOST_INDEX_BYTES)))
        frame = frame.select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
    except (FileNotFoundError, OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=COLUMNS)
    steers = pl.element().str.contains(STEERS.pattern) | (pl.element().str.len_chars() > _MOST_TEXT)
    texts = pl.concat_list(
        pl.col("tags").fill_null([]), *(name for name, dtype in COLUMNS.items() if dtype == pl.String)
    )
    named = pl.Series([run_id is not None and is_run_id(run_id) for run_id in frame["id"]], dtype=pl.Boolean)
    harmful = texts.list.eval(steers).list.any().fill_null(False)
    return frame.filter(named & ~harmful)  # such a row is read anew from its manifest


def _index_row(name: str, manifest: Manifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "tags": list(manifest.tags),
        **{fact: _value_of_type(manifest.facts.get(fact), dtype) for fact, dtype in FACTS.items()},
        **{"bytes": manifest.bytes, "files": len(manifest.files), "pushed_s": manifest.pushed_s},
        **{"digest": manifest.digest, "revision": manifest.revision, "folder": manifest.folder, "manifest": name},
    }


def _value_of_type(value: Fact, dtype: Any) -> Fact:
    """A fact as its column has it; null for what does not fit (a manifest can say anything)."""
    types: dict[Any, tuple[type, ...]] = {pl.String: (str,), pl.Int64: (int,), pl.Float64: (int, float)}
    return value if isinstance(value, types[dtype]) and not isinstance(value, bool) else None


def _plain_folder(root: Path, address: str) -> pl.DataFrame:
    if not root.is_dir():
        raise RunNotFound(f"there is no store at '{address}'", MAKES_ONE)
    indexed, states = (
        _cached_rows(root),
        {folder: _fact_files_state(folder) for folder in run_folders(root)},
    )
    rows = {path.name: indexed[path.name] for path, state in states.items() if indexed.get(path.name, [0])[0] == state}
    readers: list[RunReader] = []
    damaged: list[str] = []
    for path in states:
        if path.name not in rows:
            try:
                readers.append(RunReader(path))
            except RunError:
                damaged += [path.name] * any((path / name).exists() for name in _OF_A_RUN)
    for run, facts in zip(readers, facts_of_runs(readers), strict=True):
        rows[run.path.name] = [states[run.path], {"id": run.id, **facts}]
    if readers:
        _keep_rows(root, {name: row for name, row in rows.items() if row[1]["status"] != "running"})
    nothing = {**dict.fromkeys(COLUMNS), "tags": list[str]()}
    frame = [{**nothing, **rows[name][1], "folder": name} for name in sorted(rows)]
    frame += [{**nothing, "id": name, "status": UNREADABLE, "folder": name} for name in damaged]
    return pl.DataFrame(frame, schema=COLUMNS, orient="row", strict=False)


# Rows of a plain folder from one process to the next, in the user's own cache: what lies in the folder is not trusted.
# A row counts while the files that say it are as they were; a cache that cannot be read or written costs time alone.
_FORMAT = 1
_OF_A_RUN = ("channels.json", "device.json", "steps.rows", "steps.parquet")  # any: what lies there is a run
_SAYING = ("run.json", "summary.json", "steps.rows", "steps.parquet")


def _fact_files_state(run: Path) -> list[int]:
    """Return what changes when the facts of a run do."""
    state: list[int] = []
    for name in _SAYING:
        try:
            stat = (run / name).stat()
            state += [stat.st_mtime_ns, stat.st_size, stat.st_ino]
        except OSError:
            state += [0, 0, 0]
    return state


def _cache_key(root: Path) -> list[Any]:
    return [_FORMAT, __version__, str(root.resolve()), sorted(withheld_kinds())]


def _cache_path(root: Path) -> Path:
    """Return the cache file of a folder; RuntimeError without a home."""
    return user_cache() / "stores" / f"{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}.json"


def _cached_rows(root: Path) -> dict[str, list[Any]]:
    """Return state and facts of each run as an earlier process read them; empty where nothing was stored."""
    try:
        content = read_json_object(path) if (path := _cache_path(root)).stat().st_size <= _MOST_INDEX_BYTES else {}
    except (OSError, RuntimeError):
        return {}
    return dict(content["rows"]) if content.get("made_by") == _cache_key(root) else {}


def _keep_rows(root: Path, rows: Mapping[str, list[Any]]) -> None:
    """Store the rows of this folder, readable by this user alone."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _cache_path(root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with atomic_write(path) as part:
            part.touch(mode=0o600)
            part.write_text(json.dumps({"made_by": _cache_key(root), "rows": rows}, separators=(",", ":")))


@dataclass(frozen=True)
class Choice:
    """Runs that fulfil all that is given; in a text, * stands for any characters, and case does not count.

    where: a condition of SQL on the columns, such as "batch_size >= 32 AND step_time_ns < 1e7".
    """

    workload: str | None = None
    board: str | None = None
    status: str | None = None
    tags: tuple[str, ...] = ()
    since: str | None = None  # a date, UTC where it states no zone
    where: str | None = None


def filter_runs(frame: pl.DataFrame, choice: Choice) -> pl.DataFrame:
    """The rows that are meant; UsageError for a date or a condition that cannot be understood."""
    for column in ("workload", "board", "status"):
        pattern = getattr(choice, column)
        if pattern is not None:
            parts = (pl.escape_regex(part) for part in pattern.split("*"))
            frame = frame.filter(pl.col(column).str.contains(f"(?is)^{'.*'.join(parts)}$"))
    for tag in choice.tags:
        frame = frame.filter(pl.col("tags").list.contains(tag))
    if choice.since is not None:
        frame = frame.filter(pl.col("started_s") >= _seconds(choice.since))
    return frame if choice.where is None else _filter_by_sql(frame, choice.where)


def _seconds(date: str) -> float:
    try:
        stated = datetime.fromisoformat(date)
    except ValueError as error:
        raise UsageError(f"'{date}' is not a date: {error}", "for example 2026-01-31 or 2026-01-31T12:00") from error
    return (stated if stated.tzinfo else stated.replace(tzinfo=timezone.utc)).timestamp()


def _filter_by_sql(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    try:
        with pl.SQLContext({"runs": frame}) as context:
            answer = context.execute(f"SELECT * FROM runs WHERE {where}", eager=True)
    except pl.exceptions.PolarsError as error:
        complaint = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"--where {json.dumps(where)}: {complaint}", f"columns: {', '.join(frame.columns)}") from error
    if answer.columns != frame.columns:
        raise UsageError(f"--where {json.dumps(where)} is more than a condition", "for example 'batch_size >= 32'")
    return answer
