"""perf_event_open's software task clock of another process: CPU time in ns that is fresh at each read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from stepscope.record.access.perf_event import open_event

_PERF_TYPE_SOFTWARE, _TASK_CLOCK = 1, 1
_INHERIT, _EXCLUDE_KERNEL, _INHERIT_THREAD = 1 << 1, 1 << 5, 1 << 35


def open_task_clocks(pid: int) -> list[int]:
    """One descriptor a living thread, each counting the threads started from it later; empty where not allowed.

    An event opened on a process counts one thread only, so every thread gets its own. Counting child processes
    apart from threads needs Linux 5.13 (inherit_thread); on an older kernel the answer is "not allowed" too.
    """
    descriptors: list[int] = []
    for thread in _threads(pid):
        descriptor = _open(thread)
        if descriptor is None and Path(f"/proc/{pid}/task/{thread}").exists():
            for opened in descriptors:
                os.close(opened)
            return []
        if descriptor is not None:
            descriptors.append(descriptor)
    return descriptors


def total_ns(descriptors: Sequence[int]) -> int:
    """CPU time since opening, ns, over all descriptors."""
    return sum([int.from_bytes(os.read(descriptor, 8), "little") for descriptor in descriptors])


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208 - names alone
    except OSError:
        return []


def _open(thread: int) -> int | None:
    for more in (0, _EXCLUDE_KERNEL):  # perf_event_paranoid 2 wants the second; a task clock counts the same
        with contextlib.suppress(OSError):
            return open_event(_PERF_TYPE_SOFTWARE, _TASK_CLOCK, thread, flags=_INHERIT | _INHERIT_THREAD | more)
    return None
