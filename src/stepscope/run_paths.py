"""Find the folder of a run: by its path, by its name below `runs`, or "last" for the newest."""

from __future__ import annotations

from pathlib import Path

from stepscope.errors import RunNotFound
from stepscope.part_names import has_steps

RUNS = Path("runs")
NEWEST = "last"


def last_runs(count: int, runs: str | Path = RUNS) -> list[Path]:
    """The newest runs below a folder that have steps, the oldest of them first. RunNotFound where there are fewer."""
    folders = sorted(header.parent for header in Path(runs).glob("*/run.json") if has_steps(header.parent))
    if len(folders) < count:
        found = f"{len(folders)} run{'' if len(folders) == 1 else 's'} with steps"
        raise RunNotFound(f"there are {found} below '{runs}', not {count}", "name the runs, or record one more")
    return folders[-count:]


def find_run(run: str | Path, runs: str | Path = RUNS) -> Path:
    """The folder that is meant: a path, a name below `runs`, or the newest run below it for "last" and "last/ranks/1".

    A path that is there goes first. Raises RunNotFound where "last" is asked for and there is no run.
    """
    meant, below = Path(run), Path(runs)
    if meant.parts[:1] == (NEWEST,) and not meant.exists():
        folders = sorted(header.parent for header in below.glob("*/run.json"))
        if not folders:
            raise RunNotFound(f"there is no run below '{below}'", "record one: stepscope run lenet")
        return folders[-1].joinpath(*meant.parts[1:])  # a name begins with its UTC stamp
    return below / meant if not meant.exists() and (below / meant).is_dir() else meant
