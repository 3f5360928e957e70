"""The runs below a folder as rows of a list: from run.json, summary.json, and where that is not yet written the steps.

A path that a visitor asks for is only ever looked up among these rows, so that none leads out of the folder. Links that
lead out of it are not followed. A folder of very many runs is shown at once and read bit by bit: until then a row has
what the name of its folder says.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from stepscope import __version__
from stepscope.analysis.run import Run
from stepscope.analysis.time.steps import quick_stats
from stepscope.analysis.time.tracks import QUANTITIES, Line, lines_over_time
from stepscope.arrays import Floats
from stepscope.errors import StepscopeError, UsageError
from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.files import atomic_write, read_json, user_cache
from stepscope.privacy import redacted_text
from stepscope.quantities import simulated_badge
from stepscope.report.live.growing_files import planned_steps, status_from_header
from stepscope.report.multi_run_figures import distinct_run_labels

_DEEPEST = 4  # a sweep keeps its runs two folders further down
_MOST_RUNS = 20_000
_WORTH_KEEPING = 100  # new rows: fewer are read again in less time than all are written
_LARGEST = 32_000_000  # bytes of a JSON file that is read for the list
_METRICS = {
    "step_time": "step_ns",
    "throughput": "samples_per_s",
    "energy_per_step": "step_j",
    "simulated_energy_per_step": "simulated_step_j",
    "estimated_energy_per_step": "estimated_step_j",
    "peak_memory": "peak_bytes",
}
UNREAD = "not read yet"  # in place of a status
AT_ONCE = 500  # runs that the first answer reads, in about a third of a second
MORE = 2_000  # that each later one does
_WARMUP = 3  # steps, of a run that does not say
_MOST_STEPS = 1 << 53
_WHOLE = ("run", "process", "processes", "total", "device")

# The rows of a list, from one process to the next: in the user's own cache, for what lies in the folder is not trusted.
# A row counts while run.json and summary.json are as they were; a file that cannot be read or written costs time alone.
Rows = dict[str, tuple[tuple[int, ...], dict[str, Any]]]  # by the path below the folder: state of its files, facts
_FORMAT = 2
_LARGEST_CACHE = 256_000_000  # bytes


@dataclass(frozen=True)
class ListedRun:
    """One run: its path below the folder, where it lies, and what the list says of it (null is not known)."""

    key: str
    path: Path
    facts: dict[str, Any]


_Seen = tuple[tuple[int, ...], ListedRun]  # the state of its files when it was read


class Listing:
    """The runs of a folder; a look reads only what has changed since the last, in this process or before it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._seen: dict[str, _Seen] = {}
        self._kept = {
            key: (state, ListedRun(key, self.root / key, facts))
            for key, (state, facts) in read_cached_rows(self.root).items()
        }
        self._lock = threading.Lock()

    def list_runs(self, most: int = _MOST_RUNS) -> list[ListedRun]:
        """Every run that can be listed, the newest first; of those that are new, the newest `most` are read now."""
        with self._lock:
            earlier_rows, self._kept = {**self._kept, **self._seen}, {}
            unchanged: dict[str, _Seen] = {}
            waiting: list[tuple[str, Path]] = []
            for folder in itertools.islice(_run_folders(self.root), _MOST_RUNS):
                key = "" if folder == self.root else folder.relative_to(self.root).as_posix()  # a browser drops "."
                earlier = earlier_rows.get(key)
                if (
                    earlier is not None
                    and earlier[1].facts["status"] not in ("running", UNREAD)
                    and earlier[0] == _header_file_state(folder)
                ):
                    unchanged[key] = earlier
                else:
                    waiting.append((key, folder))
            waiting.sort(key=lambda run: run[1].name, reverse=True)  # names begin with the time
            later = {
                key: earlier_rows.get(key) or ((), ListedRun(key, run, _facts_from_folder_name(run)))
                for key, run in waiting[most:]
            }
            self._seen = {**unchanged, **later}
            new = self._read_rows(waiting[:most], earlier_rows)
            if len(new) >= _WORTH_KEEPING:
                rows = {key: (state, run.facts) for key, (state, run) in self._seen.items()}
                write_cached_rows(self.root, {key: row for key, row in rows.items() if row[1]["status"] != UNREAD})
            rows_now = [listed for _, listed in self._seen.values()]
        return sorted(rows_now, key=lambda row: (row.facts["started_s"] or 0.0, row.key), reverse=True)

    def find(self, key: str) -> ListedRun | None:
        """The run with this path below the folder; None where none is listed under it."""
        if key not in self._seen:
            self.list_runs(AT_ONCE)
        with self._lock:
            entry = self._seen.get(key)
            if entry is not None and entry[1].facts["status"] == UNREAD:
                self._read_rows([(key, entry[1].path)], {})
                entry = self._seen.get(key)
        return None if entry is None else entry[1]

    def _read_rows(self, runs: Sequence[tuple[str, Path]], earlier_rows: Mapping[str, _Seen]) -> list[ListedRun]:
        """Read these runs into what was seen; return those that are not as they were."""
        read: list[_Seen] = []
        for key, folder in runs:
            self._seen.pop(key, None)
            state = _header_file_state(folder)
            if (facts := _read_row(folder, self.root)) is not None:
                read.append((state, ListedRun(key, folder, facts)))
        new = [listed for state, listed in read if earlier_rows.get(listed.key) != (state, listed)]
        _fill_in_quick_stats(new, self.root)
        self._seen.update({listed.key: (state, listed) for state, listed in read})
        return new


def has_link_outside(folder: Path, root: Path) -> bool:
    """Return whether a link in a run folder leads out of the root: such a run is not drawn."""
    for place, names, files in os.walk(folder):
        for name in (*names, *files):
            path = Path(place, name)
            if path.is_symlink() and not path.resolve().is_relative_to(root):
                return True
    return False


def _fill_in_quick_stats(rows: list[ListedRun], root: Path) -> None:
    """Fill in what only a report would tell of runs that have none yet, as far as their steps say it."""
    without = {row.path: row for row in rows if row.facts["step_ns"] is None and _has_local_steps(row.path, root)}
    warmups = {folder: listed.facts["warmup"] for folder, listed in without.items()}
    quick_by_folder = result_or_failed_part(lambda: quick_stats(warmups))
    if isinstance(quick_by_folder, FailedPart):
        return  # these rows have no step time; the list goes on
    for folder, quick in quick_by_folder.items():
        facts = without[folder].facts
        facts.update(steps=quick.steps, step_ns=quick.step_ns, samples_per_s=quick.samples_per_s)


def _has_local_steps(folder: Path, root: Path) -> bool:
    """Return whether there is a file of steps, and none that a link leads out to."""
    files = [path for path in folder.glob("steps.*") if _is_file(path)]
    return bool(files) and all(file.resolve().is_relative_to(root) for file in files)


def _run_folders(root: Path) -> Iterator[Path]:
    """Folders with a run.json, not below each other; hidden ones and links out are passed over."""
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        if _is_file(folder / "run.json"):
            yield folder
        elif depth < _DEEPEST:
            waiting.extend((Path(entry), depth + 1) for entry in _subfolders(folder, root))


def _subfolders(folder: Path, root: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.is_dir() or not _has_address(entry.name):
                    continue
                # A link within the root would only list a run twice, or lead in circles.
                if not entry.is_symlink() and Path(entry.path).is_relative_to(root):
                    yield entry.path
    except OSError:
        return  # a folder that may not be read has nothing to list


def _has_address(name: str) -> bool:
    """Return whether a page can be asked for by this name: one that is not UTF-8, of another system, has no address."""
    try:
        return bool(name.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def _is_file(path: Path) -> bool:
    """A plain file: a pipe or device of that name would block whoever reads it."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _header_file_state(folder: Path) -> tuple[int, ...]:
    """Return what changes when run.json or summary.json does."""
    state: list[int] = []
    for name in ("run.json", "summary.json"):
        try:
            file_state = (folder / name).stat()
            state += [file_state.st_mtime_ns, file_state.st_size, file_state.st_ino]
        except OSError:
            state += [0, 0, 0]
    return tuple(state)


def _read_object_within(path: Path, root: Path) -> dict[str, Any]:
    """The object in a file within the root; empty where there is none."""
    try:
        if not _is_file(path) or path.stat().st_size > _LARGEST or not path.resolve().is_relative_to(root):
            return {}
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _read_row(folder: Path, root: Path) -> dict[str, Any] | None:
    """Return the row of a run in the list; None for what is no run of ours."""
    header = _read_object_within(folder / "run.json", root)
    if not isinstance(header.get("schema"), int):
        return None
    summary = _read_object_within(folder / "summary.json", root)
    workload = header.get("workload")
    about = workload if isinstance(workload, dict) else {"name": workload}
    board, verdict = summary.get("board"), summary.get("verdict")
    return {
        "id": str(header.get("id", folder.name)),
        "status": status_from_header(header, folder),
        "reason": None if header.get("reason") is None else redacted_text(str(header["reason"])),
        "workload": _text_or_none(about.get("name")) or folder.name,
        "batch": _finite_number(about.get("batch_size")),
        **{name: _text_or_none(about.get(name)) for name in ("optimizer", "precision", "device")},
        "board": _text_or_none(board.get("title")) if isinstance(board, dict) else None,
        "started_s": _start_time_s(header),
        "steps": _step_count(summary.get("steps")),
        "warmup": _WARMUP if (stated := _step_count(header.get("warmup_steps"))) is None else stated,
        "planned": planned_steps(header),
        "simulated": _text_or_none(header.get("simulated")),
        "verdict": _text_or_none(verdict.get("sentence")) if isinstance(verdict, dict) else None,
        **_summary_metrics(summary),
    }


def _facts_from_folder_name(folder: Path) -> dict[str, Any]:
    """Return the row of a run that was not read yet: what the name of its folder says."""
    stamp, _, name_and_number = folder.name.partition("-")
    started_s = _stamped_s(stamp)
    workload = name_and_number.rpartition("-")[0] if started_s is not None else ""
    unknown = ("reason", "batch", "optimizer", "precision", "device", "board", "steps", "planned", "simulated",
               "verdict")  # fmt: skip
    facts = {"id": folder.name, "status": UNREAD, "workload": workload or folder.name, "warmup": _WARMUP}
    return {**dict.fromkeys((*unknown, *_METRICS.values())), **facts, "started_s": started_s}


def _stamped_s(name: str) -> float | None:
    """Return the time that the name of a run folder begins with, seconds of Unix; None where it has none."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
    return None


def _summary_metrics(summary: dict[str, Any]) -> dict[str, float | None]:
    values: dict[str, float | None] = dict.fromkeys(_METRICS.values())
    rows = summary.get("metrics")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("metric") in _METRICS and row.get("scope") in _WHOLE:
            name = _METRICS[row["metric"]]
            values[name] = _finite_number(row.get("value")) if values[name] is None else values[name]
    return values


def _start_time_s(header: dict[str, Any]) -> float | None:
    clock = header.get("clock")
    unix_ns = _finite_number(clock.get("unix_ns")) if isinstance(clock, dict) else None
    return None if unix_ns is None else unix_ns / 1e9


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _step_count(value: object) -> int | None:
    """A number of steps that may be; a file of others may hold any."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS else None


def _finite_number(value: object) -> float | None:
    """A finite number; JSON files of others may hold NaN."""
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_finite and isinstance(value, int | float) else None


def read_cached_rows(root: Path) -> Rows:
    """Return the rows that an earlier process stored of this folder; empty where there are none."""
    try:
        path = _rows_path(root)
        if path.stat().st_size > _LARGEST_CACHE:
            return {}
        content = json.loads(path.read_bytes())
        if content["made_by"] != [_FORMAT, __version__] or content["root"] != str(root):
            return {}
        return {key: (tuple(state), facts) for key, (state, facts) in content["rows"].items()}
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError):
        return {}


def write_cached_rows(root: Path, rows: Rows) -> None:
    """Store the rows of this folder, readable by this user alone."""
    with contextlib.suppress(OSError, RuntimeError):
        path = _rows_path(root)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"made_by": [_FORMAT, __version__], "root": str(root), "rows": rows}
        with atomic_write(path) as part:
            part.touch(mode=0o600)
            part.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")


def _rows_path(root: Path) -> Path:
    """Return the cache file of a folder below XDG_CACHE_HOME; RuntimeError without a home."""
    return user_cache() / "lists" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.json"


MOST_RUNS = 10  # as many as there are colours that can be told apart
_NEWEST = 6
_DIGITS = 5


def newest_with_steps(listed: Sequence[ListedRun], root: Path) -> list[ListedRun]:
    """Return the newest runs with steps of a list, at most six, oldest first."""
    newest = sorted(listed, key=lambda row: row.facts.get("started_s") or 0.0, reverse=True)
    drawable = (row for row in newest if row.facts.get("steps") and not has_link_outside(row.path, root))
    return [*itertools.islice(drawable, _NEWEST)][::-1]


def over_time_data(chosen: Sequence[ListedRun]) -> dict[str, Any]:
    """Return runs and lines, ready for JSON; what cannot be read is named in `absent`.

    Raises UsageError for more runs than there are colours, and where no run has a step.
    """
    if len(chosen) > MOST_RUNS:
        raise UsageError(f"{len(chosen)} runs in one picture", f"tick at most {MOST_RUNS}")
    drawable: list[tuple[ListedRun, Run, list[Line]]] = []
    absent: list[str] = []
    for listed in chosen:
        try:
            run = Run(listed.path)
            lines = lines_over_time(run)
        except StepscopeError as error:
            absent.append(f"{listed.key} ({error})")
            continue
        if lines:
            drawable.append((listed, run, lines))
        else:
            absent.append(f"{listed.key} (no step)")
    if not drawable:
        raise UsageError("none of these runs has a step to draw", "tick runs whose list has a step time")
    named = zip(drawable, distinct_run_labels([run for _, run, _ in drawable]), strict=True)
    runs = [_over_time_entry(listed, run, lines, label) for (listed, run, lines), label in named]
    return {"quantities": [{"name": name, "unit": unit} for name, unit in QUANTITIES.items()], "runs": runs,
            "absent": absent}  # fmt: skip


def _over_time_entry(listed: ListedRun, run: Run, lines: Sequence[Line], label: str) -> dict[str, Any]:
    drawn = {
        line.quantity: {"kind": line.kind, "t": _rounded_values(line.t_s), "step": _rounded_values(line.step),
                        "values": _rounded_values(line.values)}
        for line in lines
    }  # fmt: skip
    return {"key": listed.key, "label": label, "badge": simulated_badge(run.simulated) or "", "lines": drawn}


def _rounded_values(values: Floats) -> list[float | None]:
    """Values with as many digits as a line shows; null is a gap."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]
