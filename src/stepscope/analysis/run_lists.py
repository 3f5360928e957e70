"""Facts of a run as lists of many runs have them, from run.json and summary.json, and lists that outlive a process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.files import atomic_write, read_json_object, user_cache

METRICS = {
    "step_time": "step_time_ns",
    "throughput": "throughput_per_s",
    "energy_per_step": "energy_per_step_j",
    "simulated_energy_per_step": "simulated_energy_per_step_j",
    "estimated_energy_per_step": "estimated_energy_per_step_j",
    "peak_memory": "peak_memory_bytes",
}
_WHOLE = ("run", "process", "processes", "total", "device")
_MOST = 1 << 53
_LARGEST_CACHE = 256_000_000  # bytes


def facts_of_files(header: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any]:
    """Return what run.json and summary.json say of a run, by column; null where neither does.

    What a script does not state of its training, as its batch, is as the summary has seen it.
    """
    workload = header.get("workload")
    stated = workload if isinstance(workload, dict) else {"name": workload}
    about = {**_object(summary, "workload"), **{key: value for key, value in stated.items() if value is not None}}
    versions, started_ns = _object(header, "versions"), finite_number(_object(header, "clock").get("unix_ns"))
    return {
        "workload": _text(about.get("name")),
        "batch_size": whole_number(about.get("batch_size")),
        **{name: _text(about.get(name)) for name in ("optimizer", "precision", "device")},
        "board": _text(_object(summary, "board").get("title")),
        "simulated": _text(header.get("simulated")),
        "imported": _text(_object(header, "imported").get("kind")),
        **{name: _text(versions.get(name)) for name in ("stepscope", "torch")},
        "started_s": None if started_ns is None else started_ns / 1e9,
        "steps": whole_number(summary.get("steps")),
        "verdict": _text(_object(summary, "verdict").get("sentence")),
        **_metrics(summary),
    }


def _metrics(summary: dict[str, Any]) -> dict[str, float | None]:
    values: dict[str, float | None] = dict.fromkeys(METRICS.values())
    rows = summary.get("metrics")
    for row in rows if isinstance(rows, list) else ():
        name = METRICS.get(str(row.get("metric"))) if isinstance(row, dict) and row.get("scope") in _WHOLE else None
        if name is not None and values[name] is None:
            values[name] = finite_number(row.get("value"))
    return values


def _object(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def whole_number(value: object) -> int | None:
    """Return a count that may be; a file of others may hold any."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def finite_number(value: object) -> float | None:
    """Return a finite number; JSON files of others may hold NaN."""
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_finite and isinstance(value, int | float) else None


# The rows of a list, from one process to the next: in the user's own cache, for what lies in the folder is not trusted.
# A row counts while the files that say it are as they were; a cache that cannot be read or written costs time alone.


def read_cached_rows(kind: str, root: Path, made_by: list[Any]) -> dict[str, Any]:
    """Return the rows that an earlier process stored of this folder; empty where there are none of this making."""
    try:
        path = _cache_path(kind, root)
        content = read_json_object(path) if path.stat().st_size <= _LARGEST_CACHE else {}
    except (OSError, RuntimeError):
        return {}
    return _object(content, "rows") if content.get("made_by") == _cache_identity(root, made_by) else {}


def write_cached_rows(kind: str, root: Path, made_by: list[Any], rows: dict[str, Any]) -> None:
    """Store the rows of this folder, readable by this user alone."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _cache_path(kind, root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"made_by": _cache_identity(root, made_by), "rows": rows}
        with atomic_write(path) as part:
            part.touch(mode=0o600)
            part.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def file_states(folder: Path, *names: str) -> list[int]:
    """Return what changes when one of these files of a folder does."""
    states: list[int] = []
    for name in names:
        try:
            stat = (folder / name).stat()
            states += [stat.st_mtime_ns, stat.st_size, stat.st_ino]
        except OSError:
            states += [0, 0, 0]
    return states


def _cache_identity(root: Path, made_by: list[Any]) -> list[Any]:
    return [*made_by, __version__, str(root.resolve())]


def _cache_path(kind: str, root: Path) -> Path:
    """Return the cache file of a folder below XDG_CACHE_HOME; RuntimeError without a home."""
    return user_cache() / kind / f"{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}.json"
