"""Find the folder of a run: by its path, by its name below `runs`, or "last" for the newest."""

from __future__ import annotations

import re
import time
from itertools import groupby
from pathlib import Path

from stepscope.errors import RunNotFound
from stepscope.files import read_json_object
from stepscope.part_names import has_steps

RUNS = Path("runs")
NEWEST = "last"
_LATEST_NS = 1 << 62  # the year 2116: later is no time
_STAMP = re.compile(r"\d{8}T\d{6}Z")


def run_folders(parent: Path) -> list[Path]:
    """Return the folders of runs in a folder, in no order; hidden ones are runs on their way to or from a store."""
    return [header.parent for header in parent.glob("*/run.json") if not header.parent.name.startswith(".")]


def last_runs(count: int, runs: str | Path = RUNS) -> list[Path]:
    """The newest runs below a folder that have steps, the oldest of them first. RunNotFound where there are fewer."""
    folders = [folder for folder in run_folders(Path(runs)) if has_steps(folder)]
    if len(folders) < count:
        count_text = f"{len(folders)} run{'' if len(folders) == 1 else 's'} with steps"
        raise RunNotFound(f"there are {count_text} below '{runs}', not {count}", "name the runs, or record one more")
    return newest_runs(folders, count)


def newest_runs(folders: list[Path], count: int) -> list[Path]:
    """Return the last of these runs, the oldest of them first: a name begins with its UTC stamp.

    Those of one second, and those that were renamed, are read: they are in the order of their clocks.
    """
    newest: list[Path] = []
    for _, same in groupby(sorted(folders, key=_stamp, reverse=True), key=_stamp):
        tied = list(same)
        newest += sorted(tied, key=_began_ns, reverse=True) if len(tied) > 1 else tied
        if len(newest) >= count:
            break
    return newest[:count][::-1]


def _stamp(run: Path) -> str:
    """Return when a run began, UTC, as its name has it; of one that was renamed, as its clock does."""
    stamp = _STAMP.match(run.name)
    return stamp[0] if stamp else time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(_began_ns(run) // 1_000_000_000))


def _began_ns(run: Path) -> int:
    clock = read_json_object(run / "run.json").get("clock")
    unix_ns = clock.get("unix_ns") if isinstance(clock, dict) else None
    return min(max(unix_ns, 0), _LATEST_NS) if isinstance(unix_ns, int) else 0


def find_run(run: str | Path, runs: str | Path = RUNS) -> Path:
    """The folder that is meant: a path, a name below `runs`, or the newest run below it for "last" and "last/ranks/1".

    A path that is there goes first. Raises RunNotFound where "last" is asked for and there is no run.
    """
    path, below = Path(run), Path(runs)
    if path.parts[:1] == (NEWEST,) and not path.exists():
        folders = run_folders(below)
        if not folders:
            raise RunNotFound(f"there is no run below '{below}'", "record one: stepscope run lenet")
        return newest_runs(folders, 1)[0].joinpath(*path.parts[1:])
    return below / path if not path.exists() and (below / path).is_dir() else path
