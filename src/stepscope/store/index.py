"""Runs of a store, as one frame: facts of each, from the index or the manifests, and the choice of some.

Facts come from run.json, summary.json, and where that is not yet written the steps; null where they do not say.
Measured, simulated and estimated energy have columns of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.run_lists import facts_of_files, file_states, read_cached_rows, write_cached_rows
from stepscope.analysis.time.steps import quick_stats
from stepscope.errors import RunError, RunNotFound, StoreError, UsageError
from stepscope.files import read_json_object
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
_NO_BOARD = "other_machine"  # of a machine that no board file describes
_MOST_BYTES = 64 << 20


def facts_of_runs(runs: Sequence[RunReader]) -> list[dict[str, Fact]]:
    """Return a fact a column of `FACTS` for each of many runs, whose steps are read together."""
    facts = [_file_facts(run) for run in runs]
    without = {run.path: run.warmup_steps for run, entry in zip(runs, facts, strict=True) if entry["steps"] is None}
    stats_of = quick_stats(without)
    for run, entry in zip(runs, facts, strict=True):
        if (quick := stats_of.get(run.path)) is not None:
            entry.update(steps=quick.steps, step_time_ns=quick.step_ns, throughput_per_s=quick.samples_per_s)
            entry["batch_size"] = entry["batch_size"] or quick.batch
    return facts


def _file_facts(run: RunReader) -> dict[str, Fact]:
    summary = _read_json(run.path / "summary.json")
    facts, board = {"status": run.status, **facts_of_files(run.meta, summary)}, summary.get("board")
    if isinstance(board, dict) and board.get("name") == _NO_BOARD:
        facts["board"] = None
    return {name: fact[:500] if isinstance(fact := facts[name], str) else fact for name in FACTS}


def _read_json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        return read_json_object(path) if path.stat().st_size <= _MOST_BYTES else {}
    return {}


UNREADABLE = "unreadable"  # the status of a run whose manifest is refused
COLUMNS: dict[str, Any] = {
    **{"id": pl.String, "tags": pl.List(pl.String), **FACTS},
    **{"bytes": pl.Int64, "files": pl.Int64, "pushed_s": pl.Float64, "digest": pl.String},
    **{"revision": pl.Int64, "folder": pl.String, "manifest": pl.String},
}
_NOTHING = {**dict.fromkeys(COLUMNS), "tags": list[str]()}  # of a run that says nothing of itself
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
        unreadable = {**_NOTHING, "status": UNREADABLE, "revision": -1}
        rows = [{**unreadable, "id": run_id_of_file_name(name), "manifest": name} for name in refused]
        frame = pl.concat([frame, pl.DataFrame(rows, schema=COLUMNS)])
    if not frame["id"].is_duplicated().any():
        return frame
    return frame.sort("revision", descending=True).unique("id", keep="first")


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
    made_by = [_FORMAT, sorted(withheld_kinds())]
    indexed = read_cached_rows("stores", root, made_by)
    states = {folder: file_states(folder, *_SAYING) for folder in run_folders(root)}
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
        ended = {name: row for name, row in rows.items() if row[1]["status"] != "running"}
        write_cached_rows("stores", root, made_by, ended)
    frame = [{**_NOTHING, **rows[name][1], "folder": name} for name in sorted(rows)]
    frame += [{**_NOTHING, "id": name, "status": UNREADABLE, "folder": name} for name in damaged]
    return pl.DataFrame(frame, schema=COLUMNS, orient="row", strict=False)


_FORMAT = 2  # of the rows of a plain folder from one process to the next: [state of the files, facts]
_OF_A_RUN = ("channels.json", "device.json", "steps.rows", "steps.parquet")  # any: what lies there is a run
_SAYING = ("run.json", "summary.json", "steps.rows", "steps.parquet")


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
