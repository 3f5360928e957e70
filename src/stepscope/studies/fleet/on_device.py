"""What a worker does on its device: one run at a time, kept until it has been gathered, and pieces of its files.

A run that has ended is found again by whoever asks for it next: a scheduler that is restarted, a gatherer that is
resumed or a connection that breaks costs no second run. Whatever is called here is called as a Dask task.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.studies.fleet.manifest import Listed, listed
from stepscope.studies.fleet.versions import versions
from stepscope.studies.suite.rules import Rules, cool_down
from stepscope.studies.suite.run_one import disk_was_full, run_one
from stepscope.studies.suite.state import write_durably

FOLDER = "STEPSCOPE_FLEET_FOLDER"  # where this device keeps runs that have not been gathered
_ENDED = "ended.json"


def about() -> dict[str, Any]:
    """The device, the versions on it, and its clock: `unix_ns` is read last."""
    from stepscope.record.device import describe_device

    device = describe_device()
    return {"device": device, "versions": versions(), "pid": os.getpid(), "unix_ns": time.time_ns()}


def clock_ns() -> int:
    """This device's wall clock, ns since 1970."""
    return time.time_ns()


def make_run(
    sweep: str, name: str, child: Sequence[str], spec: Mapping[str, Any], source: str | None
) -> dict[str, Any]:
    """Make a run, unless it was made before, and say how it ended and which files it has left.

    child: what follows the Python of this device in the command; source: the text of a workload of the user's own.
    """
    with _alone():
        folder = _kept(sweep, name)
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((folder / _ENDED).read_text(encoding="utf-8")))
        ended = _made(folder, child, _with_source(folder.parent, spec, source))
        write_durably(folder / _ENDED, ended)
        return ended


def pieces(sweep: str, name: str, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Parts of the files of a run: (name, offset, size in bytes) each."""
    found = []
    for file_name, offset, size in wanted:
        with (_kept(sweep, name) / "run" / file_name).open("rb") as file:
            file.seek(offset)
            found.append(file.read(size))
    return found


def forget(sweep: str, name: str) -> None:
    """Remove a run that has been gathered."""
    shutil.rmtree(_kept(sweep, name), ignore_errors=True)


def _made(folder: Path, child: Sequence[str], spec: Mapping[str, Any]) -> dict[str, Any]:
    rules, where = Rules(**spec["rules"]), folder / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cooled, asleep_ns = cool_down(rules), _asleep_ns()
    outcome = run_one([sys.executable, *child], spec, where, rules.time_limit_s)
    files: list[Listed] = listed(where)
    return {
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "run": None if outcome.run is None else outcome.run.relative_to(where).as_posix(),
        "cooled": cooled,
        "slept_s": (_asleep_ns() - asleep_ns) / 1e9,
        "disk_full": disk_was_full(where),
        "files": [asdict(file) for file in files],
    }


def _asleep_ns() -> int:
    """How long this machine has been suspended since it started, ns: CLOCK_MONOTONIC stands still meanwhile."""
    if not hasattr(time, "CLOCK_BOOTTIME"):  # not Linux
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _with_source(folder: Path, spec: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    """The orders with a workload of the user's own in a file of this device."""
    if source is None:
        return dict(spec)
    text = source.encode("utf-8")
    path = folder / "sources" / f"workload_{hashlib.sha256(text).hexdigest()[:16]}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return {**spec, "workload": f"{path}:{str(spec['workload']).rpartition(':')[2]}"}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Nothing else is measured on this device meanwhile, also by a task of a connection that broke."""
    path = _folder() / "run.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _kept(sweep: str, name: str) -> Path:
    return _folder() / "runs" / sweep / name


def _folder() -> Path:
    return Path(os.environ[FOLDER])
