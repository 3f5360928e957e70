"""Sweeps for tests: of workloads that are names only, run by `child.py`, begun and killed in a process of their own."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.patience import HANG_S

from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.engine.sweep_points import Grid, WorkloadEntry
from stepscope.experiments.suite.rules import RunRules
from stepscope.experiments.suite.sweep import run_missing_points

CHILD = (sys.executable, "-S", "-E", str(Path(__file__).with_name("child.py")))


def entry(name: str = "ok", **definition: Any) -> WorkloadEntry:
    """A workload of which a sweep knows the name and what is given."""
    return WorkloadEntry(name, ("smoke",), 2, "sgd", ("sgd", "adam"), {"parameters": 7, **definition}, {}, "line 1\n")


def small_sweep(path: Path, *names: str, time_limit_s: float = HANG_S, **axes: Any) -> SweepFolder:
    """A sweep that has not begun: these workloads, batch 2, one repeat, by default."""
    entries = [entry(name) for name in names or ("ok",)]
    grid = Grid(**{"repeats": 1, **axes})
    plan = {
        "name": path.name, "created": "now", "tier": None, "device": {"cpu": "none"}, "versions": {}, "argv": [],
        "rules": asdict(RunRules(steps=6, time_limit_s=time_limit_s)), "limits": {"memory": None},
        "order": [point.to_dict() for point in grid.points(entries, seed=0)],
    }  # fmt: skip
    return SweepFolder.create(path, plan, entries)


def started(folder: SweepFolder) -> list[str]:
    """The ids of the runs that a child was started for, in order, with repetitions."""
    path = folder.path / "runs" / "started.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def statuses(folder: SweepFolder) -> dict[str, str]:
    """How each run ended."""
    return {name: str(result["status"]) for name, result in folder.results().items()}


if __name__ == "__main__":
    run_missing_points(SweepFolder(Path(sys.argv[1])), CHILD)
