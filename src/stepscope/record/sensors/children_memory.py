"""Proportional memory of child processes that have no streams of their own (data loader workers): smaps_rollup of each.

Kept apart from `children`, since the kernel walks page tables for it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from stepscope.record.sensors.children import descendants
from stepscope.record.sensors.contract import NAN, Channel, Found, Missing, Target, content, missing_because
from stepscope.record.sensors.number_files import PSS

NAME = "children_memory"
EVERY_NS = 1_000_000_000
MOST = 64  # processes that are read; with more, the sum is not known


def discover(root: Path, target: Target) -> Found | Missing:
    """One gauge, B: `pss` over all descendants but the training processes; 0 where there are none."""
    proc = root / "proc"
    tasks = proc / f"{target.pid}/task"
    try:
        content(next(tasks.iterdir()) / "children")
        if PSS.search(content(proc / f"{target.pid}/smaps_rollup")) is None:
            return Missing("unsupported", f"{proc}/{target.pid}/smaps_rollup states no pss")
    except StopIteration:
        return Missing("absent", f"{tasks} is empty")
    except OSError as error:
        remedy = "a kernel with CONFIG_PROC_CHILDREN=y" if tasks.is_dir() else None
        return missing_because(error, error.filename or tasks, remedy)

    def read() -> list[float]:
        others = descendants(proc, target.pid) - target.training
        return [NAN if len(others) > MOST else sum(_proportional(proc, pid) for pid in others)]

    source = f"{proc}/PID/smaps_rollup of the processes in {tasks}/*/children"
    channel = Channel(
        id="children.pss",
        sensor=NAME,
        quantity="pss",
        unit="B",
        kind="gauge",
        scope="children",
        source=source,
        parent_scope="system",
        step_size=1024.0,
    )
    return Found((channel,), read, lambda: None, every_ns=EVERY_NS, blocking=True)


def _proportional(proc: Path, pid: int) -> float:
    """Proportional memory of a process, B; 0 where it has ended."""
    with contextlib.suppress(OSError):
        match = PSS.search(content(proc / f"{pid}/smaps_rollup"))
        return int(match[1]) * 1024.0 if match else 0.0
    return 0.0
