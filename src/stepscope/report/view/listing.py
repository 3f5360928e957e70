"""The runs below a folder as rows of a list: from run.json, summary.json, and where that is not yet written the steps.

A path that a visitor asks for is only ever looked up among these rows, so that none leads out of the folder. Links that
lead out of it are not followed. A folder of very many runs is shown at once and read bit by bit: until then a row has
what the name of its folder says.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.run import Run
from stepscope.analysis.run_lists import (
    facts_of_files,
    file_states,
    read_cached_rows,
    whole_number,
    write_cached_rows,
)
from stepscope.analysis.time.steps import quick_stats
from stepscope.analysis.time.tracks import QUANTITIES, Line, lines_over_time
from stepscope.arrays import Floats
from stepscope.errors import StepscopeError, UsageError
from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.files import read_json
from stepscope.privacy import redacted_text
from stepscope.quantities import simulated_badge
from stepscope.report.live.growing_files import planned_steps, status_from_header
from stepscope.report.multi_run_figures import distinct_run_labels

_DEEPEST = 4  # a sweep keeps its runs two folders further down
_MOST_RUNS = 20_000
_WORTH_KEEPING = 100  # new rows: fewer are read again in less time than all are written
_LARGEST = 32_000_000  # bytes of a JSON file that is read for the list
UNREAD = "not read yet"  # in place of a status
AT_ONCE = 500  # runs that the first answer reads, in about a third of a second
MORE = 2_000  # that each later one does
_WARMUP = 3  # steps, of a run that does not say
_CACHE: tuple[str, list[Any]] = ("lists", [3])  # of rows: [state of the files, facts] by the path below the folder
_HEADERS = ("run.json", "summary.json")
_FACTS = {"reason": None, "planned": None, **facts_of_files({}, {})}


@dataclass(frozen=True)
class ListedRun:
    """One run: its path below the folder, where it lies, and what the list says of it (null is not known)."""

    key: str
    path: Path
    facts: dict[str, Any]


_Seen = tuple[list[int], ListedRun]  # the state of its files when it was read


class Listing:
    """The runs of a folder; a look reads only what has changed since the last, in this process or before it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._seen: dict[str, _Seen] = {}
        self._kept = {
            key: (state, ListedRun(key, self.root / key, facts))
            for key, (state, facts) in read_cached_rows(_CACHE[0], self.root, _CACHE[1]).items()
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
                    and earlier[0] == file_states(folder, *_HEADERS)
                ):
                    unchanged[key] = earlier
                else:
                    waiting.append((key, folder))
            waiting.sort(key=lambda run: run[1].name, reverse=True)  # names begin with the time
            later = {
                key: earlier_rows.get(key) or ([], ListedRun(key, run, _facts_from_folder_name(run)))
                for key, run in waiting[most:]
            }
            self._seen = {**unchanged, **later}
            new = self._read_rows(waiting[:most], earlier_rows)
            if len(new) >= _WORTH_KEEPING:
                rows = {key: [state, run.facts] for key, (state, run) in self._seen.items()
                        if run.facts["status"] != UNREAD}  # fmt: skip
                write_cached_rows(_CACHE[0], self.root, _CACHE[1], rows)
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
            state = file_states(folder, *_HEADERS)
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


def links_to_folders_outside(root: Path) -> int:
    """Return how many links right in the root lead to folders outside of it: none is followed."""
    try:
        return sum(
            path.is_symlink() and path.is_dir() and not path.resolve().is_relative_to(root) for path in root.iterdir()
        )
    except OSError:
        return 0


def _fill_in_quick_stats(rows: list[ListedRun], root: Path) -> None:
    """Fill in what only a report would tell of runs that have none yet, as far as their steps say it."""
    without = {row.path: row for row in rows if row.facts["step_time_ns"] is None and _has_local_steps(row.path, root)}
    warmups = {folder: listed.facts["warmup"] for folder, listed in without.items()}
    quick_by_folder = result_or_failed_part(lambda: quick_stats(warmups))
    if isinstance(quick_by_folder, FailedPart):
        return  # these rows have no step time; the list goes on
    for folder, quick in quick_by_folder.items():
        facts = without[folder].facts
        facts.update(steps=quick.steps, step_time_ns=quick.step_ns, throughput_per_s=quick.samples_per_s)
        facts["batch_size"] = facts["batch_size"] or quick.batch


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
    facts = facts_of_files(header, _read_object_within(folder / "summary.json", root))
    return {
        **facts,
        "id": str(header.get("id", folder.name)),
        "status": status_from_header(header, folder),
        "reason": None if header.get("reason") is None else redacted_text(str(header["reason"])),
        "workload": facts["workload"] or folder.name,
        "warmup": _WARMUP if (stated := whole_number(header.get("warmup_steps"))) is None else stated,
        "planned": planned_steps(header),
    }


def _facts_from_folder_name(folder: Path) -> dict[str, Any]:
    stamp, _, name_and_number = folder.name.partition("-")
    started_s = _stamped_s(stamp)
    workload = name_and_number.rpartition("-")[0] if started_s is not None else ""
    facts = {"id": folder.name, "status": UNREAD, "workload": workload or folder.name, "warmup": _WARMUP}
    return {**_FACTS, **facts, "started_s": started_s}


def _stamped_s(name: str) -> float | None:
    """Return the time that the name of a run folder begins with, seconds of Unix; None where it has none."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
    return None


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
