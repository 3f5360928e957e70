"""The boundary of a reader: what a run folder's JSON may hold, and what of it is dropped because it cannot be true.

A folder may be damaged, or come from someone who is not trusted. Whatever reads one gets content of the declared types,
within ranges that arithmetic and charts can bear, without control characters, and the names of what was dropped.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew
from stepscope.files import check_and_strip_checksum
from stepscope.privacy import cleaned_fields, redacted_texts
from stepscope.run_paths import newest_runs, run_folders
from stepscope.runfolder.schema import PARTS, SCHEMA

MOST_BYTES = 256_000_000  # of a JSON file; that of 100,000 modules takes 25 MB
MOST_TEXT = 100_000  # characters of one text
DEEPEST = 40  # objects and lists within each other
_LARGEST_WHOLE = 1 << 62  # sums and differences of two stay within int64
_LARGEST_REAL = 1e30
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_FILE_NAME = re.compile(r"(?!\.)[^/\x00]{1,200}")
_RUN_NAME = re.compile(rf"(?!\.)[^/\\]{{1,200}}(?:/{PARTS}/\d{{1,9}})?")
_DROPPED = object()
FOLDERS = ("computed", "ops", "layers", "memory", "samples")  # of tables, of a run

Shape = Any  # a type, a list of one shape, an object of shapes by key (... is every other key), or one of those below


@dataclass(frozen=True)
class Fields:
    """An object that is worth nothing without the keys in `needs`: it is dropped as a whole where one is missing."""

    shape: dict[Any, Shape]
    needs: tuple[str, ...]


@dataclass(frozen=True)
class IntegerRange:
    """A whole number from `least` to `most`."""

    least: int
    most: int


class FileName:
    """A text that names a file in a folder, and no other folder."""


class RunName:
    """A text that names a run, or a part of one: a file in a folder, in one line."""


_COUNT = IntegerRange(0, 1 << 53)
_NUMBERS: dict[Any, Shape] = {...: float}
_CLOCK = {"monotonic_ns": int, "unix_ns": int, "boottime_ns": int}
_ENDS = {"temperatures_celsius": _NUMBERS, "frequencies_hz": _NUMBERS}

RUN: dict[Any, Shape] = {
    "schema": IntegerRange(1, 1_000_000),
    "id": RunName,
    "status": str,
    "reason": str,
    "pid": IntegerRange(1, 1 << 31),
    "pid_started": _COUNT,
    "boot_id": str,
    "pid_namespace": _COUNT,
    "host": str,
    "workload": {
        **dict.fromkeys(("name", "domain", "optimizer", "precision", "device"), str),
        **dict.fromkeys(("batch_size", "parameters", "steps"), _COUNT),
        "data": {**dict.fromkeys(("name", "kind", "sha256", "licence", "origin"), str), "train_size": _COUNT},
    },
    "argv": [str],
    "cwd": str,
    "seed": int,
    "threads": IntegerRange(1, 1 << 20),
    "framework": str,
    "versions": {...: str},
    "clock": _CLOCK,
    "clock_end": _CLOCK,
    "warmup_steps": _COUNT,
    "planned_steps": _COUNT,
    "steps_lost": _COUNT,
    "compile_s": float,
    "simulated": str,
    "redacted": bool,
    "flops_not_counted": [str],
    **dict.fromkeys(("rank", "world_size", "local_rank", "process"), _COUNT),
    "recorder": {
        **dict.fromkeys(("mode", "memory", "steps_from", "steps_found_by", "flops_source"), str),
        **dict.fromkeys(
            ("recorded_steps", "windows", "lost_windows", "rows", "bytes", "held_bytes", "other_shapes"), _COUNT
        ),
        **dict.fromkeys(("known_share", "loading_ns"), float),
        "steps_apart": [int],
        "modules_bytes": float,
        "reserved_bytes": _NUMBERS,
        "flops_by_format": {...: _NUMBERS},
        "other_formats": [[str]],
    },
    "sampler": {"period_ns": IntegerRange(1, _LARGEST_WHOLE), "max_disk": _COUNT},
    "malloc": {"name": str, "library": str, "empty_process_bytes": float, "mmap_threshold": float},
    "overhead": {
        **dict.fromkeys(("paused_ns", "once_ns", "followed_ns", "span_ns"), float),
        **dict.fromkeys(("event", "layer"), _NUMBERS),
    },
    "result": {"accuracy": float, "accuracy_samples": _COUNT, "steps": _COUNT, "counters": _NUMBERS},
    "imported": {},
}
DEVICE: dict[Any, Shape] = {
    **dict.fromkeys(("compatible", "cpu", "machine", "os", "kernel", "l4t", "container"), str),
    "cores": [
        Fields(
            {
                "core": IntegerRange(0, 1 << 20),
                "online": bool,
                **dict.fromkeys(("package", "cluster", "capacity"), int),
                "max_frequency_hz": float,
                "midr": str,
            },
            ("core",),
        )
    ],
    "clusters": [[int]],
    **dict.fromkeys(("memory_bytes", "swap_bytes", "clock_ticks_per_second"), float),
    "memory": {"total_bytes": float},
    "ceilings": {"run_queue_share": float},
    "governors": {...: str},
    "power_mode": str,
    "trip_points_celsius": {...: _NUMBERS},
    "accelerators": [{"name": str}],
    "accelerators_torch": [{"name": str, "card": str}],
    "virtual_machine": bool,
    "bf16": bool,
    "at_start": _ENDS,
    "at_end": _ENDS,
}
CHANNELS: dict[Any, Shape] = {
    "period_ns": IntegerRange(1, _LARGEST_WHOLE),
    "pid": int,
    "dither": float,
    "channels": [
        Fields(
            {
                "id": str,
                "sensor": FileName,
                **dict.fromkeys(("quantity", "unit", "kind", "scope", "source", "rail", "parent_scope", "card"), str),
                **dict.fromkeys(("refresh_ns", "window_ns"), IntegerRange(0, _LARGEST_WHOLE)),
                **dict.fromkeys(("step_size", "counter_range", "most_per_s"), float),
                **dict.fromkeys(("read_cost_ns", "read_cost_p99_ns"), float),
                "measured": [str],
            },
            ("id", "sensor", "quantity", "unit", "scope"),
        )
    ],
    "missing": [Fields(dict.fromkeys(("sensor", "reason", "detail", "remedy"), str), ("sensor", "reason"))],
}
MODEL: dict[Any, Shape] = {
    "modules": [
        Fields(
            {
                **dict.fromkeys(("module", "type", "parent", "region"), str),
                **dict.fromkeys(("parameters", "bytes", "flops_forward", "flops_backward"), _COUNT),
                "trainable": bool,
                "update_share": float,
            },
            ("module",),
        )
    ]
}
SOURCES: dict[Any, Shape] = {"step": int, "sources": [str], "rows": [None]}
ACCESSES: dict[Any, Shape] = {
    "step": _COUNT,
    "rows": [IntegerRange(0, 1 << 31)],
    "storages": [_COUNT],
    "written": [IntegerRange(0, 1)],
}
EVENT: dict[Any, Shape] = {
    **dict.fromkeys(("t_ns", "t0_ns", "t1_ns"), int),
    **dict.fromkeys(("source", "kind", "message", "sensor"), str),
}
SHAPES = {
    "run.json": RUN,
    "device.json": DEVICE,
    "channels.json": CHANNELS,
    "model.json": MODEL,
    "sources.json": SOURCES,
    "accesses.json": ACCESSES,
}


def read_regular(path: Path, most: int | None = None) -> bytes:
    """Return the content of a plain file; OSError where it is none (a pipe would never end), or larger than `most`.

    A link is none either: a folder from elsewhere could name any file of its reader's with it.
    """
    if path.parent.name in (*FOLDERS, PARTS) and path.parent.is_symlink():
        raise OSError(f"'{path.parent}' is a link")
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    with os.fdopen(number, "rb") as file:
        state = os.fstat(number)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"'{path}' is not a regular file")
        if most is not None and state.st_size > most:
            raise OSError(f"'{path}' holds {state.st_size:,} bytes")
        return file.read()


def parse(data: bytes, shape: Shape) -> tuple[Any, list[str]]:
    """Return JSON as its shape allows it, and where something was dropped or its seal says that it was changed.

    ValueError where it is no JSON.
    """
    data, changed = check_and_strip_checksum(data)
    try:
        content = json.loads(data.decode("utf-8", errors="replace"))
    except RecursionError:
        raise ValueError("objects within objects without end") from None
    dropped = [changed] if changed else []
    accepted = _keep_valid(content, shape, "", dropped, 0)
    return (None if accepted is _DROPPED else accepted), dropped


def clean_text(text: str) -> str:
    """Return a text with what charts, terminals and pages cannot bear spelt out: control characters, surrogates."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text[:MOST_TEXT])


def _keep_valid(value: Any, shape: Shape, where: str, dropped: list[str], depth: int) -> Any:
    """The value as the shape allows it, or _DROPPED, with `where` in `dropped`."""
    accepted = _DROPPED if depth > DEEPEST else _match_shape(value, shape, where, dropped, depth)
    if accepted is _DROPPED:
        dropped.append(where)
    return accepted


def _match_shape(value: Any, shape: Shape, where: str, dropped: list[str], depth: int) -> Any:
    if value is None:
        return None
    if shape is None:
        return _keep_plain(value, where, dropped, depth)
    if isinstance(shape, Fields):
        accepted = _match_shape(value, shape.shape, where, dropped, depth)
        whole = accepted is not _DROPPED and all(accepted.get(key) is not None for key in shape.needs)
        return accepted if whole else _DROPPED
    if isinstance(shape, dict):
        return dict(_fields(value, shape, where, dropped, depth)) if isinstance(value, dict) else _DROPPED
    if isinstance(shape, list):
        return list(_items(value, shape[0], where, dropped, depth)) if isinstance(value, list) else _DROPPED
    if shape is float and isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) <= _LARGEST_WHOLE else _DROPPED
    if isinstance(shape, IntegerRange):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return value if whole and shape.least <= value <= shape.most else _DROPPED
    if shape is FileName:
        return value if _is_name(value, _FILE_NAME) else _DROPPED
    if shape is RunName:
        return value if _is_name(value, _RUN_NAME) else _DROPPED
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return _DROPPED
    return _keep_plain(value, where, dropped, depth)


def _is_name(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and value.isprintable() and form.fullmatch(value) is not None


def _fields(
    value: dict[str, Any], shape: Mapping[Any, Shape], where: str, dropped: list[str], depth: int
) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        name = clean_text(key)
        at = f"{where}.{name}".lstrip(".")
        accepted = _keep_valid(item, shape.get(key, shape.get(...)), at, dropped, depth + 1)
        if accepted is not _DROPPED:
            yield name, accepted


def _items(value: list[Any], shape: Shape, where: str, dropped: list[str], depth: int) -> Iterator[Any]:
    for number, item in enumerate(value):
        accepted = _keep_valid(item, shape, f"{where}[{number}]", dropped, depth + 1)
        if accepted is not _DROPPED and (accepted is not None or shape is None):
            yield accepted


def _keep_plain(value: Any, where: str, dropped: list[str], depth: int) -> Any:
    """A value that nothing is declared of: any JSON within the ranges."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return dict(_fields(value, {}, where, dropped, depth))
    if isinstance(value, list):
        return list(_items(value, None, where, dropped, depth))
    if isinstance(value, float):
        return value if math.isfinite(value) and abs(value) <= _LARGEST_REAL else _DROPPED
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST_WHOLE else _DROPPED
    return value


def rows_of_sources(content: Mapping[str, Any]) -> Iterator[tuple[Any, str | None, str, list[int]]]:
    """Rows of sources.json that are whole: phase, module, name, and the places of their lines in `sources`."""
    most = len(content.get("sources") or ())
    for row in content.get("rows") or ():
        match row:
            case [str() as phase, str() | None as module, str() as name, [int(), *_] as lines] if all(
                isinstance(line, int) and -1 <= line < most for line in lines
            ):
                yield phase, module, name, lines


_MOST_PLACES = 5  # of one file that a report names


def describe_dropped(name: str, dropped: list[str]) -> list[str]:
    """The file with the places in it where something was dropped, the first few of them."""
    more = [f"{name}: {len(dropped) - _MOST_PLACES:,} more"] if len(dropped) > _MOST_PLACES else []
    return [f"{name}: {where}" for where in dropped[:_MOST_PLACES]] + more


def _suggest_run(path: Path) -> str:
    """Return the run that was meant: 'last', or one of a like name in the same folder or in runs/."""
    folders = {folder for parent in (path.parent, path.parent / "runs") for folder in run_folders(parent)}
    names = ["last", *sorted((folder.name for folder in folders), reverse=True)]
    same = [name for name in names if f"-{path.name}-" in name][:1]  # the newest run of a workload or script
    near = same or difflib.get_close_matches(path.name, names, n=1) or [name for name in names if path.name in name][:1]
    return f"did you mean {near[0]}?" if near else "list the folder that you gave to --out (default: runs/)"


def _hint_in_folder(path: Path) -> str:
    """Return the newest run in a folder of runs, or what a run's folder is called."""
    folders = run_folders(path)
    place = f"the newest here is {newest_runs(folders, 1)[0]}" if folders else "runs/<stamp>-<name>-<id>"
    return f"give the folder of one run, {place}"


def read_header(path: Path, damaged: list[str]) -> dict[str, Any]:
    if path.is_file():
        raise RunNotFound(f"'{path}' is a file, not a run folder", "stepscope import makes a run of a profiler's file")
    if not path.is_dir():
        raise RunNotFound(f"no run folder at '{path}'", _suggest_run(path))
    try:
        content = read_regular(path / "run.json", MOST_BYTES)
        header, dropped = parse(content, RUN)
    except FileNotFoundError:
        raise RunNotFound(f"'{path}' holds no run.json", _hint_in_folder(path)) from None
    except (OSError, ValueError) as error:
        hint = "bring it back from a copy of the run folder; the Parquet files beside it can be read by themselves"
        raise RunDamaged(f"'{path / 'run.json'}' cannot be read: {error}", hint) from error
    if not isinstance(header, dict):
        raise RunDamaged(f"'{path / 'run.json'}' does not hold an object")
    damaged += sorted(describe_dropped("run.json", dropped))
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
    # An earlier version wrote what was typed and said, and another tool may write anything.
    return cleaned_fields({name: old if name == "id" else redacted_texts(old) for name, old in header.items()})
